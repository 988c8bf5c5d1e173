"""Salts a checkpoint: puts values at which formats go wrong into some of its weights, in place."""

import os
import random

import numpy as np

from container import read_file, weights_files
from numbers_of_bits import FLOAT8, NOT_FINITE, to_bf16

N_TENSORS = 6


def _bf16_words(draw, words):
    """Some BF16 words of [N, K] replaced."""
    n, k = words.shape
    row, column = draw.randrange(n), draw.randrange(k)
    kind = draw.choice(
        ["zero row", "zero block", "minus zero", "outlier", "tiny", "equal", "ties", "one row of all", "steps"]
    )
    if kind == "zero row":
        words[row] = 0
    elif kind == "zero block":
        words[:128, :128] = 0
    elif kind == "minus zero":
        words[row, ::2] = 0x8000
    elif kind == "outlier":
        words[row, column] = to_bf16(np.float32(draw.choice([-1, 1]) * 2.0 ** draw.randint(-4, 10) * 1.37))
    elif kind == "tiny":
        words[:] = to_bf16(
            (words.astype(np.uint32) << 16).view(np.float32) * np.float32(2.0 ** -draw.choice([20, 40, 110]))
        )
    elif kind == "equal":
        words[row] = to_bf16(np.float32(draw.choice([0.015625, 1.0, -3.0, 0.1])))
    elif kind == "ties":
        # Under amax 448 and amax 6, halves and quarters are ties of E4M3 and E2M1.
        words[row] = to_bf16(np.float32(0.25) * (np.arange(k) % 29 - 14))
        words[row, 0] = to_bf16(np.float32(draw.choice([448, 6, 127, 7])))
    elif kind == "one row of all":
        words[:row] = 0
    else:
        words[row] = to_bf16(np.float32(2.0) ** (-(np.arange(k) % 40)).astype(np.float32))


def _codes(draw, codes, dtype):
    """Some FP8 codes of [N, K] replaced by zeros, the least, the largest and others that are finite."""
    row = draw.randrange(codes.shape[0])
    taken = [code for code in (0x00, 0x80, 0x01, 0x7B, 0x7E, 0xFE, 0x7F, 0x38, 0x81) if code not in NOT_FINITE[dtype]]
    codes[row, :: draw.choice([1, 2, 3])] = draw.choice(taken)


def _not_finite(draw, values, dtype):
    """A NaN or an infinity."""
    at = draw.randrange(values.shape[0]), draw.randrange(values.shape[1])
    values[at] = draw.choice([0x7F80, 0xFF80, 0x7FC0]) if dtype == "BF16" else draw.choice(NOT_FINITE[dtype])


def _is_weight(stored):
    is_matrix = len(stored.shape) == 2 and min(stored.shape) > 1
    return is_matrix and (stored.dtype == "BF16" or stored.dtype in FLOAT8) and "scale" not in stored.name


def salt(folder, seed, is_finite=True):
    """Changes up to N_TENSORS weights of the checkpoint; a pure function of all three."""
    draw = random.Random(seed)
    weights = []
    for file in weights_files(folder):
        weights += [stored for stored in read_file(os.path.join(folder, file)) if _is_weight(stored)]
    weights.sort(key=lambda stored: stored.name)
    for stored in draw.sample(weights, min(N_TENSORS, len(weights))):
        if stored.dtype == "BF16":
            values = np.frombuffer(stored.data, "<u2").reshape(stored.shape).copy()
            _bf16_words(draw, values)
        else:
            values = np.frombuffer(stored.data, np.uint8).reshape(stored.shape).copy()
            _codes(draw, values, stored.dtype)
        if not is_finite:
            _not_finite(draw, values, stored.dtype)
        with open(stored.file, "r+b") as file:
            file.seek(stored.begin)
            file.write(values.tobytes())
