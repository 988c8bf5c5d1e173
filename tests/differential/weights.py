"""Logical tensors from stored ones: which parts belong together, in which scheme, and their values.

Written from the tables of docs/formats.md and from the sources of the libraries that define these formats, never from
the behaviour of the program under test."""

from dataclasses import dataclass, field

import numpy as np

from container import quantization_config, text_config
from int4 import awq_rows, gptq_rows, packed_rows
from numbers_of_bits import E2M1, F32, FLOAT8, bf16, e8m0

PLAIN = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
# Behind the name of a linear's codes without `.weight`; of a stack without the dot and `weight`.
PARTS = [
    "weight_scale_inv",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "weight_offset",
    "scale",
    "deq_scale",
    "quant_bias",
    "input_scale",
    "input_offset",
    "input_global_scale",
    "activation_scale",
    "qzeros",
    "scales",
    "g_idx",
]
SHIFTED = "int8 with zero points or an order"  # no scheme of INT8 has these
SQUARES = [(128, 128), (64, 64), (32, 32), (1, 128), (1, 64), (1, 32)]


@dataclass
class Weight:
    """A tensor of the model. `values` has its shape; of what is not a number it is None."""

    name: str
    scheme: str
    values: np.ndarray = None
    parts: dict = field(default_factory=dict)  # stored tensors by part; the codes are "weight"
    codes: np.ndarray = None  # values of codes before the scale, as F32
    scales: np.ndarray = None  # one per block, as F32: the stored number, without a global one
    block: tuple = None  # rows and columns that share a scale
    scale_of_all: float = None  # NVFP4's global scale
    products: np.ndarray = None  # of the scales with those of inputs, where these are stored
    divides: bool = False
    spread: np.ndarray = None  # the effective scale of each element
    zeros: np.ndarray = None  # the zero point of each element, where there are some that are stored

    @property
    def is_plain(self):
        return self.scheme in ("bf16", "f16", "f32")

    @property
    def is_quantized(self):
        return self.codes is not None

    @property
    def has_groups(self):
        """Whether scales are those of rows or of runs within them."""
        return self.is_quantized and self.block[0] == 1


class Unreadable(Exception):
    """Stored tensors that no row of the formats describes."""


def numbers(stored):
    """A plain or scale tensor, widened to F32."""
    if stored.dtype == "BF16":
        values = bf16(stored.data)
    elif stored.dtype == "F8_E8M0":
        values = e8m0(np.frombuffer(stored.data, np.uint8))
    elif stored.dtype in FLOAT8:
        values = FLOAT8[stored.dtype][np.frombuffer(stored.data, np.uint8)]
    else:
        values = np.frombuffer(
            stored.data, {"F16": "<f2", "F32": "<f4", "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8"}[stored.dtype]
        )
        values = values.astype(F32)
    return values.reshape(stored.shape)


def whole_numbers(stored):
    return np.frombuffer(stored.data, {"I32": "<i4", "I64": "<i8", "U8": "u1", "I8": "i1"}[stored.dtype]).reshape(
        stored.shape
    )


def spread(scales, block, shape):
    """A scale per block as one per element of [..., N, K]."""
    rows, columns = min(block[0], shape[-2]), min(block[1], shape[-1])
    *before, down, across = scales.shape
    each = np.broadcast_to(scales[..., None, :, None], (*before, down, rows, across, columns))
    return each.reshape(*before, down * rows, across * columns)[..., : shape[-2], : shape[-1]]


def claimed_blocks(config):
    """Block sizes that the config claims, and those that are usual."""
    quantization, claims = quantization_config(config), []
    groups = quantization.get("config_groups") or {}
    for claim in [quantization.get("weight_block_size")] + [
        (group.get("weights") or {}).get("block_structure") for group in groups.values() if isinstance(group, dict)
    ]:
        if claim:
            claims.append(tuple(claim))
    return claims + SQUARES


