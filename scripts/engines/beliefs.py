#!/usr/bin/env python3
"""Asks engines what they believe of each linear layer, and compares with `ingot check --engine`.

    beliefs.py INGOT [--engine vllm|sglang|transformers] [--only TEXT] [--show N] [--answers FILE]

An engine builds its own model class from the config of a directory, its draft model for multi-token
prediction too, and loads no weights; SGLang's loaders are given scales of blocks, and its
post_load_weights is run, since these ask the config for the size of blocks. Which scheme it chose for
a module follows from the parameters that it made: their names, dtypes and shapes. A module that it
builds of several (`qkv_proj`, `gate_up_proj`, experts) speaks for each of them; transformers chooses
a scheme for the experts of compressed-tensors when it loads them, and is asked for that. The
directories are ingot's outputs, and those with configs that were changed in ways in which other tools
write them (config_changes.py). Where an engine raises an error, `check` has to say of some layer that
it is refused; where it raises none, it may say so of no layer. Nothing is compared where `check` says
that the engine does not load what is stored at all, or wants an option. Fails where they disagree.

What an engine answers depends on the configs only, so --answers keeps it in a file: a run that was
ended goes on where it was, and one after a change to ingot asks the engines only about configs that
are new. Such a file is of one version of each engine, and of these scripts.
"""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import config_changes
import matrix
import sglang_loads
import sharded_state

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    # Plain, and vLLM decodes `wk` into it where that is stored quantized.
    "wk_weights_proj": ("weights_proj",),
}
EXPERTS = {"w13": ("gate_proj", "up_proj"), "w2": ("down_proj",)}
WEIGHTS = ("weight", "weight_packed", "qweight")
REFUSED = "refused"


def scheme_of(parameters, weight):
    """The scheme whose parts these parameters are; `weight` is the name of the one with codes."""
    codes = parameters[weight]
    stem = re.sub("(weight|weight_packed|qweight)$", "", weight)
    scale = next((parameters[stem + end] for end in ("weight_scale_inv", "weight_scale", "scales") if stem + end in parameters), None)
    dtype = str(codes.dtype).removeprefix("torch.")
    if dtype in ("bfloat16", "float16", "float32"):
        return "plain"
    if dtype == "int32":
        return "int4-group"
    scale_dtype = str(scale.dtype).removeprefix("torch.")
    if dtype == "uint8":
        return "nvfp4" if scale_dtype == "float8_e4m3fn" else "mxfp4"
    if scale_dtype in ("uint8", "float8_e8m0fnu"):
        return "mxfp8"
    name = {"float8_e4m3fn": "fp8", "int8": "int8"}[dtype]
    if stem + "weight_scale_inv" in parameters:
        return name + ("-block" if scale.dim() >= 2 else "-tensor")
    rows = codes.shape[:-1]
    if scale.dim() < codes.dim():
        # One per matrix, or per matrix of those that are fused; one per row also describes a column.
        return name + ("-channel" if scale.shape[-1:] == rows[-1:] else "-tensor")
    if scale.shape[-1] > 1 or (scale.shape[-2] != codes.shape[-2] and scale.shape[-2] != codes.shape[-1]):
        return name + ("-block" if scale.shape[-2] > 1 or scale.shape[-1] > 1 else "-tensor")
    return name + "-channel"


def members_of(module):
    """The names in a checkpoint of what an engine built under this name."""
    parent, _, leaf = module.rpartition(".")
    return [f"{parent}.{member}" for member in FUSED.get(leaf, (leaf,))] if parent else [module]


def beliefs_of(model, rename, n_experts):
    """{linear layer of the checkpoint: scheme} of a model that an engine built."""
    found = {}
    for name, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False))
        stacked = {part: next((n for n in parameters if re.fullmatch(part + "_(weight|weight_packed|qweight)", n)), None) for part in EXPERTS}
        if all(stacked.values()):
            parent = rename(name.split(".experts")[0]) + ".experts"
            for part, weight in stacked.items():
                for expert, leaf in itertools.product(range(n_experts), EXPERTS[part]):
                    found[f"{parent}.{expert}.{leaf}"] = scheme_of(parameters, weight)
            continue
        weight = next((n for n in WEIGHTS if n in parameters), None)
        if weight and parameters[weight].dim() == 2:
            for member in members_of(rename(name)):
                found[member] = scheme_of(parameters, weight)
    return found


def first_line(failure):
    text = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {text[0] if text else ''}"


def vllm_beliefs(directory, with_draft):
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    speculative = {"method": "mtp", "model": str(directory), "num_speculative_tokens": 1} if with_draft else None
    config = EngineArgs(
        model=str(directory), dtype="bfloat16", enforce_eager=True, max_model_len=256, skip_tokenizer_init=True,
        speculative_config=speculative,
    ).create_engine_config()
    n_experts = getattr(config.model_config.hf_config, "n_routed_experts", None) or config.model_config.hf_config.num_experts
    found = {}
    with set_current_vllm_config(config):
        for model_config in [config.model_config] + ([config.speculative_config.draft_model_config] if with_draft else []):
            with set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
                model = initialize_model(vllm_config=config, model_config=model_config)
            found |= beliefs_of(model, lambda name: name.replace(".mtp_block.", "."), n_experts)
    return found


