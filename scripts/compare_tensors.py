#!/usr/bin/env python3
"""compare_tensors.py DIRECTORY EXPECTED.json: every tensor of a checkpoint against its expected dtype, shape and SHA-256.

Reads the files on its own, with nothing but the standard library, so that it cannot share a mistake with ingot.
"""
import hashlib
import json
import pathlib
import struct
import sys

DTYPES = {"BF16": "bfloat16", "F32": "float32", "F16": "float16", "F8_E4M3": "float8_e4m3fn"}


def tensors(directory):
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                file.seek(8 + length + begin)
                digest = hashlib.sha256(file.read(end - begin)).hexdigest()
                yield name, {"dtype": DTYPES.get(entry["dtype"], entry["dtype"]), "shape": entry["shape"], "sha256": digest}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    expected = json.loads(pathlib.Path(sys.argv[2]).read_text())
    found = dict(tensors(pathlib.Path(sys.argv[1])))
    wrong = [f"{name}: missing" for name in expected if name not in found]
    wrong += [f"{name}: not expected" for name in found if name not in expected]
    wrong += [f"{name}: is {found[name]}, expected {expected[name]}"
              for name in expected if name in found and found[name] != expected[name]]
    for line in wrong[:20]:
        print(line)
    equal = sum(found.get(name) == entry for name, entry in expected.items())
    print(f"{equal} of {len(expected)} tensors are as expected")
    sys.exit(1 if wrong else 0)


main()
