#!/usr/bin/env bash
# memory_generate.sh INGOT [RUNS]: peak RSS stays under --mem-limit, whatever part of the experts fits, and the answer is the same.
source "$(dirname "$0")/expect.sh"
source "$(dirname "$0")/peak.sh"
runs=${2:-1}
ingot=$1
"$ingot" synth "$work/in" --family deepseek_v3 --layers 3 --dense-layers 1 --mtp-layers 0 --hidden 2048 --moe-intermediate 512 \
  --intermediate 4096 --experts 24 --vocab 8192 --heads 16 >/dev/null || fail "synth"
prompt=$(seq -s, 5 44)
run=("$ingot" generate "$work/in" --tokens "$prompt" --max-new-tokens 4 --greedy)
"${run[@]}" --mem-limit 1MB >/dev/null 2>"$work/stderr"
least=$(sed -n 's/.*--mem-limit \([0-9]*\)MB would be enough.*/\1/p' "$work/stderr")
all=$(sed -n 's/.*, \([0-9]*\)MB for all experts.*/\1/p' "$work/stderr")
[ -n "$least" ] && [ "$((all - least))" -gt 100 ] || fail "least $least MB, all $all MB: $(cat "$work/stderr")"
"${run[@]}" >"$work/wanted" 2>/dev/null || fail "no limit"
for limit in "$least" $(((least + all) / 2)) "$all"; do
  peak=$(peak_kb "${run[@]}" --mem-limit "${limit}MB")
  echo "$(du -sm "$work/in" | cut -f1) MB, --mem-limit ${limit}MB: peak RSS $((peak / 1024)) MiB"
  [ $((peak * 1024)) -le $((limit * 1000000)) ] || fail "peak RSS of $peak KiB is above $limit MB"
  cmp -s "$work/stdout" "$work/wanted" || fail "another answer in $limit MB"
done
finish