def ask_vllm(requests, results):
    os.environ.update(sharded_state.ENVIRONMENT)
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

    torch.set_num_threads(1)
    sharded_state.replace_kernels()
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import compressed_tensors_wNa16 as packed

    packed.choose_mp_linear_kernel = lambda config: sharded_state.NoKernel
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
        initialize_model_parallel(1, 1)
    for directory, with_draft in requests:
        try:
            results(vllm_beliefs(directory, with_draft))
        except Exception as failure:  # whatever an engine raises is its answer
            results(first_line(failure))


def sglang_beliefs(directory, mtp):
    options = argparse.Namespace(model=directory, card="blackwell", quantization=None, mtp=mtp, unfused=True)
    model, _, config = sglang_loads.build(options)
    sglang_loads.read_in_blocks(model)
    hf = config.hf_config
    n_experts = getattr(hf, "n_routed_experts", None) or hf.num_experts
    prefix = f"model.layers.{hf.num_hidden_layers}."
    return beliefs_of(model, (lambda name: name.replace("model.decoder.", prefix)) if mtp else (lambda name: name), n_experts)


def ask_sglang(requests, results):
    matrix.import_sglang()
    for directory, with_draft in requests:
        try:
            answers = [sglang_beliefs(directory, mtp) for mtp in ([False, True] if with_draft else [False])]
            results({name: scheme for answer in reversed(answers) for name, scheme in answer.items()})
        except Exception as failure:
            results(first_line(failure))


def scheme_of_group(group):
    """That of a linear layer in a group of compressed-tensors."""
    import torch
    from compressed_tensors.compressors import compress_module
    from compressed_tensors.quantization import initialize_module_for_quantization

    with torch.device("meta"):
        linear = torch.nn.Linear(256, 256, bias=False, dtype=torch.bfloat16)
    initialize_module_for_quantization(linear, group)
    compress_module(linear)
    return beliefs_of(torch.nn.ModuleDict({"linear": linear}), lambda name: name, 0)["linear"]


def transformers_beliefs(directory):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.compressed_tensors import get_experts_scheme
    from transformers.quantizers.auto import AutoHfQuantizer

    config = AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    block = getattr(config, "quantization_config", None)
    of_experts = None
    if block is not None:
        if not AutoHfQuantizer.supports_quant_method(block):
            raise ValueError(f"skips quant_method {block['quant_method']}, and takes codes for weights")
        quantizer = AutoHfQuantizer.from_config(block, pre_quantized=True)
        quantizer.use_fp8_kernel = False
        quantizer._process_model_before_weight_loading(model)
        if block["quant_method"] == "compressed-tensors":
            of_experts = scheme_of_group(get_experts_scheme(quantizer.compressor.quantization_config))
    found = beliefs_of(model, lambda name: name, 0)
    n_experts = getattr(config, "n_routed_experts", None) or config.num_experts
    for name, module in model.named_modules():
        if not name.endswith(".experts"):
            continue
        parameters = dict(module.named_parameters(recurse=False))
        has_blocks = "gate_up_proj_scale_inv" in parameters and parameters["gate_up_proj_scale_inv"].shape[-1] > 1
        scheme = of_experts or ("plain" if "gate_up_proj_scale_inv" not in parameters else "fp8-block" if has_blocks else "fp8-tensor")
        for expert, leaf in itertools.product(range(n_experts), sum(EXPERTS.values(), ())):
            found[f"{name}.{expert}.{leaf}"] = scheme
    return found


def ask_transformers(requests, results):
    import transformers

    transformers.logging.set_verbosity_error()
    for directory, _ in requests:
        try:
            results(transformers_beliefs(directory))
        except Exception as failure:
            results(first_line(failure))


def expand(name):
    """Every name that a row of `check` abbreviates."""
    pieces = re.split(r"\{([^}]*)\}", name)
    choices = []
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            choices.append([piece])
            continue
        ends = [part.split("-") for part in piece.split(",")]
        choices.append([str(n) for first, *last in ends for n in range(int(first), int((last or [first])[0]) + 1)])
    return ["".join(words) for words in itertools.product(*choices)]


def ingot_beliefs(ingot, engine, directory):
    done = subprocess.run([ingot, "check", directory, "--engine", engine, "--json"], capture_output=True, text=True)
    try:
        report = json.loads(done.stdout)["engine"]
    except (ValueError, KeyError):
        return f"ingot: {(done.stderr or done.stdout).strip()[:300]}"
    options = [option for option in report["options"] if option != "--skip-tokenizer-init"]
    if not report["reads_weights"] or options:
        return REFUSED
    found = {}
    for row in report["modules"]:
        names = expand(row["name"])
        if len(names) != row["count"]:
            return f"{row['name']} means {len(names)} layers and not {row['count']}"
        found |= {name: row["believed"] for name in names}
    return found


