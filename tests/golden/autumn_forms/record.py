"""Writes decoded.json of each folder here from values that another program decoded.

record.py VECTORS: a folder with decoded.safetensors (F32) and expected.json per folder here, named with hyphens. Each
entry has the shape and the SHA-256 of the values as BF16, rounded to the nearest, ties to even.
"""

import hashlib
import json
import pathlib
import struct
import sys


def tensors(path):
    data = path.read_bytes()
    n_bytes = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n_bytes])
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + n_bytes + at for at in entry["data_offsets"])
            yield name, entry["shape"], data[begin:end]


def bf16(values):
    words = struct.unpack(f"<{len(values) // 4}I", values)
    return b"".join(struct.pack("<H", (word + 0x7FFF + (word >> 16 & 1)) >> 16) for word in words)


here = pathlib.Path(__file__).parent
for folder in sorted(at for at in here.iterdir() if at.is_dir() and not at.name.endswith("_awq")):
    given = pathlib.Path(sys.argv[1]) / folder.name.replace("_", "-")
    parts = json.loads((given / "expected.json").read_text())["second"]
    # Fused projections are read as their parts; stacks of experts stay stacks under any names.
    is_apart = any("self_attn" in name for name in parts)
    decoded = {
        name: {"shape": shape, "bf16_sha256": hashlib.sha256(bf16(values)).hexdigest()}
        for name, shape, values in tensors(given / "decoded.safetensors")
        if (name not in parts and not name.endswith("qkv_proj.weight")) or (is_apart and name in parts)
    }
    (folder / "decoded.json").write_text(json.dumps(decoded, indent=1) + "\n")
