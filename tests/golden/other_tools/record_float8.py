#!/usr/bin/env python3
"""record_float8.py OUT: a small checkpoint of FP8 weights of kinds other than E4M3FN, and its values.

Writes config.json, model.safetensors and decoded.json: per weight its shape and the SHA-256 of its values as
little-endian float32, and of these rounded to bfloat16. The weights of each kind hold all its finite codes. torch makes
codes and values; NumPy decodes the codes by their definition and must agree. Needs torch and safetensors.
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

ROWS, COLS = 24, 160
# name: dtype, mantissa bits, bias, whether the largest exponent is of infinities and NaNs
KINDS = {"e5m2": (torch.float8_e5m2, 2, 15, True),
         "e4m3fnuz": (torch.float8_e4m3fnuz, 3, 8, False),
         "e5m2fnuz": (torch.float8_e5m2fnuz, 2, 16, False)}
# scale: rows and columns that share one, its shape, its dtype and its name
SCALES = {"tensor": (ROWS, COLS, [], torch.float32, "weight_scale"),
          "one": (ROWS, COLS, [1], torch.bfloat16, "weight_scale"),
          "row": (1, COLS, [ROWS, 1], torch.float32, "weight_scale"),
          "flat_row": (1, COLS, [ROWS], torch.float16, "weight_scale"),
          "block_128": (128, 128, [1, 2], torch.float32, "weight_scale_inv"),
          "block_mx": (1, 32, [ROWS, 5], torch.float8_e8m0fnu, "weight_scale")}


def by_definition(codes, mantissa_bits, bias, is_ieee):
    """Values of codes in double."""
    sign = np.where(codes >= 128, -1.0, 1.0)
    exponent = (codes.astype(np.int64) & 127) >> mantissa_bits
    mantissa = (codes & (2**mantissa_bits - 1)) / 2.0**mantissa_bits
    value = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - float(bias)))
    if is_ieee:
        value = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where(codes == 128, np.nan, value)
    return sign * value


def sha256(tensor):
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def main(out):
    torch.manual_seed(8)
    tensors, decoded = {}, {}
    for kind, (dtype, *definition) in KINDS.items():
        every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
        values = every.view(dtype).float()
        same = by_definition(every.numpy(), *definition)
        assert np.array_equal(values.numpy(), same.astype(np.float32), equal_nan=True), kind
        finite = every[torch.isfinite(values)]
        for name, (block_rows, block_cols, shape, scale_dtype, suffix) in SCALES.items():
            codes = finite[torch.randint(len(finite), (ROWS * COLS,))]
            codes[:len(finite)] = finite
            codes = codes.reshape(ROWS, COLS).view(dtype)
            down, across = -(-ROWS // block_rows), -(-COLS // block_cols)
            scale = (torch.rand(down, across) * 0.01 + 0.001).to(scale_dtype)
            wide = scale.float().repeat_interleave(block_rows, 0)[:ROWS]
            wide = wide.repeat_interleave(block_cols, 1)[:, :COLS]
            value = codes.float() * wide
            module = f"model.layers.0.{kind}_{name}"
            tensors[f"{module}.weight"] = codes
            tensors[f"{module}.{suffix}"] = scale.reshape(shape)
            decoded[f"{module}.weight"] = {
                "shape": [ROWS, COLS], "f32_sha256": sha256(value), "bf16_sha256": sha256(value.to(torch.bfloat16))}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "made_up", "quantization_config": {"quant_method": "fp8"}}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "decoded.json").write_text(json.dumps(decoded, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
