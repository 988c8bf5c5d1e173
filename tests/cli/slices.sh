#!/usr/bin/env bash
# Uses of slices: inspect, check and merge them, whole, gathered, foreign and damaged.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
quiet() { "$ingot" "$@" --progress never >/dev/null || fail "$*"; }
flip() {  # flip FILE: its last byte
  python3 - "$1" <<'P'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(-1, 2)
    byte = f.read(1)
    f.seek(-1, 2)
    f.write(bytes([byte[0] ^ 1]))
P
}

# Ranks: one model to every command (their bytes are compared in tests/differential/outputs.py).
quiet convert "$example" "$work/ranks" --tp 2 --ep 4 --tp-fit retile
expect 0 "deepseek_v32" "$ingot" inspect "$work/ranks"
expect 0 "model.norm.weight" "$ingot" inspect "$work/ranks" model.norm.weight
expect 0 "0 errors" "$ingot" check "$work/ranks"
quiet merge "$work/ranks" "$work/merged"
expect 2 "holds no slices" "$ingot" merge "$work/merged" "$work/again"
expect 2 "no such directory" "$ingot" merge "$work/absent" "$work/again"
expect_unpublished "$work/again"

# Derived JSON is restored to the byte, in any form of the source: the example, a file written by Python with more
# metadata, and one without blanks.
mkdir "$work/forms"
for form in '{}' '{"indent": 4, "sort_keys": true}' '{"separators": [",", ":"]}'; do
  rm -rf "$work/forms"/*
  cp -r "$example" "$work/forms/in"
  python3 - "$work/forms/in" "$form" <<'P'
import json, sys
form = json.loads(sys.argv[2])
for name in ("config.json", "model.safetensors.index.json"):
    path = sys.argv[1] + "/" + name
    value = json.load(open(path))
    if not form:
        continue
    if "weight_map" in value:
        value["metadata"]["total_parameters"] = 12345
    else:
        value["comment"] = "caf\u00e9"
    open(path, "w").write(json.dumps(value, **form) + "\n")
P
  for cut in "" "--tp 2 --tp-fit retile" "--ep 2" "--pp 2 --ep 2"; do
    rm -rf "$work/forms/out" "$work/forms/again"
    quiet convert "$work/forms/in" "$work/forms/out" $cut
    if [ -z "$cut" ]; then mv "$work/forms/out" "$work/forms/again"; else quiet merge "$work/forms/out" "$work/forms/again"; fi
    for name in config.json model.safetensors.index.json; do
      cmp "$work/forms/in/$name" "$work/forms/again/$name" || fail "$name of $form after '$cut'"
    done
  done
done

# The same without the manifest above them, as if a user gathered them.
cp -r "$work/ranks" "$work/gathered"
rm "$work/gathered/ingot.json"
expect 0 "0 errors" "$ingot" check "$work/gathered"
mv "$work/gathered/rank-00002-of-00004" "$work/kept"
for command in "inspect" "check" "merge"; do
  output=(); [ $command = merge ] && output=("$work/none")
  expect 2 "rank-00002-of-00004: is missing" "$ingot" $command "$work/gathered" "${output[@]}"
done
mv "$work/kept" "$work/gathered/rank-00002-of-00004"

# One byte of one replica: check finds the changed file, merge the two ranks that differ.
file=$(cd "$work/gathered/rank-00002-of-00004" && ls all-*.safetensors | head -1)
flip "$work/gathered/rank-00002-of-00004/$file"
expect 2 "rank-00002-of-00004/$file" "$ingot" check "$work/gathered"
judge 2 "differs between rank-00000-of-00004 and rank-00002-of-00004" "$ingot" merge "$work/gathered" "$work/none" --progress never
expect_unpublished "$work/none"

# A manifest that cannot be read is a finding.
echo "{" >"$work/gathered/ingot.json"
expect 2 "is not valid JSON" "$ingot" check "$work/gathered"

# Shards as DeepSeek's own script leaves them: nothing tells of them but names and a config.
quiet convert "$example" "$work/bf16" --to bf16
quiet convert "$work/bf16" "$work/foreign" --layout deepseek-mp --mp 2
rm -f "$work"/foreign/*ingot* "$work"/foreign/*.json
for command in "inspect" "check" "merge"; do
  output=(); [ $command = merge ] && output=("$work/none")
  expect 2 "--config" "$ingot" $command "$work/foreign" "${output[@]}"
done
expect 2 "other.json" "$ingot" inspect "$work/foreign" --config "$work/other.json"
expect 0 "deepseek_v32" "$ingot" inspect "$work/foreign" --config "$work/bf16/config.json"
expect 0 "0 errors" "$ingot" check "$work/foreign" --config "$work/bf16/config.json"
quiet merge "$work/foreign" "$work/from_foreign" --config "$work/bf16/config.json"

# A fault that was accepted when slices were made is accepted when they are merged: a tensor that the family does not
# have, and a form that no engine loads.
"$ingot" synth "$work/odd" --family kimi_k2 --like tiny --scheme bf16 >/dev/null || fail "synth"
python3 - "$work/odd/model.safetensors" <<'P'
import sys
from container import read_file, write_file
tensors = {stored.name: (stored.dtype, stored.shape, stored.data) for stored in read_file(sys.argv[1])}
write_file(sys.argv[1], {**tensors, "model.layers.0.extra.weight": ("BF16", [2], b"\x80\x3f" * 2)})
P
expect 2 "gives each rank a copy" "$ingot" convert "$work/odd" "$work/odd_ranks" --to bf16 --tp 2 --dry-run
expect 0 "loaders may refuse 1 tensor of role unknown" "$ingot" convert "$work/odd" "$work/odd_dry" --to bf16 --dry-run
expect 0 "unknown" "$ingot" inspect "$work/odd" --tensors 'role:unknown'
expect 0 "model.layers.0.extra.weight: 1 tensor that no row of family kimi_k2 has" "$ingot" check "$work/odd"
quiet convert "$work/odd" "$work/odd_ranks" --to fp8-channel --dialect modelopt --tp 2 --ep 2 \
  --allow 'engine-refuses=*' --allow 'unknown-tensor=*extra*'
for folder in "odd_ranks" "odd_gathered"; do
  [ -d "$work/$folder" ] || { mv "$work/odd_ranks" "$work/$folder" && rm "$work/$folder/ingot.json"; }
  rm -rf "$work/odd_merged"
  quiet merge "$work/$folder" "$work/odd_merged"
  for kind in unknown-tensor engine-refuses; do
    grep -q "\"$kind\"" "$work/odd_merged/ingot.json" || fail "$folder: the allowance of $kind is forgotten"
  done
  expect 0 "0 errors" "$ingot" check "$work/odd_merged"
done
finish
