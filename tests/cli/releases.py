"""releases.py INGOT: checkpoints in the forms of vendors and their tools, made here by hand. Each function is a claim
about what ingot says of one form and makes of it."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "differential"))
from container import read_checkpoint, write_checkpoint
from numbers_of_bits import E4M3, to_bf16

INGOT = sys.argv[1]
HIDDEN, HEAD, HEADS, KV_HEADS, WIDTH, WORDS, LAYERS = 128, 32, 4, 2, 256, 64, 2
LINEARS = {"self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
           "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
           "mlp.gate_proj": (WIDTH, HIDDEN), "mlp.up_proj": (WIDTH, HIDDEN), "mlp.down_proj": (HIDDEN, WIDTH)}
DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "I8": np.int8}
random = np.random.default_rng(5)


def plain(*shape):
    return "BF16", shape, to_bf16(random.normal(0, 0.05, shape))


def fp8(*shape):
    codes = random.integers(0, 0x7E, shape) | random.integers(0, 2, shape) << 7
    return "F8_E4M3", shape, codes.astype(np.uint8)


def numbers(dtype, values):
    array = np.asarray(values)
    return dtype, array.shape, to_bf16(array) if dtype == "BF16" else array.astype(DTYPES[dtype])


def int4(module, rows, cols):
    """The parts of packed integers of 4 bits with a scale for 32 columns."""
    return {module + ".weight_packed": numbers("I32", random.integers(-2**31, 2**31, (rows, cols // 8))),
            module + ".weight_scale": numbers("BF16", np.full((rows, cols // 32), 0.01)),
            module + ".weight_shape": numbers("I64", [rows, cols])}


def config(kind, architecture, **more):
    return {"architectures": [architecture], "model_type": kind, "head_dim": HEAD, "hidden_act": "silu",
            "hidden_size": HIDDEN, "intermediate_size": WIDTH, "max_position_embeddings": 512,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": LAYERS,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "vocab_size": WORDS, **more}


def qwen3(encode=None, head=True):
    """The tensors of a dense model; `encode(module, rows, cols)` gives those of a linear layer."""
    tensors = {"model.embed_tokens.weight": plain(WORDS, HIDDEN), "model.norm.weight": plain(HIDDEN)}
    if head:
        tensors["lm_head.weight"] = plain(WORDS, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, shape in LINEARS.items():
            tensors.update(encode(at + name, *shape) if encode else {at + name + ".weight": plain(*shape)})
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = plain(HIDDEN)
        for norm in ("q_norm", "k_norm"):
            tensors[f"{at}self_attn.{norm}.weight"] = plain(HEAD)
    return tensors


def fp8_channel(module, rows, cols):
    return {module + ".weight": fp8(rows, cols), module + ".weight_scale": numbers("F32", np.full((rows, 1), 0.01))}


def arguments(bits, kind, strategy, **more):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


def groups(form, ignore, *of):
    """compressed-tensors' block; each of `of` has targets, weights and activations."""
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "ignore": ignore, "kv_cache_scheme": None,
            "config_groups": {f"group_{i}": {"targets": targets, "weights": weights, "input_activations": inputs,
                                             "output_activations": None}
                              for i, (targets, weights, inputs) in enumerate(of)}}


CHANNEL = (["Linear"], arguments(8, "float", "channel"), arguments(8, "float", "token", dynamic=True))
TOKENIZER = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}


def write(path, said, tensors):
    stored = {name: (*facts, np.ascontiguousarray(array).tobytes()) for name, (*facts, array) in tensors.items()}
    write_checkpoint(path, [stored], said)
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return path


def read(path):
    """The tensors of a checkpoint by name, as dtype, shape and bytes."""
    return {name: (stored.dtype, stored.shape, stored.data) for name, stored in read_checkpoint(path).items()}


