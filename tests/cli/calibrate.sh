#!/usr/bin/env bash
# Uses of `ingot calibrate`: statistics of a text, and conversions with them.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
printf 'There was once a small fox, and his name was Sam. One day he found a kite.' >"$work/text.txt"

expect 0 "modules" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/a.safetensors"
grep -q "filled with the maximum over the others" "$work/stdout" || fail "experts that so short a text does not reach are not named"
"$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/b.safetensors" --threads 1 --json >"$work/json" || fail "--json"
cmp "$work/a.safetensors" "$work/b.safetensors" || fail "another number of threads, another file"
grep -q '"unvisited"' "$work/json" || fail "no list of experts in the document"

# Both uses, and what the manifest remembers.
expect 0 "" "$ingot" convert "$example" "$work/static" --to int8 --dialect modelslim --activations static \
  --activation-scales "$work/a.safetensors" --progress never
grep -q activation_scales_filled "$work/static/ingot.json" || fail "the manifest does not say which experts were filled"
expect 0 "PASS" "$ingot" verify "$example" "$work/static"

# Static scales that are a hundred times too large: without a manifest, the file tells.
"$ingot" convert "$example" "$work/scaled" --to nvfp4 --dialect modelopt --activations static --activation-scales "$work/a.safetensors" --progress never >/dev/null 2>&1 || fail "static nvfp4"
rm "$work/scaled/ingot.json" "$work/scaled/ingot.tensors.jsonl.zst"
expect 0 "not judged by these levels: " "$ingot" verify "$example" "$work/scaled"
expect 0 "PASS" "$ingot" verify "$example" "$work/scaled" --activation-scales "$work/a.safetensors"
grep -q "not judged" "$work/stdout" && fail "scales that were compared are called not judged"
python3 "$(dirname "$0")/../../scripts/scale_tensor.py" "$work/scaled" model.layers.3.mlp.experts.7.up_proj.input_scale 100 >/dev/null || fail "edit"
expect 1 "model.layers.3.mlp.experts.7.up_proj.input_scale" "$ingot" verify "$example" "$work/scaled" --activation-scales "$work/a.safetensors"
expect 2 "absent" "$ingot" verify "$example" "$work/scaled" --activation-scales "$work/absent"
expect 0 "PASS" "$ingot" convert "$example" "$work/weighted" --to nvfp4 --importance "$work/a.safetensors" --verify structure,weights --progress never

# Wrong words and files.
expect 2 "$work/a.safetensors" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/a.safetensors"
expect 2 "absent.txt" "$ingot" calibrate "$example" --text "$work/absent.txt" --out "$work/c.safetensors"
: >"$work/empty.txt"
expect 2 "empty.txt" "$ingot" calibrate "$example" --text "$work/empty.txt" --out "$work/c.safetensors"
expect 2 "would be enough" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/c.safetensors" --mem-limit 1MB
expect 2 "leave a choice" "$ingot" convert "$example" "$work/none" --to mxfp8 --importance "$work/a.safetensors"
expect 2 "no/such" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/no/such/c.safetensors"
[ ! -e "$work/c.safetensors" ] || fail "a refused calibration left a file"
finish
