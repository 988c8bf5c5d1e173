#!/usr/bin/env python3
"""Writes cases.json: record.py FOLDER, whose folders are checkpoints with scales of a key-value cache.

Each has config.json, expected.json and weights files (PROVENANCE.md). Numbers of at most 8 bytes, and all scales of
caches, are taken over; other weights are zeros of the same name, dtype and shape, listed once for all cases."""

import json
import pathlib
import struct
import sys

CACHE = ("k_scale", "v_scale", "q_scale", "kv_scale", "output_scale", "k_bias", "v_bias", "q.scale", "_cache.scale")


def tensors_of(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        is_cache = name.endswith(CACHE)
        row = [name, entry["dtype"], entry["shape"]]
        yield is_cache, row + [raw.hex()] if is_cache or len(raw) <= 8 else row


def main():
    weights, cases = [], []
    for folder in sorted(p for p in pathlib.Path(sys.argv[1]).iterdir() if p.is_dir()):
        case = {"case": folder.name, "config": json.loads((folder / "config.json").read_text()), "files": {}}
        for name in ("hf_quant_config.json", "kv_cache_scales.json"):
            if (folder / name).exists():
                case[name] = json.loads((folder / name).read_text())
        expected = json.loads((folder / "expected.json").read_text())
        case["scales"], case["report"] = expected["scales"], expected["report"]
        for path in sorted(folder.glob("*.safetensors")):
            listed = list(tensors_of(path))
            others = sorted(row for is_cache, row in listed if not is_cache)
            if others and others not in weights:
                weights.append(others)
            case["files"][path.name] = {"weights": weights.index(others) if others else None,
                                        "scales": [row for is_cache, row in listed if is_cache]}
        cases.append(case)
    lines = ",\n".join("  [" + ",\n   ".join(json.dumps(row) for row in rows) + "]" for rows in weights)
    text = '{"weights": [\n' + lines + '],\n "cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "]}\n"
    (pathlib.Path(__file__).parent / "cases.json").write_text(text)


if __name__ == "__main__":
    main()
