#!/usr/bin/env bash
# control_group.sh INGOT: a conversion, and its verification, fit into a control group with less memory than --mem-limit, with
# any number of threads. Needs the right to make control groups with memory; skipped without.
source "$(dirname "$0")/expect.sh"
ingot=$1
if [ -f /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
  group=/sys/fs/cgroup/memory/ingot-test.$$ limit=memory.limit_in_bytes
else
  group=/sys/fs/cgroup/ingot-test.$$ limit=memory.max
fi
mkdir "$group" 2>/dev/null && trap 'rmdir "$group"; rm -rf "$work"' EXIT && [ -w "$group/$limit" ] || exit 77
"$ingot" synth "$work/in" --family deepseek_v3 --layers 2 --experts 4 --hidden 2048 --moe-intermediate 1024 --intermediate 2048 \
  --vocab 16000 > /dev/null || fail "synth"
limited() { bash -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@"; }

for case in "100M 64" "60M 2"; do
  read -r bytes threads <<< "$case"
  echo "$bytes" > "$group/$limit" || exit 77
  expect 0 "" limited "$ingot" convert "$work/in" "$work/out" --to nvfp4 --threads "$threads" --progress never
  expect 0 "" limited "$ingot" verify "$work/in" "$work/out" --levels weights --threads "$threads" --progress never
  rm -r "$work/out"
done
# A group that is too small for one thread is refused, and not killed in the middle.
echo 24M > "$group/$limit"
expect 2 "memory" limited "$ingot" convert "$work/in" "$work/out" --to nvfp4 --threads 2 --progress never
finish
