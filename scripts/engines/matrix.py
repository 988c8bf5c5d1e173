#!/usr/bin/env python3
"""Loads ingot's outputs in the engines themselves, and compares the results with expected.jsonl.

    matrix.py INGOT [--record] [--only TEXT]

Every row of the matrix is a model, a form that ingot writes it in, a layout and an engine. The
questions:
  vllm loads          every parameter of vLLM's own model, or of its draft model for multi-token
                      prediction, is filled by vLLM's own loader; replaced are the choice of kernels,
                      and sparse attention, which the CPU does not have (sharded_state.py); for rank
                      files the state dict of each rank is compared with that of the unsliced
                      directory on as many ranks, byte for byte
  vllm generates      greedy answers in BF16 against `ingot generate --profile bf16`, without any
                      replacement
  vllm computes       greedy answers in FP32 against `ingot generate --profile f32`, and the log
                      probabilities of prompts against those that vLLM gives for ingot's cast of the
                      same files to F32; products without a CPU kernel are replaced by products with
                      dequantized weights (dequantized.py), and the row names them; on several ranks
                      both are compared with those of the unsliced directory on as many
  sglang loads        every parameter of SGLang's own model, or of its draft model, is filled by its own
                      loader, to the end of post_load_weights, and tensors are found in them byte for byte;
                      its kernels are replaced by ones that raise, and its GPU by a description
                      (sglang_loads.py); for rank files the state dict of each rank, after both loaders have
                      processed the weights, is compared with that of the unsliced directory (sglang_state.py)
  transformers loads  with nothing missing, unexpected or mismatched, and greedy answers in FP32
                      against `ingot generate --profile f32`; weights are dequantized while loading
A row's result is `loads`, the numbers of equal answers and first tokens, the message with which the
engine refuses, or the message with which ingot refuses. --record writes expected.jsonl again: look at
the difference. Fails if a result is not the expected one.
"""

import argparse
import contextlib
import functools
import io
import json
import math
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import dequantized
import model_configs
import ranks
import released_heads
import sglang_loads
import sglang_state
import sharded_state

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "expected.jsonl"
EXAMPLE = HERE.parent.parent / "examples" / "tiny-v32"

# Wide enough for whole blocks of 128 on two ranks.
WIDTHS = ["--like", "tiny", "--layers", "2", "--hidden", "256", "--moe-intermediate", "256", "--intermediate", "256",
          "--experts", "16", "--heads", "32", "--scheme", "bf16"]
