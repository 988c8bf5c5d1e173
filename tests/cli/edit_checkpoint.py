"""edit_checkpoint.py DIR CODE: runs CODE over a checkpoint's config `c` and tensors `t` (name to dtype, shape, bytes;
put(name, dtype, shape, bytes) adds one), and writes all of it into one file."""
import json
import pathlib
import struct
import sys

directory = pathlib.Path(sys.argv[1])
t = {}
for path in sorted(directory.glob("*.safetensors")):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for name, facts in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = facts["data_offsets"]
            t[name] = (facts["dtype"], facts["shape"], data[8 + length + begin : 8 + length + end])
    path.unlink()
for index in directory.glob("*.index.json"):
    index.unlink()
c = json.loads((directory / "config.json").read_text())


def put(name, dtype, shape, data):
    t[name] = (dtype, shape, data)


exec(sys.argv[2])
header, at = {}, 0
for name, (dtype, shape, data) in sorted(t.items(), key=lambda entry: (entry[1][0] == "BF16", entry[0])):
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
    at += len(data)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(directory / "model.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text)
    for name in header:
        out.write(t[name][2])
(directory / "config.json").write_text(json.dumps(c))
