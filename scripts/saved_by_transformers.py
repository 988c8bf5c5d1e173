#!/usr/bin/env python3
"""saved_by_transformers.py INGOT [CONFIG...]: does a config that transformers saves mean what the released one means?

Each CONFIG (default: every config.json of tests/golden, examples and formats/family/configs whose model_type transformers
knows) is loaded by AutoConfig and saved by save_pretrained. Two configs are compared with it by ingot: `saved` is the file
as it is written, which keeps keys of the release that the class does not know; `own` has the words of the class only, as a
config has that was made by the class. Compared are names, dtypes and shapes of all tensors (`synth --like headers`), the
tokens of a small model of made-up weights under both, and the findings of `check`.

--absent: also leaves out each key of the text model that the class has a default for, of the first small config of each
model_type. The config without it must mean what the class saves for it, or ingot must refuse it. These rows are no fault:
contradictions of a key that the class fills in although another one decides (global_attn_every_n_layers,
sliding_window_pattern, first_k_dense_replace, qk_head_dim, swa_num_key_value_heads, layernorm_epsilon, rotary_dim, dbrx's
ropes); keys of releases that decide where the class does not read them (attention_head_dim and attention_other_setting for
head_dim, first_k_dense_replace and mlp_only_layers for mlp_layer_types, jetmoe's ffn_hidden_size and moe_num_experts);
and bailing_hybrid without layer_group_size: layers behind the last whole group have full attention in releases, and not
in the class.
--models: also makes a model of random weights of each small config, by the class that `own` names, saves it, and compares
logits and greedy tokens (`verify --reference`). If transformers cannot compute it, it is opened and planned as BF16.
--draws N: also N models of each small config in other sizes, drawn by --seed: widths, heads, experts, layers, windows,
epsilons, factors; hidden states behind each layer are compared, too, where the class gives them. What the class itself
refuses, or cannot compute, is no row; the last line counts the models that were compared.
--write DIR: writes NAME.saved.json and NAME.own.json.
--only TEXT: only configs whose name has TEXT.

A row per comparison that is not equal. Exit code 1 if there is one.
"""
import argparse
import collections
import concurrent.futures
import copy
import dataclasses
import inspect
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import record_reference

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Keys of every config that a class has no field for, and that say nothing of its words.
ALWAYS = {"architectures", "model_type", "dtype", "transformers_version", "quantization_config", "per_layer_config"}
# Layers for prediction, which transformers leaves out.
ALWAYS |= {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"}
# Keys that change no tensor and no token.
IDLE = re.compile("dropout|initializer|token_id|use_cache|output_|_coef|jitter|pretraining_tp|max_position_embeddings")
PROMPT = " ".join(str(3 + 7 * i % 80) for i in range(28))
SMALL = 1 << 22  # values of a model that is computed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot", type=pathlib.Path, metavar="INGOT")
    parser.add_argument("configs", type=pathlib.Path, nargs="*", metavar="CONFIG")
    parser.add_argument("--absent", action="store_true")
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--draws", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="TEXT")
    return parser.parse_args()


def sources(given):
    """Released configs by name."""
    golden = ROOT / "tests/golden"
    found = given or [*golden.glob("forward/*/checkpoint/config.json"), *golden.glob("families/*/config.json"),
                      *golden.glob("arch/*/config.json"), *ROOT.glob("examples/*/config.json"),
                      *(ROOT / "formats/family/configs").glob("*.json")]
    named = {}
    for path in sorted(found):
        name = path.stem if path.stem != "config" else path.parent.name
        name = path.parent.parent.name if name == "checkpoint" else name
        named[f"arch/{name}" if path.parent.parent.name == "arch" else name] = path
    return named


def load(document):
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(document))
        return AutoConfig.from_pretrained(folder)


def save(config):
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return json.loads((pathlib.Path(folder) / "config.json").read_text())


def fields_of(config):
    names = {field.name for field in dataclasses.fields(type(config))}
    return names | {type(config).attribute_map.get(name, name) for name in names}


def words_of(config):
    """Keys that the class writes when it is given its own fields only, and those that its model reads."""
    known = {key: value for key, value in config.__dict__.items() if key in fields_of(config)}
    try:
        made = set(type(config)(**copy.deepcopy(known)).__dict__)
    except Exception:
        made = set()
    folder = pathlib.Path(inspect.getfile(type(config))).parent
    text = "".join(path.read_text() for path in folder.glob("modeling_*.py"))
    read = {key for key in config.__dict__ if re.search(rf"config\.{key}\b|config, \"{key}\"", text)}
    return fields_of(config) | made | read | ALWAYS