MODELS = {
    "deepseek_v3": ["--family", "deepseek_v3", "--dense-layers", "1", *WIDTHS],
    "qwen3_moe": ["--family", "qwen3_moe", *WIDTHS],
    "deepseek_v32": ["--family", "deepseek_v32", "--dense-layers", "1", *WIDTHS],
    "glm_moe_dsa": ["--family", "glm_moe_dsa", "--dense-layers", "1", *WIDTHS],
}
FURTHER_MODELS = {
    "deepseek_v2": ["--family", "deepseek_v2", "--dense-layers", "1", *WIDTHS],
    "kimi_k2": ["--family", "kimi_k2", "--dense-layers", "1", *WIDTHS],
}
# Of these the config is given whole.
CONFIGS = {"deepseek_v3, released heads": model_configs.LATENT, **model_configs.DECODERS, **model_configs.FUSING}
# GLM-5's MTP layer shares embedding and head with the model; vLLM's draft model wants its own, so that ranks in its
# layout are written without the layer, and refused with it.
SHARED_EMBEDDING = ("glm_moe_dsa",)
# vLLM builds these from its classes for CUDA (sharded_state.py); transformers is not asked of them.
SPARSE = ("deepseek_v32", "glm_moe_dsa")
FORMS = {
    "bf16": ["--to", "bf16"],
    "fp8-block, deepseek": ["--to", "fp8", "--dialect", "deepseek"],
    "fp8-block, compressed-tensors": ["--to", "fp8", "--dialect", "compressed-tensors"],
    "fp8-channel, compressed-tensors": ["--to", "fp8-channel"],
    "fp8-tensor static, modelopt": ["--to", "fp8-tensor", "--dialect", "modelopt", "--activations", "static", "--input-scale", "1"],
    "int8-channel, compressed-tensors": ["--to", "int8"],
    "int8-block, deepseek": ["--to", "int8-block"],
    "nvfp4, compressed-tensors": ["--to", "nvfp4", "--dialect", "compressed-tensors"],
    "nvfp4 weight-only, modelopt": ["--to", "nvfp4", "--dialect", "modelopt", "--activations", "weight-only"],
    "nvfp4 static, modelopt": ["--to", "nvfp4", "--dialect", "modelopt", "--activations", "static", "--input-scale", "1"],
    "mxfp4, compressed-tensors": ["--to", "mxfp4", "--dialect", "compressed-tensors"],
    "mxfp8, compressed-tensors": ["--to", "mxfp8", "--dialect", "compressed-tensors"],
    "int4-group, compressed-tensors": ["--to", "int4", "--group-size", "32"],
}
# Schemes that engines take only for linear layers, or only for experts; and more ways to write one scheme.
PLAIN_EXPERTS, PLAIN_LINEARS = ["--rule", "role:experts=bf16"], ["--rule", "role:shared-experts=bf16", "--rule", "role:dense-mlp=bf16"]
FURTHER_FORMS = {
    "f32": ["--to", "f32", "--rule", "re:.*=f32"],
    "f16": ["--to", "f16", "--rule", "re:.*=f16"],
    # Real kernels refuse it after loading.
    "fp8-block weight-only, plain experts": ["--to", "fp8", "--dialect", "compressed-tensors", "--activations", "weight-only", *PLAIN_EXPERTS,
                                             "--allow", "engine-refuses=*"],
    "fp8-channel weight-only, plain experts": ["--to", "fp8-channel", "--activations", "weight-only", *PLAIN_EXPERTS],
    "fp8-channel, modelopt, plain experts": ["--to", "fp8-channel", "--dialect", "modelopt", *PLAIN_EXPERTS],
    "fp8-tensor, deepseek": ["--to", "fp8-tensor", "--dialect", "deepseek"],
    "fp8-tensor static, compressed-tensors": ["--to", "fp8-tensor", "--activations", "static", "--input-scale", "1"],
    "fp8-tensor dynamic, compressed-tensors, plain experts": ["--to", "fp8-tensor", "--activations", "dynamic", *PLAIN_EXPERTS],
    "fp8-tensor weight-only, plain experts": ["--to", "fp8-tensor", "--activations", "weight-only", *PLAIN_EXPERTS],
    "int8-channel static, plain experts": ["--to", "int8", "--activations", "static", "--input-scale", "1", *PLAIN_EXPERTS],
    "int8-channel, modelslim": ["--to", "int8", "--dialect", "modelslim"],
    "nvfp4 static, compressed-tensors": ["--to", "nvfp4", "--activations", "static", "--input-scale", "1"],
    "mxfp4, plain linears": ["--to", "mxfp4", *PLAIN_LINEARS],
    "mxfp8 dynamic": ["--to", "mxfp8", "--activations", "dynamic"],
    "int4 experts, fp8-channel": ["--to", "fp8-channel", "--group-size", "32", "--rule", "role:experts=int4-group", "--mtp", "keep"],
    "nvfp4 experts, fp8-channel": ["--to", "fp8-channel", "--rule", "role:experts=nvfp4", "--mtp", "keep"],
    "nvfp4, fp8-block attention": ["--to", "nvfp4", "--dialect", "compressed-tensors", "--rule", "role:attention=fp8-block"],
    "int4, fp8-block attention": ["--to", "int4", "--group-size", "32", "--rule", "role:attention=fp8-block"],
    "fp8-block, deepseek, plain experts": ["--to", "fp8", *PLAIN_EXPERTS],
    "fp8-block, deepseek, plain shared experts": ["--to", "fp8", "--rule", "role:shared-experts=bf16"],
    "fp8-block, deepseek, plain mtp": ["--to", "fp8", "--mtp", "bf16"],
    "fp8-block, compressed-tensors, plain mtp": ["--to", "fp8", "--dialect", "compressed-tensors", "--mtp", "bf16"],
    "fp8-tensor static, modelopt, plain mtp": [*FORMS["fp8-tensor static, modelopt"], "--mtp", "bf16"],
}
# Mixtures that every engine is asked about with two models, and what SGLang is asked where it loads shared experts as
# routed ones, and with --disable-shared-experts-fusion.
MIXTURES = ("nvfp4, fp8-block attention", "int4, fp8-block attention")
FUSED_FORMS = ("bf16", "fp8-block, deepseek", "int8-channel, compressed-tensors", "nvfp4, compressed-tensors", "nvfp4 weight-only, modelopt",
               "int4-group, compressed-tensors", *MIXTURES, "int4 experts, fp8-channel", "fp8-block, deepseek, plain experts",
               "fp8-block, deepseek, plain shared experts")
