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
for words in "engines vllm nvfp4" "engines vllm-ascend" "rules ct.ignore" "rules int4" "loads fp8" "options threads" "gpus h100"; do
  # shellcheck disable=SC2086
  "$ingot" list $words --json >"$work/json" || fail "list $words"
  holds "0 < len(d['${words%% *}']) < 60"
done
"$ingot" list engines vllm nvfp4 --json >"$work/json"
holds "all(row['engine'] == 'vLLM 0.33' and row['scheme'] == 'nvfp4' for row in d['engines'])"
# The facts of an engine that a version changed, and no others.
expect 0 "reader.modelopt.flat-excludes" "$ingot" list engines --since vllm:0.32
"$ingot" list engines --since vllm:0.32 --json >"$work/json"
holds "{r['id']: (r['was'], r['is']) for r in d['changes']}['load.modelopt.fp8-tensor.static'] == ('generated text on a GPU', 'read in its source')"
holds "all((r['was'] == '') == (r['change'] == 'new') and r['engine'] == 'vLLM 0.33' and r['since'] == 'vLLM 0.32' for r in d['changes'])"
"$ingot" list engines family.beam --since vllm:0.32 --json >"$work/json"
holds "[r['id'] for r in d['changes']] == ['family.beam']"
expect 0 "nothing changed since sglang:0.5.23" "$ingot" list engines --since sglang:0.5.23
expect 2 "not version '0.1'" "$ingot" list engines --since vllm:0.1
expect 2 "list engines" "$ingot" list loads --since vllm:0.32
"$ingot" list rules ct.ignore --json >"$work/json"
holds "[row['name'] for row in d['rules']] == ['ct.ignore']"
expect 2 "no row of engines has 'nvfp5' (ingot list engines); did you mean nvfp4?" "$ingot" list engines vllm nvfp5
expect 2 "a second word" "$ingot" list roles "$example" nvfp4
expect 0 "every plain module that engines build" "$ingot" help ct.ignore
expect 2 "did you mean ct.ignore?" "$ingot" help ct.ignroe
expect 0 "match: role:mlp" "$ingot" list recipes nvfp4-attention-fp8 --yaml
expect 2 "there is no recipe 'nvfp4-atention-fp8'; did you mean nvfp4-attention-fp8?" "$ingot" list recipes nvfp4-atention-fp8 --yaml

# A recipe of ingot, by its name.
expect 0 "into dialect compressed-tensors" "$ingot" convert "$example" "$work/none" --recipe nvfp4-attention-fp8 --dry-run
expect 2 "did you mean nvfp4-attention-fp8?" "$ingot" convert "$example" "$work/none" --recipe nvfp4-atention-fp8

# Words of other programs are refused with the whole command in ours, which is accepted.
meant() {  # meant WANTED WORD...
  local wanted=$1 got
  shift
  "$ingot" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
  [ $? -eq 2 ] || fail "$* is not refused"
  got=$(sed -n '2s/^  ingot //p' "$work/stderr")
  [ "$got" = "$wanted" ] || fail "'$got' instead of '$wanted' for: $*"
}
meant "convert IN OUT --to bf16" convert IN OUT --to bfloat16
meant "convert IN OUT --to f16" convert IN OUT --to=float16
meant "convert IN OUT --to fp8" convert IN OUT --to fp8_e4m3
meant "convert IN OUT --to nvfp4" convert IN OUT --to NVFP4A16
meant "convert IN OUT --to int8" convert IN OUT --to q8_0
meant "convert IN OUT --to int4 --dry-run" convert IN OUT --to 4bit --dry-run
meant "convert IN OUT --to fp8-channel" convert IN OUT --to fp8_channel
meant "convert IN OUT --rule role:attention=bf16 --to int8" convert IN OUT --rule attention=bf16 --to int8
meant "convert IN OUT --rule 'layers:0 & role:mlp=bf16'" convert IN OUT --rule 'layers:0 & role:mlp=bfloat16'
meant "convert IN OUT --to int8 --rule '*lm_head*=keep' --rule 're:.*self_attn.*=keep'" \
  convert IN OUT --to int8 --ignore lm_head --ignore 're:.*self_attn.*'
meant "inspect IN --gpu h100 --count 8" inspect IN --gpu 8xh100
meant "inspect IN --gpu h100 --count 8" inspect IN --gpu h100 --gpus 8
meant "inspect IN --gpu h100 --count 8" inspect IN --gpus 8
meant "check IN --engine vllm" check IN --for vllm
meant "synth OUT --family qwen3 --scheme bf16" synth OUT --family qwen3 --scheme bfloat16
echo 'to: bfloat16' >"$work/other.yaml"
expect 2 "that is bf16" "$ingot" convert "$example" "$work/none" --recipe "$work/other.yaml"

# -h has ten options at most, and those of its table; --help has all.
for command in inspect check calibrate balance prune convert compose join merge repair verify compare attest rederive \
  delta generate synth list; do
  "$ingot" $command --help | grep -oE '^  (-q,)?--[a-z0-9-]+' | sort -u >"$work/all"
  "$ingot" $command -h | grep -oE '^  (-q,)?--[a-z0-9-]+' | sort -u >"$work/main"
  n=$(wc -l <"$work/main")
  [ "$n" -ge 3 ] && [ "$n" -le 10 ] || fail "$command -h has $n options"
  [ -z "$(comm -13 "$work/all" "$work/main")" ] || fail "$command -h has options that --help has not"
done
expect 0 "more options, and all examples: ingot convert --help" "$ingot" convert -h
for option in --to --for --rule --recipe --dry-run --resume --tp --verify; do expect 0 "$option " "$ingot" convert -h; done

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
