"""Packed integers: compressed-tensors' words of 4 and 8 bits, and those of AWQ and GPTQ, which are input-major."""

import numpy as np

from numbers_of_bits import F32, bf16

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def _scales(stored):
    if stored.dtype == "BF16":
        return bf16(stored.data).reshape(stored.shape)
    return np.frombuffer(stored.data, {"F16": "<f2", "F32": "<f4"}[stored.dtype]).reshape(stored.shape).astype(F32)


def _words(stored):
    return np.frombuffer(stored.data, "<u4").reshape(stored.shape)


def _unpacked(words, bits=4):
    """The codes of the words along the last axis, the lowest bits first. 32 codes of 3 bits are in three words, two of
    them in two."""
    if 32 % bits == 0:
        codes = words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & (1 << bits) - 1
        return codes.reshape(words.shape[:-1] + (-1,)).astype(np.int32)
    first, second, third = (words[..., n::3].astype(np.uint64) for n in range(3))
    low, high = first | second << np.uint64(32), second >> np.uint64(16) | third << np.uint64(16)
    places = np.arange(0, 48, bits, dtype=np.uint64)
    codes = np.concatenate([whole[..., None] >> places & np.uint64(7) for whole in (low, high)], -1)
    return codes.reshape(words.shape[:-1] + (-1,)).astype(np.int32)


def _groups(n_columns, n_groups, order):
    """Which group each column belongs to. An order with a -1 in it is none."""
    if order is None or (order < 0).any():
        return np.arange(n_columns) // (n_columns // n_groups)
    return order


def packed_rows(name, parts):
    """Codes less their zeros, scales per group, the group of each column, the bits of a code and zeros per group, of
    `weight_packed`."""
    words = _words(parts["weight"])
    said = parts["weight_shape"]
    shape = np.frombuffer(said.data, {"I32": "<i4", "I64": "<i8"}[said.dtype])
    bits = 4 if words.ndim != 2 else 32 * words.shape[-1] // shape[-1]
    codes = _unpacked(words, bits)
    n, k = codes.shape[-2:]
    if codes.ndim == 2 and list(shape) != [n, k]:
        raise ValueError(f"{name}: weight_shape says {list(shape)}, its words hold {[n, k]}")
    scales = _scales(parts["weight_scale"])
    order = np.frombuffer(parts["weight_g_idx"].data, "<i4") if "weight_g_idx" in parts else None
    columns = _groups(k, scales.shape[-1], order)
    zeros = np.full(scales.shape, 1 << bits - 1, np.int32)
    if "weight_zero_point" in parts:
        packed = _words(parts["weight_zero_point"])  # rows along the words
        zeros = _unpacked(np.moveaxis(packed, 0, -1), bits).T[:n]
    return (codes - zeros[..., columns]).astype(F32), scales, columns, bits, zeros


def awq_rows(parts):
    """The same of AWQ: outputs along the words, in an order of their own."""
    place = np.argsort(AWQ_ORDER)
    codes, zeros = (
        _unpacked(_words(parts[part]))
        .reshape(parts[part].shape[0], -1, 8)[..., place]
        .reshape(parts[part].shape[0], -1)
        for part in ["weight", "qzeros"]
    )
    scales = _scales(parts["scales"])
    columns = _groups(codes.shape[0], scales.shape[0], None)
    return (codes - zeros[columns]).T.astype(F32), np.ascontiguousarray(scales.T), columns, 4


def gptq_rows(parts, is_less_one):
    """The same of GPTQ: inputs along the words; the first format stores zero points less one."""
    words, scales = _words(parts["weight"]), _scales(parts["scales"])
    bits = 32 * parts["qzeros"].shape[1] // words.shape[1]
    codes = _unpacked(words.T, bits).T
    zeros = _unpacked(_words(parts["qzeros"]), bits)
    if is_less_one:
        zeros = zeros + 1 & (1 << bits) - 1
    order = np.frombuffer(parts["g_idx"].data, "<i4") if "g_idx" in parts else None
    columns = _groups(codes.shape[0], scales.shape[0], order)
    return (codes - zeros[columns]).T.astype(F32), np.ascontiguousarray(scales.T), columns, bits
