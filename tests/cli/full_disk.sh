#!/usr/bin/env bash
# full_disk.sh INGOT EXAMPLE LIBRARY: a limit of the size of files, and a disk that fills up under synth. A conversion on
# such a disk is one of the faults of nth_call.py.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
"$ingot" convert "$example" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
# A limit of the size of files (ulimit -f) is an error like another.
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
finish
