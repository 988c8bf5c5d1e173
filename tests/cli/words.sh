#!/usr/bin/env bash
# The words of the program: help, version, unknown words, JSON on stdout, nothing else there.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

expect 0 "convert" "$ingot" --help
expect 0 "Examples" "$ingot" convert --help
# One command in a call: the name of another one is a word like any other.
expect 2 "unexpected: list" "$ingot" check "$example" list
for command in convert inspect check list synth; do expect 0 "Usage" "$ingot" $command --help; done
expect 0 "ingot 0." "$ingot" --version
for row in commit compiler "SIMD targets"; do
  grep -qE "^  $row +[^ ]" <("$ingot" --version) || fail "--version lacks $row"
done
for library in nlohmann TBB zstd Highway OpenSSL xxHash yaml-cpp CLI11 fmt spdlog Oniguruma PCRE2; do
  expect 0 "$library" "$ingot" --version
done
expect 0 "Usage: ingot" "$ingot"
expect 0 "ingot 0." "$ingot" -V
expect 0 "" "$ingot" inspect "$example" -q
expect 2 "did you mean --version?" "$ingot" --verison
expect 2 "PEFT" "$ingot" convert "$example" "$work/none" --lora x
expect 2 "--tp: '-1' is no whole number" "$ingot" convert "$example" "$work/none" --tp -1
expect 2 "--to is there 2 times" "$ingot" convert "$example" "$work/none" --to int8 --to fp8
judge 2 "--to needs a value" "$ingot" convert "$example" "$work/none" --to
expect 2 "--sample: 2 is not from 0 to 1" "$ingot" verify "$example" "$example" --sample 2
expect 2 "convert" "$ingot" covnert
expect 2 "--nonsense" "$ingot" convert a b --nonsense
expect 2 "" "$ingot" convert
for table in schemes dialects families layouts rules; do expect 0 "" "$ingot" list $table; done
expect 0 "fp8-block" "$ingot" list schemes
expect 0 "deepseek_v32" "$ingot" list families
expect 2 "" "$ingot" list nonsense
# Nothing in a cell is markup, or another cell.
for table in schemes dialects families layouts recipes engines metrics rules; do
  "$ingot" list $table --markdown >"$work/table" || fail "list $table --markdown"
  [ "$(sed 's/\\|//g' "$work/table" | awk -F'|' '{ print NF }' | sort -u | wc -l)" -eq 1 ] || fail "list $table --markdown has rows of other widths"
  sed 's/`[^`]*`//g; s/\\.//g' "$work/table" | grep -q '[_*<]' && fail "list $table --markdown has markup: $(sed 's/`[^`]*`//g; s/\\.//g' "$work/table" | grep -m1 '[_*<]')"
done

for arguments in "inspect $example" "check $example" "list schemes" "convert $example $work/none --to bf16 --dry-run"; do
  # shellcheck disable=SC2086
  "$ingot" $arguments --json >"$work/json" 2>/dev/null || fail "exit status of $arguments --json"
  holds "d['schema'] == 2"
done
[ ! -e "$work/none" ] || fail "a dry run wrote something"

expect 0 "cast" "$ingot" convert "$example" "$work/none" --to bf16 --explain model.layers.3.mlp.experts.7.up_proj.weight
expect 0 "copy" "$ingot" convert "$example" "$work/none" --to bf16 --explain model.norm.weight
expect 2 "no tensor" "$ingot" convert "$example" "$work/none" --explain nothing.weight

# An error is one document too when JSON was asked for.
"$ingot" inspect "$work/absent" --json >"$work/json" 2>/dev/null && fail "inspect of nothing succeeded"
holds "d['error']"

# A closed pipe is no crash.
"$ingot" inspect "$example" --tensors 2>"$work/stderr" | head -1 >/dev/null
[ "${PIPESTATUS[0]}" -le 2 ] || [ "${PIPESTATUS[0]}" -eq 141 ] || fail "a closed pipe gave ${PIPESTATUS[0]}"
finish
