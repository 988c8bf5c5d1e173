#!/usr/bin/env bash
# Records of outputs as they were first written (tests/golden/records): check and merge read them, and --resume names
# the option that is gone. Weights are written by this program: their bytes by amax never changed, or check would say so.
source "$(dirname "$0")/expect.sh"
ingot=$1 records=$2
convert() { "$ingot" convert "$@" --quiet >"$work/log" 2>&1 || fail "convert $*: $(tail -3 "$work/log")"; }
# The arguments of each conversion, from one folder of the work folder to another.
options() {
  case $1 in
    hf) echo src hf --to int8 --dialect compressed-tensors --search amax ;;
    ranks) echo hf ranks --tp 2 --ep 2 --layout ranks ;;
    pad) echo spare pad --tp 2 --ep 2 --tp-fit pad ;;
    retile) echo fp8 retile --tp 4 --tp-fit retile ;;
    vllm-sharded) echo src vllm-sharded --to int8 --search amax --dialect compressed-tensors --layout vllm-sharded --tp 2 ;;
    deepseek-mp) echo src deepseek-mp --to bf16 --layout deepseek-mp --mp 2 --mtp drop ;;
  esac
}
cd "$work" || exit 1
"$ingot" synth src --family deepseek_v3 --like tiny --scheme bf16 --layers 2 --dense-layers 1 --experts 4 --hidden 256 \
  --intermediate 256 --moe-intermediate 128 --vocab 256 --seed 7 --quiet >/dev/null || fail "synth"
convert src fp8 --to fp8 --dialect deepseek --search amax
convert src spare --to fp8 --dialect deepseek --search amax --rule role:attention=bf16

for layout in hf ranks pad retile vllm-sharded deepseek-mp; do
  # shellcheck disable=SC2046
  convert $(options "$layout")
  cp -r "$records/$layout/." "$layout/"
  # At that time README.md was copied.
  find "$layout" -name README.md -exec cp src/README.md {} \;
  expect 0 "hashed and compared with the manifest: 0 errors" "$ingot" check "$layout"
done

# Each whole again, in the bytes of the source of its cut.
for pair in ranks:hf pad:spare retile:fp8 vllm-sharded:hf; do
  whole=merged-${pair%%:*}
  "$ingot" merge "${pair%%:*}" "$whole" --quiet >"$work/log" 2>&1 || fail "merge $pair: $(tail -3 "$work/log")"
  for file in "${pair##*:}"/*.safetensors; do
    cmp -s "$file" "$whole/${file##*/}" || fail "merge $pair: ${file##*/} differs"
  done
done
"$ingot" merge deepseek-mp merged-mp --quiet >"$work/log" 2>&1 || fail "merge deepseek-mp: $(tail -3 "$work/log")"
convert src plain --to bf16 --mtp drop
for file in plain/*.safetensors; do
  cmp -s "$file" "merged-mp/${file##*/}" || fail "merge deepseek-mp: ${file##*/} differs"
done

expect 2 "begun with other options: --nvfp4-search mse (now not given)" \
  "$ingot" convert src hf --to int8 --dialect compressed-tensors --resume
finish
