#!/usr/bin/env bash
# --align: tensors of whole pages begin at one, without holes; the values are those of a conversion without it; sliced,
# resumed, verified, checked and merged like any other output.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
page=1024 # the pages of so small a model

# aligned DIR...: the layout of every weights file, by a reader of its own; prints name, dtype and bytes of each tensor.
aligned() {
  python3 - "$page" "$@" <<'P' || fail "not aligned: $*"
import hashlib, json, pathlib, struct, sys
page, n_aligned = int(sys.argv[1]), 0
for directory in sys.argv[2:]:
    for path in sorted(pathlib.Path(directory).glob("**/*.safetensors")):
        data = path.read_bytes()
        n, = struct.unpack("<Q", data[:8])
        assert (8 + n) % page == 0 and data[8:9] == b"{", path
        header = json.loads(data[8:8 + n])
        header.pop("__metadata__")
        end, last_aligned = 0, 0
        rows = sorted(header.items(), key=lambda row: row[1]["data_offsets"])
        for name, row in rows:
            begin, behind = row["data_offsets"]
            assert begin == end, f"{path}: hole before {name}"
            end = behind
            if (behind - begin) % page == 0 and behind > begin:
                assert begin % page == 0, f"{path}: {name} begins at {begin}"
                n_aligned += 1
            print(name, row["dtype"], row["shape"], hashlib.sha256(data[8 + n + begin:8 + n + behind]).hexdigest())
        assert 8 + n + end == len(data), path
assert n_aligned > 50, n_aligned
P
}
# tensors DIR: the same lines, of any layout.
tensors() { page=1 aligned "$@" | sort; }

for to in fp8 int8 nvfp4 bf16; do
  expect 0 "" "$ingot" convert "$example" "$work/$to" --to "$to" --align "$page" --max-shard-size 1MB
  expect 0 "" "$ingot" convert "$example" "$work/plain" --to "$to"
  aligned "$work/$to" | sort >"$work/a"
  tensors "$work/plain" >"$work/b"
  cmp -s "$work/a" "$work/b" || fail "$to: other tensors than without --align"
  expect 0 "PASS" "$ingot" verify "$example" "$work/$to"
  expect 0 "0 errors" "$ingot" check "$work/$to" --deep
  rm -rf "$work/plain"
done
# A weight and its scale, both of whole pages, are neighbours; files are even.
python3 - "$work" <<'P' || fail "neighbours or sizes"
import json, pathlib, struct, sys
work = pathlib.Path(sys.argv[1])
n = 0
for path in (work / "nvfp4").glob("*.safetensors"):
    header = json.loads(path.read_bytes()[8:8 + struct.unpack("<Q", path.read_bytes()[:8])[0]])
    header.pop("__metadata__")
    for name, row in header.items():
        scale = header.get(name.removesuffix("_packed") + "_scale") if name.endswith("_packed") else None
        if scale is None or any((at[1] - at[0]) % 1024 for at in (scale["data_offsets"], row["data_offsets"])):
            continue
        assert scale["data_offsets"][0] == row["data_offsets"][1], name
        n += 1
assert n > 20, n
sizes = sorted(path.stat().st_size for path in (work / "bf16").glob("*.safetensors"))
assert len(sizes) > 3 and sizes[-1] < 1.6 * sizes[0], sizes
P
# Slices are aligned too, and merge to the checkpoint before the cut.
expect 0 "" "$ingot" convert "$example" "$work/ranks" --to bf16 --tp 2 --ep 2 --align "$page"
aligned "$work/ranks" >/dev/null
expect 0 "" "$ingot" merge "$work/ranks" "$work/merged"
tensors "$work/merged" >"$work/a"
tensors "$work/bf16" >"$work/b"
cmp -s "$work/a" "$work/b" || fail "merged slices are another model"
# Parts and --resume know the option.
expect 0 "" "$ingot" convert "$example" "$work/parts" --to bf16 --align "$page" --max-shard-size 1MB --part 0/2
expect 2 "--align" "$ingot" convert "$example" "$work/parts" --to bf16 --max-shard-size 1MB --part 1/2
expect 0 "" "$ingot" convert "$example" "$work/parts" --to bf16 --align "$page" --max-shard-size 1MB --part 1/2
expect 0 "" "$ingot" join "$work/parts"
for file in "$work"/bf16/*.safetensors; do cmp -s "$file" "$work/parts/${file##*/}" || fail "parts: other bytes of ${file##*/}"; done
expect 2 "power of two" "$ingot" convert "$example" "$work/odd" --align 1000
finish
