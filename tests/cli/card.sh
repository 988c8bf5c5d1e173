#!/usr/bin/env bash
# README.md of an output is a model card for the hub, the same however the output was made, and licences go with it.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
cp -r "$example" "$work/source"
printf -- '---\nlicense: mit\nbase_model: org/base\n---\n# Tiny\n' > "$work/source/README.md"
for name in LICENSE licence-model.txt NOTICE COPYING USE_POLICY.md; do echo "$name" > "$work/source/$name"; done

expect 0 "" "$ingot" convert "$work/source" "$work/whole" --to int8 --progress never
grep -qx "base_model: org/base" "$work/whole/README.md" || fail "no base_model"
grep -qx "license: mit" "$work/whole/README.md" || fail "no license"
grep -qx "ingot convert IN OUT --to int8-channel --mtp convert" "$work/whole/README.md" || fail "no command: $(cat "$work/whole/README.md")"
grep -q "^vllm serve DIR" "$work/whole/README.md" || fail "no command that serves it"
grep -qF "$work" "$work/whole/README.md" && fail "a path of this host"
expect 0 " 0 errors" "$ingot" check "$work/whole"
expect 0 "PASS" "$ingot" verify "$work/source" "$work/whole" --levels structure --progress never
grep -q README "$work/stdout" && fail "the card is a finding: $(grep README "$work/stdout")"
echo more >> "$work/whole/README.md"
expect 2 "README.md" "$ingot" check "$work/whole"
rm -r "$work/whole"
"$ingot" convert "$work/source" "$work/whole" --to int8 --progress never >/dev/null 2>&1 || fail "convert"

# The source's name on the hub, where its place does not tell it.
expect 0 "" "$ingot" convert "$work/source" "$work/named" --to int8 --base-model Qwen/Qwen3-8B --progress never
for line in "base_model: Qwen/Qwen3-8B" "base_model_relation: quantized" \
  "ingot convert Qwen/Qwen3-8B OUT --to int8-channel --mtp convert --base-model Qwen/Qwen3-8B"; do
  grep -qxF -- "$line" "$work/named/README.md" || fail "no '$line' in the card: $(head -30 "$work/named/README.md")"
done
grep -q "^Made from .*https://huggingface.co/Qwen/Qwen3-8B) by ingot" "$work/named/README.md" || fail "not made from it"
expect 2 "is no name of a model on the hub" "$ingot" convert "$work/source" "$work/none" --to int8 --base-model Qwen3-8B
expect 2 "--base-model is for the model card" "$ingot" convert "$work/source" "$work/none" --base-model a/b

# The same bytes from parts and by other threads; a gate adds itself.
for part in 0 1; do
  expect 0 "" "$ingot" convert "$work/source" "$work/parts" --to int8 --part $part/2 --progress never
done
expect 0 "" "$ingot" join "$work/parts" --progress never
expect 0 "" "$ingot" convert "$work/source" "$work/one" --to int8 --threads 1 --progress never
for output in parts one; do
  cmp "$work/whole/README.md" "$work/$output/README.md" || fail "the card of $output differs"
done
expect 0 "" "$ingot" convert "$work/source" "$work/gated" --to int8 --verify structure --require 'structure.errors<=0' --progress never
grep -qxF -- "--verify structure --require 'structure.errors<=0'" "$work/gated/README.md" || fail "no gates in the card"

# Slices have it and every licence, each once; put together they are the output that was never cut.
expect 0 "" "$ingot" convert "$work/source" "$work/ranks" --to int8 --tp 2 --progress never
for name in README.md LICENSE licence-model.txt NOTICE COPYING USE_POLICY.md; do
  for rank in "$work"/ranks/rank-*; do
    cmp "$work/whole/$name" "$rank/$name" || fail "$rank/$name"
  done
done
expect 0 "" "$ingot" merge "$work/ranks" "$work/merged" --progress never
cmp "$work/whole/README.md" "$work/merged/README.md" || fail "the card of merged slices differs"

# A copy keeps the source's file, whole, cut and merged.
expect 0 "" "$ingot" convert "$work/source" "$work/cut" --ep 2 --progress never
expect 0 "" "$ingot" merge "$work/cut" "$work/back" --progress never
expect 0 "" "$ingot" repair "$work/source" "$work/repaired" --progress never
for output in cut/rank-00000-of-00002 back repaired; do
  cmp "$work/source/README.md" "$work/$output/README.md" || fail "README.md of $output differs"
done

# Front matter that is not understood is kept as text, with a warning.
printf -- '---\nlicense: [mit\n---\n# Tiny\n' > "$work/source/README.md"
expect 0 "its front matter is not understood" "$ingot" convert "$work/source" "$work/odd" --to int8 --progress never
grep -qx "license: \[mit" "$work/odd/README.md" || fail "the text is lost"
head -2 "$work/odd/README.md" | grep -q license && fail "a key was taken"
finish
