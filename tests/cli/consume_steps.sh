#!/usr/bin/env bash
# consume_steps.sh INGOT LIBRARY: --consume-source, killed before every single write, rename and removal of the run. Either the
# output is whole, or --resume makes it whole, though source files are gone.
source "$(dirname "$0")/expect.sh"
ingot=$1 library=$2
"$ingot" synth "$work/source" --family deepseek_v3 --like tiny --layers 2 --dense-layers 1 --experts 4 --mtp-layers 0 --shards 2 \
  >/dev/null || fail "synth"
command=(convert "$work/in" "$work/out" --to bf16 --progress never --consume-source)
cp -r "$work/source" "$work/in"
"$ingot" "${command[@]}" >/dev/null || fail "convert"
mv "$work/out" "$work/whole"

whole=0 resumed=0 without_source=0
for call in pwrite rename remove; do
  for ((n = 1; n <= 100; n++)); do
    rm -rf "$work/in" "$work/out"
    cp -r "$work/source" "$work/in"
    { INGOT_FAULTS="$call:KILL:$n" LD_PRELOAD=$library "$ingot" "${command[@]}" >/dev/null; } 2>/dev/null && break
    if [ -e "$work/out/ingot.json" ] && [ ! -e "$work/out/.ingot-partial" ]; then
      whole=$((whole + 1))
    else
      resumed=$((resumed + 1))
      [ -n "$(find "$work/in" -name '*.safetensors')" ] || without_source=$((without_source + 1))
      expect 0 "" "$ingot" "${command[@]}" --resume
    fi
    expect 0 "" "$ingot" check "$work/out"
    # Files that the last removals did not reach are in a folder aside, and disturb no run.
    diff -r -x .ingot-swept "$work/whole" "$work/out" || fail "$call $n: the output differs"
  done
  [ "$n" -le 100 ] || fail "more than 100 calls of $call"
done
echo "$whole kills left a whole output; of $resumed that were resumed, $without_source had no source file left"
[ "$whole" -ge 3 ] && [ "$without_source" -ge 8 ] || fail "kills came at other moments than meant"
finish
