#!/usr/bin/env bash
# Uses of `ingot verify` and `convert --verify`: verdicts, exit codes, reports, gates, and wrong input.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
golden=$(dirname "$0")/../golden/arch/deepseek_v3

# Equal but for the model card, which names the gates, and its entry in the manifest.
same_model() {
  diff -r --exclude ingot.verify.json --exclude README.md --exclude ingot.json "$1" "$2" || return
  python3 - "$1" "$2" <<'EOF'
import json, sys
def manifest(directory):
    read = json.load(open(directory + "/ingot.json"))
    cards = [f for f in read["side_files"] if f["name"] == "README.md"]
    assert len(cards) == 1, cards
    read["side_files"].remove(cards[0])
    return read
sys.exit(manifest(sys.argv[1]) != manifest(sys.argv[2]))
EOF
}

"$ingot" convert "$example" "$work/int8" --to int8 --progress never >/dev/null 2>&1 || fail "int8"
"$ingot" convert "$example" "$work/ranks" --to nvfp4 --tp 2 --ep 4 --tp-fit retile --progress never >/dev/null 2>&1 || fail "ranks"
printf 'What is 2 + 2?\n\nTell me a story about a fox.\n' >"$work/prompts"

# Verdict first; every report; slices in another scheme at all levels but drafts (json_documents.py has those).
expect 0 "PASS" "$ingot" verify "$example" "$work/int8"
expect 0 "int8-channel" "$ingot" verify "$example" "$work/int8" --levels weights
expect 0 "layer" "$ingot" verify "$example" "$work/ranks" --levels structure,weights,layers,greedy --prompts "$work/prompts" --tokens 4 \
  --progress never --html "$work/report.html" --markdown "$work/report.md"
# A screen, and more than that when it is asked for (below).
[ "$(cat "$work/stdout" "$work/stderr" | wc -l)" -le 40 ] || fail "a report is longer than a screen"
grep -q "<svg" "$work/report.html" || fail "no picture in the page"
grep -q "Verification: PASS" "$work/report.md" || fail "no verdict in the summary"
"$ingot" verify "$example" "$work/int8" --json >"$work/json" 2>/dev/null || fail "--json"
holds "d['schema'] == 2 and d['passed'] is True"
grep -q "$work" "$work/json" && fail "a path in the document"
"$ingot" verify "$example" "$work/int8" --json --threads 1 2>/dev/null | cmp -s - "$work/json" || fail "two threads, another report"

lines() { "$ingot" "$@" --progress never 2>&1 </dev/null | wc -l; }
[ "$(lines verify "$example" "$work/int8" --worst 150)" -gt 150 ] || fail "--worst 150 prints fewer tensors"
[ "$(lines convert "$example" "$work/none" --to int8 --ep 16 --pp 5 --dry-run)" -le 40 ] || fail "a plan is longer than a screen"
[ "$(lines convert "$example" "$work/none" --to int8 --ep 16 --pp 5 --dry-run --worst 0)" -gt 80 ] || fail "--worst 0 leaves ranks out"
[ "$(lines convert "$example" "$work/worst" --to nvfp4 --worst 30)" -gt 40 ] || fail "convert --worst 30 prints fewer tensors"

# Below a gate: exit code 1, and what it was.
expect 1 "weights.cosine" "$ingot" verify "$example" "$work/int8" --require 'weights.cosine>=0.999999'
printf 'weights.cosine: {int8-channel: ">= 0.999999"}\n' >"$work/strict.yaml"
expect 1 "strict.yaml" "$ingot" verify "$example" "$work/int8" --thresholds "$work/strict.yaml"
cp -r "$work/int8" "$work/bad"
python3 "$(dirname "$0")/../../scripts/scale_tensor.py" "$work/bad" model.layers.3.mlp.experts.7.up_proj.weight_scale 1.01 >/dev/null || fail "edit"
expect 1 "model.layers.3.mlp.experts.7.up_proj.weight" "$ingot" verify "$example" "$work/bad"
expect 1 "FAIL" "$ingot" verify "$example" "$work/bad" --levels weights
truncate -s -100 "$work/bad/model-00001-of-00002.safetensors"
expect 2 "$work/bad/model-00001-of-00002.safetensors: " "$ingot" verify "$example" "$work/bad"
expect 2 "$work/bad/model-00001-of-00002.safetensors: " "$ingot" verify "$work/bad" "$work/int8"

