#!/usr/bin/env bash
# parts.sh INGOT EXAMPLE LIBRARY [all]: parts of a conversion, begun and killed in any way, join to the bytes of the
# unparted run. A preloaded library imitates a full disk, a host that is suspended, and one whose clock is an hour off.
# With `all` in more numbers of parts, moments and ways to go on.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3 all=${4:-}
quantized=(--to nvfp4 --max-shard-size 1MB)
convert() { "$ingot" convert "$example" "$@" --progress never; }
quiet() { "$@" >"$work/stdout" 2>"$work/stderr" || fail "$*: $(head -c 600 "$work/stderr")"; }

# part I/N OPTIONS...: into $work/out.
part() {
  local which=$1
  shift
  convert "$work/out" --part "$which" "$@"
}

# parts N OPTIONS...: all of them at once.
parts() {
  local n=$1 i pids=() pid
  shift
  rm -rf "$work/out"
  for ((i = 0; i < n; i++)); do
    part "$i/$n" "$@" >"$work/part$i" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < n; i++)); do wait "${pids[$i]}" || fail "part $i/$n $*: $(head -c 600 "$work/part$i")"; done
}

# joins_as WHOLE: publishes what is in $work/out.
joins_as() {
  expect_unpublished "$work/out"
  quiet "$ingot" join "$work/out" --progress never
  diff -r "$1" "$work/out" >&2 || fail "the joined output differs"
}

