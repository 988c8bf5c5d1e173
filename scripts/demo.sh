#!/usr/bin/env bash
# Installs the packages, builds ingot, turns the bundled FP8 checkpoint into BF16, INT8, NVFP4 and MXFP4, cuts it for ranks and
# back, verifies the result and lets it write, showing what happens.
# Writes only below build/ and to a temporary folder, which it removes.
set -euo pipefail
cd "$(dirname "$0")/.."

bold="" plain=""
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
run() {
  echo "\$ $*"
  "$@"
}

say "1. Packages (nothing happens if they are here) and build"
scripts/deps.sh
scripts/build.sh release ingot_cli
PATH=$PWD/build/release/cli:$PATH
work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-demo-XXXXXX")
trap 'rm -rf "$work"' EXIT
source=examples/tiny-v32
output=$work/tiny-v32-bf16

say "2. The source: a small DeepSeek-V3.2, trained, as FP8 blocks of 128x128 with a scale each"
run ingot inspect "$source"

say "3. The plan: everything is decided from headers, before a byte is written"
run ingot convert "$source" "$output" --to bf16 --dry-run

say "4. What becomes of one weight, and of one that nobody asked to change"
run ingot convert "$source" "$output" --to bf16 --explain model.layers.1.self_attn.q_a_proj.weight
run ingot convert "$source" "$output" --to bf16 --explain model.norm.weight

say "5. The conversion: every FP8 code times its scale, one multiplication, one rounding"
run ingot convert "$source" "$output" --to bf16

say "6. The same weight before and after"
run ingot inspect "$source" model.layers.1.self_attn.q_a_proj.weight
run ingot inspect "$output" model.layers.1.self_attn.q_a_proj.weight

say "7. The result: config.json no longer speaks of FP8, the manifest says how it was made"
run ls -l "$output"
run head -c 600 "$output/ingot.json"
echo " ..."

say "8. Check: structure, what the loaders demand, and every tensor against its hash in the manifest"
run ingot check "$output"

say "9. Proof: every tensor against the SHA-256 that an independent program computed"
run python3 scripts/compare_tensors.py "$output" tests/golden/tiny-v32/cast_bf16.sha256.json

say "10. The way back: BF16 to FP8 blocks, on the grid that the manifest remembers; every value comes back"
run ingot convert "$output" "$work/fp8" --to fp8

say "11. INT8 for vLLM and SGLang, straight from FP8, with what it costs per kind of tensor"
run ingot convert "$source" "$work/int8" --to int8
run ingot check "$work/int8"

say "12. NVFP4: experts and MLP; attention stays FP8, the MTP layer becomes BF16"
run ingot convert "$source" "$work/nvfp4" --to nvfp4
run ingot check "$work/nvfp4"

say "13. MXFP4, and INT8 for Ascend"
run ingot convert "$source" "$work/mxfp4" --to mxfp4
run ingot convert "$source" "$work/ascend" --to int8 --dialect modelslim
run head -c 400 "$work/ascend/quant_model_description.json"
echo " ..."

say "14. For four ranks: FP8 to NVFP4 at TP 2 x EP 4 in one pass. Attention stays FP8, and heads are cut inside its blocks:"
run ingot convert "$source" "$work/ranks" --to nvfp4 --tp 2 --ep 4 --dry-run || true
echo "... so those become smaller, each with its parent's scale"
run ingot convert "$source" "$work/ranks" --to nvfp4 --tp 2 --ep 4 --tp-fit retile
run ls "$work/ranks" "$work/ranks/rank-00003-of-00004"

say "15. Each rank's directory stands on its own; together they are the model again, to the last bit"
run ingot check "$work/ranks/rank-00003-of-00004"
run ingot merge "$work/ranks" "$work/merged"
run ingot check "$work/merged"
for file in "$work"/nvfp4/*.safetensors; do
  run cmp "$file" "$work/merged/$(basename "$file")"
done

say "16. What it was trained to do, from exactly these files: the FP8 checkpoint as released, computed in FP32"
for prompt in "Tell me a story about a fox and a kite." "What is 2 + 2?" "中国的首都是哪里？"; do
  run ingot generate "$source" --prompt "$prompt" --greedy --profile f32
done

say "17. Are the slices still that model, and may they ship? Every weight, every layer, and what both write"
run ingot verify "$source" "$work/ranks" --levels all --html build/verify-report.html
echo "The page is build/verify-report.html: open it in a browser."

say "18. A fault that a checksum made afterwards would bless: one expert's scales, 1% off. It is found, and named"
cp -r "$work/int8" "$work/fault"
run python3 scripts/scale_tensor.py "$work/fault" model.layers.3.mlp.experts.7.up_proj.weight_scale 1.01
run ingot verify "$source" "$work/fault" --levels weights || echo "exit code $?"

say "19. Text from the slices of four ranks, experts in NVFP4, multiplied as the target hardware would"
run ingot generate "$work/ranks" --prompt "What is the capital of Norway?" --greedy

say "Done. The outputs were in $work and are removed now; make your own with"
echo "  build/release/cli/ingot convert IN OUT --to bf16    # or fp8, int8, nvfp4, mxfp4, ...: ingot list schemes"
