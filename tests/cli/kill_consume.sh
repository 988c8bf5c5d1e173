#!/usr/bin/env bash
# kill_consume.sh INGOT KILLS LAYERS EXPERTS: --consume-source under SIGKILL. Source files vanish on the way; the result
# is that of an ordinary run, and at every moment each tensor is in the source or safe in the output.
source "$(dirname "$0")/expect.sh"
ingot=$1 kills=$2
synth() {
  "$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers "$1" --dense-layers 1 --experts "$2" --mtp-layers 0 \
    --hidden 2048 --moe-intermediate 1024 --intermediate 4096 --heads 32 --vocab 8192 --shards 4 --split-scale >/dev/null || fail "synth"
}
synth "$3" "$4"
begin=$(date +%s%N)
"$ingot" convert "$work/in" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
elapsed_ms=$((($(date +%s%N) - begin) / 1000000))
RANDOM=7
partly=0
for ((i = 0; i < kills; i++)); do
  "$ingot" convert "$work/in" "$work/out" --to bf16 --progress never --consume-source --resume >/dev/null 2>"$work/stderr" &
  pid=$!
  delay_ms=$((1 + RANDOM * elapsed_ms / 32768))
  sleep "$(printf '%d.%03d' $((delay_ms / 1000)) $((delay_ms % 1000)))"
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  left=$(find "$work/in" -name '*.safetensors' | wc -l)
  [ "$left" -eq 4 ] || partly=$((partly + 1))
  if [ -e "$work/out/ingot.json" ] && [ ! -e "$work/out/.ingot-partial" ]; then
    diff -r -x .ingot-swept "$work/whole" "$work/out" || fail "the output differs"
    rm -rf "$work/in" "$work/out"
    synth "$3" "$4"
  fi
done
expect 0 "" "$ingot" convert "$work/in" "$work/out" --to bf16 --progress never --consume-source --resume
diff -r "$work/whole" "$work/out" || fail "the output differs"
[ "$(find "$work/in" -name '*.safetensors' | wc -l)" -eq 0 ] || fail "source files are left"
echo "$partly kills found source files gone"
finish
