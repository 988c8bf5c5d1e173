#!/usr/bin/env bash
# The example recipes, run on the bundled model: they make what they say, loaders take it, and it generates.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
recipes=$(dirname "$example")/recipes
"$ingot" convert "$example" "$work/bf16" --to bf16 --progress never >/dev/null 2>&1 || fail "bf16"

# held RECIPE SOURCE SELECTOR SCHEMES: how the selected tensors are held.
held() {
  local got
  got=$("$ingot" inspect "$work/$1-$2" --tensors "$3" --json 2>/dev/null |
    sed -n 's/.*"scheme": "\(.*\)".*/\1/p' | sort -u | xargs)
  [ "$got" = "$4" ] || fail "$1 of $2: $3 is held in '$got' instead of '$4'"
}

n=0
for recipe in "$recipes"/*.yaml; do
  name=$(basename "$recipe" .yaml)
  for source in example bf16; do
    input=$example; [ "$source" = bf16 ] && input=$work/bf16
    out=$work/$name-$source
    expect 0 "loaded by: vLLM 0.33 (read in its source)" "$ingot" convert "$input" "$out" --recipe "$recipe" --progress never
    expect 0 " 0 errors" "$ingot" check "$out"
    expect 0 "prefill" "$ingot" generate "$out" --prompt "Once there was a fox" --raw --greedy --max-new-tokens 4
    n=$((n + 1))
  done
done
[ "$n" -eq 8 ] || fail "$n conversions instead of 8"

# They are for every family that has such layers.
for family in deepseek_v2 deepseek_v3 kimi_k2 qwen3_moe glm_moe_dsa; do
  "$ingot" synth "$work/$family" --family "$family" --like tiny --layers 6 >/dev/null 2>&1 || fail "synth $family"
  for recipe in "$recipes"/*.yaml; do
    expect 0 "plan for" "$ingot" convert "$work/$family" "$work/none" --recipe "$recipe" --dry-run
  done
done

for source in example bf16; do
  held experts-int8-attention-fp8 $source role:mlp int8-channel
  held experts-int8-attention-fp8 $source role:attention fp8-block
  held experts-int8-attention-fp8 $source role:indexer fp8-block
  held first-and-last-layers-bf16 $source 'layers:0-2,last & role:linear' bf16
  held first-and-last-layers-bf16 $source 'layers:3 & role:mlp' int8-channel
  held mtp-kept $source 'role:experts & layers:1-4' nvfp4
  held nvfp4-attention-fp8 $source role:experts nvfp4
  held nvfp4-attention-fp8 $source role:attention fp8-block
done
held mtp-kept example 'layers:mtp & role:linear' fp8-block
held mtp-kept bf16 'layers:mtp & role:linear' bf16
finish
