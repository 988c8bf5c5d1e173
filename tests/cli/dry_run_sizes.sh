#!/usr/bin/env bash
# A dry run of a sliced output predicts the output: every file to the byte, the bytes that each rank loads, and enough
# disk for everything around it.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# as_planned LINKS OPTIONS...: plans, converts, compares.
as_planned() {
  local links=$1
  shift
  "$ingot" convert "$example" "$work/out" --dry-run --json --links "$links" "$@" >"$work/plan" 2>"$work/stderr" || fail "dry run: $*: $(cat "$work/stderr")"
  "$ingot" convert "$example" "$work/out" --progress never --links "$links" "$@" >/dev/null 2>"$work/stderr" || fail "convert: $*: $(cat "$work/stderr")"
  python3 - "$work" "$links" <<'P' || fail "not as planned: $*"
import json, os, sys
work, links = sys.argv[1:]
plan, top = json.load(open(work + "/plan")), work + "/out"
paths = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
facts = {os.path.relpath(path, top): os.stat(path) for path in paths}
weights = {path: at for path, at in facts.items() if path.endswith(".safetensors")}

planned = {f["name"]: f["bytes"] for f in plan["files"]}
assert len(planned) == len(plan["files"]) and sum(planned.values()) == plan["bytes_out"]
assert {path: weights[path].st_size for path in planned} == planned
# All other files are links to these files, or copies of them.
own = {at.st_ino for at in weights.values()}
assert len(own) == (len(planned) if links == "yes" else len(weights)), (len(own), len(planned), len(weights))

n_ranks = len(plan["slicing"]["ranks"])
for rank in plan["slicing"]["ranks"]:
    if plan["slicing"]["layout"] == "deepseek-mp":
        files = [f"model{rank['rank']}-mp{n_ranks}.safetensors"]
    else:
        files = [path for path in weights if os.path.dirname(path) == f"rank-{rank['rank']:05}-of-{n_ranks:05}"]
    assert len(files) == rank["files"], (rank, files)
    assert sum(weights[path].st_size for path in files) == rank["bytes"], (rank, files)

used = sum({at.st_ino: at.st_blocks * 512 for at in facts.values()}.values())
assert used <= plan["disk_bytes_needed"], (used, plan["disk_bytes_needed"])
P
  rm -rf "$work/out"
}

as_planned yes --tp 2 --ep 4 --tp-fit retile
as_planned no --tp 2 --ep 4 --tp-fit retile
as_planned yes --tp 4 --pp 3 --tp-fit bf16 --max-shard-size 200KB
as_planned yes --to bf16 --tp 8 --ep 16
as_planned no --to bf16 --tp 2 --ep 2 --etp 3 --tp-fit pad
as_planned yes --to int8 --tp 2 --ep 2 --etp 2 --pp 2
as_planned yes --to nvfp4 --ep 16
as_planned yes --to bf16 --layout deepseek-mp --mp 4
as_planned yes --layout ranks
finish
