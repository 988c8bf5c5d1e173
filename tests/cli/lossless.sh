#!/usr/bin/env bash
# What --lossless-only lets through, and what it does not: values decide, not schemes.
source "$(dirname "$0")/expect.sh"
ingot=$1 families=$2

# Exponents as scales: every value of four significant bits is one of BF16, and MXFP4 has a place on FP8's grid.
for scheme in bf16 f32 fp8; do
  expect 0 "" "$ingot" convert "$families/deepseek_v4" "$work/v4-$scheme" --to $scheme --family generic --lossless-only
  [ -f "$work/v4-$scheme/ingot.json" ] || fail "deepseek_v4 to $scheme was not published"
done

# A dry run says so beforehand, by roles.
held() { # held SCHEME TEXT: the dry run says that of the experts
  "$ingot" convert "$families/deepseek_v4" "$work/none" --to "$1" --rule '*.wo_b.weight=bf16' --dry-run --json >"$work/plan" 2>"$work/stderr" || fail "dry run to $1: $(cat "$work/stderr")"
  python3 - "$work/plan" "$2" <<'EOF' || fail "to $1, experts are not held '$2': $(grep -A99 every_value "$work/plan" | head -c 900)"
import json, sys
rows = json.load(open(sys.argv[1]))["every_value_is_held"]
sys.exit(not [r for r in rows if r["held"] == sys.argv[2] and r["from"] == "mxfp4" and "expert-up" in r["roles"]])
EOF
}
held bf16 "yes"
held fp8 "where scales of a block differ by at most 2^14"
held nvfp4 "where scales of weights that are fused differ by at most 2^17, and all are mxfp4"
held mxfp8 "yes"
held int8 "no, rounded to codes"
expect 0 "every value is held" "$ingot" convert "$families/deepseek_v4" "$work/none" --to bf16 --dry-run

# FP8 in NVFP4 loses; so do products of FP8 and BF16 in BF16, but not in F32. Nothing is published, tensors are named.
judge 1 "layers.2.ffn.shared_experts" \
  "$ingot" convert "$families/deepseek_v4" "$work/v4-nvfp4" --to nvfp4 --family generic --lossless-only
expect_unpublished "$work/v4-nvfp4"
judge 1 "weights.relative_error <= 0" \
  "$ingot" convert "$families/glm4_moe_fp8_block" "$work/glm-bf16" --to bf16 --family generic --lossless-only
expect_unpublished "$work/glm-bf16"
expect 0 "" \
  "$ingot" convert "$families/glm4_moe_fp8_block" "$work/glm-f32" --to f32 --family generic --lossless-only

# Beside other levels it adds its own; a source that is deleted cannot be compared with.
expect 0 "" "$ingot" convert "$families/qwen3_5_moe" "$work/single" --experts separate --verify structure --lossless-only
expect 2 "--consume-source" \
  "$ingot" convert "$families/deepseek_v4" "$work/none" --to bf16 --family generic --lossless-only --consume-source
finish
