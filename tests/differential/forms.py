"""Forms in which tools store a model's matrices, as rows: random codes and scales, their names, and the config's words.

Written from the descriptions of the formats: codes are drawn, never computed from values, so that every code occurs."""

import re
import zlib
from dataclasses import dataclass

import numpy as np

from numbers_of_bits import NOT_FINITE

PLAIN_MODULES = [
    r"lm_head",
    r".*\.down_proj",
    r".*\.o_proj",
    r"model\.layers\.0\.self_attn\..*",
    r"model\.layers\.0\..*",
]


@dataclass
class Form:
    """`draw` gives the choices of a source as a dictionary, `parts` the stored tensors of a matrix, as (dtype, shape,
    bytes) by the part's name, `block` the config's quantization block. `step`: widths are its multiples."""

    name: str
    draw: callable
    parts: callable
    block: callable
    step: int = 4
    takes_plain: bool = True  # whether some modules may be left plain
    described_as: callable = None  # the word of a matrix in Ascend's description, by the choices


def _bytes(dtype, array):
    return dtype, array.shape, np.ascontiguousarray(array).tobytes()


def _floats(dtype, values):
    values = np.asarray(values, "<f4")
    if dtype == "BF16":
        return dtype, values.shape, (values.view("<u4") >> 16).astype("<u2").tobytes()
    return _bytes(dtype, values.astype({"F32": "<f4", "F16": "<f2"}[dtype]))


def _scale(numbers, shape, dtype, signed=False):
    """Positive scales over three binades; of `signed` some are negative."""
    scales = np.exp2(numbers.uniform(-9, -6, shape))
    if signed:
        scales = scales * numbers.choice([1, 1, -1], shape)
    return _floats(dtype, scales)


def _codes8(numbers, dtype, shape):
    """Codes of FP8, each but those that are not finite; sometimes all of a row are one."""
    allowed = np.setdiff1d(np.arange(256), NOT_FINITE[dtype]).astype(np.uint8)
    codes = numbers.choice(allowed, shape)
    codes[numbers.integers(shape[0])] = numbers.choice(allowed)
    return _bytes(dtype, codes)


def _exponents(numbers, shape, dtype="U8"):
    return _bytes(dtype, numbers.integers(112, 128, shape).astype(np.uint8))


def packed_stream(codes, bits, axis):
    """Words of 32 bits: the codes along `axis` as one stream of bits, the lowest first."""
    stream = np.moveaxis(codes.astype(np.uint8), axis, -1)
    stream = np.unpackbits(stream[..., None], axis=-1, bitorder="little")[..., :bits].reshape(stream.shape[:-1] + (-1,))
    words = np.packbits(stream, axis=-1, bitorder="little").view("<u4")
    return _bytes("I32", np.moveaxis(words, -1, axis))


def _whole_codes(numbers, bits, shape):
    """Half of the matrices have any code as often as any other, half those of normal values."""
    if numbers.random() < 0.5:
        return numbers.integers(0, 1 << bits, shape)
    return np.clip(np.rint(numbers.normal((1 << bits) / 2, (1 << bits) / 6, shape)), 0, (1 << bits) - 1).astype(
        np.int64
    )


def group_of(choices, columns):
    """Columns that share a scale; -1: all of a row."""
    return columns if choices["group"] < 0 else choices["group"]


def settled(choices, linears):
    """Groups of 32 where the drawn ones do not divide the columns of every matrix."""
    size = choices.get("group", -1)
    if size < 0 or all(columns % size == 0 for _, columns in linears.values()):
        return choices
    return {**choices, "group": 32}


# GPTQ, AutoRound's integers and AWQ: input-major words.


def _draw_gptq(draw):
    choices = {
        "bits": draw.choice([2, 3, 4, 8, 8]),
        "group": draw.choice([32, 32, 64, 128, -1]),
        "sym": draw.random() < 0.5,
    }
    choices.update(
        desc_act=draw.random() < 0.4,
        version=draw.choice(["gptq", "gptq_v2"]),
        other=draw.choice([None, None, 2, 3, 4, 8]),
    )
    return choices


def _draw_auto_round(draw):
    packing = draw.choice(["auto_round:auto_gptq", "auto_round", "auto_round:gptqmodel", "auto_round:auto_awq"])
    bits = 4 if packing.endswith("awq") else draw.choice([2, 3, 4, 8])
    choices = {
        "bits": bits,
        "group": draw.choice([32, 64, 128, -1]),
        "sym": draw.random() < 0.5,
        "desc_act": False,
        "signed": draw.random() < 0.3,
    }
    choices.update(
        version="gptq" if packing.endswith("auto_gptq") else "gptq_v2",
        packing=packing,
        other=None if bits == 4 else draw.choice([None, 4, 8]),
    )
    return choices


