#!/usr/bin/env python3
"""record.py OUT: a small checkpoint of FP8 weights under scales of every block that readers try, and its values.

Writes config.json, model.safetensors and decoded.json: per weight its shape and the SHA-256 of its values as
little-endian float32 and bfloat16. The last weight is a table of n-grams under exponents per 32 columns. torch makes codes and values; NumPy decodes the codes by their definition and must
agree. Needs torch and safetensors.
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

ROWS, COLS = 72, 96  # no multiple of 64 or 128: blocks at the edges are shorter
# module: rows and columns of a block, dtype of the scales, whether there is a scale of the activation
CASES = {
    "block_128": (128, 128, torch.float32, False),
    "block_64": (64, 64, torch.float32, False),
    "block_64_bf16": (64, 64, torch.bfloat16, True),
    "block_32": (32, 32, torch.float32, True),
    "block_32_e8m0": (32, 32, torch.float8_e8m0fnu, False),
    "row_32": (1, 32, torch.float32, False),
    "row_32_static": (1, 32, torch.float32, True),
    "row_64": (1, 64, torch.bfloat16, False),
    "row_128": (1, 128, torch.float32, False),
    "ngram_embedding": (1, 32, torch.float8_e8m0fnu, False),
}


def e4m3(codes):
    """Values of E4M3 codes by their definition, in double."""
    sign = np.where(codes >= 128, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    return sign * np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))


def sha256(tensor):
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def main(out):
    torch.manual_seed(3)
    tensors, decoded = {}, {}
    for name, (block_rows, block_cols, dtype, is_static) in CASES.items():
        down, across = -(-ROWS // block_rows), -(-COLS // block_cols)
        scale = (torch.rand(down, across) * 0.01 + 0.001).to(dtype)
        def spread(grid):
            return grid.repeat_interleave(block_rows, 0)[:ROWS].repeat_interleave(block_cols, 1)[:, :COLS]
        wide = spread(scale.float())
        # Every block has its own size, so that a wrong block shows in every value.
        codes = (torch.randn(ROWS, COLS) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
        value = codes.float() * wide
        plain = e4m3(codes.view(torch.uint8).numpy()) * wide.double().numpy()
        assert np.array_equal(plain.astype(np.float32), value.numpy()), name
        module = f"model.layers.0.{name}"
        tensors[f"{module}.weight"] = codes
        tensors[f"{module}.scale" if name == "ngram_embedding" else f"{module}.weight_scale_inv"] = scale
        if is_static:
            tensors[f"{module}.activation_scale"] = torch.tensor(0.0125)
        decoded[f"{module}.weight"] = {
            "shape": [ROWS, COLS], "f32_sha256": sha256(value), "bf16_sha256": sha256(value.to(torch.bfloat16))}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "made_up", "quantization_config": {"quant_method": "fp8"}}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "decoded.json").write_text(json.dumps(decoded, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
