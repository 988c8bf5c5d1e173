#!/usr/bin/env bash
# kill_parts.sh INGOT KILLS LAYERS EXPERTS [convert options...]
# Four parts of a conversion run at once, and SIGKILL ends a random one at KILLS random points; each is begun again with
# --resume. The joined output is that of an unparted run, byte for byte, and no file had its final name before.
# The seed of the points is fixed, the machine's speed is not: every run differs.
set -euo pipefail
ingot=$1 kills=$2 layers=$3 experts=$4
shift 4
n=4
work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-parts-XXXXXX")
trap 'rm -rf "$work"' EXIT

"$ingot" synth "$work/source" --family deepseek_v3 --like layer --layers "$layers" --dense-layers 1 --experts "$experts" \
  --mtp-layers 0 --hidden 2048 --moe-intermediate 1024 --intermediate 4096 --heads 32 --vocab 8192 --shards 3
options=(--to nvfp4 --search amax --max-shard-size 24MB --progress never "$@")
begin=$(date +%s%N)
"$ingot" convert "$work/source" "$work/whole" "${options[@]}" >/dev/null
elapsed_ms=$((($(date +%s%N) - begin) / 1000000))
echo "unparted: $(du -sm "$work/whole" | cut -f1) MB in $elapsed_ms ms"

pids=()
start() {
  "$ingot" convert "$work/source" "$work/out" "${options[@]}" --part "$1/$n" --resume >"$work/part$1" 2>&1 &
  pids[$1]=$!
}
join_and_compare() {
  local i
  for ((i = 0; i < n; i++)); do wait "${pids[$i]}" || { echo "part $i: $(cat "$work/part$i")"; exit 1; }; done
  "$ingot" join "$work/out" --progress never >/dev/null
  diff -r "$work/whole" "$work/out"
}

for ((i = 0; i < n; i++)); do start $i; done
RANDOM=17
killed=0 joined=0
for ((round = 0; killed < kills && round < 10 * kills; round++)); do
  delay_ms=$((1 + RANDOM * elapsed_ms / 32768))
  sleep "$(printf '%d.%03d' $((delay_ms / 1000)) $((delay_ms % 1000)))"
  alive=()
  for ((i = 0; i < n; i++)); do
    if kill -0 "${pids[$i]}" 2>/dev/null; then alive+=($i); fi
  done
  if [ "${#alive[@]}" -eq 0 ]; then
    # All were quicker than the signal: compare, and start over.
    join_and_compare
    joined=$((joined + 1))
    rm -rf "$work/out"
    for ((i = 0; i < n; i++)); do start $i; done
    continue
  fi
  victim=${alive[$((RANDOM % ${#alive[@]}))]}
  if kill -9 "${pids[$victim]}" 2>/dev/null; then killed=$((killed + 1)); fi
  wait "${pids[$victim]}" 2>/dev/null || true
  left=$(find "$work" -mindepth 2 -maxdepth 2 -path "$work/out/*" ! -name .ingot-partial ! -name '.ingot-probe-*' | wc -l)
  [ "$left" -eq 0 ] || { echo "files under final names after a kill"; exit 1; }
  start "$victim"
done
join_and_compare
echo "killed $killed times, joined $((joined + 1)) times; identical to the unparted run"
[ "$killed" -eq "$kills" ]
