#!/usr/bin/env python3
"""record_gptq.py OUT: GPTQ modules of 2, 3 and 8 bits with zero points and orders of columns, and their values.

Packed and decoded with NumPy by the description of AutoGPTQ: the codes of a row are one stream of bits along the
columns, the zero points of a group one along the rows. OUT/gptq_BITSbit_FORMAT/ has model.safetensors, config.json and
decoded.json, as int4/gptq_v2. Needs numpy and safetensors.
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def packed(codes, bits, axis):
    """Int32 words of codes, a stream of bits along `axis`."""
    codes = np.moveaxis(codes.astype(np.uint64), axis, -1)
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    stream = stream.reshape(*codes.shape[:-1], -1, 32)
    words = (stream << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view("<i4")


def rounded_to_bf16(values):
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype("<u2")


def make(out, bits, form, has_order):
    rng = np.random.default_rng(10 * bits + has_order)
    top, is_v1 = 1 << bits, form == "gptq"
    tensors, decoded = {}, {}
    for name, k, n, group in [("plain", 256, 32, 32), ("wide", 128, 96, 64), ("row", 128, 64, 128)]:
        codes = rng.integers(0, top, (k, n))
        zeros = rng.integers(1 if is_v1 else 0, top, (k // group, n))  # the first format holds 1 less
        scales = rng.uniform(-0.1, 0.1, (k // group, n)).astype("<f2")
        g_idx = np.arange(k) // group
        if has_order:
            g_idx = rng.permutation(g_idx)
        module = f"model.layers.0.{name}"
        tensors[f"{module}.qweight"] = packed(codes, bits, 0)
        tensors[f"{module}.qzeros"] = packed(zeros - is_v1, bits, 1)
        tensors[f"{module}.scales"] = scales
        tensors[f"{module}.g_idx"] = g_idx.astype("<i4")
        value = ((codes - zeros[g_idx]) * scales.astype(np.float64)[g_idx]).T.astype("<f4")
        value = np.ascontiguousarray(value)
        decoded[f"{module}.weight"] = {
            "shape": list(value.shape), "f32_sha256": hashlib.sha256(value.tobytes()).hexdigest(),
            "bf16_sha256": hashlib.sha256(rounded_to_bf16(value).tobytes()).hexdigest()}
    folder = out / f"gptq_{bits}bit_{'order' if has_order else form}"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    block = {"quant_method": "gptq", "bits": bits, "sym": False, "desc_act": has_order, "checkpoint_format": form}
    (folder / "config.json").write_text(json.dumps({"model_type": "made_up", "quantization_config": block}, indent=1) + "\n")
    (folder / "decoded.json").write_text(json.dumps(decoded, indent=1) + "\n")


if __name__ == "__main__":
    for bits in 2, 3, 8:
        for form, has_order in ("gptq", False), ("gptq_v2", False), ("gptq_v2", True):
            make(Path(sys.argv[1]), bits, form, has_order)
