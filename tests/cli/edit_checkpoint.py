"""edit_checkpoint.py DIR CODE: runs CODE over a checkpoint's config `c` and tensors `t` (name to dtype, shape, bytes;
put(name, dtype, shape, bytes) adds one), and writes all of it into one file."""
import json
import pathlib
import struct  # for CODE
import sys

from container import read_file, write_file

directory = pathlib.Path(sys.argv[1])
paths = sorted(directory.glob("*.safetensors"))
t = {stored.name: (stored.dtype, stored.shape, stored.data) for path in paths for stored in read_file(path)}
for path in [*paths, *directory.glob("*.index.json")]:
    path.unlink()
c = json.loads((directory / "config.json").read_text())


def put(name, dtype, shape, data):
    t[name] = (dtype, shape, data)


exec(sys.argv[2])
order = sorted(t.items(), key=lambda entry: (entry[1][0] == "BF16", entry[0]))
write_file(directory / "model.safetensors", dict(order))
(directory / "config.json").write_text(json.dumps(c))
