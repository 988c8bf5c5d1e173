#!/usr/bin/env python3
"""Models of every family whose sizes are drawn at random, distinct for every key: no two keys can be taken for another.

    family_sizes.py INGOT ROOT [-v] [NAME...]    ROOT: of the repository; NAME: of a config, as failures print it;
                                                 -v: refusals too

The configs are those of the small checkpoints and of releases, few layers of them. Each model goes through synth,
inspect, check, convert (whole and for --tp 2), check, verify, merge and generate; slices that are merged again hold the
same values as what was never cut, and ranks give the tokens of the whole. A refusal has to name a remedy or a reason.
Prints what fails with the sizes drawn, and at the end how many models and outputs there were."""
import copy
import glob
import json
import math
import os
import random
import subprocess
import sys
import tempfile

# The schemes for each seed.
SCHEMES = {1: ["bf16", "int8"], 2: ["bf16", "fp8"]}
CUT = ["--tp", "2", "--tp-fit", "retile"]
TOWERS = {"vision_config", "audio_config", "quantization_config"}
# Heads with a key that divides them, in the same part of the config or, where it has none, in another.
DIVIDED = [("num_attention_heads", "num_key_value_heads"), ("num_attention_heads_per_layer", "num_key_value_heads"),
           ("swa_num_attention_heads", "swa_num_key_value_heads"), ("num_attention_heads", "num_attention_groups"),
           ("n_heads", "kv_n_heads"), ("num_attention_heads", "num_global_key_value_heads"),
           ("linear_num_value_heads", "linear_num_key_heads"), ("mamba_num_heads", "n_groups"),
           ("mamba_n_heads", "mamba_n_groups"), ("num_attention_heads", "o_groups")]
