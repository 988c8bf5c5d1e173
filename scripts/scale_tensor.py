#!/usr/bin/env python3
"""scale_tensor.py DIRECTORY TENSOR FACTOR: multiplies an F32 tensor of a safetensors checkpoint, in place.

For demonstrations of what `ingot verify` finds; no real job needs it.
"""
import json
import pathlib
import struct
import sys


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    directory, name, factor = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    for path in sorted(directory.glob("*.safetensors")):
        with open(path, "r+b") as file:
            (n_header,) = struct.unpack("<Q", file.read(8))
            entry = json.loads(file.read(n_header)).get(name)
            if entry is None:
                continue
            if entry["dtype"] != "F32":
                sys.exit(f"{path.name}: tensor '{name}' is {entry['dtype']}, not F32")
            begin, end = entry["data_offsets"]
            file.seek(8 + n_header + begin)
            values = struct.unpack(f"<{(end - begin) // 4}f", file.read(end - begin))
            file.seek(8 + n_header + begin)
            file.write(struct.pack(f"<{len(values)}f", *(value * factor for value in values)))
            print(f"{path.name}: {len(values)} values of '{name}' multiplied by {factor}")
            return
    sys.exit(f"no tensor '{name}' in {directory}")


if __name__ == "__main__":
    main()
