#!/usr/bin/env python3
"""record.py VECTORS OUT: what tests need of the vectors of an independent GPTQ (NumPy, double precision).

VECTORS/NAME/input.safetensors has a weight (BF16) and the second moments of its inputs (F64), VECTORS/table.json the
trace of error x moments x error' of plain rounding and of GPTQ, by scheme. OUT/NAME.safetensors gets the weight and the
moments in F32, OUT/traces.json the traces.
"""
import json
import sys
from pathlib import Path

import numpy as np


def read(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return {name: (entry, data[8 + size :][slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def write(path, tensors):
    header, data = {}, b""
    for name, dtype, shape, values in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def main():
    vectors, out = Path(sys.argv[1]), Path(sys.argv[2])
    rows = json.loads((vectors / "table.json").read_text())
    for name in sorted({row["matrix"] for row in rows}):
        tensors = read(vectors / name / "input.safetensors")
        moments = np.frombuffer(tensors["hessian"][1], "<f8").astype("<f4").tobytes()
        write(out / f"{name}.safetensors", [
            ("moments", "F32", tensors["hessian"][0]["shape"], moments),
            ("weight", "BF16", tensors["weight"][0]["shape"], tensors["weight"][1])])
    traces = [{key: row[key] for key in ("matrix", "scheme", "trace_rtn", "trace_gptq")} for row in rows]
    (out / "traces.json").write_text(json.dumps(traces, indent=1) + "\n")


main()