def own_words(config, document):
    from transformers import PreTrainedConfig

    words = words_of(config)
    kept = {}
    for key, value in document.items():
        inner = config.__dict__.get(key)
        if isinstance(inner, PreTrainedConfig) and isinstance(value, dict):
            kept[key] = own_words(inner, value)
        elif key in words:
            kept[key] = value
    return kept


class Ingot:
    def __init__(self, program, work):
        self.program, self.work = str(program.resolve()), pathlib.Path(work)
        self.n = 0

    def run(self, *words):
        done = subprocess.run((self.program, *map(str, words)), capture_output=True, text=True, timeout=600)
        try:
            document = json.loads(done.stdout)
        except ValueError:
            document = {}
        error = (document.get("error") or {}).get("text", "") if isinstance(document, dict) else ""
        return done.returncode, document, error or done.stderr.strip()

    def folder(self):
        self.n += 1
        return self.work / f"{os.getpid()}-{self.n}"

    def made(self, config):
        """A folder with the headers that the config means, or why there is none."""
        given = self.folder().with_suffix(".json")
        given.write_text(json.dumps(config))
        out = self.folder()
        code, _, error = self.run("synth", out, "--config", given, "--like", "headers", "--json")
        given.unlink()
        return (out, "") if code == 0 else (None, error.replace(str(given), "config.json"))


