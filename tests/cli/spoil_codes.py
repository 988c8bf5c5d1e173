"""spoil_codes.py DIR MODULE FAULT: changes the packed 4-bit codes of a weight. `turned`: those of each row are half a row
farther; `shuffled`: of one row, in random order; `swapped`: of one row, two bytes. `doubled`: its scales, whatever their dtype, are twice as large."""
import pathlib
import random
import sys

from container import read_file

directory, module, fault = sys.argv[1:]
ending = {"doubled": ".weight_scale"}.get(fault)
for path in sorted(pathlib.Path(directory).rglob("*.safetensors")):
    for stored in read_file(str(path)):
        if not stored.name.startswith(module + "."):
            continue
        is_codes = stored.name.rsplit(".", 1)[1] in ("weight_packed", "weight")
        if (ending is None and not is_codes) or (ending and not stored.name.endswith(ending)):
            continue
        n_rows = stored.shape[0]
        size = len(stored.data) // n_rows
        rows = [stored.data[i * size:(i + 1) * size] for i in range(n_rows)]
        if fault == "turned":
            rows = [row[size // 2:] + row[:size // 2] for row in rows]
        elif fault == "shuffled":
            rows[5] = bytes(random.Random(1).sample(rows[5], size))
        elif fault == "swapped":
            row = bytearray(rows[5])
            at = next(i for i in range(size - 1) if row[i] != row[i + 1])
            row[at], row[at + 1] = row[at + 1], row[at]
            rows[5] = bytes(row)
        else:
            double = {"BF16": 0x80, "F8_E4M3": 8, "U8": 1, "F8_E8M0": 1}[stored.dtype]
            size = 2 if stored.dtype == "BF16" else 1
            words = [int.from_bytes(stored.data[i:i + size], "little") for i in range(0, len(stored.data), size)]
            rows = [(word + double).to_bytes(size, "little") for word in words]
        with open(path, "r+b") as file:
            file.seek(stored.begin)
            file.write(b"".join(rows))
