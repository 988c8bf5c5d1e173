#!/usr/bin/env bash
# Installs the packages, builds ingot, turns the bundled FP8 checkpoint into BF16, INT8, NVFP4 and MXFP4, cuts it for
# ranks and back, verifies the result and lets it write, showing what happens on at most 150 lines. Each command is
# printed as it can be copied. Writes only below build/; the outputs stay in build/demo until the next demo.
set -euo pipefail
cd "$(dirname "$0")/.."

bold="" plain=""
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

# shown COMMAND...: the words as a shell reads them again.
shown() {
  local word
  for word in "$@"; do
    case $word in
      "" | *[!a-zA-Z0-9_./:=,-]*) printf " '%s'" "${word//\'/\'\\\'\'}" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
}

# run LINES COMMAND...: the command, and at most so many lines of what it prints; all of it where the command fails.
run() {
  local most=$1 status=0 n
  shift
  echo "\$$(shown "$@")"
  "$@" >"$log" 2>&1 || status=$?
  if [ "$status" -gt 1 ]; then cat "$log"; return "$status"; fi
  n=$(wc -l <"$log")
  if [ "$n" -le "$most" ]; then cat "$log"; else head -n "$most" "$log" && echo "  ... ($((n - most)) more lines)"; fi
  return "$status"
}

# compile TARGET: one line for every tenth of the build; the rest is in build/demo.log.
compile() {
  mkdir -p build
  local status=0
  scripts/build.sh release "$1" 2>&1 | tee build/demo.log | awk '
    match($0, /^\[[0-9]+\/[0-9]+\]/) {
      split(substr($0, 2, RLENGTH - 2), of, "/"); tenth = int(10 * of[1] / of[2])
      if (tenth > shown) { shown = tenth; printf "  %d of %d steps\n", of[1], of[2]; fflush() }
    }' || status=$?
  if [ "$status" -ne 0 ]; then tail -40 build/demo.log; return "$status"; fi
}

# is_of_tree PROGRAM: whether it was built of this version and commit, and no file was changed then or since.
is_of_tree() {
  local version commit
  version=$(sed -n 's/^project(ingot VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
  commit=$(git rev-parse --short=12 HEAD 2>/dev/null) && git diff --quiet HEAD 2>/dev/null || return 1
  "$1" --version 2>/dev/null | awk -v version="ingot $version" -v commit="$commit" '
    NR == 1 { same = $0 == version }
    $1 == "commit" { found = same && $2 == commit && NF == 2 }
    END { exit !found }'
}

program=""
for candidate in "$(command -v ingot || true)" "$PWD/build/release/cli/ingot"; do
  if [ -z "$program" ] && [ -x "$candidate" ] && is_of_tree "$candidate"; then program=$candidate; fi
done

if [ -n "$program" ]; then
  echo "This converts, cuts, merges, verifies and runs the small model of examples/: about half a minute."
  say "1. The program is $program, built of this commit"
  scripts/deps.sh --demo
else
  echo "This installs missing packages, compiles ingot (7 min on two cores, only the first time),"
  echo "then converts, cuts, merges, verifies and runs the small model of examples/: about half a minute."
  say "1. Packages and build"
  scripts/deps.sh
  compile ingot_cli
  program=$PWD/build/release/cli/ingot
fi
export PATH=$(dirname "$program"):$PATH
echo "To repeat a command: cd $PWD; export PATH=$(dirname "$program"):\$PATH"
work=build/demo
rm -rf "$work"
mkdir -p "$work"
log=$(mktemp "${TMPDIR:-/tmp}/ingot-demo-XXXXXX")
trap 'rm -f "$log"' EXIT
source=examples/tiny-v32
output=$work/tiny-v32-bf16
weight=model.layers.1.self_attn.q_a_proj.weight

say "2. The source: a small trained DeepSeek-V3.2 in FP8 blocks of 128x128 with a scale each"
run 7 ingot inspect "$source"

say "3. The plan: everything is decided from headers, before a byte is written"
run 7 ingot convert "$source" "$output" --to bf16 --dry-run
run 4 ingot convert "$source" "$output" --to bf16 --explain "$weight"

say "4. The conversion: every FP8 value times its scale, one multiplication, one rounding"
run 6 ingot convert "$source" "$output" --to bf16

say "5. Check: structure, rules of loaders, and every tensor against its hash in the manifest"
run 2 ingot check "$output"

say "6. Proof: every tensor against the SHA-256 that an independent program computed"
run 2 python3 scripts/compare_tensors.py "$output" tests/golden/tiny-v32/cast_bf16.sha256.json

say "7. The way back: BF16 to FP8 blocks, on the grid that the manifest remembers; every value comes back"
run 1 ingot convert "$output" "$work/fp8" --to fp8

say "8. INT8 for vLLM and SGLang, NVFP4, MXFP4, and INT8 for Ascend, each straight from FP8"
run 1 ingot convert "$source" "$work/int8" --to int8
run 1 ingot convert "$source" "$work/nvfp4" --to nvfp4
run 1 ingot convert "$source" "$work/mxfp4" --to mxfp4
run 1 ingot convert "$source" "$work/ascend" --to int8 --dialect modelslim

say "9. For four ranks: FP8 to NVFP4 at TP 2 x EP 4 in one pass; blocks that a cut splits become smaller"
run 4 ingot convert "$source" "$work/ranks" --to nvfp4 --tp 2 --ep 4 --tp-fit retile
run 2 ingot check "$work/ranks/rank-00003-of-00004"

say "10. Together the slices are the model again, to the last bit"
run 3 ingot merge "$work/ranks" "$work/merged"
for file in "$work"/nvfp4/*.safetensors; do
  run 1 cmp "$file" "$work/merged/$(basename "$file")"
done

say "11. Text from exactly these files: the FP8 checkpoint as released, computed in FP32"
for prompt in "Tell me a story about a fox and a kite." "What is 2 + 2?" "中国的首都是哪里？"; do
  run 4 ingot generate "$source" --prompt "$prompt" --greedy --profile f32
done

say "12. Are the slices still that model, and may they ship? Every weight, every layer, and the texts of both"
run 12 ingot verify "$source" "$work/ranks" --levels all --html "$work/verify-report.html"
echo "The page is $work/verify-report.html: open it in a browser."

say "13. A fault that no checksum made afterwards can find: one expert's scales are 1% off. It is found, and named"
run 0 cp -r "$work/int8" "$work/fault"
run 2 python3 scripts/scale_tensor.py "$work/fault" model.layers.3.mlp.experts.7.up_proj.weight_scale 1.01
run 5 ingot verify "$source" "$work/fault" --levels weights || echo "exit code $?"

say "14. As in a cluster: four processes of MPI, each with only its own slice, answer like the whole model"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run 3 mpirun --oversubscribe --bind-to none -n 4 ingot generate "$work/ranks" --prompt "What is 2 + 2?" --greedy

say "Done. The outputs are in $work; make your own with"
echo "  $program convert IN OUT --to bf16    # or fp8, int8, nvfp4, mxfp4, ...: ingot list schemes"