# Forms of SGLang's own rank files, and those in which kv_b_proj, which it splits behind the loading, has to be plain.
RANK_FORMS = ("bf16", "fp8-block, deepseek", "fp8-block, compressed-tensors", "fp8-channel, compressed-tensors", "int8-channel, compressed-tensors")
PLAIN_SPLIT = {
    "fp8-channel, compressed-tensors, plain kv_b": ["--to", "fp8-channel", "--rule", "role:kv-b-proj=bf16"],
    "int8-channel, compressed-tensors, plain kv_b": ["--to", "int8", "--rule", "role:kv-b-proj=bf16"],
}
# vLLM allocates and fills these itself if the checkpoint has none: no fault without static activations.
OWN = ("input_scale", "input_global_scale", "_zero_point")
PROMPTS = [[1, 5, 9, 12, 33, 7], [2, 200, 17, 17, 201], [11], [90, 80, 70, 60, 50, 40, 30, 20]]
# On each of these the rank files of one model are compared with it; expert parallelism with those of every model.
TOPOLOGIES = ("tp 1", "tp 4", "pp 2", "tp 2, pp 2")
# For the bundled model, which has learned to write.
TEXTS = ["Once upon a time there was a hungry fox", "17 + 25 =", "The capital of France is", "从前有一只兔子"]
BUNDLED = "tiny-v32 as deepseek_v3"


