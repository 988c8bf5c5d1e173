#!/usr/bin/env bash
# two_runs.sh INGOT EXAMPLE LIBRARY: while a run is suspended at any point, no other can change its output, and it ends
# with its own bytes. A preloaded library stops it at the N-th call of a kind.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
"$ingot" convert "$example" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
"$ingot" convert "$example" "$work/sliced" --tp 2 --tp-fit retile --progress never >/dev/null 2>&1 || fail "convert for ranks"

# wait_for_stop PID: until the kernel says that the process is stopped; false when it has ended.
wait_for_stop() {
  local state
  while state=$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null); do
    [ "$state" = T ] && return 0
    [ "$state" = Z ] && return 1
  done
  return 1
}

stopped=0
for point in pwrite:STOP:2:2 pwrite:STOP:5:5 pwrite:STOP:9:9 fdatasync:STOP:1:1 rename:STOP:1:1 rename:STOP:4:4; do
  rm -rf "$work/out"
  INGOT_FAULTS=$point LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" --to bf16 --progress never --mem-limit 64MiB \
    >/dev/null 2>"$work/first" &
  first=$!
  wait_for_stop $first || { fail "$point: the first run was not stopped: $(cat "$work/first")"; continue; }
  stopped=$((stopped + 1))
  for options in "" --resume --force "--force --mtp drop" "--resume --force"; do
    judge 2 "another run is writing here (process $first on " "$ingot" convert "$example" "$work/out" --to bf16 --progress never $options
    grep -qF "ingot convert $example" "$work/stderr" || fail "$point: the first run's words are missing: $(cat "$work/stderr")"
  done
  judge 2 "process $first on " "$ingot" merge "$work/sliced" "$work/out" --progress never --force
  kill -CONT $first
  wait $first || fail "$point: the first run failed: $(cat "$work/first")"
  diff -r "$work/whole" "$work/out" || fail "$point: the output differs"
done
[ "$stopped" -eq 6 ] || fail "only $stopped runs were stopped"

# A run that is killed while suspended leaves a claim that the next run takes over.
for options in --resume --force; do
  rm -rf "$work/out"
  INGOT_FAULTS=pwrite:STOP:6:6 LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" --to bf16 --progress never --mem-limit 64MiB \
    >/dev/null 2>&1 &
  first=$!
  wait_for_stop $first || fail "the run was not stopped"
  kill -9 $first
  wait $first 2>/dev/null
  [ -e "$work/out/.ingot-partial/claims/whole.1.claim" ] || fail "no claim was left"
  judge 2 "unfinished conversion" "$ingot" convert "$example" "$work/out" --to bf16 --progress never
  expect 0 "" "$ingot" convert "$example" "$work/out" --to bf16 --progress never $options
  diff -r "$work/whole" "$work/out" || fail "$options: the output differs"
done

# A signal while files get their final names waits for the end, or, the second time, leaves what --resume finishes.
for signals in TERM "TERM TERM"; do
  rm -rf "$work/out"
  INGOT_FAULTS=rename:STOP:3:3 LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" --to bf16 --progress never >/dev/null 2>&1 &
  first=$!
  wait_for_stop $first || fail "the run was not stopped"
  # Blocked signals of one kind are one: the second comes when the first has been taken.
  for signal in $signals; do kill -$signal $first; kill -CONT $first; done
  wait $first
  status=$?
  [ $status -eq 0 ] || [ "$signals" != TERM ] || fail "exit status $status after one signal"
  [ $status -eq 0 ] || expect 0 "" "$ingot" convert "$example" "$work/out" --to bf16 --progress never --resume
  diff -r "$work/whole" "$work/out" || fail "$signals: the output differs"
done

# One of several that start at once does the work, and the others name it.
for round in 1 2 3; do
  rm -rf "$work/out"
  pids=""
  for run in 1 2 3 4; do
    "$ingot" convert "$example" "$work/out" --to bf16 --progress never >/dev/null 2>"$work/run$run" &
    pids="$pids $!"
  done
  done_by=0 run=0
  for pid in $pids; do
    run=$((run + 1))
    if wait "$pid"; then
      done_by=$((done_by + 1))
    else
      grep -qE "another run is writing here \(process|holds a finished conversion" "$work/run$run" || fail "$(cat "$work/run$run")"
    fi
  done
  [ "$done_by" -eq 1 ] || fail "$done_by runs of 4 succeeded"
  diff -r "$work/whole" "$work/out" || fail "the output differs"
done
finish