def differences(ours, theirs):
    """Texts of what differs, and the number of layers compared."""
    if ours == REFUSED and isinstance(theirs, dict):
        return [], 0  # it is built, and what is stored would not be loaded
    if isinstance(ours, str):
        return ([] if isinstance(theirs, str) else [ours]), 0
    refused = [name for name, scheme in ours.items() if scheme == REFUSED]
    if isinstance(theirs, str):
        return ([] if refused else [f"the engine raises {theirs}"]), 0
    if refused:
        return [f"{refused[0]} (of {len(refused)}) is refused only here"], len(ours)
    common = [name for name in ours if name in theirs]
    differ = [name for name in common if ours[name] != theirs[name] and (ours[name] != "unknown scheme" or theirs[name] == "plain")]
    return [f"{name}: {ours[name]} here, {theirs[name]} in the engine" for name in differ], len(common)


def directories(ingot, only, folder):
    """Every directory to ask about: its name and path, and whether it has a draft model."""
    numbers = itertools.count()
    for model, form in itertools.product(config_changes.MODELS, matrix.FORMS):
        if not any(only in f"{model}; {form}; {change}" for change, _ in config_changes.changes(model, form)):
            continue
        source, refusal = matrix.convert(ingot, model, form, "hf", folder)
        if refusal:
            raise RuntimeError(refusal)
        for change, edit in config_changes.changes(model, form):
            name = f"{model}; {form}; {change}"
            if only not in name:
                continue
            changed = folder / "changed" / str(next(numbers))
            shutil.copytree(source, changed, copy_function=os.link)
            config_changes.apply(edit, changed)
            yield name, changed, model != "qwen3_moe"


ASK = {"vllm": ask_vllm, "sglang": ask_sglang, "transformers": ask_transformers}


class Answers:
    """Answers of engines by what was asked, kept in a file if there is one."""

    def __init__(self, path):
        self.path = path
        self.known = dict(json.loads(line) for line in open(path)) if path and os.path.exists(path) else {}

    def add(self, key, answer):
        self.known[key] = answer
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps([key, answer]) + "\n")


def key_of(engine, directory, with_draft):
    """What an engine is asked: its name and the configs."""
    digest = hashlib.sha256()
    for path in (directory / "config.json", directory / config_changes.SIDE):
        digest.update(path.read_bytes() + b"\0" if path.exists() else b"\0")
    return f"{engine} {digest.hexdigest()} {with_draft:d}"


def compare(ingot, engine, asked, show, answers):
    """How many configs and layers agreed; prints the others."""
    keys = [key_of(engine, *request) for _, *request in asked]
    new = {key: request for key, (_, *request) in zip(keys, asked) if key not in answers.known}

    def run(pipe):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        ASK[engine](new.values(), lambda answer: (pipe.write(json.dumps(answer) + "\n"), pipe.flush()))

    reader, writer = os.pipe()
    if new and os.fork() == 0:
        os.close(reader)
        try:
            run(os.fdopen(writer, "w"))
        finally:
            os._exit(0)
    os.close(writer)
    n_agreed = n_layers = n_raised = n_silent = 0
    with os.fdopen(reader) as pipe:
        for (name, directory, _), key in zip(asked, keys):
            if key not in answers.known:
                line = pipe.readline()
                if not line:
                    raise RuntimeError(f"{engine}: the process that asks it ended before {name}")
                answers.add(key, json.loads(line))
            theirs = answers.known[key]
            ours = ingot_beliefs(ingot, engine, directory)
            found, n_compared = differences(ours, theirs)
            n_silent += ours == REFUSED
            n_raised += isinstance(theirs, str) and ours != REFUSED
            n_layers += n_compared
            n_agreed += not found
            print(f"{'same ' if not found else 'OTHER'} {engine}; {name}: {n_compared} layers" + (f", {theirs}" if isinstance(theirs, str) else ""), flush=True)
            for text in found[:show]:
                print(f"        {text}" + (f" (and {len(found) - show} more)" if text is found[:show][-1] and len(found) > show else ""), flush=True)
    print(f"{engine}: {n_agreed - n_silent} of {len(asked) - n_silent} configs agree, {n_raised} of them refused, "
          f"{n_layers} layers compared; {n_silent} configs not compared", flush=True)
    return n_agreed == len(asked)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot")
    parser.add_argument("--engine", choices=ASK)
    parser.add_argument("--only", default="", help="configs whose name has this")
    parser.add_argument("--show", type=int, default=4, help="differences that are printed of a config")
    parser.add_argument("--answers", help="a file in which answers of engines are kept")
    options = parser.parse_args()
    ingot = str(pathlib.Path(options.ingot).resolve())
    answers = Answers(options.answers)
    with tempfile.TemporaryDirectory() as folder:
        asked = list(directories(ingot, options.only, pathlib.Path(folder)))
        agree = [compare(ingot, engine, asked, options.show, answers) for engine in ([options.engine] if options.engine else ASK)]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
