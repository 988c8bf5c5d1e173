#!/usr/bin/env python3
"""record.py OUT: small INT4 checkpoints in forms of which no release is among the fixtures, with their decoded values.

OUT/pack_quantized/         modules as compressed-tensors packs them: every strategy, with zero points, with g_idx,
                            scales in three dtypes. Needs torch and compressed-tensors 0.12 (the last releases that
                            write weight_g_idx).
OUT/pack_quantized_ragged/  a module whose columns are no multiple of the eight codes of a word.
OUT/gptq_v2/                modules in GPTQ's second format (zero points stored as they are), packed with NumPy only.

Each has model.safetensors, config.json and decoded.json: per weight its shape and the SHA-256 of its values as
little-endian float32, row after row, of [out, in].
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

INT4 = {"num_bits": 4, "type": "int", "dynamic": False}


def decoded(values):
    values = np.ascontiguousarray(values, dtype="<f4")
    return {"shape": list(values.shape), "f32_sha256": hashlib.sha256(values.tobytes()).hexdigest()}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def pack_quantized(out):
    import torch
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32, unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import save_file

    # module: rows, columns, strategy, group, symmetric, act order, dtype of the scale
    cases = {
        "group32": (16, 256, "group", 32, True, False, torch.bfloat16),
        "group64_f16": (16, 256, "group", 64, True, False, torch.float16),
        "group128": (16, 384, "group", 128, True, False, torch.bfloat16),
        "group128_f32": (16, 256, "group", 128, True, False, torch.float32),
        "channel": (16, 256, "channel", None, True, False, torch.bfloat16),
        "channel_ragged": (16, 100, "channel", None, True, False, torch.bfloat16),
        "group32_zero": (20, 256, "group", 32, False, False, torch.bfloat16),
        "group128_zero": (24, 256, "group", 128, False, False, torch.float16),
        "channel_zero": (16, 256, "channel", None, False, False, torch.bfloat16),
        "group64_order": (16, 256, "group", 64, True, True, torch.bfloat16),
        "group64_order_zero": (16, 256, "group", 64, False, True, torch.bfloat16),
    }
    torch.manual_seed(4)
    tensors, groups, values = {}, {}, {}
    for index, (name, (n, k, strategy, group, symmetric, order, dtype)) in enumerate(cases.items()):
        weights = dict(INT4, strategy=strategy, group_size=group, symmetric=symmetric)
        if order:
            weights["actorder"] = "group"
        args = QuantizationArgs(**weights)
        # Columns of different size, and not centred, so that wrong groups and wrong zero points show.
        weight = (torch.randn(n, k) + 0.3) * torch.rand(k).add(0.2)
        g_idx = None
        columns = torch.arange(k)
        if order:
            g_idx = (torch.randperm(k) // group).to(torch.int32)
            columns = torch.argsort(g_idx, stable=True)
        parts = weight[:, columns].reshape(n, -1, group if group else k)
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
        scale, zero = scale.to(dtype), zero.round().to(torch.int8)
        codes = quantize(x=weight.to(dtype), scale=scale, zero_point=zero, args=args, dtype=torch.int8, g_idx=g_idx)
        module = f"model.layers.0.{name}"
        tensors[f"{module}.weight_packed"] = pack_to_int32(codes, 4)
        tensors[f"{module}.weight_scale"] = scale
        tensors[f"{module}.weight_shape"] = torch.tensor([n, k], dtype=torch.int64)
        if not symmetric:
            tensors[f"{module}.weight_zero_point"] = pack_to_int32(zero, 4, packed_dim=0).contiguous()
        if order:
            tensors[f"{module}.weight_g_idx"] = g_idx
        again = unpack_from_int32(tensors[f"{module}.weight_packed"], 4, torch.Size((n, k)))
        assert torch.equal(again, codes)
        value = dequantize(x_q=again, scale=scale.float(), zero_point=zero, args=args, g_idx=g_idx).float()
        # The same by hand.
        which = g_idx.long() if order else torch.arange(k) // (group if group else k)
        plain = (codes.double() - zero.double()[:, which]) * scale.double()[:, which]
        assert torch.equal(plain.float(), value), name
        values[f"{module}.weight"] = decoded(value.numpy())
        groups[f"group_{index}"] = {"targets": [module], "weights": weights, "input_activations": None}
    for directory, is_ragged in ((out, False), (out.with_name(out.name + "_ragged"), True)):
        def is_here(name):
            return name.split(".")[3].endswith("_ragged") == is_ragged
        directory.mkdir(parents=True, exist_ok=True)
        save_file({k: v for k, v in tensors.items() if is_here(k)}, directory / "model.safetensors",
                  metadata={"format": "pt"})
        write_json(directory / "config.json", {
            "model_type": "made_up",
            "quantization_config": {
                "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
                "config_groups": {k: v for k, v in groups.items() if is_here(v["targets"][0])}, "ignore": []}})
        write_json(directory / "decoded.json", {k: v for k, v in values.items() if is_here(k)})


def nibbles_to_words(codes, axis):
    """Codes 0..15 to int32 words, eight along `axis`, the first one lowest."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    words = codes.reshape(*codes.shape[:-1], -1, 8)
    words = (words << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view("<i4")


def gptq_v2(out):
    rng = np.random.default_rng(5)
    tensors, values = {}, {}
    for name, k, n, group, order in [("plain", 256, 16, 128, False), ("row", 128, 24, 128, False),
                                     ("order", 256, 16, 128, True)]:
        codes = rng.integers(0, 16, (k, n))
        zeros = rng.integers(0, 16, (k // group, n))  # also 0, which the first format cannot hold
        scales = rng.uniform(0.01, 0.1, (k // group, n)).astype("<f2")
        g_idx = np.arange(k) // group
        if order:
            g_idx = rng.permutation(g_idx)
        module = f"model.layers.0.{name}"
        tensors[f"{module}.qweight"] = nibbles_to_words(codes, 0)
        tensors[f"{module}.qzeros"] = nibbles_to_words(zeros, 1)
        tensors[f"{module}.scales"] = scales
        tensors[f"{module}.g_idx"] = g_idx.astype("<i4")
        value = (codes - zeros[g_idx]).astype(np.float64) * scales.astype(np.float64)[g_idx]
        values[f"{module}.weight"] = decoded(value.T)
    out.mkdir(parents=True, exist_ok=True)
    from safetensors.numpy import save_file
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", {
        "model_type": "made_up",
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": True,
                                "checkpoint_format": "gptq_v2"}})
    write_json(out / "decoded.json", values)


if __name__ == "__main__":
    pack_quantized(Path(sys.argv[1]) / "pack_quantized")
    gptq_v2(Path(sys.argv[1]) / "gptq_v2")