def rows():
    for model in MODELS:
        for form in FORMS:
            yield model, form, "hf", "vllm loads"
            yield model, form, "vllm-sharded, tp 2", "vllm loads"
            if model != "qwen3_moe":
                yield model, form, "vllm-sharded, tp 2, mtp", "vllm loads"
            if model not in SPARSE:
                yield model, form, "hf", "transformers loads"
    yield "qwen3_moe", "bf16", "hf", "vllm generates"
    for model in ("qwen3_moe", BUNDLED):
        for form in FORMS:
            yield model, form, "hf", "vllm computes"
            yield model, form, "vllm-sharded, tp 1", "vllm computes"
    for form in ("bf16", "fp8-block, deepseek", "fp8-channel, compressed-tensors", "nvfp4, compressed-tensors"):
        for n_ranks in (2, 4):
            yield "deepseek_v3, released heads", form, f"vllm-sharded, tp {n_ranks}", "vllm computes"
            # Blocks of 128 are cut where four ranks share 256 columns.
            if n_ranks == 2 or "block" not in form:
                yield "qwen3_moe", form, f"vllm-sharded, tp {n_ranks}", "vllm computes"
        for topology in TOPOLOGIES:
            yield "deepseek_v3, released heads", form, f"vllm-sharded, {topology}", "vllm loads"
        for model in ("deepseek_v3, released heads", *list(MODELS)[1:]):
            yield model, form, "vllm-sharded, tp 2, ep", "vllm loads"
        for model in FURTHER_MODELS:
            yield model, form, "vllm-sharded, tp 2", "vllm loads"
    for form in FURTHER_FORMS:
        if "plain mtp" not in form:
            yield "deepseek_v3", form, "hf", "vllm loads"
    for form in MIXTURES:
        yield "qwen3_moe", form, "hf", "vllm loads"
        yield "qwen3_moe", form, "hf", "vllm computes"
        yield "qwen3_moe", form, "hf", "transformers loads"
    for form in ("f32", "f16", "int4 experts, fp8-channel", "fp8-block, deepseek, plain experts", *MIXTURES):
        yield "deepseek_v3", form, "hf", "transformers loads"
    for model in model_configs.DECODERS:
        for form in FORMS:
            for question in ("vllm loads", "vllm computes", "transformers loads"):
                yield model, form, "hf", question
    # The last: vLLM cannot be imported behind SGLang.
    for model in model_configs.DECODERS:
        for form in FORMS:
            yield model, form, "hf", "sglang loads"
    for model in MODELS:
        for form in FORMS | (FURTHER_FORMS if model == "deepseek_v3" else {}):
            yield model, form, "hf", "sglang loads"
            if model != "qwen3_moe":
                yield model, form, "hf, mtp", "sglang loads"
    for form in MIXTURES:
        yield "qwen3_moe", form, "hf", "sglang loads"
    for model in model_configs.FUSING:
        for form in FUSED_FORMS:
            yield model, form, "hf", "sglang loads"
            yield model, form, "hf, unfused", "sglang loads"
    for model in (*MODELS, *FURTHER_MODELS):
        for form in FORMS if model in ("deepseek_v3", "qwen3_moe") else RANK_FORMS[:2]:
            yield model, form, "sglang-sharded, tp 2", "sglang loads"
    for form in RANK_FORMS:
        yield "qwen3_moe", form, "sglang-sharded, tp 2, ep", "sglang loads"
    for form in PLAIN_SPLIT:
        for topology in ("tp 2", "tp 2, ep"):
            yield "deepseek_v3", form, f"sglang-sharded, {topology}", "sglang loads"
    for form in RANK_FORMS[1:3]:
        for topology in ("tp 1", "tp 4", "tp 2, ep"):
            yield "deepseek_v3, released heads", form, f"sglang-sharded, {topology}", "sglang loads"


def name_of(model, form, layout, question):
    return f"{model}; {form}; {layout}; {question}"


def topology_of(layout):
    """The ranks of each kind of parallelism: {"tp": 2, "pp": 1, "ep": 0}."""
    named = {kind: int(n) for kind, n in re.findall(r"(tp|pp) (\d)", layout)}
    return {"tp": 1, "pp": 1, **named, "ep": named.get("tp", 1) if ", ep" in layout else 0}


def one_line(text, folder):
    """The first line of a message, without what differs from run to run."""
    line = next((l for l in text.strip().splitlines() if l.strip()), "")
    return re.sub(r"0x[0-9a-f]+", "0x", line.replace(str(folder), "DIR"))[:300]


def make_source(ingot, model, source):
    if model == BUNDLED:
        plain = source.with_name("bundled")
        subprocess.run([ingot, "convert", EXAMPLE, plain, "--to", "bf16", "--quiet"], check=True)
        released_heads.widen(plain, source)
        return
    facts = (MODELS | FURTHER_MODELS).get(model)
    if facts is None:
        config = source.with_suffix(".json")
        config.write_text(json.dumps(CONFIGS[model]))
        facts = ["--config", config]
    subprocess.run([ingot, "synth", source, *facts, "--quiet"], check=True, stdout=subprocess.DEVNULL)


def questions_for(directory):
    """Prompts, and how many tokens an answer may have."""
    if not (directory / "tokenizer.json").exists():
        return PROMPTS, 12
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return [[0, *tokenizer.encode(text, add_special_tokens=False).ids] for text in TEXTS], 32


