"""Whether a checkpoint is the conversion of another that was asked for, by the values of every tensor."""

import os
import re

import numpy as np

import grids
from container import quantization_config, read_checkpoint, read_config, text_config
from experts import assembled, form_of, members_of, separated, unfolded
from numbers_of_bits import F32, round_bf16, to_f16
from statistics_file import judge_input_scale
from weights import first_mtp_layer, logical_tensors, whole_numbers

ROUTED = re.compile(r"\.(?:experts\.\d+)\.(?:gate_proj|up_proj|down_proj)\.weight$")
# Matrices of a model without experts; every target of default recipes takes them.
DENSE = re.compile(r"\.layers\.\d+\.(?:self_attn|mlp)\.(?:[qkvo]|qkv|gate|up|down|gate_up)_proj\.weight$")
# Never quantized by any recipe, whatever the family.
NEVER = re.compile(r"(?:norm|embed_tokens|embed|mlp\.gate|router)\.weight$")
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# The parts that a dialect writes with the codes of a scheme, with dtype and shape (SHAPES).
F32_GRID, U8_GRID, F32_EACH = ("F32", "grid"), ("U8", "grid"), ("F32", "rows")
WRITTEN = {
    ("deepseek", "fp8-block"): {"weight_scale_inv": F32_GRID},
    ("deepseek", "fp8-tensor"): {"weight_scale": ("F32", "")},
    ("deepseek", "int8-block"): {"weight_scale_inv": F32_GRID},
    ("compressed-tensors", "fp8-block"): {"weight_scale": F32_GRID},
    ("compressed-tensors", "fp8-channel"): {"weight_scale": F32_GRID},
    ("compressed-tensors", "fp8-tensor"): {"weight_scale": ("F32", "one")},
    ("compressed-tensors", "int8-channel"): {"weight_scale": F32_GRID},
    ("compressed-tensors", "nvfp4"): {"weight_scale": ("F8_E4M3", "grid"), "weight_global_scale": ("F32", "one")},
    ("compressed-tensors", "mxfp4"): {"weight_scale": U8_GRID},
    ("compressed-tensors", "mxfp8"): {"weight_scale": U8_GRID},
    ("compressed-tensors", "int4-group"): {"weight_scale": ("BF16", "grid"), "weight_shape": ("I32", "sides")},
    ("modelopt", "nvfp4"): {"weight_scale": ("F8_E4M3", "grid"), "weight_scale_2": ("F32", "")},
    ("modelopt", "fp8-tensor"): {"weight_scale": ("F32", "")},
    ("modelopt", "fp8-channel"): {"weight_scale": F32_EACH},
    ("modelopt", "fp8-block"): {"weight_scale": ("F32", "spread")},
    ("modelopt", "mxfp8"): {"weight_scale": U8_GRID},
    ("modelslim", "int8-channel"): {"weight_scale": F32_GRID, "weight_offset": F32_GRID},
    ("modelslim", "int8-channel", "static"): {"deq_scale": (None, "rows"), "quant_bias": ("I32", "rows")},
    ("mxfp4", "mxfp4"): {"scales": ("U8", "grid")},
}
# SGLang joins their scales, where two of shape [1] would make a [2].
FUSED_BY_SGLANG = re.compile(r"(?:q_a_proj|kv_a_proj_with_mqa|\.attn\.(?:wq_a|wkv))\.")
# Of a matrix of n rows and k columns in blocks of r x c.
SHAPES = {
    "": lambda n, k, r, c: (),
    "one": lambda n, k, r, c: (1,),
    "sides": lambda n, k, r, c: (2,),
    "rows": lambda n, k, r, c: (n,),
    "grid": lambda n, k, r, c: (-(-n // r), -(-k // c)),
    "spread": lambda n, k, r, c: (-(-n // r), 1, -(-k // c), 1),
    "zeros": lambda n, k, r, c: (-(-n // 8), -(-k // c)),
}
# Names of DeepSeek-V4's release, whose own dialect calls scales `scale` and holds powers of two as exponents.
V4 = re.compile(r"^(?:layers|mtp)\.\d+\.(?:attn|ffn)\.")
# Tables of n-grams are copied, whatever the target.
TABLE = "ngram_embedding"
PLAIN = ("bf16", "f16", "f32")
SAID = {"bf16": "bfloat16", "f16": "float16"}  # dtype of config.json by target
DEEPSEEK_METHODS = ("fp8", "blockwise_int8")
ACTIVATIONS = {"input_scale", "input_offset", "input_global_scale", "activation_scale"}


class Model:
    """A checkpoint as single matrices by name, and as it is stored."""

    def __init__(self, folder):
        self.folder, self.config = folder, read_config(folder)
        self.stored = logical_tensors(read_checkpoint(folder), self.config)
        self.form = form_of(self.config)
        self.singles, self.origin = {}, {}
        for name, weight in self.stored.items():
            if weight.values is not None:
                weight.values = unfolded(name, weight.values, self.config)
            members = members_of(name, weight.values.ndim) if weight.values is not None else []
            split = separated(name, weight.values, weight.has_groups, self.form) if members else {name: weight.values}
            for single, values in split.items():
                if single in self.origin:
                    raise ValueError(f"{folder}: {single} is there both single and in a stack")
                self.singles[single], self.origin[single] = values, weight
        self._amax = {}

    def peers(self, name):
        """The amax of each matrix of the same module as this one."""
        module = name.rsplit(".", 2)[0]
        if not self._amax:
            for single, values in self.singles.items():
                if values is not None and values.ndim == 2 and values.size:
                    amax = np.abs(values[np.isfinite(values)]).max(initial=0)
                    self._amax.setdefault(single.rsplit(".", 2)[0], []).append(amax)
        return self._amax.get(module, [])

    def values_as(self, weight):
        """This model's values of a tensor of another model, in the shape stored there; and their origin."""
        if weight.name in self.singles:
            return self.singles[weight.name], self.origin[weight.name]
        members = members_of(weight.name, weight.values.ndim) if weight.values is not None else []
        n_experts = weight.values.shape[0] if members else 0
        wanted = [f"{before}{expert}{behind}" for expert in range(n_experts) for before, behind in members]
        if not wanted or any(name not in self.singles for name in wanted):
            return None, None
        stack = assembled(weight.name, weight.values.ndim, n_experts, self.singles, weight.has_groups, self.form)
        return stack, self.origin[wanted[0]]


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(
        np.ascontiguousarray(a, F32).view(np.uint32), np.ascontiguousarray(b, F32).view(np.uint32)
    )


def cast(values, scheme):
    """Values in a plain dtype, as F32."""
    if scheme == "bf16":
        return round_bf16(values)
    return to_f16(values).view("<f2").astype(F32) if scheme == "f16" else np.asarray(values, F32)


def is_saved_wide(source, to):
    """Whether linear weights are in F32, though the config says that they are in the target's dtype."""
    said = text_config(source.config)
    if SAID.get(to) is None or SAID[to] != (said.get("dtype") or said.get("torch_dtype")):
        return False
    return any(
        source.origin[name].scheme == "f32" for name in source.singles if ROUTED.search(name) or DENSE.search(name)
    )


def judge_plain(weight, values, origin, source, choices):
    is_asked = choices.get("narrows") or any(rule["scheme"] == weight.scheme for rule in choices.get("rules", []))
    is_asked |= weight.scheme == choices.get("to") and is_saved_wide(source, weight.scheme)
    if origin.is_plain and origin.scheme != weight.scheme and not is_asked:
        return [f"was {origin.scheme} and became {weight.scheme}, which was not requested"]
    if same_bits(weight.values, cast(values, weight.scheme)):
        return []
    wrong = np.count_nonzero(weight.values != cast(values, weight.scheme))
    return [f"{wrong} of {values.size} values are not the {weight.scheme} of those of the source ({origin.scheme})"]


def judge_kept(weight, values, origin):
    """Codes that were kept decode to the very values. A global scale that came to divide is a quotient, and
    Ascend's static form has the product of two scales."""
    if same_bits(weight.values, values):
        return []
    slack = 2.0**-21 if weight.scheme == "nvfp4" and weight.divides != origin.divides else 0
    if "deq_scale" in weight.parts:
        slack = 2.0**-22
    if np.all(np.abs(weight.values - values) <= np.abs(values) * F32(slack)):
        return []
    return [
        f"its codes were to be kept, and {np.count_nonzero(weight.values != values)} of {values.size} values are others"
    ]


def default_grid(source):
    """The grid of FP8 scales where none is asked for: powers of two if the source has them or says so."""
    has_mx = any(weight.scheme in ("mxfp4", "mxfp8") for weight in source.stored.values())
    return "ue8m0" if has_mx or quantization_config(source.config).get("scale_fmt") == "ue8m0" else "amax"


def judge_parts(weight, source, choices):
    """The stored tensors that the dialect says, and no others."""
    key = (choices["dialect"], weight.scheme)
    wanted = WRITTEN.get(key + (choices.get("activations"),)) or WRITTEN.get(key)
    if V4.search(weight.name) and (choices["dialect"] == "deepseek" or not choices.get("dialect_is_asked")):
        grid = "F32" if (choices.get("fp8_grid") or default_grid(source)) == "amax" else "F8_E8M0"
        scale = {"fp8-block": (grid, "grid"), "mxfp4": ("F8_E8M0", "grid")}.get(weight.scheme)
        wanted = {"scale": scale} if scale else wanted
    if choices.get("zero_points") and weight.scheme == "int4-group":
        wanted = {**wanted, "weight_zero_point": ("I32", "zeros")}
    if wanted is None:
        return [f"dialect {choices['dialect']} has no {weight.scheme}"]
    found = {
        part: stored.dtype for part, stored in weight.parts.items() if part != "weight" and part not in ACTIVATIONS
    }
    if found.keys() != wanted.keys() or any(wanted[part][0] not in (None, dtype) for part, dtype in found.items()):
        return [f"its parts are {found}, the dialect has {wanted}"]
    for part, (_, kind) in wanted.items():
        shape = SHAPES[kind](*weight.values.shape[-2:], *weight.block)
        if kind == "one" and FUSED_BY_SGLANG.search(weight.name):
            shape = ()
        if weight.values.ndim == 2 and weight.parts[part].shape != shape:
            return [f"its {part} has shape {weight.parts[part].shape}, the dialect has {shape}"]
    has_input = bool(ACTIVATIONS & weight.parts.keys())
    if not has_input and TABLE in weight.name:  # it has no input that could be quantized
        return []
    if has_input != (choices.get("activations") == "static"):
        return ["it has an input scale" if has_input else "it has no input scale"]
    complaints = []
    if has_input and "modules" in choices:
        complaints += judge_input_scale(weight, choices["modules"])
    elif has_input and choices.get("input_scale"):
        scale = F32(choices["input_scale"])
        part, number = (
            ("input_global_scale", F32(1) / scale) if "input_global_scale" in weight.parts else ("input_scale", scale)
        )
        stored = np.frombuffer(weight.parts[part].data, "<f4")
        if not np.all(stored == number):
            complaints.append(f"its {part} is {stored}, {number} was asked for")
    if "quant_bias" in weight.parts:
        offset = np.frombuffer(weight.parts["input_offset"].data, "<f4").astype(np.float64)
        bias = np.rint(-offset * weight.codes.astype(np.float64).sum(-1))
        if not np.array_equal(whole_numbers(weight.parts["quant_bias"]), bias):
            complaints.append("its quant_bias is not what its codes and the offset of the input give")
    return complaints


def judge_weight(weight, source, choices):
    values, origin = source.values_as(weight)
    if origin is None:
        return ["the source has no such tensor"]
    if weight.values is None or values is None:
        same = (
            origin.parts["weight"].data == weight.parts["weight"].data
            and origin.parts["weight"].shape == weight.parts["weight"].shape
        )
        return [] if same else ["is no number, and its bytes are not those of the source"]
    if weight.values.shape != values.shape:
        return [f"has shape {weight.values.shape}, the source {values.shape}"]
    if weight.is_plain:
        return judge_plain(weight, values, origin, source, choices)
    is_anew = (
        choices.get("fp8_grid")
        if weight.scheme.startswith("fp8")
        else choices.get("group_size") if weight.scheme == "int4-group" else None
    )
    if weight.scheme == "int8-block":  # GPTQ's runs of columns are a form that is not written
        is_anew = origin.block != weight.block
    if origin.scheme == weight.scheme and (not is_anew or same_bits(weight.values, values)):
        return judge_kept(weight, values, origin)
    peers = [] if weight.values.ndim != 2 else source.peers(weight.name)
    values = grids.finite(weight, values, peers)
    if choices.get("via") == "bf16":
        values, peers = round_bf16(values), [round_bf16(F32(amax)) for amax in peers]
    complaints = judge_parts(weight, source, choices)
    if "released" in choices:
        return complaints + judge_released(weight, values, choices["released"])
    return complaints + grids.judge_encoding(weight, values, choices, peers, origin.scheme)


def judge_released(weight, values, release):
    """Scales of a release were to be taken: they are its own, and codes the nearest under them."""
    complaints = grids.judge_codes(weight, values)
    own = release.stored.get(weight.name)
    if own is None or not same_bits(own.scales, weight.scales):
        complaints.append("its scales are not those of the release")
    return complaints


def is_mtp(name, n_layers):
    layer = LAYER.search(name)
    return re.search(r"(?:^|\.)mtp", name) is not None or (layer is not None and int(layer[1]) >= n_layers)


def is_left_plain(name, before, source, choices):
    """Whether the source's own list names a plain tensor or a module that holds it: no default quantizes that."""
    said = quantization_config(source.config)
    if before not in PLAIN or choices.get("dialect") != "deepseek" or said.get("quant_method") not in DEEPSEEK_METHODS:
        return False
    listed = {entry for key in ("modules_to_not_convert", "ignored_layers") for entry in said.get(key) or []}
    module = name.removesuffix(".weight").split(".")
    return any(".".join(module[:n]) in listed for n in range(1, len(module) + 1))


def rule_of(name, before, choices):
    """The first rule that selects a tensor and does not spare it: only a role narrows a plain one with more bits."""
    for rule in choices.get("rules", []):
        is_spared = before == "f32" and rule["scheme"] in ("bf16", "f16") and "role:" not in rule["selector"]
        if re.search(rule["names"], name) and not is_spared:
            return rule
    return None


def judge_schemes(output, source, choices):
    """Which tensors have which scheme, as far as every family has to agree."""
    n_layers, to = first_mtp_layer(source.config), choices.get("to")
    is_wide = is_saved_wide(source, to)
    is_all_plain = to in PLAIN and all(rule["scheme"] in PLAIN for rule in choices.get("rules", []))
    for name in output.singles:
        scheme, before = output.origin[name].scheme, source.origin[name].scheme if name in source.origin else ""
        if NEVER.search(name) and output.origin[name].is_quantized and scheme != before:
            yield name, f"is never quantized, and became {scheme}"
        rule = rule_of(name, before, choices)
        is_taken = ROUTED.search(name) or choices.get("is_dense") and DENSE.search(name)
        if rule and is_taken:
            wanted = before if rule["scheme"] == "keep" else rule["scheme"]
            if scheme != wanted and not (choices.get("may_be_plain") or rule["scheme"] == "keep"):
                yield name, f"is {scheme}, the rule {rule['selector']}={rule['scheme']} wants {wanted}"
        elif is_all_plain and output.origin[name].is_quantized and choices.get("mtp") != "keep" and TABLE not in name:
            yield name, f"is {scheme}, everything was to become {to}"
        elif is_wide and is_taken and not rule and scheme == "f32":
            yield name, f"is f32, and config.json says {SAID[to]}, to which it was to be cast"
        elif to and to not in PLAIN and is_taken and not rule:
            if is_left_plain(name, before, source, choices):
                if scheme != before:
                    yield name, f"is {scheme}, the source's own list leaves it {before}"
            elif (
                scheme != to
                and not is_mtp(name, n_layers)
                and not choices.get("may_be_plain")
                and not choices.get("is_generic")
            ):
                yield name, f"is {scheme}, and was to become {to}"


def judge_config(output, choices):
    has_codes = any(weight.is_quantized for weight in output.stored.values())
    said = quantization_config(output.config)
    if not has_codes:
        if said:
            yield "config.json", "has a quantization_config, and nothing is quantized"
    elif os.path.exists(os.path.join(output.folder, "quant_model_description.json")) == bool(said.get("quant_method")):
        yield "config.json", "and quant_model_description.json: one of them has to speak of the quantized weights"


def judge_models(source, output, choices):
    """Complaints about a conversion, as (name, words). None: every tensor holds what it has to."""
    complaints = [
        (name, words)
        for name, weight in sorted(output.stored.items())
        for words in judge_weight(weight, source, choices)
    ]
    complaints += judge_schemes(output, source, choices)
    complaints += judge_config(output, choices)
    n_layers = first_mtp_layer(source.config)
    for name in sorted(source.singles.keys() - output.singles.keys()):
        if not (choices.get("mtp") == "drop" and is_mtp(name, n_layers)):
            complaints.append((name, "is in the source and not in the output"))
    return complaints


def judge(source_folder, output_folder, choices):
    """The same of two folders. `released`: that of the release whose scales were to be taken."""
    if "released" in choices:
        choices = {**choices, "released": Model(choices["released"])}
    return judge_models(Model(source_folder), Model(output_folder), choices)