# Text, and activations that transformers recorded.
expect 0 "perplexity" "$ingot" verify "$work/int8" --text "$work/prompts"
grep -q "one document gives no interval" "$work/stdout" || fail "an interval of one document"
python3 -c 'import json,sys; json.dump({"docs": json.load(open(sys.argv[1]))["docs"][:4]}, open(sys.argv[2], "w"))' \
  "$(dirname "$0")/../golden/tiny-v32/val_docs.json" "$work/text.json" || fail "text"
for threads in 1 2; do
  "$ingot" verify "$example" "$work/int8" --levels structure --text "$work/text.json" --threads $threads \
    --require 'text.kl<=1e-4' --json >"$work/text$threads" 2>/dev/null || fail "--text with $threads threads"
done
cmp -s "$work/text1" "$work/text2" || fail "threads change intervals"
facts='t = d.get("text")'
holds "t['draws'] == 2000 and 0 < t['kl']['interval'][0] < t['kl']['mean'] < t['kl']['interval'][1] < 1e-4" text1
holds "all(x['perplexity_interval'][0] < x['perplexity'] < x['perplexity_interval'][1] for x in (t['source'], t['output']))" text1
holds "t['log_ratio']['interval'][0] <= t['log_ratio']['mean'] <= t['log_ratio']['interval'][1]" text1
expect 1 "text.kl" "$ingot" verify "$example" "$work/int8" --levels structure --text "$work/text.json" --require 'text.kl<=1e-9'
grep -q "bootstrap over documents, 2,000 draws" "$work/stdout" || fail "intervals do not say how they were drawn"
expect 0 "PASS" "$ingot" verify "$golden/checkpoint" --reference "$golden/golden.safetensors" --profile f32 --require 'layers.cosine>=0.999999'

# Before anything is published.
expect 0 "PASS" "$ingot" convert "$example" "$work/good" --to int8 --verify structure,weights --progress never
holds "d['schema'] == 2 and d['output']['name'] == 'good'" good/ingot.verify.json
grep -q verify.json "$work/good/ingot.json" && fail "the manifest lists the report"
expect 0 "0 errors" "$ingot" check "$work/good"
expect 0 "PASS" "$ingot" verify "$example" "$work/good"
same_model "$work/good" "$work/int8" || fail "--verify changed the output"
expect 1 "nothing was published" "$ingot" convert "$example" "$work/none" --to int8 --verify weights --require 'weights.sqnr>=60' --progress never
expect_unpublished "$work/none"
expect 2 "--resume" "$ingot" convert "$example" "$work/none" --to int8 --progress never
# The gates that it was begun with hold, and one of the same metric takes its place.
resumed() { judge "$1" "$2" "$ingot" convert "$example" "$work/none" --to int8 --progress never --resume "${@:3}"; }
resumed 1 "note: with the gates that it was begun with: --verify weights --require 'weights.sqnr>=60'" --verify weights
resumed 1 "nothing was published" --verify structure
resumed 1 "nothing was published" --verify weights --require 'weights.cosine>=0.9'
resumed 0 "PASS" --verify weights --require 'weights.sqnr>=20'
same_model "$work/none" "$work/int8" || fail "resumed after a refusal"

# Wrong words and files: exit code 2, and what would be right.
expect 2 "structure, weights, layers, greedy" "$ingot" verify "$example" "$work/int8" --levels deep
expect 2 "is none of structure.errors" "$ingot" verify "$example" "$work/int8" --require 'weights.cosin>=1'
expect 2 "strict.yml" "$ingot" verify "$example" "$work/int8" --thresholds "$work/strict.yml"
expect 2 "--text" "$ingot" verify "$example"
expect 2 "absent" "$ingot" verify "$example" "$work/absent"
expect 2 "absent" "$ingot" verify "$work/absent" "$work/int8"
expect 2 "cannot be written" "$ingot" verify "$example" "$work/int8" --html "$work/no/such/report.html"
expect 2 "would be enough" "$ingot" verify "$example" "$work/int8" --levels layers --mem-limit 1MB
expect 2 "--verify" "$ingot" convert "$example" "$work/never" --to int8 --require 'weights.cosine>=1'
expect 2 "--consume-source" "$ingot" convert "$example" "$work/never" --to int8 --verify weights --consume-source
expect 2 "no forward pass" "$ingot" convert "$example" "$work/never" --to bf16 --family generic --verify layers
[ ! -e "$work/never" ] || fail "a refused conversion wrote something"
finish
