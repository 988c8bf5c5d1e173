#!/usr/bin/env python3
"""The small checkpoint of DeepSeek-V4 in the form of NVIDIA's NVFP4 releases: record_deepseek_v4_nvfp4.py [OUT]

Reads deepseek_v4 in this folder, keeps its first layer and its MTP layer, and gives the routed experts of the former
random NVFP4 codes, scales and numbers. Writes deepseek_v4_nvfp4/ and deepseek_v4_nvfp4.decoded.json: per quantized
weight its shape and the SHA-256 of its values as F32 and as BF16, computed here with NumPy from the definitions of
E2M1, E4M3 and E8M0.
"""
import hashlib, json, pathlib, re, struct, sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3_table():
    table = np.zeros(256, np.float32)
    for code in range(256):
        sign, exponent, fraction = -1.0 if code >> 7 else 1.0, (code >> 3) & 15, code & 7
        value = fraction * 2.0**-9 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
        table[code] = np.nan if code & 0x7F == 0x7F else sign * value
    return table


E4M3 = e4m3_table()


def read(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8 : 8 + n]).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                tensors[name] = (t["dtype"], t["shape"], data[8 + n + a : 8 + n + b])
    return tensors


def write(path, tensors):
    head, at, body = {"__metadata__": {"format": "pt"}}, 0, []
    for name, (dtype, shape, data) in tensors:
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        body.append(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body))


def spread(scales, rows, cols, shape):
    return scales.repeat(rows, 0).repeat(cols, 1)[: shape[0], : shape[1]]


def nibbles(data, shape):
    codes = np.frombuffer(data, np.uint8).reshape(shape)
    return np.stack([codes & 15, codes >> 4], -1).reshape(shape[0], shape[1] * 2)


def bf16_bytes(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def decoded(name, tensors):
    stem = name[: -len(".weight")]
    dtype, shape, data = tensors[name]
    part = lambda suffix: tensors[stem + suffix]
    if stem + ".weight_scale_2" in tensors:
        _, s, blocks = part(".weight_scale")
        number = np.frombuffer(part(".weight_scale_2")[2], np.float32)[0]
        scales = E4M3[np.frombuffer(blocks, np.uint8).reshape(s)] * number
        codes = E2M1[nibbles(data, shape)]
        return codes * spread(scales, 1, 16, codes.shape)
    _, s, exponents = part(".scale")
    scales = np.exp2(np.frombuffer(exponents, np.uint8).reshape(s).astype(np.float32) - 127)
    if dtype == "I8":
        codes = E2M1[nibbles(data, shape)]
        return codes * spread(scales, 1, 32, codes.shape)
    return E4M3[np.frombuffer(data, np.uint8).reshape(shape)] * spread(scales, 128, 128, shape)


def main(out):
    source, rng = HERE / "deepseek_v4", np.random.default_rng(4)
    config = json.loads((source / "config.json").read_text())
    config.update(num_hidden_layers=1, compress_ratios=[0, 0], num_hash_layers=1)
    config["quantization_config"].update(
        config_groups={"group_0": {"input_activations": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
                                   "targets": ["Linear"],
                                   "weights": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"}}},
        group_size=16, ignore=["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"], kv_cache_quant_algo=None,
        moe_quant_algo="NVFP4", producer={"name": "modelopt", "version": "dsv4-nvfp4-experts"},
        quant_algo="MIXED_PRECISION", quantized_layers={"layers.0.ffn.experts": {"group_size": 16, "quant_algo": "NVFP4"}})
    config["quantization_config"] = dict(sorted(config["quantization_config"].items()))
    tensors, joint = {}, {}
    for name, t in read(source).items():
        if re.match(r"layers\.[1-9]", name):
            continue
        expert = re.match(r"(layers\.0\.ffn\.experts\.(\d+)\.)(w[123])\.(weight|scale)$", name)
        if not expert:
            tensors[name] = t
        elif expert[4] == "weight":
            rows, cols = t[1][0], t[1][1] * 2
            stem, fused = expert[1] + expert[3], (expert[2], expert[3] == "w2")
            # w1 and w3 are joined, and have one number each of weights and of activations.
            numbers = joint.setdefault(fused, rng.uniform(1e-4, 3e-4, 2).astype(np.float32))
            tensors[stem + ".weight"] = ("U8", [rows, cols // 2], rng.integers(0, 256, rows * cols // 2, np.uint8).tobytes())
            tensors[stem + ".weight_scale"] = ("F8_E4M3", [rows, cols // 16], rng.integers(0x40, 0x7F, rows * cols // 16, np.uint8).tobytes())
            tensors[stem + ".weight_scale_2"] = ("F32", [], numbers[:1].tobytes())
            tensors[stem + ".input_scale"] = ("F32", [], numbers[1:].tobytes())
    folder = out / "deepseek_v4_nvfp4"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    order = {d: i for i, d in enumerate(["I64", "F32", "BF16", "F8_E8M0", "F8_E4M3", "U8", "I8"])}
    write(folder / "model.safetensors", sorted(tensors.items(), key=lambda t: (order[t[1][0]], t[0])))
    lines = []
    for name in sorted(tensors):
        if not name.endswith(".weight") or tensors[name][0] not in ("U8", "I8", "F8_E4M3"):
            continue
        values = np.ascontiguousarray(decoded(name, tensors), np.float32)
        sha = lambda data: hashlib.sha256(data).hexdigest()
        lines.append(json.dumps(name) + ": " + json.dumps({"shape": list(values.shape), "f32_sha256": sha(values.tobytes()),
                                                           "bf16_sha256": sha(bf16_bytes(values))}))
    (out / "deepseek_v4_nvfp4.decoded.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
