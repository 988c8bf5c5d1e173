#!/usr/bin/env bash
# kill_resume.sh INGOT KILLS LAYERS EXPERTS HIDDEN [convert options...]
# Kills a conversion with SIGKILL at KILLS random points, resuming each time, and compares the result with an
# uninterrupted run, byte for byte. A run that ends before its signal is compared too and does not count. The seed of the
# points is fixed, the machine's speed is not: every run differs.
set -euo pipefail
ingot=$1 kills=$2 layers=$3 experts=$4 hidden=$5
shift 5
work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-kill-XXXXXX")
trap 'rm -rf "$work"' EXIT

"$ingot" synth "$work/source" --family deepseek_v3 --like layer --layers "$layers" --dense-layers 1 --experts "$experts" \
  --mtp-layers 0 --hidden "$hidden" --moe-intermediate $((hidden / 2)) --intermediate $((2 * hidden)) \
  --heads $((hidden / 64)) --vocab $((4 * hidden)) --shards 3
begin=$(date +%s%N)
"$ingot" convert "$work/source" "$work/whole" --to bf16 --progress never "$@" >/dev/null
elapsed_ms=$((($(date +%s%N) - begin) / 1000000))
echo "uninterrupted: $(du -sm "$work/whole" | cut -f1) MB in $elapsed_ms ms"

RANDOM=20
killed=0 resumed=0
for ((i = 0; killed < kills && i < 5 * kills; i++)); do
  "$ingot" convert "$work/source" "$work/killed" --to bf16 --progress never --resume "$@" >"$work/out" 2>&1 &
  pid=$!
  delay_ms=$((1 + RANDOM * elapsed_ms / 32768))
  sleep "$(printf '%d.%03d' $((delay_ms / 1000)) $((delay_ms % 1000)))"
  if kill -9 $pid 2>/dev/null; then killed=$((killed + 1)); fi
  wait $pid 2>/dev/null || true
  if [ -e "$work/killed/ingot.json" ] && [ ! -e "$work/killed/.ingot-partial" ]; then
    # It finished before the signal: compare, and start over. The next run removes what a kill left of its own files.
    if [ -n "$(find "$work/killed" -maxdepth 1 -name '.ingot-*')" ]; then
      "$ingot" convert "$work/source" "$work/killed" --to bf16 --progress never --resume "$@" >/dev/null
    fi
    diff -r "$work/whole" "$work/killed"
    rm -rf "$work/killed"
  else
    # No file may have a final name before everything is done, unless publishing had begun. Probes are none.
    if [ -e "$work/killed/.ingot-partial/journal.jsonl" ] && ! grep -q publishing "$work/killed/.ingot-partial/journal.jsonl"; then
      left=$(find "$work/killed" -mindepth 1 -maxdepth 1 ! -name .ingot-partial ! -name '.ingot-probe-*' | wc -l)
      [ "$left" -eq 0 ] || { echo "files under final names after a kill"; exit 1; }
      grep -q '"item"' "$work/killed/.ingot-partial/journal.jsonl" && resumed=$((resumed + 1))
    fi
  fi
done
"$ingot" convert "$work/source" "$work/killed" --to bf16 --progress never --resume "$@" >/dev/null
diff -r "$work/whole" "$work/killed"
echo "killed $killed times, $resumed times with finished tensors to take over; identical to the uninterrupted run"
[ "$killed" -eq "$kills" ]
