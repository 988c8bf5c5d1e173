#!/usr/bin/env bash
# lookup_table.sh INGOT: a table of n-grams that is larger than the memory given goes through in bands, in its scheme,
# is cut by rows, and is counted apart.
source "$(dirname "$0")/expect.sh"
source "$(dirname "$0")/peak.sh"
runs=3
ingot=$1 limit=64MiB
"$ingot" synth "$work/in" --family qwen3_moe --like tiny --scheme fp8-block >/dev/null || fail "synth"

# FP8 under exponents, a million rows of 128: a file of 132 MB that is one hole between its first row and its last.
python3 - "$work/in" <<'EOF2'
import json, pathlib, struct, sys
directory, rows, cols = pathlib.Path(sys.argv[1]), 1_000_000, 128
name, n_scales = "model.ngram_embedding", rows * cols // 32
header = json.dumps({
    name + ".weight": {"dtype": "F8_E4M3", "shape": [rows, cols], "data_offsets": [0, rows * cols]},
    name + ".scale": {"dtype": "F8_E8M0", "shape": [rows, cols // 32], "data_offsets": [rows * cols, rows * cols + n_scales]},
}).encode()
header += b" " * (-len(header) % 8)
with open(directory / "table.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(header)) + header + bytes(range(1, cols // 2)))
    out.seek(8 + len(header) + (rows - 1) * cols)
    out.write(bytes(range(2, cols // 2)))
    out.truncate(8 + len(header) + rows * cols + n_scales)
weight_map = {name + ".weight": "table.safetensors", name + ".scale": "table.safetensors"}
for path in directory.glob("model*.safetensors"):
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    weight_map.update({key: path.name for key in json.loads(data[8 : 8 + length]) if key != "__metadata__"})
(directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
EOF2

# same_table FILE...: the rows of the table in these files, one after the other, are those of the source.
same_table() {
  python3 - "$work/in/table.safetensors" "$@" <<'EOF2'
import json, struct, sys

def parts(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        found = {}
        for name, facts in header.items():
            if "ngram_embedding" in name:
                begin, end = facts["data_offsets"]
                file.seek(8 + length + begin)
                found[name] = (facts["dtype"], facts["shape"], file.read(end - begin))
        return found

source, slices = parts(sys.argv[1]), [parts(path) for path in sys.argv[2:]]
for name, (dtype, (rows, cols), data) in source.items():
    whole = [piece[name] for piece in slices]
    assert all(piece[:2] == (dtype, [rows // len(slices), cols]) for piece in whole), [piece[:2] for piece in whole]
    assert b"".join(piece[2] for piece in whole) == data, name
EOF2
}

expect 0 "tables        128,000,000 (128.00 M) in addition" "$ingot" inspect "$work/in"
expect 0 '"lookup_table_parameters": 128000000' "$ingot" inspect "$work/in" --json

to_bf16=("$ingot" convert "$work/in" "$work/out" --to bf16 --mem-limit $limit --threads 1 --progress never)
peak=$(peak_kb "${to_bf16[@]}")
[ $((peak * 1024)) -le "$(bytes $limit)" ] || fail "peak RSS of $peak KiB under --mem-limit $limit"
expect 0 "cast 32" "${to_bf16[@]}"
same_table "$work/out/table.safetensors" || fail "the table did not stay as it was"

sliced=("$ingot" convert "$work/in" "$work/out" --tp 2 --ep 2 --mem-limit $limit --threads 1 --progress never)
rm -rf "$work/out"
peak=$(peak_kb "${sliced[@]}")
[ $((peak * 1024)) -le "$(bytes $limit)" ] || fail "peak RSS of $peak KiB under --mem-limit $limit, sliced"
expect 0 "" "${sliced[@]}"
mapfile -t slices < <(grep -l ngram_embedding -r "$work/out" --include='*.safetensors' | sort)
[ ${#slices[@]} -eq 2 ] || fail "the table is in ${#slices[@]} files"
same_table "${slices[@]}" || fail "the table was not cut by rows"
finish