def block_of(name, shape, scale_shape, config):
    """Rows and columns that share a scale of [..., N, K], from the shape of the scales."""
    n, k = shape[-2:]
    per_stack = shape[:-2]
    if len(scale_shape) == 0 or scale_shape in ((1,), per_stack):
        return "tensor", (n, k)
    is_grid = len(scale_shape) == len(shape) and scale_shape[:-2] == per_stack
    if scale_shape == shape[:-1] or (is_grid and scale_shape[-2:] == (n, 1) and n > 1):
        return "channel", (1, k)
    claimed = claimed_blocks(config)
    if is_grid and len(shape) > 2 and scale_shape[-2:] == (1, 1) and len(claimed) == len(SQUARES):
        return "tensor", (n, k)
    for rows, columns in claimed:
        if is_grid and scale_shape[-2:] == (-(-n // rows), -(-k // columns)):
            return "block", (rows, columns)
    raise Unreadable(f"{name} {shape} has scales {scale_shape}, which no block size gives")


def decode(weight, codes, scales, block, effective=None):
    """Fills in code times effective scale, one rounding to FP32."""
    weight.codes, weight.scales, weight.block = codes, scales, block
    weight.spread = spread(scales if effective is None else effective, block, codes.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        weight.values = codes * weight.spread
    return weight


def nibbles(stored):
    """Two E2M1 codes of a byte, the even column in the low half."""
    bytes_ = np.frombuffer(stored.data, np.uint8).reshape(stored.shape)
    if bytes_.ndim == 4:  # blocks of 16 bytes, in a row
        bytes_ = bytes_.reshape(bytes_.shape[0], bytes_.shape[1], -1)
    return E2M1[np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(bytes_.shape[:-1] + (-1,))]


def decode_float8(weight, parts, config):
    scale = parts.get("weight_scale_inv") or parts.get("weight_scale") or parts.get("scale")
    if scale is None:
        raise Unreadable(f"{weight.name} has FP8 codes and no scale")
    shape = parts["weight"].shape
    codes = numbers(parts["weight"])
    if scale.dtype in ("U8", "F8_E8M0") and scale.shape == shape[:-1] + (shape[-1] // 32,) and shape[-1] % 32 == 0:
        is_mx = scale.dtype == "U8" or "weight_scale_inv" not in parts and "scale" not in parts
        weight.scheme = "mxfp8" if is_mx else "fp8-block"
        decode(weight, codes, e8m0(np.frombuffer(scale.data, np.uint8)).reshape(scale.shape), (1, 32))
    else:
        scales, scale_shape = numbers(scale), scale.shape
        if len(scale_shape) == 4 and len(shape) == 2:  # ModelOpt spreads the scales of blocks
            scale_shape = scale_shape[::2]
            scales = scales.reshape(scale_shape)
        kind, block = block_of(weight.name, shape, scale_shape, config)
        weight.scheme = f"fp8-{kind}"
        grid = {"tensor": shape[:-2] + (1, 1), "channel": shape[:-1] + (1,), "block": scale_shape}[kind]
        decode(weight, codes, np.broadcast_to(scales, grid) if scales.size == 1 else scales.reshape(grid), block)
    if parts["weight"].dtype != "F8_E4M3":
        weight.scheme = parts["weight"].dtype
    return weight


def decode_int8(weight, parts, config):
    shape = parts["weight"].shape
    codes = numbers(parts["weight"])
    if "deq_scale" in parts:
        stored = parts["deq_scale"]
        product = whole_numbers(stored).astype("<i4").view("<f4") if stored.dtype == "I64" else numbers(stored)
        weight.scheme = "int8-channel"
        inputs = numbers(parts["input_scale"]).reshape((-1,) + (1,) * (len(shape) - 1))  # of a stack one per expert
        weight.products = product.reshape(shape[:-1] + (1,))
        scales = weight.products / (inputs if len(shape) > 2 else inputs[0])
        return decode(weight, codes, scales, (1, shape[-1]))
    scale = parts.get("weight_scale") or parts.get("weight_scale_inv") or parts.get("scale")
    if scale is None:
        raise Unreadable(f"{weight.name} has INT8 codes and no scale")
    if scale.dtype in ("U8", "F8_E8M0"):
        weight.scheme = "mxfp4"
        return decode(
            weight, nibbles(parts["weight"]), e8m0(np.frombuffer(scale.data, np.uint8)).reshape(scale.shape), (1, 32)
        )
    kind, block = block_of(weight.name, shape, scale.shape, config)
    if kind == "tensor":  # Quark's, as if each row had the number
        kind, block = "channel", (1, shape[-1])
    weight.scheme = f"int8-{kind}"
    if "weight_offset" in parts and np.any(numbers(parts["weight_offset"])):
        raise Unreadable(f"{weight.name} has offsets of weights that are not zero")
    if "weight_zero_point" in parts:
        zeros = numbers(parts["weight_zero_point"]).reshape(-1, 1)
        if np.any(zeros):
            weight.scheme, codes = SHIFTED, codes - zeros
    grid = shape[:-1] + (1,) if kind == "channel" else scale.shape
    scales = numbers(scale)
    return decode(weight, codes, np.broadcast_to(scales, grid) if scales.size == 1 else scales.reshape(grid), block)


def decode_fp4(weight, parts, config):
    scale = parts.get("weight_scale") or parts.get("scale") or parts.get("scales")
    codes = nibbles(parts["weight"])
    if scale.dtype != "F8_E4M3":
        weight.scheme = "mxfp4"
        return decode(weight, codes, e8m0(np.frombuffer(scale.data, np.uint8)).reshape(scale.shape), (1, 32))
    weight.scheme = "nvfp4"
    weight.divides = "weight_global_scale" in parts
    stored = numbers(parts["weight_global_scale" if weight.divides else "weight_scale_2"])
    of_all = stored.reshape(stored.shape + (1,) * (codes.ndim - stored.ndim)) if stored.size > 1 else stored.reshape(())
    weight.scale_of_all = of_all
    scales = numbers(scale)
    return decode(weight, codes, scales, (1, 16), scales / of_all if weight.divides else scales * of_all)


def decode_int4(weight, parts, config):
    said = quantization_config(config)
    method, packing = said.get("quant_method"), said.get("packing_format", "")
    if "qzeros" not in parts:
        codes, scales, columns, bits, zeros = packed_rows(weight.name, parts)
        weight.zeros = zeros[..., columns] if "weight_zero_point" in parts else None
    elif method == "awq" or packing.endswith("awq"):
        codes, scales, columns, bits = awq_rows(parts)
    else:
        is_second = said.get("checkpoint_format") == "gptq_v2" or packing in ("auto_round", "auto_round:gptqmodel")
        codes, scales, columns, bits = gptq_rows(parts, not is_second)
    group = codes.shape[-1] // scales.shape[-1]
    weight.scheme = "int4-group"
    if bits == 8:
        is_shifted = "weight_zero_point" in parts or not said.get("sym", True)
        has_order = "weight_g_idx" in parts or said.get("desc_act")
        weight.scheme = SHIFTED if is_shifted or has_order else "int8-block" if scales.shape[-1] > 1 else "int8-channel"
    weight.codes, weight.scales, weight.block = codes, scales, (1, group)
    weight.spread = scales[..., columns]
    weight.values = codes * weight.spread
    return weight


def _parts_of(tensors, stored):
    """The name and the parts of the weight with these codes; a tensor without codes is its only part."""
    name = stored.name
    for suffix in [".weight_packed", ".qweight", ".weight"]:
        if name.endswith(suffix):
            base = name[: -len(suffix)]
            found = {part: tensors[f"{base}.{part}"] for part in PARTS if f"{base}.{part}" in tensors}
            return base + ".weight", {"weight": stored, **found}
    for suffix in ["_blocks", "_packed", ""]:
        if name.endswith(suffix) and len(stored.shape) > 2:
            base = name[: len(name) - len(suffix)]
            words = {base + "_" + part.replace("weight_", ""): part for part in reversed(PARTS)}
            return base, {"weight": stored, **{part: tensors[word] for word, part in words.items() if word in tensors}}
    return name, {"weight": stored}


def logical_tensors(tensors, config):
    """Weights by name. Every stored tensor belongs to exactly one."""
    weights, used = {}, set()
    readers = {"I8": decode_int8, "U8": decode_fp4, "I32": decode_int4, **dict.fromkeys(FLOAT8, decode_float8)}
    is_scale = tuple(
        "_" + word for word in ["scale", "scale_inv", "scales", "zero_point", "g_idx", "shape", "bias", "scale_2"]
    )
    for stored in tensors.values():
        if stored.dtype not in readers or stored.name.endswith(is_scale) or len(stored.shape) < 2:
            continue
        name, parts = _parts_of(tensors, stored)
        if len(parts) == 1 and stored.dtype not in FLOAT8:
            continue
        # Parts of a linear have its name in every dialect: none may be left over.
        weights[name] = readers[stored.dtype](Weight(name, "", parts=parts), parts, config)
        used.update(part.name for part in parts.values())
    for stored in tensors.values():
        if stored.name in used:
            continue
        scheme = PLAIN.get(stored.dtype, "raw")
        if stored.name in weights:
            raise Unreadable(f"{stored.name} is stored twice")
        weights[stored.name] = Weight(
            stored.name, scheme, numbers(stored) if scheme != "raw" else None, {"weight": stored}
        )
    return weights


def first_mtp_layer(config):
    """The number of main layers, behind which those for multi-token prediction follow."""
    return text_config(config).get("num_hidden_layers", text_config(config).get("num_layers", 1 << 30))
