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
held int8 "where values of a row are multiples of one number, at most 127 of it"
expect 0 "no, rounded to codes" "$ingot" convert "$families/glm4_moe_fp8_block" "$work/none" --to int8 --family generic --dry-run
expect 0 "every value is held" "$ingot" convert "$families/deepseek_v4" "$work/none" --to bf16 --dry-run

# FP8 in NVFP4 loses; so do products of FP8 and BF16 in BF16, but not in F32. Nothing is written, blocks are named.
judge 1 "layers.2.ffn.shared_experts" \
  "$ingot" convert "$families/deepseek_v4" "$work/v4-nvfp4" --to nvfp4 --family generic --lossless-only
[ ! -e "$work/v4-nvfp4" ] || fail "a conversion that would lose began"
glm=("$ingot" convert "$families/glm4_moe_fp8_block" "$work/glm-bf16" --to bf16 --family generic --lossless-only)
judge 1 "significant bits, more than bf16 has" "${glm[@]}"
[ ! -e "$work/glm-bf16" ] || fail "a conversion that would lose began"
grep -q "block row [0-9]*, column [0-9]*" "$work/stderr" || fail "no block is named: $(head -c 600 "$work/stderr")"
[ "$(wc -l <"$work/stderr")" -le 41 ] || fail "$(wc -l <"$work/stderr") lines of losses"

# A dry run gives the same verdict, in one screen or as JSON.
judge 1 "lossless     NO: " "${glm[@]}" --dry-run
[ "$(wc -l <"$work/stdout")" -le 40 ] || fail "$(wc -l <"$work/stdout") lines of a dry run"
judge 1 '"holds": false' "${glm[@]}" --dry-run --json
expect 0 "lossless     yes: " "$ingot" convert "$families/deepseek_v4" "$work/none" --to fp8 --family generic --lossless-only --dry-run
expect 0 "" \
  "$ingot" convert "$families/glm4_moe_fp8_block" "$work/glm-f32" --to f32 --family generic --lossless-only

# Beside other levels it adds its own; a source that is deleted cannot be compared with.
expect 0 "" "$ingot" convert "$families/qwen3_5_moe" "$work/single" --experts separate --verify structure --lossless-only
expect 2 "--consume-source" \
  "$ingot" convert "$families/deepseek_v4" "$work/none" --to bf16 --family generic --lossless-only --consume-source
finish
