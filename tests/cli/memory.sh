#!/usr/bin/env bash
# memory.sh INGOT small|large: peak RSS stays under --mem-limit, and does not grow with the number of layers.
source "$(dirname "$0")/expect.sh"
source "$(dirname "$0")/peak.sh"
ingot=$1
if [ "$2" = small ]; then
  layers=(2 8) limits=(128MiB 512MiB) widths=(--hidden 2048 --moe-intermediate 512 --experts 8 --vocab 8192)
else
  layers=(2 20) limits=(512MiB 4GiB) widths=(--experts 4 --vocab 16384)
fi
declare -A peaks
for n in "${layers[@]}"; do
  "$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers "$n" --dense-layers 1 --mtp-layers 0 "${widths[@]}" >/dev/null || fail "synth"
  for limit in "${limits[@]}"; do
    peak=$(peak_kb "$ingot" convert "$work/in" "$work/out" --to bf16 --mem-limit "$limit" --progress never)
    echo "$n layers, $(du -sm "$work/in" | cut -f1) MB, --mem-limit $limit: peak RSS $((peak / 1024)) MiB"
    [ $((peak * 1024)) -le "$(bytes "$limit")" ] || fail "peak RSS of $peak KiB is above $limit"
    peaks[$n,$limit]=$peak
  done
  rm -rf "$work/in"
done
for limit in "${limits[@]}"; do
  few=${peaks[${layers[0]},$limit]} many=${peaks[${layers[1]},$limit]}
  [ $((many * 10)) -le $((few * 11)) ] || fail "--mem-limit $limit: $few KiB with ${layers[0]} layers, $many KiB with ${layers[1]}"
done
finish
