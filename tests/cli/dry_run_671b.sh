#!/usr/bin/env bash
# The real shapes of the 671B checkpoint: 92,425 tensors in 163 files are planned from headers only.
source "$(dirname "$0")/expect.sh"
ingot=$1 readme=$(realpath "$(dirname "$0")/../../README.md")
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
/usr/bin/time -f '%M' -o "$work/cut" "$ingot" convert "$work/in" "$work/out" --tp 8 --ep 16 --pp 4 --dry-run --assume-disk 2TB --json \
  >"$work/stdout" 2>"$work/stderr" || fail "dry run of a cut: $(cat "$work/stderr")"
kilobytes=$(tail -1 "$work/cut")
[ "$kilobytes" -le $((1024 * 1024)) ] || fail "the plan of a cut took $kilobytes KiB"
# Without that: the plan all the same, what is missing, and that consuming the source would help. The plan is the screen
# of the README but for the lines that depend on the machine; scales are numbers here, as in the release.
python3 - "$work/in" <<'P'
import glob, json, struct, sys
for path in glob.glob(sys.argv[1] + "/*.safetensors"):
    with open(path, "r+b") as file:
        begin = 8 + struct.unpack("<Q", file.read(8))[0]
        for name, tensor in json.loads(file.read(begin - 8)).items():
            if name.endswith("_scale_inv"):
                file.seek(begin + tensor["data_offsets"][0])
                file.write(struct.pack("<f", 2**-13) * ((tensor["data_offsets"][1] - tensor["data_offsets"][0]) // 4))
P
mv "$work/in" "$work/DeepSeek-V3.2" && cp "$(dirname "$readme")"/examples/tiny-v32/tokenizer*.json "$work/DeepSeek-V3.2"
cd "$work" || exit 1
expect 2 "--consume-source, which needs" "$ingot" convert DeepSeek-V3.2 DeepSeek-V3.2-nvfp4 --to nvfp4 --for vllm --dry-run --assume-disk 300GB
grep -qF "are missing" "$work/stderr" || fail "nothing is missing: $(cat "$work/stderr")"
own='^(peak memory|disk|time) '
sed -n '/^\$ ingot convert/,/^```/{/^[$`]/d;p}' "$readme" | grep -vE "$own" | diff - <(grep -vE "$own" "$work/stdout") >&2 || fail "the screen of the README is another"
read -r seconds kilobytes <"$work/time"
echo "planned in $seconds s with $((kilobytes / 1024)) MiB"
[ "$kilobytes" -le $((512 * 1024)) ] || fail "the plan took $kilobytes KiB"
finish
