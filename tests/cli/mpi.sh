#!/usr/bin/env bash
# mpi.sh INGOT EXAMPLE LIBRARY: the processes that mpirun starts convert as one. A preloaded library imitates a full
# disk of one rank, and kills one.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
quantized=(--to nvfp4 --max-shard-size 1MB)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# launch N COMMAND...: on this host, whatever its processors; rank 1 gets what is in $fault.
fault=
launch() {
  local n=$1
  shift
  # shellcheck disable=SC2016
  timeout 60 mpirun --oversubscribe --bind-to none -n "$n" bash -c '
    if [ "$OMPI_COMM_WORLD_RANK" = 1 ] && [ -n "$2" ]; then export INGOT_FAULTS=$2 LD_PRELOAD=$1; fi
    shift 2
    exec "$@"' rank "$library" "$fault" "$@"
}
convert() { "$ingot" convert "$example" "$@" --progress never; }

convert "$work/whole" "${quantized[@]}" >/dev/null 2>&1 || fail "the whole"

# One output, one report, and one line of progress for all.
judge 0 "loaded by:" launch 3 "$ingot" convert "$example" "$work/out" "${quantized[@]}" --progress always
diff -r "$work/whole" "$work/out" >&2 || fail "what three ranks made differs"
[ "$(grep -c "^loaded by:" "$work/stdout")" -eq 1 ] || fail "not one report: $(cat "$work/stdout")"
grep -q "^published .* that the parts wrote" "$work/stdout" || fail "not whose bytes: $(cat "$work/stdout")"
grep -q "wrote 0 B" "$work/stdout" "$work/stderr" && fail "0 B written"
grep -q "converting on 3 ranks" "$work/stderr" || fail "no progress of all: $(cat "$work/stderr")"
judge 0 '"schema"' launch 2 "$ingot" convert "$example" "$work/none" "${quantized[@]}" --dry-run --json
holds "d" stdout
[ ! -e "$work/none" ] || fail "a dry run left something"

# An error of one rank ends all, and an error of all is printed once.
judge 2 "no such" launch 3 "$ingot" convert "$work/nothing" "$work/none" "${quantized[@]}"
[ "$(grep -c '^error: ' "$work/stderr")" -eq 1 ] || fail "said more than once: $(cat "$work/stderr")"
rm -rf "$work/out"
fault=pwrite:ENOSPC:4
judge 2 "No space left" launch 2 "$ingot" convert "$example" "$work/out" "${quantized[@]}" --mem-limit 64MiB --progress never
expect_unpublished "$work/out"
# A rank dies, and others finish, more of them.
fault=pwrite:KILL:4
launch 2 "$ingot" convert "$example" "$work/out" "${quantized[@]}" --mem-limit 64MiB --progress never --resume >"$work/stdout" 2>&1 &&
  fail "a killed rank: $(cat "$work/stdout")"
fault=
expect_unpublished "$work/out"
judge 0 "loaded by:" launch 3 "$ingot" convert "$example" "$work/out" "${quantized[@]}" --progress never --resume
diff -r "$work/whole" "$work/out" >&2 || fail "what was resumed differs"

# Ranks with different words are no launch of one conversion.
# shellcheck disable=SC2016
judge 2 "other command-line arguments" timeout 60 mpirun --oversubscribe -n 2 bash -c 'exec "$1" convert "$2" "$3$OMPI_COMM_WORLD_RANK" --to bf16' rank "$ingot" "$example" "$work/none"
judge 0 "loaded by:" timeout 60 mpirun --oversubscribe -n 2 bash -c 'exec "$1" convert "$2" "$3$OMPI_COMM_WORLD_RANK" --to bf16 --mpi never' rank "$ingot" "$example" "$work/own"
diff -r "$work/own0" "$work/own1" >&2 || fail "each by itself"

# A gate that does not hold: nothing is published, and its exit code is that of all.
judge 1 "nothing was published" launch 2 "$ingot" convert "$example" "$work/gated" "${quantized[@]}" --progress never --verify weights --require 'weights.relative_error<=0' --json
holds "d['passed'] is False and d['verification']['gates']" stdout
expect_unpublished "$work/gated"

# Without MPI everything else works.
judge 2 "excludes" "$ingot" convert "$example" "$work/none" --part 0/2 --mpi always
mkdir "$work/bin"
cp "$ingot" "$work/bin/ingot"
OMPI_COMM_WORLD_SIZE=2 judge 2 "--mpi never" "$work/bin/ingot" convert "$example" "$work/none" --to bf16
judge 0 "loaded by:" "$work/bin/ingot" convert "$example" "$work/alone" --to bf16 --progress never
LD_DEBUG=libs OMPI_COMM_WORLD_SIZE=2 "$ingot" --version >/dev/null 2>"$work/libraries"
grep -q libc.so "$work/libraries" || fail "no list of libraries"
grep -q mpi "$work/libraries" && fail "--version loads MPI: $(grep mpi "$work/libraries" | head -3)"
finish
