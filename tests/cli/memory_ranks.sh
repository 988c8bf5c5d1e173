#!/usr/bin/env bash
# memory_ranks.sh INGOT small|large: for one rank and for 64, peak RSS stays under --mem-limit and what the plan announced.
source "$(dirname "$0")/expect.sh"
source "$(dirname "$0")/peak.sh"
ingot=$1
if [ "$2" = small ]; then
  limits=(64MiB 128MiB) widths=(--hidden 1024 --moe-intermediate 512 --intermediate 2048 --heads 32 --vocab 8192) tp=4
else
  runs=3
  limits=(512MiB 4GiB) widths=(--vocab 16384) tp=16
fi
"$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers 2 --dense-layers 1 --mtp-layers 0 --experts 64 "${widths[@]}" >/dev/null || fail "synth"
echo "$(du -sm "$work/in" | cut -f1) MB"
for limit in "${limits[@]}"; do
  for cut in "--layout ranks" "--tp $tp --ep 64" "--tp $tp --pp 2 --ep 32"; do
    # shellcheck disable=SC2086
    announced=$(announced_bytes "$ingot" convert "$work/in" "$work/out" $cut --mem-limit "$limit")
    # shellcheck disable=SC2086
    peak=$(peak_kb "$ingot" convert "$work/in" "$work/out" $cut --mem-limit "$limit" --progress never)
    echo "--mem-limit $limit, $cut: $((announced >> 20)) MiB announced, peak RSS $((peak / 1024)) MiB"
    [ "$announced" -le "$(bytes "$limit")" ] || fail "$announced bytes are announced under $limit ($cut)"
    [ $((peak * 1024)) -le "$announced" ] || fail "peak RSS of $peak KiB, $announced bytes were announced ($limit, $cut)"
  done
done
finish