# Every kind of output, hashes of its manifest included; those of slices and of fused weights too.
n_forms=0
while read -r numbers options; do
  n_forms=$((n_forms + 1))
  # shellcheck disable=SC2086
  quiet convert "$work/whole$n_forms" $options
  [ -n "$all" ] || numbers=${numbers##*,}
  for n in ${numbers//,/ }; do
    # shellcheck disable=SC2086
    parts "$n" $options
    joins_as "$work/whole$n_forms"
  done
done <<'END'
1,2,4 --to nvfp4 --max-shard-size 1MB
3 --to bf16 --max-shard-size 2MB --hash sha256 --read-back
2,3 --tp 2 --ep 2 --tp-fit retile --max-shard-size 2MB --read-back
2 --to bf16 --layout deepseek-mp --mp 2 --mtp drop
END
whole=$work/whole1

# Below a path that is no UTF-8, with an option in such a path.
odd=$work/o$'\xff'%41
mkdir "$odd"
cp -r "$example" "$odd/in"
for i in 0 1; do quiet "$ingot" convert "$odd/in" "$odd/out" "${quantized[@]}" --part $i/2 --progress never; done
expect 0 "that the parts wrote in" "$ingot" join "$odd/out" --progress never
diff -r "$whole" "$odd/out" >&2 || fail "joined below a path that is no UTF-8"

# Options of a part that are refused or accepted.
rm -rf "$work/out"
for text in 2/2 x/2 1 1/ /2 1/2/3 -1/2; do expect 2 "is not I/N" "$ingot" convert "$example" "$work/out" "--part=$text"; done
expect 2 "--max-shard-size" "$ingot" convert "$example" "$work/out" --to bf16 --part 0/50
expect 2 "other parts may still need" "$ingot" convert "$example" "$work/out" "${quantized[@]}" --part 0/2 --consume-source
expect 2 "other parts may be writing" "$ingot" convert "$example" "$work/out" "${quantized[@]}" --part 0/2 --force
[ ! -e "$work/out" ] || fail "a refused part left something"
for i in 0 1 2 whole; do
  options=(--part "$i/3")
  [ $i != whole ] || options=()
  convert "$work/none" "${quantized[@]}" "${options[@]}" --dry-run --json >"$work/dry$i" || fail "dry run of part $i"
done
python3 - "$work"/dry{0,1,2,whole} <<'END' || fail "figures of dry runs"
import json, sys
parts = [json.load(open(path)) for path in sys.argv[1:]]
whole = parts.pop()
assert sum(part["bytes_out"] for part in parts) == whole["bytes_out"]
files = sorted((file["name"], file["bytes"]) for part in parts for file in part["files"])
assert files == sorted((file["name"], file["bytes"]) for file in whole["files"])
assert all(part["bytes_in"] < whole["bytes_in"] for part in parts)
loads = [sum(file["bytes"] for file in part["files"]) for part in parts]
assert max(loads) - min(loads) <= max(file["bytes"] for file in whole["files"])
END

# Nothing is published before all is there, and what is missing has a name.
judge 2 "holds no parts to join" "$ingot" join "$work/out"
quiet part 0/3 "${quantized[@]}"
judge 2 "2 of 3 parts are missing: part 1/3 was not begun, part 2/3 was not begun" "$ingot" join "$work/out" --progress never
judge 2 "holds files of an earlier run of part 0/3 (--resume to continue it)" part 0/3 "${quantized[@]}"
judge 2 "holds parts of 3" part 0/2 "${quantized[@]}"
judge 2 "begun with other options: --to nvfp4 (now mxfp4)" part 1/3 --to mxfp4 --max-shard-size 1MB
judge 2 "holds an unfinished conversion" convert "$work/out" "${quantized[@]}"
judge 2 "unfinished" "$ingot" inspect "$work/out"
quiet part 1/3 "${quantized[@]}"
quiet part 2/3 "${quantized[@]}"
lost=$(find "$work/out/.ingot-partial/files" -name '*.safetensors' | sort | head -1)
mv "$lost" "$work/lost"
judge 2 "is gone, not what part" "$ingot" join "$work/out" --progress never
expect_unpublished "$work/out"
owner=$(grep -o "run that part again with --part [0-9]/3" "$work/stderr" | grep -o "[0-9]/3")
quiet part "$owner" "${quantized[@]}" --resume
joins_as "$whole"
judge 0 "nothing to join" "$ingot" join "$work/out"
judge 0 "already finished" part 0/3 "${quantized[@]}" --resume

# A verification that the parts were begun with is made when they are joined, and gates them.
parts 2 "${quantized[@]}" --verify structure,weights --require 'weights.relative_error<=0'
judge 1 "nothing was published" "$ingot" join "$work/out" --progress never
expect_unpublished "$work/out"
# Resumed without it, the parts still have it.
gate=(--verify structure,weights --require 'weights.relative_error<=0')
rm -rf "$work/out"
for i in 0 1; do
  INGOT_FAULTS="pwrite:ENOSPC:6" LD_PRELOAD=$library judge 2 "No space left" part $i/2 "${quantized[@]}" "${gate[@]}" --mem-limit 64MiB
  quiet part $i/2 "${quantized[@]}" --resume
done
judge 1 "nothing was published" "$ingot" join "$work/out" --progress never
expect_unpublished "$work/out"

# Parts are complete, but a run without --part has begun a file again and stopped: the join looks at every byte.
parts 2 "${quantized[@]}"
lost=$(find "$work/out/.ingot-partial/files" -name '*.safetensors' | sort | head -1)
mv "$lost" "$work/lost"
INGOT_FAULTS="pwrite:ENOSPC:4" LD_PRELOAD=$library judge 2 "No space left" convert "$work/out" "${quantized[@]}" --resume --mem-limit 64MiB
mv "$work/lost" "$lost"
printf 'not yet written' | dd of="$lost" bs=1 seek=$(($(stat -c %s "$lost") - 15)) conv=notrunc status=none
judge 2 "has begun them again" "$ingot" join "$work/out" --progress never
expect_unpublished "$work/out"
for i in 0 1; do quiet part $i/2 "${quantized[@]}" --resume; done
joins_as "$whole"

parts 2 "${quantized[@]}" --verify structure,weights
quiet "$ingot" join "$work/out" --progress never
[ -e "$work/out/ingot.verify.json" ] || fail "no report of the verification"

# One part begun four times at once is done once.
for round in 1 ${all:+2}; do
  rm -rf "$work/out"
  quiet part 1/2 "${quantized[@]}"
  pids=() done_by=0
  for run in 1 2 3 4; do
    part 0/2 "${quantized[@]}" >/dev/null 2>"$work/run$run" &
    pids+=($!)
  done
  for run in 1 2 3 4; do
    if wait "${pids[$((run - 1))]}"; then
      done_by=$((done_by + 1))
    else
      grep -qE "part 0/2 is at work \(|an earlier run of part 0/2 \(|was left by a run" "$work/run$run" || fail "$(cat "$work/run$run")"
    fi
  done
  [ "$done_by" -eq 1 ] || fail "$done_by runs of one part succeeded"
  joins_as "$whole"
done

# begin_stopped POINT COMMAND...: starts it, and waits until the library has stopped it there.
begin_stopped() {
  local point=$1 state
  shift
  INGOT_FAULTS=$point LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" "$@" --progress never --mem-limit 64MiB >/dev/null 2>"$work/first" &
  first=$!
  while read -r _ _ state _ 2>/dev/null <"/proc/$first/stat" && [ "$state" != T ]; do
    [ "$state" != Z ] || { fail "$point: $(cat "$work/first")"; return; }
    sleep 0.01
  done
}

# A suspended part keeps its claim; a killed one leaves it, and its work continues in any number of parts.
ways=("0/3 1/3 2/3" whole)
[ -z "$all" ] || ways+=("0/2 1/2" "0/1")
for after in "${ways[@]}"; do
  rm -rf "$work/out"
  quiet part 1/2 "${quantized[@]}"
  begin_stopped pwrite:STOP:6:6 "${quantized[@]}" --part 0/2
  judge 2 "part 0/2 is at work (process $first on " part 0/2 "${quantized[@]}"
  judge 2 "part 0/2 is at work (process $first on " part 0/2 "${quantized[@]}" --resume
  judge 2 "part 0/2 is at work (process $first on " part 0/3 "${quantized[@]}" --resume
  judge 2 "part 0/2 is at work (process $first on " convert "$work/out" "${quantized[@]}" --resume
  judge 2 "part 0/2 is at work (process $first on " convert "$work/out" "${quantized[@]}" --force
  judge 2 "part 0/2 is at work (process $first on " "$ingot" join "$work/out" --progress never
  kill -9 $first
  wait $first 2>/dev/null
  judge 2 "part 0/2 is not finished (continue it with --part 0/2 --resume)" "$ingot" join "$work/out" --progress never
  if [ "$after" = whole ]; then
    quiet convert "$work/out" "${quantized[@]}" --resume
    diff -r "$whole" "$work/out" >&2 || fail "the output that was resumed whole differs"
  else
    for which in $after; do quiet part "$which" "${quantized[@]}" --resume; done
    joins_as "$whole"
  fi
done

# An hour between the clock of a host and that of the file system changes nothing, where there are no locks either.
rm -rf "$work/out"
INGOT_CLOCK=3600 begin_stopped "flock:ENOLCK:1;pwrite:STOP:6:6" "${quantized[@]}" --part 0/2
for clock in -3600 0 3600; do
  INGOT_CLOCK=$clock INGOT_FAULTS=flock:ENOLCK:1 LD_PRELOAD=$library judge 2 "part 0/2 is at work (process $first on " part 0/2 "${quantized[@]}"
done
kill -CONT $first
wait $first || fail "the part an hour ahead: $(cat "$work/first")"
INGOT_CLOCK=-3600 LD_PRELOAD=$library quiet part 1/2 "${quantized[@]}"
joins_as "$whole"

finish
