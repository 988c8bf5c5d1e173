#!/usr/bin/env bash
# The real shapes of the 671B checkpoint: 92,425 tensors in 163 files are planned from headers only.
source "$(dirname "$0")/expect.sh"
ingot=$1
expect 0 "" "$ingot" synth "$work/in" --family deepseek_v32 --like 671b-headers
# On a disk that holds it only if the source is consumed.
/usr/bin/time -f '%e %M' -o "$work/time" "$ingot" convert "$work/in" "$work/out" --to bf16 --dry-run --assume-disk 1TB --consume-source --json >"$work/plan" 2>"$work/stderr" ||
  fail "dry run: $(cat "$work/stderr")"
python3 - "$work/plan" <<'P' || fail "the plan is not that of the released checkpoint"
import json, sys
plan = json.load(open(sys.argv[1]))
assert sum(a["tensors"] for a in plan["actions"] if a["from"] == "fp8-block") == 45932, plan["actions"]
assert sum(f["tensors"] for f in plan["files"]) == 92425 - 45932, "one tensor per weight"
# 685,355,329,792 elements without scales (formats reference): two bytes each, but for the F32 norms and biases.
assert 1_370_710_659_584 < plan["bytes_out"] < 1_370_740_000_000, plan["bytes_out"]
P
# A cut, planned rank by rank.
/usr/bin/time -f '%M' -o "$work/cut" "$ingot" convert "$work/in" "$work/out" --tp 8 --ep 16 --pp 4 --dry-run --assume-disk 2TB \
  >"$work/stdout" 2>"$work/stderr" || fail "dry run of a cut: $(cat "$work/stderr")"
kilobytes=$(tail -1 "$work/cut")
[ "$kilobytes" -le $((1024 * 1024)) ] || fail "the plan of a cut took $kilobytes KiB"
# Without that: the plan all the same, what is missing, and that consuming the source would help.
expect 2 "--consume-source, which needs" "$ingot" convert "$work/in" "$work/out" --to bf16 --dry-run --assume-disk 1TB
grep -qF "are missing" "$work/stderr" || fail "nothing is missing: $(cat "$work/stderr")"
read -r seconds kilobytes <"$work/time"
echo "planned in $seconds s with $((kilobytes / 1024)) MiB"
[ "$kilobytes" -le $((512 * 1024)) ] || fail "the plan took $kilobytes KiB"
finish