def ingot(*words, expect=0):
    done = subprocess.run([INGOT, *map(str, words)], capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert expect is None or done.returncode == expect, f"ingot {words}: exit {done.returncode}\n{text}"
    return text


def convert(source, out, *words):
    return ingot("convert", source, out, "--force", *words)


def same_values(source, out):
    ingot("verify", source, out, "--levels", "structure,weights")


def count(path, dtype):
    return sum(facts[0] == dtype for facts in read(path).values())


def skips_biases_of_zeros(work):
    def gptq(module, rows, cols):
        return {module + ".qweight": numbers("I32", random.integers(-2**31, 2**31, (cols // 8, rows))),
                module + ".qzeros": numbers("I32", np.full((cols // 32, rows // 8), 0x77777777)),
                module + ".scales": numbers("F16", np.full((cols // 32, rows), 0.01)),
                module + ".bias": numbers("F16", np.zeros(rows))}

    said = config("qwen3", "Qwen3ForCausalLM", quantization_config={
        "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True})
    tensors = qwen3(gptq)
    source = write(work / "in", said, tensors)
    assert "biases of zeros" in ingot("check", source)
    convert(source, work / "out", "--to", "bf16")
    same_values(source, work / "out")
    # One that is not zero is refused by its name.
    tensors["model.layers.1.self_attn.o_proj.bias"] = numbers("F16", np.full(HIDDEN, 0.5))
    other = write(work / "other", said, tensors)
    assert "o_proj.bias (a bias that is not zero" in ingot("check", other, expect=None)
    shown = ingot("inspect", other)
    assert "int4-group of 1x32" in shown and "o_proj.bias (a bias that is not zero" in shown, shown
    assert "o_proj.bias" in ingot("convert", other, work / "none", "--to", "bf16", expect=2)


def reads_flat_configs_of_vision_models(work):
    said = config("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", tie_word_embeddings=True,
                  vision_config={"depth": 1, "hidden_size": 32},
                  rope_scaling={"type": "mrope", "mrope_section": [4, 6, 6]})
    text = {name: tensor for name, tensor in qwen3(head=False).items() if "_norm" not in name or "layer" in name.split(".")[-2]}
    text["model.norm.weight"] = plain(HIDDEN)
    for layer in range(LAYERS):
        for name in "qkv":
            rows = LINEARS[f"self_attn.{name}_proj"][0]
            text[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = plain(rows)
    for spelling, renamed, tower in (("old", "model.", "visual."), ("new", "model.language_model.", "model.visual."),
                                     ("merged", "language_model.model.", "visual.")):
        tensors = {name.replace("model.", renamed, 1): tensor for name, tensor in text.items()}
        tensors[tower + "blocks.0.attn.qkv.weight"] = plain(96, 32)
        source = write(work / spelling, said, tensors)
        ingot("check", source)
        out = work / (spelling + "-fp8")
        convert(source, out, "--to", "fp8-channel", "--dialect", "compressed-tensors")
        assert count(out, "F8_E4M3") == len(LINEARS) * LAYERS
        assert set(read(source)) <= set(read(out)), "names change"
        ingot("generate", source, "--tokens", "5,6,7", "--max-new-tokens", "2", "--greedy")


def decodes_quantized_towers(work):
    text = {k: v for k, v in config("qwen3_vl", "", tie_word_embeddings=False).items() if k != "architectures"}
    said = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "torch_dtype": "bfloat16",
            "text_config": text | {"model_type": "qwen3_vl_text"}, "vision_config": {"depth": 1, "hidden_size": 64},
            "quantization_config": groups("float-quantized", ["re:.*lm_head"], CHANNEL)}
    tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in qwen3(fp8_channel).items()}
    tensors |= fp8_channel("model.visual.blocks.0.attn.qkv", 192, 64)
    source = write(work / "in", said, tensors)
    ingot("check", source, "--engine", "vllm")
    convert(source, work / "out", "--to", "bf16")
    assert count(work / "out", "F8_E4M3") == 0
    same_values(source, work / "out")
    # vLLM calls towers without `model.`, so this expression is about them there.
    said["quantization_config"]["ignore"].append("re:visual.*")
    missed = write(work / "missed", said, tensors)
    assert "visual" in ingot("check", missed, "--engine", "vllm", expect=1)


def knows_heads_by_architecture(work):
    tensors = qwen3(head=False)
    for architecture, head in (("Qwen3ForSequenceClassification", "score.weight"),
                               ("Qwen3ForTokenClassification", "score.weight"), ("Qwen3Model", None)):
        said = config("qwen3", architecture, id2label={"0": "no", "1": "yes"})
        source = write(work / architecture, said, tensors | ({head: plain(2, HIDDEN)} if head else {}))
        ingot("check", source)
        out = work / (architecture + "-fp8")
        convert(source, out, "--to", "fp8-channel", "--dialect", "compressed-tensors")
        same_values(source, out)
        ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
        assert head is None or "score" in ignored, ignored
        ingot("check", out, "--engine", "vllm")
    lost = write(work / "lost", config("qwen3", "Qwen3ForSequenceClassification"), tensors)
    assert "no head of classes" in ingot("check", lost, expect=2)
    assert "lm_head" in ingot("check", write(work / "headless", config("qwen3", "Qwen3ForCausalLM"), tensors), expect=2)


def knows_the_classes_that_engines_have(work):
    tensors = qwen3(head=False)
    for architecture, is_there in (("Qwen3ForSequenceClassification", True), ("Qwen3ForTokenClassification", False)):
        source = write(work / architecture, config("qwen3", architecture), tensors | {"score.weight": plain(2, HIDDEN)})
        ingot("check", source, "--engine", "vllm")
        said = ingot("check", source, "--engine", "sglang", expect=0 if is_there else 1)
        assert is_there or "no class Qwen3ForTokenClassification" in said, said
    tensors = {name: tensor for name, tensor in tensors.items() if ".q_norm." not in name and ".k_norm." not in name}
    for i in range(LAYERS):
        for letter, rows in (("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            tensors[f"model.layers.{i}.self_attn.{letter}_proj.bias"] = plain(rows)
    bare = write(work / "bare", config("qwen2", "Qwen2Model"), tensors)
    assert "--is-embedding" in ingot("check", bare, "--engine", "sglang")
    # vLLM builds both layers of this head with an empty name, SGLang plain. An expression matches the empty name; lists
    # of DeepSeek's dialect have none.
    rewards = tensors | {f"score.{i}.weight": plain(n, HIDDEN) for i, n in ((0, HIDDEN), (2, 1))}
    source = write(work / "rewards", config("qwen2", "Qwen2ForRewardModel"), rewards)
    ingot("check", source, "--engine", "vllm")
    for dialect, scheme in (("compressed-tensors", "fp8-channel"), ("compressed-tensors", "nvfp4"),
                            ("deepseek", "fp8-tensor")):
        out = work / scheme
        convert(source, out, "--to", scheme, "--dialect", dialect)
        said = ingot("check", out, "--engine", "vllm", expect=int(dialect == "deepseek"))
        assert dialect != "deepseek" or "no name" in said and "score." in said, said
        ingot("check", out, "--engine", "sglang")
        ingot("check", out)


def reads_models_saved_without_their_class(work):
    for tie in (True, False):
        said = config("qwen3", "Qwen3Model" if not tie else "Qwen3ForCausalLM", tie_word_embeddings=tie)
        tensors = {name.removeprefix("model."): tensor for name, tensor in qwen3(head=False).items()}
        source = write(work / f"in{tie}", said, tensors)
        ingot("check", source)
        out = work / f"out{tie}"
        convert(source, out, "--to", "fp8-channel", "--dialect", "compressed-tensors")
        assert count(out, "F8_E4M3") == len(LINEARS) * LAYERS
        assert set(tensors) <= set(read(out)), "names change"
        same_values(source, out)


def lists_the_head_of_tied_models(work):
    said = config("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=True,
                  quantization_config=groups("float-quantized", ["lm_head"], CHANNEL))
    source = write(work / "in", said, qwen3(fp8_channel, head=False))
    assert "list-names-nothing" not in ingot("check", source)
    del said["quantization_config"]
    bare = write(work / "plain", said, qwen3(head=False))
    for scheme, dialect in (("int8", "compressed-tensors"), ("fp8-channel", "compressed-tensors"),
                            ("int4", "compressed-tensors"), ("nvfp4", "modelopt")):
        out = work / f"{scheme}-{dialect}"
        words = {"int4": ("--group-size", "32"), "nvfp4": ("--activations", "weight-only")}.get(scheme, ())
        assert "list-names-nothing" not in convert(bare, out, "--to", scheme, "--dialect", dialect, *words)
        block = json.loads((out / "config.json").read_text())["quantization_config"]
        assert "lm_head" in block["ignore"], (scheme, block)


def names_a_table_that_is_called_head(work):
    tensors = qwen3(fp8_channel, head=False)
    table = tensors.pop("model.embed_tokens.weight")
    tensors["lm_head.weight"] = table
    said = config("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=True,
                  quantization_config=groups("float-quantized", ["lm_head"], CHANNEL))
    source = write(work / "in", said, tensors)
    text = ingot("check", source, expect=2)
    assert "model.embed_tokens.weight" in text and "lm_head.weight" in text and "model.tied-table" in text
    ingot("check", source, "--engine", "vllm", expect=1)
    convert(source, work / "out", "--to", "bf16")
    ingot("repair", source, work / "repaired", "--force")
    for out in ("out", "repaired"):
        assert read(work / out)["model.embed_tokens.weight"][2] == table[2].tobytes(), out
        ingot("check", work / out)


def takes_heads_that_are_targets(work):
    said = config("qwen3", "Qwen3ForCausalLM", quantization_config=groups(
        "float-quantized", [], (["Linear", "re:.*lm_head$"], *CHANNEL[1:])))
    source = write(work / "in", said, qwen3(fp8_channel) | fp8_channel("lm_head", WORDS, HIDDEN))
    for engine in ("vllm", "sglang"):
        ingot("check", source, "--engine", engine)
    convert(source, work / "out", "--to", "bf16")
    same_values(source, work / "out")
    # Without its name among the targets engines build the head plain.
    said["quantization_config"]["config_groups"]["group_0"]["targets"] = ["Linear"]
    unnamed = write(work / "unnamed", said, qwen3(fp8_channel) | fp8_channel("lm_head", WORDS, HIDDEN))
    assert "lm_head" in ingot("check", unnamed, "--engine", "vllm", expect=1)
    assert "ct.plain-module" in ingot("check", unnamed, expect=2)


def tells_who_takes_embeddings_in_int4(work):
    weights = arguments(4, "int", "group", group_size=32)
    for tie in (False, True):
        said = config("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=tie, quantization_config=groups(
            "pack-quantized", ["lm_head"], (["Linear"], weights, None), (["re:.*embed_tokens$"], weights, None)))
        tensors = qwen3(int4, head=not tie)
        del tensors["model.embed_tokens.weight"]
        source = write(work / f"in{tie}", said, tensors | int4("model.embed_tokens", WORDS, HIDDEN))
        ingot("check", source, "--engine", "vllm", expect=1 if tie else 0)
        assert "embed_tokens" in ingot("check", source, "--engine", "sglang", expect=1)
        convert(source, work / f"out{tie}", "--to", "bf16")
        same_values(source, work / f"out{tie}")


def reads_int8_with_a_scale_for_each_matrix(work):
    def int8(module, rows, cols):
        return {module + ".weight": numbers("I8", random.integers(-127, 128, (rows, cols))),
                module + ".weight_scale": numbers("F32", [0.01])}

    said = config("qwen3", "Qwen3ForCausalLM", quantization_config=groups("int-quantized", ["lm_head"], (
        ["Linear"], arguments(8, "int", "tensor"), arguments(8, "int", "token", dynamic=True))))
    source = write(work / "in", said, qwen3(int8))
    ingot("check", source)
    ingot("check", source, "--engine", "vllm")
    convert(source, work / "out", "--to", "bf16")
    same_values(source, work / "out")
    kept = work / "kept"  # written with a scale for each row, and said so
    convert(source, kept, "--to", "int8")
    ingot("check", kept)
    same_values(source, kept)


def spreads_scales_of_fused_weights(work):
    sizes = (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD)
    scales = np.array([0.01, 0.03, 0.002], np.float32)
    said = config("phi3", "Phi3ForCausalLM", quantization_config={"quant_method": "modelopt", "quant_algo": "FP8",
                                                                   "ignore": ["lm_head"]})
    tensors = {"model.embed_tokens.weight": plain(WORDS, HIDDEN), "model.norm.weight": plain(HIDDEN),
               "lm_head.weight": plain(WORDS, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, shape, of in (("self_attn.qkv_proj", (sum(sizes), HIDDEN), scales),
                                ("self_attn.o_proj", (HIDDEN, HEADS * HEAD), np.float32(0.01)),
                                ("mlp.gate_up_proj", (2 * WIDTH, HIDDEN), scales[:2]),
                                ("mlp.down_proj", (HIDDEN, WIDTH), np.float32(0.01))):
            tensors |= {f"{at}{name}.weight": fp8(*shape), f"{at}{name}.weight_scale": numbers("F32", of),
                        f"{at}{name}.input_scale": numbers("F32", np.full_like(of, 0.5))}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = plain(HIDDEN)
    source = write(work / "in", said, tensors)
    text = ingot("check", source, "--engine", "vllm", expect=1)
    assert "qkv_proj" in text and "[3]" in text
    convert(source, work / "out", "--to", "f32")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    wanted = E4M3[tensors[name][2]] * np.repeat(scales, sizes)[:, None]
    assert read(work / "out")[name][2] == wanted.astype(np.float32).tobytes()
    convert(source, work / "fp8", "--to", "fp8-channel", "--dialect", "compressed-tensors")
    assert read(work / "fp8")[name][2] == tensors[name][2].tobytes(), "codes change"
    same_values(source, work / "fp8")


def gemma4(said=(), **more):
    types = more.pop("types")
    full = 2 * HEAD
    text = config("gemma4_text", "", hidden_activation="gelu_pytorch_tanh", global_head_dim=full,
                  tie_word_embeddings=True, hidden_size_per_layer_input=0, num_hidden_layers=len(types),
                  layer_types=types, enable_moe_block=False, **more)
    del text["architectures"], text["hidden_act"]
    shared = text.get("num_kv_shared_layers", 0)
    put = "model.language_model."
    tensors = {put + "embed_tokens.weight": plain(WORDS, HIDDEN), put + "norm.weight": plain(HIDDEN)}
    for layer, kind in enumerate(types):
        at, head = f"{put}layers.{layer}.", full if kind == "full_attention" else HEAD
        own = layer < len(types) - shared
        width = WIDTH * (2 if text.get("use_double_wide_mlp") and not own else 1)
        shapes = {"self_attn.q_proj": (HEADS * head, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * head),
                  "self_attn.q_norm": (head,), "mlp.gate_proj": (width, HIDDEN), "mlp.up_proj": (width, HIDDEN),
                  "mlp.down_proj": (HIDDEN, width)}
        if own:
            shapes |= {"self_attn.k_proj": (KV_HEADS * head, HIDDEN), "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
                       "self_attn.k_norm": (head,)}
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            shapes[norm + "_layernorm"] = (HIDDEN,)
        tensors |= {f"{at}{name}.weight": plain(*shape) for name, shape in shapes.items()}
        tensors[at + "layer_scalar"] = plain(1)
    whole = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "dtype": "bfloat16",
             "tie_word_embeddings": True, "vision_config": {"model_type": "gemma4_vision"}, "text_config": text}
    return whole, tensors


def finds_layers_that_share_keys(work):
    said, tensors = gemma4(types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
                           use_double_wide_mlp=True)
    source = write(work / "in", said, tensors)
    ingot("check", source)
    convert(source, work / "out", "--to", "fp8-channel", "--dialect", "compressed-tensors")
    assert count(work / "out", "F8_E4M3") == 2 * 7 + 2 * 5
    same_values(source, work / "out")
    ingot("generate", source, "--tokens", "5,6,7", "--max-new-tokens", "2")
    # Other layers have keys of their own.
    del tensors["model.language_model.layers.1.self_attn.k_proj.weight"]
    assert "layers.1.self_attn.k_proj" in ingot("check", write(work / "torn", said, tensors), expect=2)


def derives_the_layers_of_gemma4(work):
    said, tensors = gemma4(types=["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention", "full_attention"])
    del said["text_config"]["layer_types"]
    source = write(work / "in", said, tensors)
    ingot("check", source)
    assert f"{8 * 7} fp8" in " ".join(convert(source, work / "out", "--to", "fp8-channel").split()) or \
        count(work / "out", "F8_E4M3") == 8 * 7


def reads_mxfp4_experts_next_to_fp8(work):
    experts, width = 4, 128
    for key, scale, kind, engines in (("routed_experts_quant_method", "weight_scale_inv", "bailing", ("sglang",)),
                                      ("store_dtype", "weight_scale", "store", ("vllm",))):
        said = config("qwen3_moe", "Qwen3MoeForCausalLM", num_experts=experts, num_experts_per_tok=2,
                      moe_intermediate_size=width, norm_topk_prob=True, quantization_config={
                          "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                          "weight_block_size": [128, 128], key: "mxfp4",
                          "modules_to_not_convert": [f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS)]})
        said["num_key_value_heads"] = HEADS  # blocks have 128 rows
        tensors = {}
        for name, tensor in qwen3().items():
            if "_proj" not in name:
                tensors[name] = tensor
            elif ".mlp." not in name:
                rows, cols = HEADS * HEAD, HIDDEN
                tensors |= {name: fp8(rows, cols), name + "_scale_inv": numbers(
                    "F32", np.full((-(-rows // 128), -(-cols // 128)), 0.01))}
        for layer in range(LAYERS):
            at = f"model.layers.{layer}.mlp."
            tensors[at + "gate.weight"] = plain(experts, HIDDEN)
            for e in range(experts):
                for name, (rows, cols) in (("gate_proj", (width, HIDDEN)), ("up_proj", (width, HIDDEN)),
                                           ("down_proj", (HIDDEN, width))):
                    module = f"{at}experts.{e}.{name}."
                    tensors[module + "weight"] = "U8", (rows, cols // 2), random.integers(0, 256, (rows, cols // 2)).astype(np.uint8)
                    tensors[module + scale] = "U8", (rows, cols // 32), np.full((rows, cols // 32), 120, np.uint8)
        source = write(work / kind, said, tensors)
        text = ingot("check", source)
        assert "known-keys" not in text and "scheme-held" not in text
        for engine in engines:
            ingot("check", source, "--engine", engine)
        convert(source, work / (kind + "-out"), "--to", "bf16")
        same_values(source, work / (kind + "-out"))
        assert "quantization_config" not in json.loads((work / (kind + "-out") / "config.json").read_text())


def refuses_names_that_a_layer_lacks(work):
    said = config("qwen3", "Qwen3ForCausalLM", quantization_config=groups("float-quantized", ["lm_head"], CHANNEL))
    # vLLM drops what is called bias or k_scale where a module has none, and ends with an error for other names.
    for name, exit_code in (("input_quantizer._amax", 1), ("smooth_scale", 1), ("bias", 0)):
        source = write(work / name, said, qwen3(fp8_channel) | {
            f"model.layers.1.mlp.down_proj.{name}": numbers("F32", np.zeros(HIDDEN))})
        text = ingot("check", source, "--engine", "vllm", expect=exit_code)
        assert exit_code == 0 or "model.stray-part" in text, text
        ingot("check", source)
        loaded = [line for line in convert(source, work / "copy").splitlines() if "loaded by" in line]
        assert ("vLLM" in loaded[0]) == (exit_code == 0), loaded


def names_settings_next_to_others(work):
    said = config("qwen3", "Qwen3ForCausalLM", quantization_config=groups("float-quantized", ["lm_head"], CHANNEL))
    for file, text, codes in (
            ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, (0, 0)),
            ("quant_model_description.json", {"model_quant_type": "W8A8_DYNAMIC"}, (0, 1))):
        source = write(work / file, said, qwen3(fp8_channel))
        (source / file).write_text(json.dumps(text))
        assert file in ingot("check", source, expect=None)
        for engine, code in zip(("vllm", "sglang"), codes):
            ingot("check", source, "--engine", engine, expect=code)
        ingot("repair", source, work / "repaired", "--force")
        assert not (work / "repaired" / file).exists()
        assert file not in ingot("check", work / "repaired")


def tells_of_tied_heads_that_are_targets(work):
    block = groups("float-quantized", [], (["Linear", "re:.*lm_head$"], *CHANNEL[1:]))
    said = config("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=True, quantization_config=block)
    source = write(work / "in", said, qwen3(fp8_channel, head=False))
    assert "lm_head" in ingot("check", source, "--engine", "vllm", expect=1)
    ingot("check", source, "--engine", "sglang")
    ingot("repair", source, work / "repaired", "--force")
    ingot("check", work / "repaired", "--engine", "vllm")


def fp8_tensor(module, rows, cols):
    return {module + ".weight": fp8(rows, cols), module + ".weight_scale": numbers("F32", 0.01)}


def judges_lists_as_each_engine_reads_them(work):
    def attention_is_plain(module, rows, cols):
        return fp8_tensor(module, rows, cols) if "layers.0.self_attn" not in module \
            else {module + ".weight": plain(rows, cols)}

    def listed(entry, encode, name):
        block = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", entry]}
        return write(work / name, config("qwen3", "Qwen3ForCausalLM", quantization_config=block), qwen3(encode))

    # SGLang takes a part of a name, vLLM the whole.
    part = listed("layers.0.self_attn", attention_is_plain, "part")
    ingot("check", part, "--engine", "sglang")
    assert "repair mends" in ingot("check", part, "--engine", "vllm", expect=1)
    torn = listed("model.layers.0.self_attn.q_proj", fp8_tensor, "torn")
    for engine, other in (("vllm", "SGLang"), ("sglang", "vLLM")):
        verdict = ingot("check", torn, "--engine", engine, expect=1).splitlines()[0]
        assert "has some of model.layers.0.self_attn.qkv_proj" in verdict and other not in verdict, verdict


def misses_scales_that_the_config_promises(work):
    def without(activations, name, **more):
        block = {"quant_method": "fp8", "activation_scheme": activations, **more}
        return write(work / name, config("qwen3", "Qwen3ForCausalLM", quantization_config=block), qwen3(fp8_tensor))

    ingot("check", without("dynamic", "dynamic"))
    static = without("static", "static")
    assert "fp8.static-input-scale" in ingot("check", static, expect=2)
    for engine in ("vllm", "sglang"):
        assert "repair mends" in ingot("check", static, "--engine", engine, expect=1)
    # A cache without scales runs under 1.
    cached = without("dynamic", "cached", kv_cache_scheme={"type": "float", "num_bits": 8})
    assert "quantized.cache-scales" in ingot("check", cached, "--engine", "vllm")


def names_files_that_are_others(work):
    for name, start, fact in (("page", b"<!DOCTYPE html><html>", "is a web page"),
                              ("answer", b"Entry not found", "begins with the text 'Entry no'"),
                              ("gguf", b"GGUF\x03" + bytes(40), "is a GGUF file"),
                              ("pickle", b"PK\x03\x04\x14" + b"\0" * 40, "is a PyTorch pickle"),
                              ("hole", bytes(100), "begins with zeros")):
        source = write(work / name, config("qwen3", "Qwen3ForCausalLM"), qwen3())
        (source / "model.safetensors").write_bytes(start)
        for command in (("check",), ("check", "--engine", "vllm"), ("inspect",), ("repair", work / "out")):
            text = ingot(command[0], source, *command[1:], expect=None)
            assert fact in text, (name, command, text)
    page = write(work / "config", config("qwen3", "Qwen3ForCausalLM"), qwen3())
    (page / "config.json").write_text("<html>no</html>")
    assert "is a web page" in ingot("check", page, expect=2)
    (work / "model.gguf").write_bytes(b"GGUF")
    for command in ("check", "inspect", "convert", "repair", "generate"):
        more = {"convert": [work / "out"], "repair": [work / "out"], "generate": ["--tokens", "1"]}.get(command, [])
        assert "weights in GGUF" in ingot(command, work / "model.gguf", *more, expect=2)


def says_of_classifiers_what_was_read(work):
    said = config("llama", "LlamaForSequenceClassification", num_labels=2)
    tensors = {name: facts for name, facts in qwen3(head=False).items() if "_norm" not in name or "layernorm" in name}
    source = write(work / "in", said, tensors | {"score.weight": plain(2, HIDDEN)})
    for engine in ("vllm", "sglang"):
        assert "(read in its source)" in ingot("check", source, "--engine", engine)


CLAIMS = [judges_lists_as_each_engine_reads_them, misses_scales_that_the_config_promises,
          names_files_that_are_others, says_of_classifiers_what_was_read,
          refuses_names_that_a_layer_lacks, names_settings_next_to_others, tells_of_tied_heads_that_are_targets,
          skips_biases_of_zeros, reads_flat_configs_of_vision_models, decodes_quantized_towers,
          knows_heads_by_architecture, knows_the_classes_that_engines_have, reads_models_saved_without_their_class,
          lists_the_head_of_tied_models,
          names_a_table_that_is_called_head, takes_heads_that_are_targets, tells_who_takes_embeddings_in_int4,
          reads_int8_with_a_scale_for_each_matrix, spreads_scales_of_fused_weights, finds_layers_that_share_keys,
          derives_the_layers_of_gemma4, reads_mxfp4_experts_next_to_fp8]
wanted, n_false = sys.argv[2:], 0
for claim in CLAIMS:
    if wanted and claim.__name__ not in wanted:
        continue
    with tempfile.TemporaryDirectory() as folder:
        try:
            claim(pathlib.Path(folder))
        except AssertionError as fault:
            n_false += 1
            print(f"{claim.__name__}: {str(fault)[:1500]}")
sys.exit(1 if n_false else 0)
