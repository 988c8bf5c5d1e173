#!/usr/bin/env bash
# --lossless-only accepts and refuses by values, not by schemes.
source "$(dirname "$0")/expect.sh"
ingot=$1 families=$2

# Exponents as scales: every value of four significant bits is one of BF16, and MXFP4 has a place on FP8's grid.
for scheme in bf16 f32 fp8; do
  expect 0 "" "$ingot" convert "$families/deepseek_v4" "$work/v4-$scheme" --to $scheme --family generic --lossless-only
  [ -f "$work/v4-$scheme/ingot.json" ] || fail "deepseek_v4 to $scheme was not published"
done

# A dry run says by role what the rules of the formats tell.
held() { # held SCHEME TEXT: the dry run says that of the experts
  "$ingot" convert "$families/deepseek_v4" "$work/none" --to "$1" --rule '*.wo_b.weight=bf16' --dry-run --json >"$work/plan" 2>"$work/stderr" || fail "dry run to $1: $(cat "$work/stderr")"
  python3 - "$work/plan" "$2" <<'EOF' || fail "to $1, experts are not held '$2': $(grep -A99 every_value "$work/plan" | head -c 900)"
import json, sys
rows = json.load(open(sys.argv[1]))["every_value_is_held"]
sys.exit(not [r for r in rows if r["held"] == sys.argv[2] and r["from"] == "mxfp4" and "expert-up" in r["roles"]])
EOF
}
held bf16 "exact by rule"
held mxfp8 "exact by rule"
for scheme in fp8 nvfp4 int8; do held $scheme "not known"; done
expect 0 "not known" "$ingot" convert "$families/glm4_moe_fp8_block" "$work/none" --to bf16 --family generic --lossless-only --dry-run

# FP8 in NVFP4 loses; so do products of FP8 and BF16 in BF16, but not in F32. The tensor and the value are named.
judge 1 "would lose values as nvfp4: " \
  "$ingot" convert "$families/deepseek_v4" "$work/v4-nvfp4" --to nvfp4 --family generic --lossless-only
grep -q "tensor 'layers\." "$work/stderr" || fail "no tensor is named: $(head -c 600 "$work/stderr")"
[ ! -e "$work/v4-nvfp4/ingot.json" ] || fail "an output that lost values was published"
judge 1 "would lose values as bf16: " \
  "$ingot" convert "$families/glm4_moe_fp8_block" "$work/glm-bf16" --to bf16 --family generic --lossless-only
[ ! -e "$work/glm-bf16/ingot.json" ] || fail "an output that lost values was published"
expect 0 "" \
  "$ingot" convert "$families/glm4_moe_fp8_block" "$work/glm-f32" --to f32 --family generic --lossless-only

# It adds a level to those that are asked for; a source that is deleted cannot be compared with.
expect 0 "" "$ingot" convert "$families/qwen3_5_moe" "$work/single" --experts separate --verify structure --lossless-only
expect 2 "--consume-source" \
  "$ingot" convert "$families/deepseek_v4" "$work/none" --to bf16 --family generic --lossless-only --consume-source
finish
