"""INT4 in groups: compressed-tensors' packed words, and those of AWQ and GPTQ, which are input-major."""

import numpy as np

from numbers_of_bits import F32, bf16

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def _scales(stored):
    if stored.dtype == "BF16":
        return bf16(stored.data).reshape(stored.shape)
    return np.frombuffer(stored.data, {"F16": "<f2", "F32": "<f4"}[stored.dtype]).reshape(stored.shape).astype(F32)


def _words(stored):
    return np.frombuffer(stored.data, "<u4").reshape(stored.shape)


def _unpacked(words):
    """Eight codes of a word, the lowest four bits first, along a new last axis."""
    return (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.int32)


def _groups(n_columns, n_groups, order):
    """Which group each column belongs to. An order with a -1 in it is none."""
    if order is None or (order < 0).any():
        return np.arange(n_columns) // (n_columns // n_groups)
    return order


def packed_rows(name, parts):
    """Codes less their zeros, scales per group, and the group of each column, of `weight_packed`."""
    words = _words(parts["weight"])
    codes = _unpacked(words).reshape(words.shape[:-1] + (-1,))
    n, k = codes.shape[-2:]
    said = parts["weight_shape"]
    shape = np.frombuffer(said.data, {"I32": "<i4", "I64": "<i8"}[said.dtype])
    if codes.ndim == 2 and list(shape) != [n, k]:
        raise ValueError(f"{name}: weight_shape says {list(shape)}, its words hold {[n, k]}")
    scales = _scales(parts["weight_scale"])
    order = np.frombuffer(parts["weight_g_idx"].data, "<i4") if "weight_g_idx" in parts else None
    columns = _groups(k, scales.shape[-1], order)
    zeros = np.full(scales.shape, 8, np.int32)
    if "weight_zero_point" in parts:
        packed = _words(parts["weight_zero_point"])  # [N/8, groups]: eight rows to a word
        zeros = np.moveaxis(_unpacked(packed), -1, -2).reshape(-1, packed.shape[-1])[:n]
    return (codes - zeros[..., columns]).astype(F32), scales, columns


def awq_rows(parts):
    """The same of AWQ: outputs along the words, in an order of their own."""
    place = np.argsort(AWQ_ORDER)
    codes, zeros = (
        _unpacked(_words(parts[part]))[..., place].reshape(parts[part].shape[0], -1) for part in ["weight", "qzeros"]
    )
    scales = _scales(parts["scales"])
    columns = _groups(codes.shape[0], scales.shape[0], None)
    return (codes - zeros[columns]).T.astype(F32), np.ascontiguousarray(scales.T), columns


def gptq_rows(parts, is_less_one):
    """The same of GPTQ: inputs along the words; the first format stores zero points less one."""
    words = _words(parts["weight"])
    codes = np.moveaxis(_unpacked(words), -1, 1).reshape(-1, words.shape[1])
    zeros = _unpacked(_words(parts["qzeros"])).reshape(parts["qzeros"].shape[0], -1)
    if is_less_one:
        zeros = zeros + 1 & 15
    scales = _scales(parts["scales"])
    order = np.frombuffer(parts["g_idx"].data, "<i4") if "g_idx" in parts else None
    columns = _groups(codes.shape[0], scales.shape[0], order)
    return (codes - zeros[columns]).T.astype(F32), np.ascontiguousarray(scales.T), columns
