#!/usr/bin/env bash
# 320 ranks of one expert each, 64 of 256 experts twice, in a process that may open 256 files: every rank has what it is to
# load, and the ranks together give the model back.
source "$(dirname "$0")/expect.sh"
ingot=$1
ulimit -n 256
"$ingot" synth "$work/in" --family deepseek_v3 --like tiny --layers 3 --experts 256 --shards 2 >/dev/null || fail "synth"
python3 -c 'import json; print(json.dumps([slot % 256 for slot in range(320)]))' >"$work/map.json"
"$ingot" convert "$work/in" "$work/ranks" --ep 320 --expert-map "$work/map.json" --redundant-experts --progress never >/dev/null 2>"$work/stderr" ||
  fail "convert: $(cat "$work/stderr")"
[ "$(find "$work/ranks" -mindepth 1 -maxdepth 1 -type d -name 'rank-*-of-00320' | wc -l)" -eq 320 ] || fail "not 320 ranks"

# The tensors of some ranks, read without ingot.
python3 - "$work" <<'P' || fail "what ranks hold"
import glob, json, os, re, sys
work = sys.argv[1]
from container import read_checkpoint

def tensors(directory):
    return {name: (stored.dtype, stored.shape, stored.data) for name, stored in read_checkpoint(directory).items()}

whole = tensors(work + "/in")
is_expert = {name: re.search(r"\.mlp\.experts\.(\d+)\.", name) for name in whole}
for rank in (0, 5, 63, 64, 255, 256, 261, 319):
    folder = f"{work}/ranks/rank-{rank:05}-of-00320"
    expected = {name: tensor for name, tensor in whole.items() if not is_expert[name] or int(is_expert[name][1]) == rank % 256}
    held = tensors(folder)
    assert held == expected, (rank, sorted(held.keys() ^ expected.keys())[:5])
    index = json.load(open(folder + "/model.safetensors.index.json"))
    assert index["weight_map"].keys() == held.keys()
assert sum(len(os.listdir(folder)) for folder in glob.glob(work + "/ranks/rank-*")) >= 320 * 6
shared = {os.stat(path).st_ino for path in glob.glob(work + "/ranks/rank-*/all-*.safetensors")}
assert len(shared) == 1, "what all ranks load is written once"
P
for rank in 00000 00261 00319; do expect 0 "0 errors" "$ingot" check "$work/ranks/rank-$rank-of-00320"; done

# The way back, with everything that is there twice compared; and a change in one of two replicas.
"$ingot" convert "$work/in" "$work/whole" --progress never >/dev/null || fail "copy"
"$ingot" convert "$work/ranks" "$work/merged" --progress never >/dev/null 2>"$work/stderr" || fail "merge: $(cat "$work/stderr")"
diff -r -x ingot.json -x ingot.tensors.jsonl.zst "$work/whole" "$work/merged" || fail "the merged model differs"
python3 - "$work"/ranks/rank-00261-of-00320/ep-*.safetensors <<'P'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(-7, 2)
    byte = f.read(1)
    f.seek(-7, 2)
    f.write(bytes([byte[0] ^ 1]))
P
judge 2 "rank-00261-of-00320" "$ingot" convert "$work/ranks" "$work/again" --progress never
expect_unpublished "$work/again"
finish
