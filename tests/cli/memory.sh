#!/usr/bin/env bash
# memory.sh INGOT small|large: peak RSS stays under --mem-limit, and does not grow with the number of layers.
# How many windows a run touches depends on how far the disk falls behind, so a peak is the highest of three runs.
source "$(dirname "$0")/expect.sh"
ingot=$1
if [ "$2" = small ]; then
  layers=(2 8) limits=(128MiB 512MiB) widths=(--hidden 2048 --moe-intermediate 512 --experts 8 --vocab 8192)
else
  layers=(2 20) limits=(512MiB 4GiB) widths=(--experts 4 --vocab 16384)
fi
peak_kb() { /usr/bin/time -f %M -o "$work/peak" "$@" >/dev/null 2>"$work/stderr" || fail "$*: $(cat "$work/stderr")"; cat "$work/peak"; }
bytes() { python3 -c 'import sys; print(int(sys.argv[1][:-3]) << (20 if sys.argv[1][-3] == "M" else 30))' "$1"; }

declare -A peaks
for n in "${layers[@]}"; do
  "$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers "$n" --dense-layers 1 --mtp-layers 0 "${widths[@]}" >/dev/null || fail "synth"
  for limit in "${limits[@]}"; do
    peak=0
    for run in 1 2 3; do
      once=$(peak_kb "$ingot" convert "$work/in" "$work/out" --to bf16 --mem-limit "$limit" --progress never)
      [ "$once" -le "$peak" ] || peak=$once
      rm -rf "$work/out"
    done
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
