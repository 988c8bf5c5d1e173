#!/usr/bin/env bash
# rank_steps.sh INGOT EXAMPLE LIBRARY: a conversion for ranks that share files by hard links, killed before every single
# link, and before the first removals. Each is continued.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
command=(convert "$example" "$work/out" --tp 2 --ep 2 --tp-fit retile --progress never)
"$ingot" "${command[@]}" >/dev/null 2>&1 || fail "convert"
mv "$work/out" "$work/whole"

resumed=0
for step in remove:{1..8} link:{1..200}; do
  rm -rf "$work/out"
  { INGOT_FAULTS="${step/:/:KILL:}" LD_PRELOAD=$library "$ingot" "${command[@]}" >/dev/null; } 2>/dev/null && [[ $step == link* ]] && break
  [ -e "$work/out/.ingot-partial" ] || continue
  resumed=$((resumed + 1))
  expect 0 "" "$ingot" "${command[@]}" --resume
  diff -r -x '.ingot-*' "$work/whole" "$work/out" || fail "$step: the output differs"
done
echo "$resumed killed runs were continued"
[ "$resumed" -ge 10 ] || fail "kills came at other moments than meant"
finish
