#!/usr/bin/env python3
"""keep_states.py RECORDED OUT [--prompt P]... [--ends N]: a recording with fewer hidden states of its longest prompts.

Of prompt P, `hidden.L` of all positions gives way to `states.L`, its rows at `positions`: the first and the last N. All
other tensors, and the bytes of every row that is kept, are those of RECORDED.
"""

import argparse
import json
import pathlib
import re
import struct


def main():
    options = argparse.ArgumentParser(usage=__doc__)
    options.add_argument("recorded", type=pathlib.Path)
    options.add_argument("out", type=pathlib.Path)
    options.add_argument("--prompt", type=int, action="append", required=True)
    options.add_argument("--ends", type=int, default=32)
    given = options.parse_args()
    data = given.recorded.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, payload = json.loads(data[8:8 + length]), data[8 + length:]
    tensors = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (first, last) = row["dtype"], row["shape"], row["data_offsets"]
        values = payload[first:last]
        hidden = re.fullmatch(r"(prompt(\d+)\.)hidden\.(\d+)", name)
        if hidden and int(hidden[2]) in given.prompt:
            width, n = len(values) // shape[0], shape[0]
            positions = [*range(given.ends), *range(n - given.ends, n)]
            assert len(set(positions)) == 2 * given.ends, name
            values = b"".join(values[at * width:(at + 1) * width] for at in positions)
            tensors[f"{hidden[1]}positions"] = ("I64", [len(positions)], struct.pack(f"<{len(positions)}q", *positions))
            name, shape = f"{hidden[1]}states.{hidden[3]}", [len(positions), *shape[1:]]
        tensors[name] = (dtype, shape, values)
    kept, at = {"__metadata__": header["__metadata__"]}, 0
    # Wide dtypes first, so that every tensor is aligned.
    order = sorted(tensors, key=lambda name: (-int(tensors[name][0][1:]), name))
    for name in order:
        dtype, shape, values = tensors[name]
        kept[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    given.out.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors[name][2] for name in order))


if __name__ == "__main__":
    main()