def bits_of(choices, module):
    """A part of the modules may have another number of bits."""
    return choices["other"] if choices.get("other") and module.endswith("down_proj") else choices["bits"]


def _gptq_parts(numbers, choices, module, rows, columns):
    bits, group = bits_of(choices, module), group_of(choices, columns)
    codes = _whole_codes(numbers, bits, (columns, rows))
    groups = columns // group
    is_less_one = choices["version"] == "gptq"
    zeros = numbers.integers(is_less_one, 1 << bits, (groups, rows))
    if choices["sym"]:
        zeros[:] = 1 << bits - 1
    order = np.arange(columns) // group
    if choices["desc_act"]:
        order = numbers.permutation(order)
    parts = {
        "qweight": packed_stream(codes, bits, 0),
        "qzeros": packed_stream(zeros - is_less_one, bits, 1),
        "scales": _scale(numbers, (groups, rows), "F16", choices.get("signed")),
    }
    if "packing" not in choices:
        parts["g_idx"] = _bytes("I32", order.astype("<i4"))
    return parts


def _awq_parts(numbers, choices, module, rows, columns):
    def words(codes):
        in_turn = codes.reshape(len(codes), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(codes), -1)
        return packed_stream(in_turn, 4, 1)

    group = group_of(choices, columns)
    zeros = numbers.integers(0, 16, (columns // group, rows))
    if choices.get("sym"):
        zeros[:] = 8
    return {
        "qweight": words(_whole_codes(numbers, 4, (columns, rows))),
        "qzeros": words(zeros),
        "scales": _scale(numbers, zeros.shape, "F16"),
    }


def _auto_round_parts(numbers, choices, module, rows, columns):
    make = _awq_parts if choices["packing"].endswith("awq") else _gptq_parts
    return make(numbers, choices, module, rows, columns)


def _gptq_block(choices, linears, plain):
    block = {"quant_method": "gptq", "bits": choices["bits"], "group_size": choices["group"], "sym": choices["sym"]}
    block.update(desc_act=choices["desc_act"], checkpoint_format=choices["version"], lm_head=False)
    rules = {"-:" + pattern: {} for pattern in plain}
    if choices["other"]:
        rules[r"+:.*\.down_proj"] = {"bits": choices["other"]}
    return {**block, "dynamic": rules} if rules else block


def _auto_round_block(choices, linears, plain):
    said = {"data_type": "int", "group_size": choices["group"], "sym": choices["sym"]}
    rules = {
        module: {**said, "bits": choices["other"]} for module in linears if bits_of(choices, module) != choices["bits"]
    }
    rules.update({module: {**said, "bits": 16, "data_type": "float"} for module in linears if is_plain(module, plain)})
    block = {"quant_method": "auto-round", "packing_format": choices["packing"], "bits": choices["bits"], **said}
    return {**block, "extra_config": rules} if rules else block


def _awq_block(choices, linears, plain):
    block = {"quant_method": "awq", "bits": 4, "group_size": choices["group"], "zero_point": True, "version": "gemm"}
    return {**block, "modules_to_not_convert": [module for module in linears if is_plain(module, plain)]}


# Codes of one matrix under `weight`, and names of scales that several tools share.


def _float_scale(numbers, choices, rows, columns):
    """The scale of a matrix, of each row, of blocks or of 32 columns."""
    kind, dtype = choices["scale"], choices.get("dtype", "F32")
    if kind == "group":
        return _exponents(numbers, (rows, columns // 32), choices.get("exponents", "U8"))
    shape = {
        "tensor": choices.get("shape", ()),
        "row": (rows, 1),
        "flat row": (rows,),
        "block": (-(-rows // 128), -(-columns // 128)),
        "spread": (-(-rows // 128), 1, -(-columns // 128), 1),
    }[kind]
    return _scale(numbers, shape, dtype)


def _float8_parts(numbers, choices, module, rows, columns):
    parts = {
        "weight": _codes8(numbers, choices["codes"], (rows, columns)),
        choices.get("part", "weight_scale"): _float_scale(numbers, choices, rows, columns),
    }
    if choices.get("inputs") == "static":
        parts["input_scale"] = _floats("F32", np.full(choices.get("input_shape", ()), 0.0625))
    return parts


def _int8_parts(numbers, choices, module, rows, columns):
    codes = np.clip(np.rint(numbers.normal(0, 40, (rows, columns))), -128, 127)
    shape = (1,) if choices["scale"] == "tensor" else (rows,)
    parts = {"weight": _bytes("I8", codes.astype("i1")), "weight_scale": _scale(numbers, shape, "BF16")}
    zeros = np.zeros(shape, "i1") if choices["sym"] else numbers.integers(-128, 128, shape).astype("i1")
    if choices["has_zeros"] or not choices["sym"]:
        parts["weight_zero_point"] = _bytes("I8", zeros)
    return parts


def _fp4_parts(numbers, choices, module, rows, columns):
    codes = numbers.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
    name = choices.get("name", "weight")
    if choices["codes"] == "mxfp4":
        return {name: _bytes("U8", codes), "weight_scale": _exponents(numbers, (rows, columns // 32))}
    scales = numbers.integers(8, 127, (rows, columns // 16)).astype(np.uint8)
    parts = {name: _bytes("U8", codes), "weight_scale": _bytes("F8_E4M3", scales)}
    fused = global_scale(module)
    if name == "weight_packed":
        parts["weight_global_scale"] = _floats("F32", np.full(1, 1 / fused))
    else:
        parts["weight_scale_2"] = _floats("F32", np.float32(fused))
    if choices.get("inputs") == "static":
        word = "input_global_scale" if name == "weight_packed" else "input_scale"
        parts[word] = _floats("F32", np.full((1,) if name == "weight_packed" else (), 0.0625))
    return parts


def global_scale(module):
    """The global scale: one for all matrices of a block, some of which loaders join."""
    return np.float32(2.0**-11 * (1 + zlib.crc32(module.rsplit(".", 1)[0].encode()) % 8 / 8))


# AMD Quark.

QUARK = [
    ("fp8_e4m3", "per_tensor", {"codes": "F8_E4M3", "scale": "tensor"}),
    ("fp8_e4m3", "per_channel", {"codes": "F8_E4M3", "scale": "flat row"}),
    ("fp8_e4m3", "per_group", {"codes": "F8_E4M3", "scale": "group"}),
    ("fp8_e5m2", "per_tensor", {"codes": "F8_E5M2", "scale": "tensor"}),
    ("fp8_e5m2", "per_channel", {"codes": "F8_E5M2", "scale": "flat row"}),
    ("int8", "per_tensor", {"codes": "I8", "scale": "tensor"}),
    ("int8", "per_channel", {"codes": "I8", "scale": "row"}),
    ("fp4", "per_group", {"codes": "mxfp4", "scale": "group"}),
]


def _draw_quark(draw):
    dtype, qscheme, form = draw.choice(QUARK)
    choices = {**form, "quark": dtype, "qscheme": qscheme, "dtype": draw.choice(["BF16", "F32"])}
    choices.update(sym=draw.random() < 0.6, has_zeros=draw.random() < 0.5, has_patterns=draw.random() < 0.3)
    choices["inputs"] = None
    if dtype == "fp8_e4m3":
        choices["inputs"] = draw.choice([None, "dynamic", "static"] if qscheme == "per_tensor" else [None, "dynamic"])
    elif dtype == "fp4":
        choices["inputs"] = draw.choice([None, "dynamic"])
    return choices


def _quark_parts(numbers, choices, module, rows, columns):
    make = {"I8": _int8_parts, "mxfp4": _fp4_parts}.get(choices["codes"], _float8_parts)
    return make(numbers, choices, module, rows, columns)


def _quark_block(choices, linears, plain):
    def spec(is_dynamic, of_inputs=False):
        has_groups = choices["scale"] == "group"
        said = {"dtype": choices["quark"], "qscheme": choices["qscheme"], "is_dynamic": is_dynamic}
        said.update(group_size=32 if has_groups else None, scale_format="e8m0" if has_groups else None)
        axis = {"per_tensor": None, "per_channel": 1 if of_inputs else 0, "per_group": -1}[choices["qscheme"]]
        return {**said, "ch_axis": axis, "symmetric": True if choices["quark"] != "int8" else choices["sym"]}

    layer = {"weight": spec(False), "bias": None, "output_tensors": None, "input_tensors": None}
    if choices["inputs"]:
        layer["input_tensors"] = spec(choices["inputs"] == "dynamic", True)
    block = {
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "layer_type_quant_config": {},
        "kv_cache_quant_config": {},
    }
    block["global_quant_config"] = layer
    block["layer_quant_config"] = {"*.self_attn.*": layer} if choices["has_patterns"] else {}
    block["exclude"] = ["lm_head"] + [module for module in linears if is_plain(module, plain)]
    return {**block, "export": {"weight_format": "real_quantized", "pack_method": "reorder"}}


# FBGEMM, ModelOpt, AutoRound's other forms, compressed-tensors, and FP8 of other kinds.


def _fbgemm_block(choices, linears, plain):
    listed = ["lm_head"] + [module for module in linears if is_plain(module, plain)]
    return {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": listed}


MODELOPT = [
    ("FP8_PB_WO", {"codes": "F8_E4M3", "scale": "spread"}),
    ("FP8", {"codes": "F8_E4M3", "scale": "tensor", "inputs": "static"}),
    ("FP8_PER_CHANNEL_PER_TOKEN", {"codes": "F8_E4M3", "scale": "flat row"}),
    ("MXFP8", {"codes": "F8_E4M3", "scale": "group"}),
    ("NVFP4", {"codes": "nvfp4", "scale": "group", "inputs": "static"}),
    ("W4A16_NVFP4", {"codes": "nvfp4", "scale": "group"}),
]


def _draw_modelopt(draw):
    algo, form = draw.choice(MODELOPT)
    return {**form, "algo": algo}


def _modelopt_block(choices, linears, plain):
    listed = ["lm_head"] + [module for module in linears if is_plain(module, plain)]
    said = {"quant_algo": choices["algo"], "kv_cache_quant_algo": None, "exclude_modules": listed}
    if "4" in choices["algo"] or choices["algo"] == "MXFP8":
        said["group_size"] = 32 if choices["algo"] == "MXFP8" else 16
    return {"quant_method": "modelopt", "producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": said}


def _any_parts(numbers, choices, module, rows, columns):
    make = _float8_parts if choices["codes"].startswith("F8") else _fp4_parts
    return make(numbers, choices, module, rows, columns)


AUTO_ROUND_PARTS = [
    ({"codes": "F8_E4M3", "scale": "group"}, {"bits": 8, "data_type": "mx_fp", "act_bits": 8, "act_dynamic": True}),
    (
        {"codes": "mxfp4", "scale": "group", "name": "weight_packed"},
        {"bits": 4, "data_type": "mx_fp", "act_bits": 4, "act_dynamic": True},
    ),
    (
        {"codes": "nvfp4", "scale": "group", "name": "weight_packed", "inputs": "static"},
        {"bits": 4, "data_type": "nv_fp", "act_bits": 4, "act_dynamic": True},
    ),
    (
        {"codes": "F8_E4M3", "scale": "flat row", "inputs": "static", "input_shape": (1,)},
        {"bits": 8, "data_type": "fp", "act_bits": 8, "act_dynamic": False},
    ),
]


def _draw_auto_round_parts(draw):
    form, said = draw.choice(AUTO_ROUND_PARTS)
    return {**form, "said": said}


def _auto_round_parts_block(choices, linears, plain):
    said = choices["said"]
    size = {"mx_fp": 32, "nv_fp": 16, "fp": -1}[said["data_type"]]
    packing = "auto_round:fp8_static" if said["data_type"] == "fp" else "auto_round:llm_compressor"
    rules = {module: {"bits": 16} for module in linears if is_plain(module, plain)}
    block = {"quant_method": "auto-round", "packing_format": packing, "sym": True, "group_size": size, **said}
    return {**block, "extra_config": rules} if rules else block


FLOAT8_SCALES = [
    {"scale": "tensor"},
    {"scale": "tensor", "shape": (1,), "dtype": "BF16"},
    {"scale": "row"},
    {"scale": "flat row", "dtype": "F16"},
    {"scale": "block", "part": "weight_scale_inv"},
    {"scale": "group", "exponents": "F8_E8M0"},
]


def _draw_float8(draw):
    return {"codes": draw.choice(["F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]), **draw.choice(FLOAT8_SCALES)}


def _float8_block(choices, linears, plain):
    block = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": choices["codes"][3:].lower()}
    if choices["scale"] == "block":
        block["weight_block_size"] = [128, 128]
    return {**block, "modules_to_not_convert": ["lm_head"] + [module for module in linears if is_plain(module, plain)]}


def _draw_packed(draw):
    choices = {"bits": draw.choice([4, 8]), "group": draw.choice([32, 64, 128, -1]), "sym": draw.random() < 0.5}
    choices.update(
        desc_act=draw.random() < 0.25, dtype=draw.choice(["BF16", "F16", "F32"]), shape=draw.choice(["I32", "I64"])
    )
    return choices


def _packed_parts(numbers, choices, module, rows, columns):
    bits, group = choices["bits"], group_of(choices, columns)
    zeros = numbers.integers(0, 1 << bits, (rows, columns // group))
    parts = {
        "weight_packed": packed_stream(_whole_codes(numbers, bits, (rows, columns)), bits, 1),
        "weight_scale": _scale(numbers, zeros.shape, choices["dtype"]),
        "weight_shape": _bytes(
            choices["shape"], np.array([rows, columns], "<i4" if choices["shape"] == "I32" else "<i8")
        ),
    }
    if not choices["sym"]:
        parts["weight_zero_point"] = packed_stream(zeros, bits, 0)
    if choices["desc_act"]:
        parts["weight_g_idx"] = _bytes("I32", numbers.permutation(np.arange(columns) // group).astype("<i4"))
    return parts


def _packed_block(choices, linears, plain):
    weights = {"num_bits": choices["bits"], "type": "int", "symmetric": choices["sym"], "dynamic": False}
    weights.update(
        strategy="channel" if choices["group"] < 0 else "group",
        group_size=None if choices["group"] < 0 else choices["group"],
    )
    weights["actorder"] = "group" if choices["desc_act"] else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    listed = ["lm_head"] + [module for module in linears if is_plain(module, plain)]
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": listed,
    }


def _draw_ascend(draw):
    return {"is_static": draw.random() < 0.7}


def _ascend_word(choices):
    return "W8A8" if choices["is_static"] else "W8A8_DYNAMIC"


def _ascend_parts(numbers, choices, module, rows, columns):
    codes = np.clip(np.rint(numbers.normal(0, 40, (rows, columns))), -128, 127)
    codes = {"weight": _bytes("I8", codes.astype("i1"))}
    scale = numbers.uniform(0.001, 0.02, (rows, 1)).astype("<f4")
    if not choices["is_static"]:
        return codes | {"weight_scale": _bytes("F32", scale), "weight_offset": _bytes("F32", np.zeros_like(scale))}
    # Layers that read one input share its scale: numbers of their own would be refused.
    input_scale = np.array([0.03125 * (1 + zlib.crc32(module.rsplit(".", 1)[0].encode()) % 97 / 97)], "<f4")
    return codes | {
        "input_scale": _bytes("F32", input_scale),
        "input_offset": _bytes("F32", np.array([zlib.crc32(module.rsplit(".", 1)[0].encode()) % 40 - 20], "<f4")),
        "quant_bias": _bytes("I32", numbers.integers(-9999, 9999, rows).astype("<i4")),
        "deq_scale": _bytes("F32", scale[:, 0] * input_scale),
    }


def _no_choices(draw):
    return {}


FORMS = [
    Form("plain", _no_choices, None, None),
    Form("gptq", _draw_gptq, _gptq_parts, _gptq_block, 32),
    Form("auto-round integers", _draw_auto_round, _auto_round_parts, _auto_round_block, 32),
    Form("awq", lambda draw: {"group": draw.choice([32, 64, 128])}, _awq_parts, _awq_block, 32),
    Form("quark", _draw_quark, _quark_parts, _quark_block, 32),
    Form("fbgemm", lambda draw: {"codes": "F8_E4M3", "scale": "row"}, _float8_parts, _fbgemm_block),
    Form("modelopt", _draw_modelopt, _any_parts, _modelopt_block, 32),
    Form("auto-round parts", _draw_auto_round_parts, _any_parts, _auto_round_parts_block, 32),
    Form("float8", _draw_float8, _float8_parts, _float8_block, 32),
    Form("packed integers", _draw_packed, _packed_parts, _packed_block, 32),
    Form("ascend", _draw_ascend, _ascend_parts, None, 32, described_as=_ascend_word),
]
BY_NAME = {form.name: form for form in FORMS}


def draw_plain(draw, form):
    """Expressions for the modules that a tool left plain."""
    return draw.sample(PLAIN_MODULES[1:4], draw.choice([0, 0, 1])) if form.takes_plain else []


def is_plain(module, plain):
    return any(re.fullmatch(pattern, module) for pattern in plain)
