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

# A directory, its products, and whose it is.
expect 0 "modules" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/stats"
grep -q "for activations until it ends" "$work/stderr" || fail "the disk that it takes is not announced"
[ "$(ls -A "$work/stats" | tr '\n' ' ')" = "blocks.safetensors cache.safetensors calibration.json inputs.safetensors moments " ] || fail "other files: $(ls -A "$work/stats")"
grep -q fox "$work"/stats/* 2>/dev/null && fail "statistics hold the text"
expect 0 "modules" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/few" --without moments,blocks --threads 1
cmp "$work/stats/inputs.safetensors" "$work/few/inputs.safetensors" || fail "other products change the ranges"
[ ! -e "$work/few/moments" ] && [ ! -e "$work/few/blocks.safetensors" ] || fail "--without left nothing out"
expect 2 "moment" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/none" --without moment
expect 2 "belongs to a directory" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/none.safetensors" --without moments
expect 2 "holds no calibration" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/none" --resume
expect 2 "stats" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/stats"
for statistics in a.safetensors stats; do
  "$ingot" convert "$example" "$work/by-$statistics" --to nvfp4 --importance "$work/$statistics" --progress never >/dev/null 2>"$work/stderr" || fail "--importance $statistics"
  cp "$work/stderr" "$work/said-$statistics"
done
grep -q "no fingerprint" "$work/said-a.safetensors" || fail "one file is taken without a warning"
grep -q "no fingerprint" "$work/said-stats" && fail "a directory has no fingerprint"
for file in "$work"/by-stats/*.safetensors; do
  cmp "$file" "$work/by-a.safetensors/${file##*/}" || fail "a directory gives other weights than a file"
done
expect 1 "model.layers.3.mlp.experts.7.up_proj.input_scale" "$ingot" verify "$example" "$work/scaled" --activation-scales "$work/stats"

# Inputs from quantized layers.
"$ingot" convert "$example" "$work/int8" --to int8 --progress never >/dev/null 2>&1 || fail "int8"
expect 0 "modules" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/after" --quantized "$work/int8" --without moments,blocks
grep -q '"quantized": ".*int8-channel' "$work/after/calibration.json" || fail "the record does not name the schemes"
cmp -s "$work/after/inputs.safetensors" "$work/few/inputs.safetensors" && fail "quantized layers give what the source gives"
expect 0 "modules" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/planned" --quantized int8 --without moments,blocks
diff -r "$work/after" "$work/planned" >/dev/null || fail "the scheme gives other statistics than the output of its conversion"
expect 2 "did you mean int8" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/none" --quantized int-8
expect 2 "no such directory" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/none" --quantized ./nvfp4
"$ingot" convert "$example" "$work/two" --layers 0-1 --to bf16 --progress never >/dev/null 2>&1 || fail "two layers"
expect 2 "a conversion of all layers" "$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/none" --quantized "$work/two"
cp -r "$example" "$work/tuned"
python3 "$(dirname "$0")/../../scripts/scale_tensor.py" "$work/tuned" model.layers.0.mlp.up_proj.weight_scale_inv 2 >/dev/null || fail "edit"
for words in "convert $work/tuned $work/none --to nvfp4 --importance $work/stats" \
  "convert $work/tuned $work/none --to nvfp4 --dialect modelopt --activations static --activation-scales $work/stats" \
  "balance $work/tuned --loads $work/stats --ep 4 --out $work/none" \
  "verify $work/tuned $work/scaled --activation-scales $work/stats"; do
  # shellcheck disable=SC2086
  expect 2 "run ingot calibrate on it" "$ingot" $words
done
finish
