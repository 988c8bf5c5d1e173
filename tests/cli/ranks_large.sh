#!/usr/bin/env bash
# ranks_large.sh INGOT EXAMPLE: as many processes as a deployment has, on few processors: every kind of topology answers
# as the same slices seen as one model, in the same bits as threads.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
printf 'What is 2 + 2?\n\nTell me a story about a fox and a kite.\n\nWhat is the capital of Norway?' >"$work/prompts"
generate=(generate "$work/out" --prompts "$work/prompts" --greedy --max-new-tokens 12 --profile f32 --json)
# answers COMMAND...: the ids of all answers.
answers() {
  "$@" 2>"$work/stderr" |
    python3 -c 'import json, sys; print([s["generated_ids"] for s in json.load(sys.stdin)["sequences"]])'
}

# same RANKS CONVERT-OPTIONS...
same() {
  local n=$1 whole threads processes
  shift
  rm -rf "$work/out"
  "$ingot" convert "$example" "$work/out" "$@" --progress never >"$work/stdout" 2>&1 || fail "$*: $(cat "$work/stdout")"
  whole=$(answers "$ingot" "${generate[@]}")
  [ "$(wc -w <<<"$whole")" -gt 20 ] || fail "$*: no answers of the whole: $whole"
  threads=$(answers "$ingot" "${generate[@]}" --ranks threads)
  [ "$threads" = "$whole" ] || fail "$*: threads answer $threads, the whole $whole: $(cat "$work/stderr")"
  processes=$(answers timeout 300 mpirun --oversubscribe --bind-to none -n "$n" "$ingot" "${generate[@]}" --threads 1)
  [ "$processes" = "$whole" ] || fail "$*: processes answer $processes, the whole $whole: $(cat "$work/stderr")"
}

same 16 --to bf16 --tp 8 --ep 16
same 16 --to int8 --tp 8 --ep 16
same 16 --to fp8 --tp 8 --ep 16 --tp-fit retile
same 4 --to nvfp4 --tp 2 --ep 4 --tp-fit retile
# Two slots for each expert, each on another rank.
python3 -c 'import json; print(json.dumps([i % 16 for i in range(32)]))' >"$work/map.json"
same 32 --to bf16 --tp 8 --ep 32 --expert-map "$work/map.json" --redundant-experts
same 4 --to bf16 --tp 2 --ep 2 --pp 2
same 8 --to bf16 --tp 2 --ep 2 --etp 2 --pp 2
same 2 --to bf16 --tp 2
same 3 --to bf16 --pp 3
same 16 --to bf16 --ep 16
finish