EXPERTS = {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"}
CHOSEN = {"num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts", "moe_k",
          "experts_per_token"}
HEADS = {heads for heads, _ in DIVIDED} | {"index_n_heads", "indexer_n_heads", "num_heads"}
GROUPS = {groups for _, groups in DIVIDED} | {"sparse_num_index_heads"}
# Widths of a head: a quarter of it may be rotated, and rotation pairs values.
HEAD_DIMS = {"head_dim", "swa_head_dim", "global_head_dim", "v_head_dim", "swa_v_head_dim", "qk_nope_head_dim",
             "index_head_dim", "kv_channels", "linear_key_head_dim", "linear_value_head_dim",
             "indexer_head_dim", "mamba_head_dim", "mamba_d_head", "sparse_index_dim", "query_pre_attn_scalar"}
KERNELS = {"sconv_kernel_size", "conv_kernel", "conv_kernel_size", "linear_conv_kernel_dim", "short_conv_kernel_size",
           "conv_L_cache", "mamba_d_conv", "ple_conv_kernel_size"}
WIDTHS = {"intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim",
          "intermediate_size_mlp", "dense_intermediate_size", "expert_hidden_dim", "ffn_hidden_size",
          "expert_ffn_hidden_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size",
          "kv_lora_rank", "q_lora_rank", "o_lora_rank", "dspark_markov_rank", "ssm_state_size", "mamba_d_state",
          "mamba_dt_rank", "d_rel", "rel_extent", "routed_expert_hidden_size", "hc_lowrank"}
SHARED = {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"}
VALUES = {**dict.fromkeys(EXPERTS, range(9, 20)), **dict.fromkeys(CHOSEN, range(3, 6)),
          **dict.fromkeys(HEADS, range(2, 30, 2)), **dict.fromkeys(GROUPS, range(2, 8, 2)),
          **dict.fromkeys(HEAD_DIMS, range(32, 104, 8)), **dict.fromkeys(KERNELS, range(3, 8)),
          **dict.fromkeys(WIDTHS, range(20, 160, 4)), **dict.fromkeys(SHARED, range(2, 4)),
          **dict.fromkeys(["hidden_size", "d_model"], range(64, 320, 4)), "qk_rope_head_dim": range(8, 32, 8),
          "vocab_size": range(130, 250, 2), "hc_mult": range(2, 6), "zero_expert_num": range(2, 9),
          "hc_count": range(2, 6), "ngram_size": range(2, 5), "heads_per_ngram": range(2, 9),
          "split_ngram_parts": range(2, 9), "ngram_vocab_size_base": range(30, 99), "ple_embed_dim": range(3, 20),
          "indexer_compress_ratio": range(2, 4),
          "sliding_window": range(4, 30), "sliding_window_size": range(4, 30),
          "index_topk": range(2, 9), "sparse_block_size": range(2, 9)}
# Keys of a config that say the same again, by the key that is drawn.
AGAIN = {"num_shared_experts": "n_shared_experts", "attention_head_dim": "head_dim",
         "share_expert_dims": "share_expert_dim", "vocab_size_per_layer_input": "vocab_size",
         "attention_chunk_size": "sliding_window"}
# Texts of refusals that no option can avoid for this model.
NO_WAY = ["does not say which shape", "has no experts to share out"]


def parts(config):
    yield config
    for key, value in config.items():
        if isinstance(value, dict) and key not in TOWERS:
            yield from parts(value)


def is_size(key, value):
    if isinstance(value, list):
        return key in VALUES and bool(value) and all(isinstance(entry, int) for entry in value)
    return key in VALUES and isinstance(value, int) and not isinstance(value, bool) and value > 0


class Draw:
    """Sizes drawn for one config; none is drawn twice while another is left."""

    def __init__(self, seed):
        self.rng, self.taken = random.Random(seed), set()

    def one(self, values):
        value = self.rng.choice([value for value in values if value not in self.taken] or list(values))
        self.taken.add(value)
        return value

    def sizes_of(self, config):
        """Puts a drawn size in place of each in the config."""
        held = [(part, key) for part in parts(config) for key, value in part.items() if is_size(key, value)]

        def found(part, key):
            """Returns the size under the key in this part, else in another, or None."""
            nearest_first = sorted(held, key=lambda pair: pair[0] is not part)
            return next((other[name] for other, name in nearest_first if name == key), None)

        def divisors(part, key):
            return [groups for heads, groups in DIVIDED if heads == key and found(part, groups) is not None]

        for part, key in sorted(held, key=lambda pair: (pair[1] in ("hidden_size", "d_model"), bool(divisors(*pair)),
                                                        pair[1])):
            old, values = part[key], VALUES[key]
            if divisors(part, key):
                step = math.lcm(*(found(part, groups) for groups in divisors(part, key)))
                values = range(2 * step, 7 * step, step)
            if key in EXPERTS and part.get("n_group", 1) > 1:
                values = [value for value in values if value % part["n_group"] == 0]
            # Heads divide the hidden size, also where they have a size of their own.
            if key in ("hidden_size", "d_model"):
                heads = math.lcm(*(part[name] for name in ("num_attention_heads", "n_heads") if name in part))
                step = heads if "head_dim" in part else 8 * heads
                values = range(max(step, 64 // step * step), 480, step) if heads > 1 else values
            # A Hadamard transform is of powers of two.
            if key == "index_head_dim" and config["model_type"].startswith("deepseek"):
                values = [32, 64, 128]
            if isinstance(old, list):
                drawn = {entry: self.one(values) for entry in sorted(set(old))}
                part[key] = [drawn[entry] for entry in old]
            else:
                part[key] = self.one(values)


def shrunk(config):
    """A release's config with four layers."""
    if config.get("num_hidden_layers", 0) > 8:
        config.update(num_hidden_layers=4, first_k_dense_replace=min(2, config.get("first_k_dense_replace", 0)))
    if config.get("n_group", 1) > 1:
        config.update(n_group=3, topk_group=2)
    return config


def model_of(config, seed):
    """The config of a model with drawn sizes."""
    config.pop("quantization_config", None)
    Draw(seed).sizes_of(shrunk(config))
    for part in parts(config):
        for again, key in AGAIN.items():
            if again in part and key in part:
                part[again] = part[key]
        agree(part)
    return config


def agree(part):
    """Makes sizes agree that depend on each other in every model of their kind."""
    if "qk_head_dim" in part:
        part["qk_head_dim"] = part["qk_nope_head_dim"] + part["qk_rope_head_dim"]
    # Latent attention has as many key heads as heads.
    if "kv_lora_rank" in part or "o_groups" in part:
        for key in {"num_key_value_heads"} & part.keys():
            part[key] = part["num_attention_heads"] if "kv_lora_rank" in part else 1
    # Readers disagree over more than one shared expert; releases have one.
    if part.get("model_type") in ("deepseek_v4", "nemotron_h"):
        part["n_shared_experts"] = 1
    # The heads of the indexer of blocks are those of keys.
    if "sparse_attention_config" in part:
        part["sparse_attention_config"]["sparse_num_index_heads"] = part["num_key_value_heads"]
    if "mamba_d_ssm" in part:
        part["mamba_d_ssm"] = part["mamba_n_heads"] * part["mamba_d_head"]
    elif "mamba_d_head" in part:
        part["mamba_d_head"] = part["mamba_expand"] * part["hidden_size"] // part["mamba_n_heads"]
    rope = part.get("rope_parameters") or part.get("rope_scaling") or {}
    if "mrope_section" in rope:
        head = part.get("qk_rope_head_dim") or part.get("head_dim") or part["hidden_size"] // part["num_attention_heads"]
        pairs = int(head * rope.get("partial_rotary_factor", part.get("partial_rotary_factor", 1))) // 2
        rope["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    if "num_attention_groups" in part and "num_key_value_heads" in part:
        part["num_attention_groups"] = part["num_key_value_heads"]
    # Values are rotated in pairs: the released third of a head would be odd for some sizes.
    if part.get("model_type") in ("mimo_v2", "mimo_v2_flash", "phi"):
        part["partial_rotary_factor"] = 0.5
    if "rotary_dim" in part:
        part.update(rotary_dim=part["head_dim"] // 4, partial_rotary_factor=0.25)
    # These call the rotated part of a head its size.
    if part.get("model_type") in ("glm_moe_dsa", "longcat_flash") and "head_dim" in part:
        part["head_dim"] = part["qk_rope_head_dim"]
    if "ple_embed_dim" in part:
        part["ple_embed_dim"] *= (part["ngram_size"] - 1) * part["heads_per_ngram"]
        part.update(make_ngram_vocab_size_divisible_by=2 * part["split_ngram_parts"],
                    indexer_budget=part["indexer_compress_ratio"],
                    indexer_head_dim=max(part["indexer_head_dim"], part["head_dim"] // 2 + 2))
    if "index_kpool" in part:
        part["index_topk"] = 2 * part["index_kpool"]
    if "unpadded_vocab_size" in part:
        part["unpadded_vocab_size"] = part["vocab_size"] - 6
    if "sliding_window_size" in part and "sliding_window" in part:
        part["sliding_window"] = part["sliding_window_size"]
    # JetMoE's own names and the usual ones.
    if "kv_channels" in part:
        part.update(moe_num_experts=part["num_local_experts"], moe_top_k=part["num_experts_per_tok"],
                    ffn_hidden_size=part["intermediate_size"])
    # A sparse mixer takes two experts, and its long rope has a factor for each pair of values.
    if part.get("model_type") == "phimoe":
        part["num_experts_per_tok"] = 2
        pairs = part["hidden_size"] // part["num_attention_heads"] // 2
        for key in ("long_factor", "short_factor"):
            part["rope_scaling"][key] = [1.0 + 0.25 * pair for pair in range(pairs)]


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout, (done.stderr.strip() or done.stdout.strip()).replace("\n", " / ")[:500]


class Trial:
    """One model of drawn sizes in a directory, and what failed with it."""
    n_outputs, n_refused, failures = 0, 0, []

    def __init__(self, ingot, name, config, work):
        self.ingot, self.name, self.config, self.work = ingot, name, config, work

    def fails(self, claim, text):
        Trial.failures.append(f"{self.name}: {claim}: {text}")
        print(Trial.failures[-1], flush=True)

    def holds(self, claim, *words):
        status, out, text = run(self.ingot, *words)
        if status != 0:
            self.fails(claim, text)
        return out if status == 0 else None

    def succeeds(self, claim, *words):
        status, out, text = run(self.ingot, *words)
        if status == 2 and ("(" in text or any(reason in text for reason in NO_WAY)):
            Trial.n_refused += 1
            if VERBOSE:
                print(f"  {self.name}: {claim}: refused: {text}", flush=True)
        elif status != 0:
            self.fails(claim, text)
        return status == 0

    def tokens(self, claim, folder, *options):
        status, out, text = run(self.ingot, "generate", folder, "--profile", "f32", "--tokens", "1 2 3",
                                "--max-new-tokens", "3", "--temperature", "0", *options)
        if status == 2 and ("forward pass" in text or "(use " in text):
            Trial.n_refused += 1
            if VERBOSE:
                print(f"  {self.name}: {claim}: refused: {text}", flush=True)
            return None
        if status != 0:
            self.fails(claim, text)
            return None
        return out

    def path(self, name):
        return os.path.join(self.work, name)

    def go(self, schemes):
        model, config = self.path("model"), self.path("config.json")
        with open(config, "w") as file:
            json.dump(self.config, file)
        if not self.succeeds("synth", "synth", model, "--config", config):
            return
        self.holds("inspect", "inspect", model)
        if self.holds("check", "check", model) is None:
            return
        for scheme in schemes:
            options = ["--to", scheme, "--progress", "never"]
            whole, cut, joined = (self.path(f"{scheme}-{form}") for form in ["whole", "cut", "joined"])
            tokens = None
            has_whole = self.succeeds(scheme, "convert", model, whole, *options)
            if has_whole:
                Trial.n_outputs += 1
                self.holds(scheme + ": check", "check", whole)
                self.holds(scheme + ": verify", "verify", model, whole)
                tokens = self.tokens(scheme + ": generate", whole)
            if not self.succeeds(scheme + ", cut", "convert", model, cut, *options, *CUT):
                continue
            Trial.n_outputs += 1
            self.holds(scheme + ", cut: check", "check", cut)
            self.holds(scheme + ", cut: merge", "merge", cut, joined)
            if has_whole:
                self.holds(scheme + ", cut: merged", "verify", whole, joined, "--levels", "weights",
                           "--require", "weights.relative_error<=0")
            if tokens is not None:
                for ranks in ["joined", "threads"] if scheme == "bf16" else ["threads"]:
                    of_cut = self.tokens(f"{scheme}, cut: generate {ranks}", cut, "--ranks", ranks)
                    if of_cut not in (None, tokens):
                        self.fails(f"{scheme}, cut: generate {ranks}", f"{of_cut!r}, whole {tokens!r}")


VERBOSE = "-v" in sys.argv
ingot, root, *chosen = [word for word in sys.argv[1:] if word != "-v"]
golden = os.path.join(root, "tests", "golden", "families")


def loaded(path):
    with open(path) as file:
        return json.load(file)


# Most checkpoints in directories are other schemes of these models; models of other kinds are added.
configs = {os.path.basename(path).split(".")[0]: loaded(path)
           for path in glob.glob(os.path.join(root, "formats", "family", "configs", "*.json"))
           + glob.glob(os.path.join(golden, "headers", "*.config.json"))}
for path in sorted(glob.glob(os.path.join(golden, "*", "config.json"))
                   + glob.glob(os.path.join(golden, "..", "forward", "*", "checkpoint", "config.json"))):
    if loaded(path)["model_type"] not in {config["model_type"] for config in configs.values()}:
        configs[os.path.basename(os.path.dirname(path).removesuffix("/checkpoint"))] = loaded(path)
n_models = 0
for name, config in sorted(configs.items()):
    for seed, schemes in SCHEMES.items() if not chosen or name in chosen else []:
        with tempfile.TemporaryDirectory(prefix="ingot-sizes-") as work:
            Trial(ingot, f"{name} {seed}", model_of(copy.deepcopy(config), f"{name} {seed}"), work).go(schemes)
        n_models += 1
print(f"{n_models} models, {Trial.n_outputs} outputs, {Trial.n_refused} refusals with a remedy or a reason, "
      f"{len(Trial.failures)} failures")
sys.exit(1 if Trial.failures or n_models == 0 else 0)
