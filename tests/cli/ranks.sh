#!/usr/bin/env bash
# ranks.sh INGOT EXAMPLE CHECK LIBRARY: ranks that have only their own slice, as processes and as threads, answer as the
# whole model does. CHECK compares the collectives of both (tests/inference/parallel/mpi_comm_check.cc); the preloaded
# LIBRARY kills a rank.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 check=$3 library=$4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# mpi N COMMAND...: on this host, whatever its processors.
mpi() {
  local n=$1
  shift
  timeout 120 mpirun --oversubscribe --bind-to none -n "$n" "$@"
}
# hosts N COMMAND...: each rank runs in a folder with a model that has only the rank's own directory; rank 1 gets the
# faults in $fault.
fault=
hosts() {
  local n=$1
  shift
  # shellcheck disable=SC2016
  mpi "$n" bash -c '
    cd "$1/host$OMPI_COMM_WORLD_RANK" || exit 9
    if [ "$OMPI_COMM_WORLD_RANK" = 1 ] && [ -n "$3" ]; then export INGOT_FAULTS=$3 LD_PRELOAD=$2; fi
    shift 3
    exec "$@"' rank "$work" "$library" "$fault" "$@"
}

# The collectives themselves.
mpi 4 "$check" 2 4 1 1 || fail "collectives of TP 2 x EP 4"
mpi 8 "$check" 2 2 2 2 || fail "collectives of TP 2 x EP 2 x ETP 2 x PP 2"
judge 7 "have come for different things" mpi 2 "$check" mismatch

"$ingot" convert "$example" "$work/model" --tp 2 --ep 4 --tp-fit retile --progress never >/dev/null 2>&1 || fail "cut"
for rank in 0 1 2 3; do
  mkdir -p "$work/host$rank/model"
  cp -r "$work/model/rank-0000$rank-of-00004" "$work/host$rank/model" || fail "rank $rank"
done

# The same tokens whole, as threads and as processes: the same bits, as they are drawn.
printf 'What is 2 + 2?\n\nTell me a story about a fox and a kite.\n\n中国的首都是哪里？' >"$work/prompts"
ids() { python3 -c 'import json, sys; print([s["generated_ids"] for s in json.load(sys.stdin)["sequences"]])'; }
answer=(generate model --prompts "$work/prompts" --max-new-tokens 24 --profile f32 --json --temperature 0.7 --seed 5)
whole=$(cd "$work" && "$ingot" "${answer[@]}" 2>/dev/null | ids)
threads=$(cd "$work" && "$ingot" "${answer[@]}" --ranks threads 2>"$work/stderr" | ids)
processes=$(hosts 4 "$ingot" "${answer[@]}" 2>"$work/stderr" | ids)
[ "$(wc -w <<<"$whole")" -gt 20 ] || fail "no answers of the whole: $whole"
[ "$threads" = "$whole" ] || fail "threads answer $threads, the whole $whole: $(cat "$work/stderr")"
[ "$processes" = "$threads" ] || fail "processes answer $processes, threads $threads: $(cat "$work/stderr")"

# Only the first rank reads and prints, whichever way sums are made.
[ "$(printf 'What is 2 + 2?' | hosts 4 "$ingot" generate model --prompt - --greedy --mpi-sums 2>"$work/stderr")" = "2 + 2 = 4." ] ||
  fail "the first rank reads and prints: $(cat "$work/stderr")"
[ "$(grep -c "tokens/s" "$work/stderr")" -eq 1 ] || fail "more than one rank reports: $(cat "$work/stderr")"
grep -q "rank 0 sent .* messages .* hidden by work" "$work/stderr" || fail "no figures of exchanges: $(cat "$work/stderr")"

