#!/usr/bin/env bash
# --order name and --files: data in the order in which engines' loaders read, files of even size with MTP layers of their
# own; the values are those of a conversion without them; sliced, resumed, verified, checked and merged like any other.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# laid_out ORDER DIR...: the layout of every weights file, by a reader of its own; prints name, dtype and bytes of each
# tensor. ORDER: name, or any.
laid_out() {
  python3 - "$@" <<'P' || fail "not laid out: $*"
import hashlib, json, pathlib, struct, sys
order, sizes = sys.argv[1], {"BF16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1, "U8": 1, "I8": 1, "I64": 8, "F8_E8M0": 1}
for directory in sys.argv[2:]:
    for path in sorted(pathlib.Path(directory).glob("**/*.safetensors")):
        data = path.read_bytes()
        n, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + n])
        header.pop("__metadata__")
        rows = sorted(header.items(), key=lambda row: row[1]["data_offsets"])
        end = 0
        for name, row in rows:
            begin, behind = row["data_offsets"]
            assert begin == end, f"{path}: hole before {name}"
            assert begin % sizes[row["dtype"]] == 0, f"{path}: {name} is not aligned"
            end = behind
            print(name, row["dtype"], row["shape"], hashlib.sha256(data[8 + n + begin:8 + n + behind]).hexdigest())
        assert 8 + n + end == len(data), path
        if order == "name":
            names = [name.encode() for name, _ in rows]
            assert (8 + n) % 16 == 0 and names == sorted(names), path
P
}

for to in fp8 nvfp4 bf16; do
  expect 0 "" "$ingot" convert "$example" "$work/$to" --to "$to" --order name --files 2
  expect 0 "" "$ingot" convert "$example" "$work/plain" --to "$to"
  laid_out name "$work/$to" | sort >"$work/a"
  laid_out any "$work/plain" | sort >"$work/b"
  cmp -s "$work/a" "$work/b" || fail "$to: other tensors than in the order of dtypes"
  expect 0 "PASS" "$ingot" verify "$example" "$work/$to"
  expect 0 "0 errors" "$ingot" check "$work/$to" --deep
  rm -rf "$work/plain"
done

# Two files of even size for the main layers in order, and one for the MTP layer.
python3 - "$work/bf16" <<'P' || fail "files"
import json, pathlib, re, sys
out = pathlib.Path(sys.argv[1])
files = sorted(path.name for path in out.glob("*.safetensors"))
assert files == [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)], files
sizes = [(out / name).stat().st_size for name in files]
assert abs(sizes[0] - sizes[1]) < 0.2 * sizes[0], sizes
n_layers = json.loads((out / "config.json").read_text())["num_hidden_layers"]
places = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
of_file = {name: [] for name in files}
for tensor, name in places.items():
    layer = re.match(r"model\.layers\.(\d+)\.", tensor)
    of_file[name].append(int(layer[1]) if layer else -1 if "embed" in tensor else n_layers - 0.5)
assert min(of_file[files[2]]) == n_layers and max(of_file[files[1]]) < n_layers, of_file
assert max(of_file[files[0]]) <= min(of_file[files[1]]), "layers are in order"
P

# A tensor of an odd number of bytes in front of wider ones: the file keeps the order of dtypes, and says so.
mkdir "$work/odd"
python3 - "$example" "$work/odd" <<'P'
import json, pathlib, struct, sys
source, out = map(pathlib.Path, sys.argv[1:])
for path in source.iterdir():
    if path.suffix != ".safetensors" and path.is_file() and "index" not in path.name:
        (out / path.name).write_bytes(path.read_bytes())
tensors = {}
for path in source.glob("*.safetensors"):
    data = path.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    for name, row in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = row["data_offsets"]
            tensors[name] = (row["dtype"], row["shape"], data[8 + n + begin:8 + n + end])
tensors["a.note"] = ("U8", [3], b"odd")
header, end = {}, 0
for name, (dtype, shape, data) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
    end += len(data)
text = json.dumps(header).encode()
(out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
P
expect 0 "keep the order of dtypes" "$ingot" convert "$work/odd" "$work/kept" --order name --allow unknown-tensor=a.note
laid_out any "$work/kept" >/dev/null

# Cut for ranks by name order, and joined again.
expect 0 "" "$ingot" convert "$example" "$work/ranks" --to bf16 --tp 2 --ep 2 --order name
laid_out name "$work/ranks" >/dev/null
expect 0 "" "$ingot" merge "$work/ranks" "$work/whole"
laid_out any "$work/whole" | sort >"$work/b"
cmp -s "$work/a" "$work/b" || fail "ranks and merge"
expect 0 "" "$ingot" merge "$work/ranks" "$work/dealt" --files 2 --order name
laid_out name "$work/dealt" | sort >"$work/b"
cmp -s "$work/a" "$work/b" || fail "merge with --files and --order"
[ -e "$work/dealt/model-00001-of-00003.safetensors" ] || fail "merge deals no files"
expect 2 "excludes" "$ingot" merge "$work/ranks" "$work/none" --files 2 --max-shard-size 1MB

# The order is one of a job's settings.
expect 0 "" "$ingot" convert "$example" "$work/parts" --to bf16 --order name --files 2 --part 0/2
expect 2 "--order" "$ingot" convert "$example" "$work/parts" --to bf16 --files 2 --part 1/2
expect 2 "--files" "$ingot" convert "$example" "$work/parts" --to bf16 --order name --part 1/2

expect 2 "--files: 100000 files" "$ingot" convert "$example" "$work/many" --to bf16 --files 100000
expect 2 "--max-shard-size" "$ingot" convert "$example" "$work/many" --to bf16 --files 2 --max-shard-size 1MB
expect 2 "--files" "$ingot" convert "$example" "$work/many" --to bf16 --files 2 --tp 2
expect 2 "--align" "$ingot" convert "$example" "$work/many" --to bf16 --order name --align 4096
expect 2 "--order" "$ingot" convert "$example" "$work/many" --to bf16 --order size
finish
