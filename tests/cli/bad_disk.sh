#!/usr/bin/env bash
# bad_disk.sh INGOT EXAMPLE LIBRARY: a disk that flips a bit or loses a write, and says nothing. --read-back finds it
# before anything is published, and --resume writes again what was wrong.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
"$ingot" convert "$example" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
expect 0 "" "$ingot" convert "$example" "$work/out" --to bf16 --progress never --read-back
diff -r "$work/whole" "$work/out" || fail "--read-back changes the output"

published=0 found=0
for fault in FLIP LOSE; do
  # Claim and journal are written as well; what is wrong with those shows otherwise.
  for n in 4 6 8 10 12; do
    for options in "" --buffered; do
      rm -rf "$work/out"
      INGOT_FAULTS="pwrite:$fault:$n:$n" LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" --to bf16 --progress never \
        --mem-limit 64MiB --threads 1 --read-back $options >"$work/stdout" 2>"$work/stderr"
      status=$?
      if [ $status -eq 0 ]; then
        diff -r "$work/whole" "$work/out" >/dev/null || fail "$fault of write $n $options was published"
        published=$((published + 1))
        continue
      fi
      [ $status -eq 2 ] || fail "$fault of write $n: exit status $status"
      expect_unpublished "$work/out"
      found=$((found + 1))
      grep -q "is read back with other bytes" "$work/stderr" || echo "write $n: $(cat "$work/stderr")"
      expect 0 "" "$ingot" convert "$example" "$work/out" --to bf16 --progress never --resume --read-back
      diff -r "$work/whole" "$work/out" || fail "$fault of write $n: the resumed output differs"
    done
  done
done
echo "$found faults were found, $published did not reach the output"
[ "$found" -ge 7 ] || fail "only $found faults were found"

# Without --read-back such faults are published, or the test above proves nothing.
bad=0
for n in 4 6 8 10 12; do
  rm -rf "$work/out"
  INGOT_FAULTS="pwrite:FLIP:$n:$n" LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" --to bf16 --progress never \
    --mem-limit 64MiB --threads 1 >/dev/null 2>&1 || continue
  diff -rq "$work/whole" "$work/out" >/dev/null || bad=$((bad + 1))
done
echo "$bad faults were published without --read-back"
[ "$bad" -ge 2 ] || fail "only $bad faults were published"
finish
