"""What the JSON of a checkpoint says of its modules, read as loaders read it, against what is stored."""

import fnmatch
import json
import os
import re

from container import quantization_config

STRATEGIES = {
    "fp8-block": "block",
    "fp8-channel": "channel",
    "fp8-tensor": "tensor",
    "int8-channel": "channel",
    "nvfp4": "tensor_group",
    "mxfp4": "group",
    "mxfp8": "group",
    "int4-group": "group",
}
# Modules that DeepSeek's models build quantized.
BUILT_QUANTIZED = re.compile(
    r"\.(?:q_a_proj|q_b_proj|q_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj|wq_b|wk|gate_proj|up_proj|down_proj)$"
)


def _names(entry, module):
    return re.match(entry[3:], module) is not None if entry.startswith("re:") else entry in (module, "Linear")


def group_of(said, module):
    """The group of compressed-tensors that a linear module falls into; None where it is ignored."""
    if any(entry != "Linear" and _names(entry, module) for entry in said["ignore"]):
        return None
    groups = said["config_groups"].values()
    return next((group for group in groups if any(_names(entry, module) for entry in group["targets"])), None)


def _compressed(said, weights, choices):
    formats, has_int4_experts = set(), False
    for module, weight in weights.items():
        group = group_of(said, module)
        if (group is not None) != weight.is_quantized:
            yield module, f"is {weight.scheme}, and in {'a' if group else 'no'} group"
        if group is None or not weight.is_quantized:
            continue
        formats.add(group["format"])
        has_int4_experts |= weight.scheme == "int4-group" and ".experts." in module
        own, scheme = group["weights"], weight.scheme
        wanted = {
            "strategy": STRATEGIES[scheme],
            "type": "int" if scheme.startswith("int") else "float",
            "num_bits": 4 if "4" in scheme else 8,
        }
        if scheme == "fp8-block":
            wanted["block_structure"] = list(weight.block)
        if scheme == "int4-group":
            wanted["symmetric"] = weight.zeros is None
        if {key: own.get(key) for key in wanted} != wanted:
            yield module, f"is {scheme}, of which its group says {own}"
        inputs = group.get("input_activations")
        kind = "weight-only" if inputs is None else "dynamic" if inputs["dynamic"] is True else "static"
        if scheme == choices["to"] and kind != choices["activations"]:
            yield module, f"has {kind} activations, {choices['activations']} were asked for"
    several = "pack-quantized" if has_int4_experts else "mixed-precision"  # SGLang reads INT4 experts by it
    if said["format"] != (min(formats) if len(formats) == 1 else several):
        yield "config.json", f"has format {said['format']} over {sorted(formats)}"


def _deepseek(said, weights):
    left = said.get("modules_to_not_convert") or []
    for module, weight in weights.items():
        is_listed = any(module == entry or module.startswith(entry + ".") for entry in left)
        if weight.is_quantized != (BUILT_QUANTIZED.search(module) is not None and not is_listed):
            yield module, f"is {weight.scheme}, and {'' if is_listed else 'not '}in the list of plain modules"
        if weight.is_quantized and weight.scheme.endswith("block") and list(weight.block) != said["weight_block_size"]:
            yield module, f"has blocks of {weight.block}, config.json says {said['weight_block_size']}"


def _modelopt(folder, said, weights):
    with open(os.path.join(folder, "hf_quant_config.json")) as file:
        left = json.load(file)["quantization"]["exclude_modules"]
    if not left or said["ignore"] != left:
        yield "config.json", "and hf_quant_config.json leave out other modules"
    for module, weight in weights.items():
        if weight.is_quantized == any(fnmatch.fnmatchcase(module, entry) for entry in left):
            yield module, f"is {weight.scheme}, and {'' if weight.is_quantized else 'not '}left out"


def _modelslim(folder, said, stored, choices):
    if said:
        yield "config.json", "has a quantization_config, which this dialect has elsewhere"
    with open(os.path.join(folder, "quant_model_description.json")) as file:
        description = json.load(file)
    quantized = "W8A8" if choices["activations"] == "static" else "W8A8_DYNAMIC"
    for weight in stored.values():
        for part in weight.parts.values():
            if description.get(part.name) != (quantized if weight.is_quantized else "FLOAT"):
                yield part.name, f"is described as {description.get(part.name)}"


def complaints_of(model, choices):
    """Complaints as (name, words) about an output of single experts whose JSON has to name the form of each module.
    `model` as of judge.py."""
    said, dialect = quantization_config(model.config), choices["dialect"]
    weights = {
        name.removesuffix(".weight"): weight
        for name, weight in model.stored.items()
        if name.endswith(".weight") and weight.values.ndim == 2
    }
    if choices["to"] == "int8-channel":  # embeddings are of no class that its groups are for, so no list has them
        weights = {module: weight for module, weight in weights.items() if not module.endswith("embed_tokens")}
    if dialect == "compressed-tensors":
        yield from _compressed(said, weights, choices)
    elif dialect == "deepseek":
        yield from _deepseek(said, weights)
    elif dialect == "modelopt":
        yield from _modelopt(model.folder, said, weights)
    else:
        yield from _modelslim(model.folder, said, model.stored, choices)