# The bytes of the first rank are those of arithmetic: a prompt's group sums every row in every layer. A group without
# work takes dummy steps.
printf '{"seconds": 0, "prompt": "What is 2 + 2?"}\n{"seconds": 0.01, "prompt": "Hi"}\n{"seconds": 1, "prompt": "Hello!"}\n' >"$work/arrivals"
hosts 4 "$ingot" generate model --arrivals "$work/arrivals" --greedy --json --log "$work/log" >"$work/json" 2>"$work/stderr" ||
  fail "--log: $(cat "$work/stderr")"
python3 - "$work/json" "$work/log" "$example/config.json" <<'P' || fail "bytes of sums: $(cat "$work/log")"
import collections, json, sys
answer, config = json.load(open(sys.argv[1])), json.load(open(sys.argv[3]))
*steps, last = map(json.loads, open(sys.argv[2]))
totals = last["steps"]
assert totals == answer["steps"] and totals["count"] == len(steps) and totals["dummy"] > 0
assert [step["step"] for step in steps] == list(range(len(steps)))
for key in ("messages", "bytes", "dummy", "preempted"):
    assert sum(step[key] for step in steps) == totals[key], key
for key, of in (("prompt", "prefill"), ("answer", "decode")):
    assert sum(step["tokens"][key] for step in steps) == answer[of]["tokens"]
assert any(step["expert_imbalance"] > 1 for step in steps)
# Rows of the first group: those that are not in the other one.
rows = collections.Counter()
for step in steps:
    sums = [line for line in step["collectives"] if line["collective"] == "attention sum"]
    assert len(sums) == config["num_hidden_layers"] and len({line["bytes"] for line in sums}) == 1
    assert all(line["messages"] == (1 if line["bytes"] else 0) for line in sums)
    rows["first"] += sums[0]["bytes"] // (4 * config["hidden_size"])
prompts = [len(sequence["prompt_ids"]) + len(sequence["generated_ids"]) - 1 for sequence in answer["sequences"]]
assert rows["first"] in [prompts[0] + a + b for a in (0, prompts[1]) for b in (0, prompts[2])], (rows, prompts)
arrived = [sequence["seconds"] for sequence in answer["sequences"]]
assert all(of["arrived"] <= of["first_token"] + 0.001 <= of["end"] + 0.002 for of in arrived), arrived
P

# Layers and answers of the ranks, held against the source; processes and threads find the same.
verify=(verify "$example" model --levels "layers,greedy" --prompts "$work/prompts" --tokens 8 --profile f32 --progress never)
hosts 4 "$ingot" "${verify[@]}" --json >"$work/processes" 2>"$work/stderr" || fail "verify: $(cat "$work/stderr" "$work/processes")"
(cd "$work" && "$ingot" "${verify[@]}" --ranks threads --json) >"$work/threads" 2>"$work/stderr" || fail "verify: $(cat "$work/stderr")"
(cd "$work" && "$ingot" "${verify[@]}" --json) >"$work/joined" 2>"$work/stderr" || fail "verify: $(cat "$work/stderr")"
python3 - "$work/processes" "$work/threads" "$work/joined" <<'P' || fail "verify by processes, threads, and joined"
import json, sys
processes, threads, joined = (json.load(open(path)) for path in sys.argv[1:])
assert processes["layers"] == threads["layers"] and processes["greedy"] == threads["greedy"]
assert len(processes["layers"]["layers"]) == len(joined["layers"]["layers"]) > 3
for layer in processes["layers"]["layers"]:
    assert layer["isolated"]["relative_error"] < 1e-5, layer