def convert(ingot, model, form, layout, folder):
    """The directory of ingot's output, or what it refuses: its message without the remedy and the tensors."""
    source = folder / f"source-{model}"
    if not source.exists():
        make_source(ingot, model, source)
    ranks = [text for kind, n in topology_of(layout).items() if n for text in (f"--{kind}", str(n))]
    sharded = ["--layout", layout.split(",")[0], *ranks] if "sharded" in layout else []
    is_apart = bool(sharded) and model in SHARED_EMBEDDING
    if "sglang-sharded" in sharded or is_apart and "mtp" not in layout:
        sharded += ["--mtp", "drop"]
    files = layout if is_apart else layout.removesuffix(", mtp").removesuffix(", unfused")
    output = folder / re.sub(r"[^a-z0-9]+", "-", f"{model} {form} {files}")
    if output.exists():
        return output, None
    what = (FORMS | FURTHER_FORMS | PLAIN_SPLIT)[form]
    if sharded and model in SPARSE:
        # Ranks hold the indexer's wk plain: from the source it would not be what vLLM decodes of FP8.
        source, what = convert(ingot, model, form, "hf", folder)[0], []
    command = [ingot, "convert", source, output, *what, "--quiet", *sharded]
    done = subprocess.run(command, capture_output=True, text=True)
    first = re.sub(r"^error: (\d+ faults\n *tensor '[^']*': )?", "", done.stderr)
    return output, re.split(r" \(|: ", one_line(first, folder))[0] if done.returncode else None


def ids_of(ingot, directory, profile):
    """Greedy answers of ingot."""
    answers = []
    prompts, n_tokens = questions_for(directory)
    for prompt in prompts:
        command = [ingot, "generate", directory, "--tokens", ",".join(map(str, prompt)), "--greedy", "--json"]
        done = subprocess.run([*command, "--max-new-tokens", str(n_tokens), "--profile", profile], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        answers.append(json.loads(done.stdout)["sequences"][0]["generated_ids"])
    return answers


def agreement(ours, theirs):
    """How many answers are equal, and how many tokens before the first that differs."""
    first = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), min(len(x), len(y))) for x, y in zip(ours, theirs)]
    equal = sum(n >= len(x) for n, x in zip(first, ours))
    return f"{equal} of {len(ours)} answers equal, {sum(first)} of {sum(map(len, ours))} tokens before a difference"


def states_of(engine, options):
    """The state dict of each rank as an engine's script loads it, or the message with which it fails."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return engine.states(options)
    except SystemExit as failure:
        return str(failure)


def vllm_states(directory, layout, sharded):
    topology = topology_of(layout)
    options = argparse.Namespace(
        model=str(directory / "mtp" if sharded and "mtp" in layout else directory), dtype="bfloat16",
        tp=topology["tp"], pp=topology["pp"], ep=topology["ep"] > 0, mtp="mtp" in layout,
        sharded=sharded, engine="{}", timeout=600,
    )
    return states_of(sharded_state, options)


def vllm_loads(directory, form):
    states = vllm_states(directory, "hf", sharded=False)
    if isinstance(states, str):
        return states
    own = sharded_state.CONSTANTS if "static" in form else sharded_state.CONSTANTS + OWN
    left = [f"rank {r}: {n}" for r, state in enumerate(states) for n, facts in sorted(state.items())
            if facts["filled"] and not n.endswith(own)]
    return f"not filled: {left[0]} (of {len(left)})" if left else f"loads, {sum(map(len, states))} keys"


def rank_files_load(cut, whole, may_be_unset):
    for states in (cut, whole):
        if isinstance(states, str):
            return states
    faults = ranks.differences(whole, cut, may_be_unset)
    return f"{len(faults)} keys differ: {faults[0]}" if faults else f"loads, {sum(map(len, cut))} keys equal to those of the unsliced directory"


def vllm_answers(directory, dtype, layout, replaced, n_ranks=1):
    """Greedy answers, log probabilities of the prompts' tokens, and what was replaced."""
    os.environ.update(sharded_state.ENVIRONMENT, PYTHONPATH=str(HERE))
    from vllm import LLM, SamplingParams

    sharded_state.hide_tiles()
    if replaced:
        sharded_state.replace_kernels()
        dequantized.install()
    engine = LLM(
        model=str(directory), dtype=dtype, enforce_eager=True, max_model_len=128, skip_tokenizer_init=True, seed=0,
        load_format="sharded_state" if "sharded" in layout else "auto", tensor_parallel_size=n_ranks,
        **({"distributed_executor_backend": "mp", "worker_extension_cls": "in_ranks.Replaced"} if n_ranks > 1 else {}),
    )
    prompts, n_tokens = questions_for(directory)
    sampling = SamplingParams(temperature=0, max_tokens=n_tokens, detokenize=False, stop_token_ids=[1], prompt_logprobs=0)
    # One by one, as here: batches may add in another order.
    outputs = [engine.generate([{"prompt_token_ids": p}], sampling, use_tqdm=False)[0] for p in prompts]
    logs = [step[token].logprob for p, o in zip(prompts, outputs) for token, step in zip(p[1:], o.prompt_logprobs[1:])]
    return [list(o.outputs[0].token_ids) for o in outputs], logs, sorted(dequantized.REPLACED)


