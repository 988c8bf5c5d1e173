#!/usr/bin/env bash
# memory_ranks.sh INGOT small|large: peak RSS stays under --mem-limit and does not grow with the number of ranks.
source "$(dirname "$0")/expect.sh"
source "$(dirname "$0")/peak.sh"
ingot=$1
if [ "$2" = small ]; then
  limits=(64MiB 128MiB) widths=(--hidden 1024 --moe-intermediate 512 --intermediate 2048 --heads 32 --vocab 8192) tp=4
else
  limits=(512MiB 4GiB) widths=(--vocab 16384) tp=16
fi
"$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers 2 --dense-layers 1 --mtp-layers 0 --experts 64 "${widths[@]}" >/dev/null || fail "synth"
echo "$(du -sm "$work/in" | cut -f1) MB"
for limit in "${limits[@]}"; do
  one=$(peak_kb "$ingot" convert "$work/in" "$work/out" --layout ranks --mem-limit "$limit" --progress never)
  for cut in "--tp $tp --ep 64" "--tp $tp --pp 2 --ep 32"; do
    # shellcheck disable=SC2086
    many=$(peak_kb "$ingot" convert "$work/in" "$work/out" $cut --mem-limit "$limit" --progress never)
    echo "--mem-limit $limit: peak RSS $((one / 1024)) MiB for one rank, $((many / 1024)) MiB for 64 ($cut)"
    [ $((many * 1024)) -le "$(bytes "$limit")" ] || fail "peak RSS of $many KiB is above $limit ($cut)"
    [ $((many * 10)) -le $((one * 11)) ] || fail "--mem-limit $limit: $one KiB with one rank, $many KiB with 64 ($cut)"
  done
done
finish
