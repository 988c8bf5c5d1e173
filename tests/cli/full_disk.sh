#!/usr/bin/env bash
# full_disk.sh INGOT EXAMPLE LIBRARY: the disk fills up at the N-th write, for N over the whole job. Each time one clear
# error, exit status 2, nothing under a final name; and with space again, --resume ends in the usual bytes.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
"$ingot" convert "$example" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
failed=0
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 16 18 20 25; do
  rm -rf "$work/out"
  INGOT_FAULTS="pwrite:ENOSPC:$n" LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" --to bf16 --progress never --mem-limit 64MiB >"$work/stdout" 2>"$work/stderr"
  status=$?
  if [ $status -eq 0 ]; then break; fi
  failed=$((failed + 1))
  [ $status -eq 2 ] || fail "write $n: exit status $status"
  grep -q "No space left" "$work/stderr" || fail "write $n: $(cat "$work/stderr")"
  expect_unpublished "$work/out"
  expect 0 "" "$ingot" convert "$example" "$work/out" --to bf16 --progress never --resume
  diff -r "$work/whole" "$work/out" || fail "write $n: the resumed output differs"
done
# A limit of the size of files (ulimit -f) is an error like another.
rm -rf "$work/out"
(ulimit -f 100 && exec "$ingot" convert "$example" "$work/out" --to bf16 --progress never) >"$work/stdout" 2>"$work/stderr"
status=$?
[ $status -eq 2 ] || fail "ulimit -f: exit status $status"
grep -q "File too large.*ulimit -f" "$work/stderr" || fail "ulimit -f: $(cat "$work/stderr")"
expect_unpublished "$work/out"
expect 0 "" "$ingot" convert "$example" "$work/out" --to bf16 --progress never --resume
diff -r "$work/whole" "$work/out" || fail "ulimit -f: the resumed output differs"
# synth has no --resume: it leaves nothing, so that the same command can be run again.
for n in 1 2 3 4 5 6; do
  INGOT_FAULTS="pwrite:ENOSPC:$n" LD_PRELOAD=$library "$ingot" synth "$work/synth" --family deepseek_v3 --like tiny --shards 2 >/dev/null 2>"$work/stderr"
  [ $? -eq 2 ] || fail "synth, write $n: $(cat "$work/stderr")"
  grep -q "free space and run again" "$work/stderr" || fail "synth, write $n: no remedy: $(cat "$work/stderr")"
  grep -q -- "--resume" "$work/stderr" && fail "synth, write $n: a remedy that it does not have: $(cat "$work/stderr")"
  [ -z "$(ls -A "$work/synth")" ] || fail "synth, write $n left $(ls "$work/synth")"
done
expect 0 "2 files" "$ingot" synth "$work/synth" --family deepseek_v3 --like tiny --shards 2
echo "$failed points of failure"
[ "$failed" -ge 8 ] || fail "only $failed runs failed"
finish