def vllm_generates(directory, ingot):
    answers, _, _ = vllm_answers(directory, "bfloat16", "hf", replaced=False)
    return "loads, " + agreement(ids_of(ingot, directory, "bf16"), answers)


@functools.cache
def answers_of_cast(ingot, directory):
    cast = directory.with_name(directory.name + "-cast")
    subprocess.run([ingot, "convert", directory, cast, "--to", "f32", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return in_child(vllm_answers, cast, "float32", "hf", False)


def vllm_computes(ingot, directory, layout, unsliced):
    os.environ.update(sharded_state.ENVIRONMENT)
    import vllm.engine.arg_utils  # noqa: F401 - once, before processes are forked

    found, wanted = in_child(vllm_answers, directory, "float32", layout, True), answers_of_cast(ingot, unsliced)
    for result in (found, wanted):
        if isinstance(result, str):
            return result
    furthest = max(abs(a - b) for a, b in zip(found[1], wanted[1], strict=True))
    within = f"1e{math.ceil(math.log10(furthest))}" if furthest > 1e-6 else "1e-6"
    text = f"{agreement(ids_of(ingot, directory, 'f32'), found[0])}, log probabilities within {within} of the cast's"
    return text + (f", replaced: {', '.join(found[2])}" if found[2] else "")


@functools.cache
def import_sglang():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sglang_loads.prepare()


def sglang_loaded(directory, form, layout, unsliced):
    import_sglang()
    # Its own scheme of INT8 experts has to be named; compressed-tensors' is for NPUs.
    named = "w8a8_int8" if form.startswith("int8-channel, compressed-tensors") else None
    options = argparse.Namespace(
        model=directory, card="blackwell" if "fp4" in form or "mxfp8" in form else "hopper", quantization=named,
        own=() if "static" in form else OWN, mtp="mtp" in layout, unfused="unfused" in layout,
    )
    if "sharded" in layout:
        topology = topology_of(layout)
        ours = {"unfused": True, "tp": topology["tp"], "ep": topology["ep"] > 0, "timeout": 600}
        cut, whole = (
            states_of(sglang_state, argparse.Namespace(**{**vars(options), **ours, "model": d, "sharded": d == directory}))
            for d in (directory, unsliced)
        )
        result = rank_files_load(cut, whole, may_be_unset=False)
    else:
        result = in_child(sglang_loads.loads, options)
    return result + (f", with --quantization {named}" if named else "")


def ranks_compute(directory, unsliced, layout):
    os.environ.update(sharded_state.ENVIRONMENT)
    import vllm.engine.arg_utils  # noqa: F401 - once, before processes are forked

    n_ranks = topology_of(layout)["tp"]
    results = [in_child(vllm_answers, d, "float32", l, True, n_ranks) for d, l in ((directory, layout), (unsliced, "hf"))]
    for result in results:
        if isinstance(result, str):
            return result
    (found, logs, _), (wanted, wanted_logs, _) = results
    return f"{agreement(wanted, found)}, log probabilities {'equal' if logs == wanted_logs else 'other than'} those of the unsliced directory"


def transformers_loads(directory, ingot):
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    block = getattr(AutoConfig.from_pretrained(directory), "quantization_config", None)
    method = block.get("quant_method") if isinstance(block, dict) else None
    options = {
        "fp8": lambda: {"quantization_config": transformers.FineGrainedFP8Config(dequantize=True)},
        "compressed-tensors": lambda: {"quantization_config": transformers.CompressedTensorsConfig(run_compressed=False)},
    }.get(method, dict)()
    model, facts = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True, **options)
    wrong = {key: sorted(map(str, value))[:3] for key, value in facts.items() if value}
    # The layer of multi-token prediction is no part of its model.
    wrong = {key: names for key, names in wrong.items() if any(".layers.2." not in name for name in names) or key != "unexpected_keys"}
    if wrong:
        return f"loads with {wrong}"
    model = model.float()
    if method == "compressed-tensors":
        from compressed_tensors.quantization import disable_quantization

        model.apply(disable_quantization)  # of activations: the weights are dequantized
    answers = []
    prompts, n_tokens = questions_for(directory)
    with torch.no_grad():
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(n_tokens):
                logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
                tokens.append(int(logits.argmax()))
                if tokens[-1] == 1:
                    break
            answers.append(tokens[len(prompt):])
    return "loads, " + agreement(ids_of(ingot, directory, "f32"), answers)


def in_child(task, *arguments):
    """The result of a task in a process of its own, or the message with which it fails."""

    def run(pipe):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            pipe.send(task(*arguments))
        except BaseException as failure:
            pipe.send(f"{type(failure).__name__}: {failure}")

    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=run, args=(theirs,))
    child.start()
    theirs.close()
    try:
        result = ours.recv() if ours.poll(600) else "no answer in 600 s"
    except EOFError:
        result = "the process ended without an answer"
    child.kill()
    child.join()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", default="", help="rows whose text has this")
    options = parser.parse_args()
    ingot = str(pathlib.Path(options.ingot).resolve())
    expected = {}
    if EXPECTED.exists():
        for line in EXPECTED.read_text().splitlines():
            row = json.loads(line)
            expected[row["row"]] = row["result"]
    found, n_other = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for model, form, layout, question in rows():
            name = name_of(model, form, layout, question)
            if options.only not in name:
                continue
            directory, refusal = convert(ingot, model, form, layout, folder)
            if refusal:
                result = "ingot refuses: " + refusal
            elif question == "vllm loads":
                unsliced, _ = convert(ingot, model, form, "hf", folder)
                result = (rank_files_load(*(vllm_states(d, layout, d == directory) for d in (directory, unsliced)), True)
                          if "sharded" in layout else vllm_loads(directory, form))
            elif question == "vllm computes":
                unsliced, _ = convert(ingot, model, form, "hf", folder)
                result = (ranks_compute(directory, unsliced, layout) if topology_of(layout)["tp"] > 1
                          else vllm_computes(ingot, directory, layout, unsliced))
            elif question == "sglang loads":
                unsliced, _ = convert(ingot, model, form, "hf", folder)
                result = sglang_loaded(directory, form, layout, unsliced)
            elif question == "vllm generates":
                result = in_child(vllm_generates, directory, ingot)
            else:
                result = in_child(transformers_loads, directory, ingot)
            result = one_line(result, folder)
            is_other = expected.get(name) != result
            n_other += is_other
            found[name] = result
            print(f"{'OTHER ' if is_other else 'same  '} {name}: {result}", flush=True)
            if is_other and not options.record:
                print(f"       expected: {expected.get(name)}", flush=True)
    if options.record:
        known = expected | found
        names = [name for name in (name_of(*row) for row in rows()) if name in known]
        lines = [json.dumps({"row": name, "result": known[name]}) for name in names]
        EXPECTED.write_text("\n".join(lines) + "\n")
        return 0
    print(f"{len(found)} rows, {n_other} other than expected")
    return 1 if n_other else 0


if __name__ == "__main__":
    sys.exit(main())