assert processes["greedy"] == joined["greedy"] and processes["greedy"]["equal"] > 2
P
# Stages never hold the same layer: each computes its own, and hands on what it made.
"$ingot" convert "$example" "$work/staged" --pp 2 --ep 2 --progress never >/dev/null 2>&1 || fail "cut into stages"
staged=(verify "$example" "$work/staged" --levels "layers,greedy" --prompts "$work/prompts" --tokens 8 --profile f32 --progress never --json)
mpi 4 "$ingot" "${staged[@]}" >"$work/processes" 2>"$work/stderr" || fail "verify stages: $(cat "$work/stderr" "$work/processes")"
"$ingot" "${staged[@]}" >"$work/joined" 2>"$work/stderr" || fail "verify stages: $(cat "$work/stderr")"
python3 - "$work/processes" "$work/joined" <<'P' || fail "verify by processes in stages, and joined"
import json, sys
processes, joined = (json.load(open(path)) for path in sys.argv[1:])
assert processes["layers"] == joined["layers"] and processes["greedy"] == joined["greedy"]
assert any(layer["mtp"] for layer in joined["layers"]["layers"]), joined["layers"]["layers"][-1]
P

# The MTP layer is on the last stage, and proposes for all.
drafted=(generate "$work/staged" --prompts "$work/prompts" --max-new-tokens 24 --profile f32 --json --greedy)
whole=$("$ingot" "${drafted[@]}" 2>/dev/null | ids)
[ "$(mpi 4 "$ingot" "${drafted[@]}" --draft 2 2>"$work/stderr" | ids)" = "$whole" ] || fail "drafts in stages: $(cat "$work/stderr")"
[ "$(hosts 4 "$ingot" "${answer[@]}" --draft 1 2>"$work/stderr" | ids)" = "$threads" ] || fail "drafts of ranks: $(cat "$work/stderr")"

judge 2 "ranks run the levels layers and greedy" hosts 4 "$ingot" verify "$example" model
judge 2 "ranks run the comparison of two" hosts 4 "$ingot" verify model --text "$work/prompts"

# An error of a rank ends all, with its message; so does its death.
cp -r "$work/host2/model" "$work/whole2"
truncate -s -1000 "$work"/host2/model/*/ep-02-of-04-00001-of-00001.safetensors
judge 2 "ep-02-of-04" hosts 4 "$ingot" generate model --prompt hello --greedy
[ "$(grep -c '^error: ' "$work/stderr")" -eq 1 ] || fail "said more than once: $(cat "$work/stderr")"
rm -r "$work/host2/model" && mv "$work/whole2" "$work/host2/model"
fault=pread:KILL:4
hosts 4 "$ingot" generate model --prompt hello --greedy >"$work/stdout" 2>"$work/stderr" && fail "a killed rank: $(cat "$work/stderr")"
grep -q "exited on signal 9" "$work/stderr" || fail "not ended by the launcher: $(cat "$work/stderr")"
fault=

# Wrong numbers and places.
judge 2 "is cut for 4 ranks, and 2 were launched (mpirun -n 4)" mpi 2 "$ingot" generate "$work/model" --prompt hello
judge 2 "holds no rank directories" mpi 2 "$ingot" generate "$example" --prompt hello
judge 2 "holds no rank directories" "$ingot" generate "$example" --prompt hello --ranks threads
cp -r "$work/model" "$work/swapped"
mv "$work/swapped/rank-00000-of-00004" "$work/swapped/keep" && mv "$work/swapped/rank-00001-of-00004" "$work/swapped/rank-00000-of-00004"
judge 2 "holds 3 of 4 rank directories" "$ingot" generate "$work/swapped" --prompt hello --ranks threads
mv "$work/swapped/keep" "$work/swapped/rank-00001-of-00004"
judge 2 "is that of rank 1 of 4" "$ingot" generate "$work/swapped" --prompt hello --ranks threads
judge 2 "--interactive is for one process" "$ingot" generate "$work/model" --interactive --ranks threads
judge 2 "is for one process" mpi 2 "$ingot" generate "$work/model" --prompt hello --ranks threads
[ "$(mpi 2 "$ingot" generate "$example" --prompt "What is 2 + 2?" --greedy --jsonl --mpi never 2>/dev/null | grep -c "2 + 2 = 4")" -eq 2 ] ||
  fail "each by itself"
finish
