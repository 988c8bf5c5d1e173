#!/usr/bin/env bash
# bench/host.py on a tiny source: every job is measured in memory and on the disk, nothing is left, and a source that
# would take more than half of what is free is refused.
source "$(dirname "$0")/expect.sh"
ingot=$1 script=$2
mkdir "$work/disk" "$work/memory"
host() { python3 "$script" "$work/disk" --ingot "$ingot" --memory "$work/memory" "$@"; }
expect 0 "| nvfp4 | disk | 2 | 1 |" host --like tiny --threads 1,2 --rounds 1 --jobs nvfp4 "bf16 tp 8 ep 8" --model --json "$work/host.json"
grep -qF "| 671B on this host |" "$work/stdout" || fail "the text has no model: $(cat "$work/stdout")"
python3 - "$work/host.json" <<'P' || fail "the table is not complete"
import json, sys
document = json.load(open(sys.argv[1]))
rows = {(row["job"], row["place"], row["threads"]): row for row in document["rows"]}
assert all(len(row["seconds"]) == 1 and row["seconds"][0] > 0 and "left_out" not in row for row in rows.values()), rows
assert len(rows) == len(document["rows"]) and not document["left_out"]
bytes_of = {}
for job in ("nvfp4", "bf16 tp 8 ep 8"):
    places = [("memory", 2), ("memory", 1), ("disk", 2)]
    assert len({rows[job, place, threads]["bytes"] for place, threads in places}) == 1, job
    bytes_of[job] = rows[job, "disk", 2]["bytes"]
    assert {row["threads"] for row in document["model"]["jobs"] if row["job"] == job} == {1, 2}
assert bytes_of["nvfp4"] < document["source_bytes"] < bytes_of["bf16 tp 8 ep 8"], bytes_of
# verify reads both sides, headers included.
read = rows["verify nvfp4", "hot", 2]["bytes"] - document["source_bytes"]
assert bytes_of["nvfp4"] <= read < bytes_of["nvfp4"] * 1.1, (read, bytes_of)
assert rows["nvfp4", "memory", 2]["limit"] == "plain writers, memory, 2"
assert rows["nvfp4", "memory", 2]["stages"][0]["write"]["bytes"] == bytes_of["nvfp4"]
assert ("tiny nvfp4", "disk", 2) in rows
P
PYTHONPATH=$(dirname "$script") python3 - <<'P' || fail "the model has other formulas"
import host_model
from host import Row
def row(name, place, threads, n_bytes, seconds=1, computing=0, **more):
    stages = {stage: {"seconds": 1} for stage in ("read", "write")} | {"compute": {"seconds": computing}, "hash": {"seconds": 0}}
    return Row(name, place, threads, None, n_bytes=n_bytes, seconds=[seconds], cpu_seconds=[10], stages=[stages], **more)
limits = [row("plain readers", "hot", n, 10) for n in (1, 4)] + [row("plain writers", "memory", n, 5 * n) for n in (1, 4)]
limits += [row("direct writes", "disk", 4, 2), row("direct reads and writes", "disk", 4, 3)]
fixed = row("tiny int8", "memory", 4, 0, 0.25)
jobs = [row("int8", "memory", 1, 0, computing=6), row("int8", "memory", 4, 40, largest=10, fixed=fixed, computing=9)]
other = row("int8", "disk", 4, 40), row("int8", "disk, cold", 4, 40)
rates = host_model.Rates(limits + jobs + list(other))
# 20 bytes of source: reading, 8 CPU-seconds on 4 threads which are slower by half, writing as many files as threads; then two.
assert host_model.seconds_of(rates, jobs[1], 20) == 2 + 3 + 2 + 0.25
jobs[1].largest = 20
assert host_model.seconds_of(rates, jobs[1], 20) == 2 + 3 + 4 + 0.25
assert [host_model.seconds_of(rates, job, 20) for job in other] == [20, 20]
P
expect 1 "half of what is free" host --size 1000000
left=$(find "$work/disk" "$work/memory" -mindepth 1)
[ -z "$left" ] || fail "left behind: $left"
finish
