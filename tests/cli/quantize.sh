#!/usr/bin/env bash
# Quantization as a user asks for it: to int8, nvfp4 and mxfp4, its report, its dry run, its refusals.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# json COMMAND...: runs it with --json and puts the document into $work/json.
json() { "$@" --json >"$work/json" 2>"$work/stderr" </dev/null || fail "exit status of $*: $(head -c 400 "$work/stderr")"; }

for to in int8 nvfp4 mxfp4; do
  search=()
  [ $to != nvfp4 ] || search=(--search amax)
  json "$ingot" convert "$example" "$work/$to" --to $to "${search[@]}" --progress never
  holds "d['schema'] == 2 and d['quality']['rows']"
  holds "all(row['sqnr_db'] > 15 and row['cosine'] > 0.98 and 0 < row['relative_error'] < 0.2 for row in d['quality']['rows'])"
  holds "len(d['quality']['worst']) == 20"
  holds "d['quality']['tensors_rounded_twice'] > 0"
  expect 0 "0 errors" "$ingot" check "$work/$to" --deep
  expect 0 "compressed-tensors" "$ingot" inspect "$work/$to"
done
expect 0 "nvfp4" "$ingot" inspect "$work/nvfp4" --tensors

# For people: the table names scheme, role and the worst tensor.
expect 0 "sqnr" bash -c "'$ingot' convert '$example' '$work/text' --to int8 --dialect modelslim --progress never 2>&1 | tr A-Z a-z"
[ -e "$work/text/quant_model_description.json" ] || fail "no description for Ascend"

# A dry run says what becomes BF16 though no rule asked for it, and writes nothing.
expect 0 "14 quantized tensors that no rule selects become BF16" "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect modelopt --activations weight-only --dry-run
json "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect modelopt --activations weight-only --dry-run
holds "d['schema'] == 2 and len(d['demoted']) == 14"
[ ! -e "$work/none" ] || fail "a dry run wrote something"
expect 0 "nvfp4" "$ingot" convert "$example" "$work/none" --to nvfp4 --explain model.layers.1.mlp.experts.7.up_proj.weight
expect 0 "bf16" "$ingot" convert "$example" "$work/none" --to nvfp4 --explain model.layers.2.mlp.experts.7.up_proj.weight

# Recipes and dialects are listed from their tables.
expect 0 "reason" "$ingot" list recipes
expect 0 "modelslim" "$ingot" list recipes
expect 0 "modelopt" "$ingot" list dialects
expect 0 "w8a8_int8" "$ingot" list engines
json "$ingot" list recipes
holds "d['schema'] == 2"

# BF16 of ours goes back to the released grid.
"$ingot" convert "$example" "$work/bf16" --to bf16 --progress never >/dev/null 2>&1 || fail "cast"
"$ingot" convert "$work/bf16" "$work/back" --to fp8 --scales-from "$example" --progress never >/dev/null 2>&1 || fail "back"

# Wrong words: exit status 2, and what would be right.
expect 2 "nvfp4" "$ingot" convert "$example" "$work/none" --to nvpf4
expect 2 "modelslim" "$ingot" convert "$example" "$work/none" --to int8 --dialect ascend
expect 2 "weight-only" "$ingot" convert "$example" "$work/none" --to int8 --activations lazy
expect 2 "4over6" "$ingot" convert "$example" "$work/none" --to nvfp4 --search best
expect 2 "ue8m0" "$ingot" convert "$example" "$work/none" --to fp8 --fp8-grid e8m0
expect 2 "bf16" "$ingot" convert "$example" "$work/none" --to fp8 --via f16
expect 2 "keep" "$ingot" convert "$example" "$work/none" --to nvfp4 --mtp forget
expect 2 "--activations" "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect modelopt
expect 2 "--input-scale 1" "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect modelopt --activations static
expect 2 "cannot hold" "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect deepseek
expect 2 "cannot hold fp8-channel with activations weight-only" "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect modelopt --activations weight-only --rule '*.o_proj.weight=fp8-channel'
expect 2 "fuse" "$ingot" convert "$example" "$work/none" --rule 'model.layers.1.mlp.experts.7.gate_proj.weight=nvfp4'
expect 2 "matches no" "$ingot" convert "$example" "$work/none" --to nvfp4 --rule 'model.layer.*=nvfp4'
expect 2 "absent" "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect modelopt --activations static --activation-scales "$work/absent.safetensors"
expect 2 "nonfinite" "$ingot" convert "$example" "$work/none" --to nvfp4 --allow 'nan=*'
expect 2 "" "$ingot" convert "$example" "$work/none" --to nvfp4 --dialect modelopt --activations static --input-scale -1
[ ! -e "$work/none" ] || fail "a refused conversion wrote something"
finish
