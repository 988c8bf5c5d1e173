#!/usr/bin/env bash
# memory.sh INGOT small|large: however many layers there are, peak RSS stays under --mem-limit and what the plan announced.
source "$(dirname "$0")/expect.sh"
source "$(dirname "$0")/peak.sh"
ingot=$1
if [ "$2" = small ]; then
  layers=(2 6) limits=(128MiB 512MiB) widths=(--hidden 2048 --moe-intermediate 512 --experts 8 --vocab 8192)
else
  runs=3
  layers=(2 20) limits=(512MiB 4GiB) widths=(--experts 4 --vocab 16384)
fi
for n in "${layers[@]}"; do
  "$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers "$n" --dense-layers 1 --mtp-layers 0 "${widths[@]}" >/dev/null || fail "synth"
  for limit in "${limits[@]}"; do
    announced=$(announced_bytes "$ingot" convert "$work/in" "$work/out" --to bf16 --mem-limit "$limit")
    peak=$(peak_kb "$ingot" convert "$work/in" "$work/out" --to bf16 --mem-limit "$limit" --progress never)
    echo "$n layers, $(du -sm "$work/in" | cut -f1) MB, --mem-limit $limit: $((announced >> 20)) MiB announced, peak RSS $((peak / 1024)) MiB"
    [ "$announced" -le "$(bytes "$limit")" ] || fail "$announced bytes are announced under $limit"
    [ $((peak * 1024)) -le "$announced" ] || fail "peak RSS of $peak KiB, $announced bytes were announced ($limit, $n layers)"
  done
  rm -rf "$work/in"
done
finish