def headers(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tensors |= {name: (row["dtype"], tuple(row["shape"])) for name, row in header.items() if name != "__metadata__"}
    # transformers has no layers for prediction, and writes less of them (DSpark of DeepSeek-V4).
    return {name: row for name, row in tensors.items() if not name.startswith("mtp.")}


def short(text, prefix=()):
    text = " ".join(str(text).split())
    for part in prefix:
        text = text.replace(str(part), "")
    return text if len(text) < 300 else text[:297] + "..."


def findings(document):
    return [row.get("message", str(row)) for row in document.get("errors", []) + document.get("warnings", [])]


def other_tokens(ingot, released, other, tensors):
    """Whether a small model of the same weights answers otherwise under the other config."""
    if sum(math.prod(shape) for _, shape in tensors.values()) > SMALL:
        return []
    weights, paths = ingot.folder(), [ingot.folder().with_suffix(".json") for _ in range(2)]
    answers = []
    try:
        for path, config in zip(paths, (released, other)):
            path.write_text(json.dumps(config))
        ingot.run("synth", weights, "--config", paths[0])
        for path in paths:
            code, document, error = ingot.run("generate", weights, "--config", path, "--tokens", PROMPT, "--profile", "f32", "--greedy",
                                              "--max-new-tokens", "24", "--threads", "1", "--json")
            answers.append(str((document.get("answers") or [document])[0].get("generated_ids")) if code == 0 else short(error))
        return [] if answers[0] == answers[1] else [f"tokens: {answers[1]}, released {answers[0]}"]
    finally:
        shutil.rmtree(weights, ignore_errors=True)
        for path in paths:
            path.unlink(missing_ok=True)


def is_small(ingot, config):
    folder, _ = ingot.made(config)
    if folder is None:
        return False
    n_values = sum(math.prod(shape) for _, shape in headers(folder).values())
    shutil.rmtree(folder)
    return n_values <= SMALL


def compared(ingot, released, other):
    """What differs between the models of two configs: a list of sentences."""
    first, first_error = ingot.made(released)
    second, second_error = ingot.made(other)
    try:
        if first is None or second is None:
            if first is None and second is None:
                return [] if first_error == second_error else [f"both refused: {short(first_error)} | {short(second_error)}"]
            return [f"released refused: {short(first_error)}" if first is None else f"refused: {short(second_error)}"]
        found = []
        ours, theirs = headers(first), headers(second)
        for name in sorted(set(ours) | set(theirs)):
            if ours.get(name) != theirs.get(name):
                n = sum(ours.get(k) != theirs.get(k) for k in set(ours) | set(theirs))
                found.append(f"{n} tensors differ, first {name}: {ours.get(name)} and {theirs.get(name)}")
                break
        if found:
            return found
        found += other_tokens(ingot, released, other, ours)
        checks = [ingot.run("check", side, "--no-hashes", "--json")[1] for side in (first, second)]
        for message in sorted(set(findings(checks[1])) - set(findings(checks[0]))) if all(checks) else []:
            found.append(f"check: {short(message, (second,))}")
        return found
    finally:
        for folder in (first, second):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def absent(document, config):
    """Configs that lack one key each which the class has a default for, and what the class makes of them."""
    key = next((k for k in ("text_config", "llm_config", "thinker_config") if isinstance(document.get(k), dict)), None)
    section = document if key is None else document[key]
    inner = config if key is None else config.__dict__.get(key, config)
    known = fields_of(inner) if hasattr(inner, "__dict__") else set()
    for name in sorted(section):
        if name not in known or name in ALWAYS or IDLE.search(name):
            continue
        without = copy.deepcopy(document)
        (without if key is None else without[key]).pop(name)
        try:
            yield name, without, save(load(without))
        except Exception:
            continue  # the class needs it


def unquantized(config):
    return {key: unquantized(value) if isinstance(value, dict) else value for key, value in config.items()
            if key != "quantization_config"}


def resized(document, draw):
    """The config in other sizes, as far as its keys tell."""
    document = copy.deepcopy(unquantized(document))
    text = next((document[k] for k in ("text_config", "llm_config", "thinker_config") if isinstance(document.get(k), dict)), document)
    n_layers = text.get("num_hidden_layers")
    more_layers, wider, heads = draw.choice((0, 1, 2)), draw.choice((1, 2)), draw.choice((1, 2))
    is_headed = isinstance(text.get("head_dim"), int) or "kv_lora_rank" in text
    for key, value in list(text.items()):
        if isinstance(value, list) and n_layers and len(value) == n_layers and "pattern" not in key:
            text[key] = [value[layer % n_layers] for layer in range(n_layers + more_layers)]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if key == "num_hidden_layers":
            text[key] = value + more_layers
        elif key == "hidden_size":
            text[key] = value * wider
        elif re.search("intermediate_size|ffn_dim", key):
            text[key] = value * draw.choice((1, 2, 3))
        elif re.search("^num_(attention|key_value)_heads$", key) and is_headed:
            text[key] = value * heads
        elif re.search("^(num_local|num|n_routed)_experts$", key) and value > 1:
            text[key] = value * draw.choice((1, 2))
        elif key == "vocab_size":
            text[key] = value + draw.choice((0, 5, 32))
        elif key == "sliding_window" and value > 0:
            text[key] = draw.randrange(3, 13)
        elif re.search("norm_eps$|layer_norm_epsilon$", key):
            text[key] = draw.choice((1e-6, 1e-5, 1e-3))
        elif key in ("routed_scaling_factor", "rope_theta"):
            text[key] = value * draw.choice((0.5, 1, 4))
    return document


def states_of(model, ids):
    """Hidden states behind each layer, where the class has them for each token; streams are one behind the other there."""
    try:
        found = record_reference.record(model, ids, 0)
    except Exception:
        return {}
    states = {name: state for name, state in found.items() if name.startswith("hidden.")}
    width = states["hidden.0"].shape[-1]
    if any(state.dim() != 2 for state in states.values()):
        return {}
    return {name: state if state.shape[1] == width else state.reshape(len(ids), -1, width) for name, state in states.items()}


def model_rows(ingot, config, own, counts=None):
    """Logits of a model of random weights, in torch and here. `counts`: hidden states too, and what was compared."""
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    torch.manual_seed(7)
    folder, recorded = ingot.folder(), ingot.folder().with_suffix(".safetensors")
    try:
        try:
            made = load(unquantized(own))
            classes = [c for c in own.get("architectures") or [] if hasattr(transformers, c)]
            cls = getattr(transformers, classes[0]) if classes else None
            auto = transformers.AutoModelForCausalLM
            if type(made) not in auto._model_mapping:
                auto = transformers.AutoModelForImageTextToText
            make = cls._from_config if cls else auto.from_config
            made._experts_implementation = made.get_text_config()._experts_implementation = "eager"  # of any width
            if made.model_type == "longcat_flash":
                made.head_dim = made.qk_rope_head_dim  # the class has a number of its own, and turns that many
            model = make(made, dtype=torch.float32, attn_implementation="eager")
            with torch.no_grad():
                for weight_name, weight in model.named_parameters():
                    if weight.dim() > 1:
                        weight.normal_(0, weight.shape[-1] ** -0.5)
                    elif "norm" in weight_name:
                        weight.add_(torch.randn_like(weight) * 0.1)
            model = model.eval()
            model.save_pretrained(folder)
            vocab = min(made.get_text_config().vocab_size, 96)
            ids = torch.randint(3, vocab, (1, 24))
            with torch.no_grad():
                # Wrappers that compute no text by themselves, or fail without images.
                inner = {"llama4": "language_model", "qwen3_omni_moe": "thinker"}.get(made.model_type)
                logits = (getattr(model, inner) if inner else model)(input_ids=ids, use_cache=False).logits[0]
        except Exception as failure:
            why = f"no model by transformers: {type(failure).__name__} {short(failure)}"
            if not any(folder.glob("*.safetensors")):
                return [why]
            codes = [ingot.run(*words, "--json")[0::2] for words in
                     (("check", folder, "--no-hashes"), ("convert", folder, folder.with_suffix(".out"), "--to", "bf16", "--dry-run"))]
            return [why] + [f"model: exits {code}: {short(error)}" for code, error in codes if code]
        states = {}
        if counts is not None:
            states = states_of(getattr(model, inner) if inner else model, ids[0].tolist())
            counts.update(models=1, states=bool(states))
        save_file({"input_ids": ids[0], "logits_last": logits[-1].float().contiguous(), **states}, str(recorded),
                  metadata={"source": f"transformers {transformers.__version__}"})
        code, document, error = ingot.run("verify", folder, "--reference", recorded, "--profile", "f32",
                                          "--json")
        if code == 0:
            return []
        gates = [g for g in document.get("gates", []) if not g.get("passed", True)]
        return [f"model: exits {code}: {short(error or gates)}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        recorded.unlink(missing_ok=True)


def rows_of(given, name, path, work):
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    document = json.loads(path.read_text())
    if document.get("model_type") not in CONFIG_MAPPING_NAMES:
        return None, [("-", f"transformers has no {document.get('model_type')}")], {}
    try:
        config = load(document)
        saved = save(config)
        own = own_words(config, saved)
    except Exception as failure:
        return None, [("-", f"transformers refuses it: {short(failure)}")], {}
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        for kind, text in (("saved", saved), ("own", own)):
            (given.write / f"{name}.{kind}.json").write_text(json.dumps(text, indent=2) + "\n")
    ingot = Ingot(given.ingot, work)
    rows = [(kind, text) for kind, other in (("saved", saved), ("own", own)) for text in compared(ingot, document, other)]
    is_tried = (given.models or name in given.absent_names) and is_small(ingot, document)
    if is_tried and name in given.absent_names:
        known = {text for _, text in rows}
        for key, without, filled in absent(document, config):
            found = compared(ingot, without, filled)
            # A config that lacks a key may be refused.
            rows += [(f"without {key}", text) for text in found
                     if not text.startswith(("released refused", "both refused")) and text not in known]
    if is_tried and given.models:
        rows += [("model", text) for text in model_rows(ingot, config, own)]
    counts = collections.Counter()
    if given.draws and is_small(ingot, document):
        for n in range(given.draws):
            other = resized(document, random.Random(f"{given.seed} {name} {n}"))
            try:
                drawn = load(other)
                own = own_words(drawn, save(drawn))
            except Exception:
                continue
            found = model_rows(ingot, drawn, own, counts)
            rows += [(f"draw {n}", text + " " + json.dumps(own)) for text in found if not found[0].startswith("no model by")]
    return True, rows, counts


def main():
    given = arguments()
    named = {name: path for name, path in sources(given.configs).items() if given.only in name}
    by_type = {}
    for name, path in named.items():
        # Configs of real size are behind those of small checkpoints.
        rank = (path.parent.name == "configs", name)
        document = json.loads(path.read_text())
        kind = document.get("model_type"), (document.get("text_config") or {}).get("model_type")
        by_type[kind] = min(by_type.get(kind, (rank, name)), (rank, name))
    given.absent_names = {name for _, name in by_type.values()} if given.absent else set()
    n_known, n_rows, counts = 0, 0, collections.Counter()
    with tempfile.TemporaryDirectory(prefix="ingot-saved-") as work, \
            concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = {name: pool.submit(rows_of, given, name, path, work) for name, path in named.items()}
        names = {job: name for name, job in jobs.items()}
        for job in concurrent.futures.as_completed(names):
            name, (known, rows, drawn) = names[job], job.result()
            counts.update(drawn)
            n_known += known is True
            for kind, text in rows:
                print(f"{name:28} {kind:24} {text}", flush=True)
            n_rows += len(rows) if known else 0
    print(f"\n{len(named)} configs, {n_known} that transformers loads, {n_rows} rows"
          + (f"; {counts['models']} drawn models, {counts['states']} with hidden states" if given.draws else ""))
    return 1 if n_rows else 0


if __name__ == "__main__":
    sys.exit(main())
