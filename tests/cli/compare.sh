#!/usr/bin/env bash
# Uses of `ingot compare`: which of two outputs is closer to the source, without a verdict.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
golden=$(dirname "$0")/../golden/tiny-v32

facts='f = {x["figure"]: x for x in d.get("figures", [])}; r = {x["role"]: x for x in d.get("by_role", [])}'

for to in int8 nvfp4; do
  "$ingot" convert "$example" "$work/$to" --to $to --progress never >/dev/null 2>&1 || fail "$to"
done
"$ingot" convert "$example" "$work/ranks" --to nvfp4 --tp 2 --ep 4 --tp-fit retile --progress never >/dev/null 2>&1 || fail "ranks"
python3 -c 'import json,sys; json.dump({"docs": [text[:300] for text in json.load(open(sys.argv[1]))["docs"][:3]]}, open(sys.argv[2], "w"))' \
  "$golden/val_docs.json" "$work/text.json" || fail "text"

# Both against the source: 8 bits are closer where they are 8 bits, in values and in outputs.
expect 0 "the outputs of A are closer" "$ingot" compare "$work/int8" "$work/nvfp4" --reference "$example" \
  --levels weights,layers --progress never
[ "$(wc -l <"$work/stdout")" -le 40 ] || fail "a comparison is longer than a screen"
"$ingot" compare "$work/int8" "$work/nvfp4" --reference "$example" --levels structure,weights,layers,greedy --tokens 4 --text "$work/text.json" \
  --json --html "$work/page.html" --markdown "$work/card.md" >"$work/all" 2>/dev/null || fail "--json"
for word in ">In short<" "<svg" ">reference<" "kdb2"; do grep -q -- "$word" "$work/page.html" || fail "no $word in the page"; done
grep -q "outputs.kl" "$work/card.md" || fail "no figures in the card"
holds "d['schema'] == 2 and d['command'] == 'compare' and 'passed' not in d" all
holds "f['outputs.kl']['closer'] == 'A' and f['outputs.kl']['interval'][0] > 0 and f['outputs.kl']['clusters'] == 9" all
holds "f['text.nll']['clusters'] == 3 and f['text.nll']['closer'] is None" all
holds "f['weights.changed']['closer'] == 'equal'" all
holds "r['expert-up']['a_closer'] == 64 and r['expert-up']['difference_db'] < -15" all
holds "r['o-proj']['b_closer'] > 0 and r['o-proj']['b']['relative_error'] == 0" all
# Tokens, documents and schemes add up to what is said of the whole.
holds "all(abs(sum(x['interval']) / 2 - x['difference']) < 1e-9 for x in f.values() if x['interval'] and x['drawn'] == 'prompts')" all
holds "f['text.kl']['interval'][0] <= f['text.kl']['difference'] <= f['text.kl']['interval'][1] and f['text.kl']['closer'] == 'A'" all
holds "all(abs(f['text.kl'][s] - d[s]['measured']['text']['kl']['mean']) < 1e-15 for s in 'ab')" all
holds "abs(f['text.nll']['a'] * f['text.nll']['tokens'] - d['a']['measured']['text']['output']['nll']) < 1e-6" all
for side in a b; do
  holds "sum(c['tensors'] for c in d['$side']['measured']['changes']) == d['reference']['tensors']" all
  holds "sum(c['source_bytes'] for c in d['$side']['measured']['changes']) == d['reference']['bytes']" all
  holds "sum(c['output_bytes'] for c in d['$side']['measured']['changes']) == d['$side']['bytes']" all
done
holds "[c['roles'] for c in d['b']['measured']['changes'] if c['to'] == 'nvfp4'][0][0].startswith('expert-')" all
grep -q "$work" "$work/all" && fail "a path in the document"

# The figures are those of verify; the two sides are measured alike, as the mirrored ones below say.
"$ingot" verify "$example" "$work/nvfp4" --levels structure,weights,layers,greedy --tokens 4 --text "$work/text.json" \
  --json >"$work/one" 2>/dev/null
python3 - "$work/all" "$work/one" <<'PY' || fail "other figures than verify's"
import json, sys
measured = json.load(open(sys.argv[1]))["b"]["measured"]
verified = json.load(open(sys.argv[2]))
measured["layers"].pop("first_bad_layer"), verified["layers"].pop("first_bad_layer")
assert all(fault in verified[kind] for kind in ("errors", "warnings") for fault in measured["structure"].pop(kind))
measured["structure"].pop("summary")
sys.exit(any(measured[level] != verified[level] for level in ("structure", "weights", "layers", "greedy", "text", "changes")))
PY

# Short prompts in place of the usual nine, where nothing is said of how much is lost.
printf '%s\n\n' "What is 2 + 2?" "Tell me a story about a fox and a kite." "中国的首都是哪里？" >"$work/prompts"

# The other way round everything is mirrored; slices of the same codes are equal; threads change nothing.
"$ingot" compare "$work/int8" "$work/nvfp4" --reference "$example" --levels weights --json >"$work/ab" 2>/dev/null
"$ingot" compare "$work/nvfp4" "$work/int8" --reference "$example" --levels weights --json --threads 1 >"$work/ba" 2>/dev/null
python3 - "$work/ab" "$work/ba" <<'PY' || fail "not mirrored"
import json, sys
ab, ba = ({f["figure"]: f for f in json.load(open(path))["figures"]} for path in sys.argv[1:])
for name, figure in ab.items():
    other = ba[name]
    assert (figure["a"], figure["b"], figure["a_closer"]) == (other["b"], other["a"], other["b_closer"]), name
PY
expect 0 "equally close" "$ingot" compare "$work/nvfp4" "$work/ranks" --reference "$example" --levels weights
"$ingot" compare "$work/nvfp4" "$work/ranks" --reference "$example" --levels layers,weights --prompts "$work/prompts" --json >"$work/same" 2>/dev/null
holds "all(x['a_closer'] == x['b_closer'] == 0 for x in d['figures'])" same

# A side without its MTP layer is compared in what both have; between the two that is a difference, and no error.
"$ingot" convert "$example" "$work/nomtp" --to int8 --mtp drop --progress never >/dev/null 2>&1 || fail "nomtp"
"$ingot" compare "$work/nomtp" "$work/nvfp4" --reference "$example" --levels structure,weights,layers \
  --prompts "$work/prompts" --json >"$work/mtp" 2>/dev/null || fail "nomtp"
holds "f['layers.cosine']['pairs'] == 5 and 'mtp.kl' not in f and f['weights.unmatched']['closer'] == 'B'" mtp
expect 0 "difference: " "$ingot" compare "$work/nomtp" "$work/nvfp4" --levels structure
grep -q "^error" "$work/stdout" && fail "an error between two outputs"

# Without a source: a difference, in which nothing is a fault; nothing between a checkpoint and itself.
expect 0 "a difference, not a quality" "$ingot" compare "$work/int8" "$work/nvfp4"
expect 0 "relative error 0;" "$ingot" compare "$work/nvfp4" "$work/nvfp4" --levels weights
"$ingot" compare "$work/nvfp4" "$work/nvfp4" --levels weights,layers --prompts "$work/prompts" --json >"$work/self" 2>/dev/null
holds "d['difference']['layers']['logits']['mean_kl'] == 0" self

"$ingot" compare "$work/int8" "$work/nvfp4" --reference "$example" --worst 150 --progress never >"$work/worst" 2>/dev/null
[ "$(wc -l <"$work/worst")" -gt 150 ] || fail "--worst 150 prints fewer tensors"

# Without --require compare is not a gate: it compares outputs that verify fails, but not those that cannot be read.
cp -r "$work/int8" "$work/bad"
python3 "$(dirname "$0")/../../scripts/scale_tensor.py" "$work/bad" model.layers.3.mlp.experts.7.up_proj.weight_scale 1.01 >/dev/null || fail "edit"
expect 0 "A is closer in 1 and B in 0" "$ingot" compare "$work/int8" "$work/bad" --reference "$example" --levels weights
truncate -s -100 "$work/bad/model-00001-of-00002.safetensors"
expect 2 "$work/bad/model-00001-of-00002.safetensors: " "$ingot" compare "$work/int8" "$work/bad" --reference "$example"
expect 2 "absent" "$ingot" compare "$work/int8" "$work/absent"
expect 2 "b is required" "$ingot" compare "$work/int8"
# A demand of A: no worse than B, by the bad end of the interval.
demand() { expect "$1" "$2" "$ingot" compare "$work/$3" "$work/$4" --reference "$example" --text "$work/text.json" --require "$5" "${@:6}"; }
demand 0 "PASS" int8 nvfp4 'text.kl<=B' --levels structure
demand 0 '"passed": true' nvfp4 ranks 'text.kl<=B' --levels structure --json
demand 0 "holds" nvfp4 int8 'text.kl<=B+1' --levels structure
demand 1 "FAIL" nvfp4 int8 'text.kl<=B' --levels weights --require 'weights.relative_error<=B'
for demanded in text.kl weights.relative_error; do
  grep -q "^  fails  $demanded<=B" "$work/stdout" || fail "the demand of $demanded does not fail"
done
expect 1 "not measured" "$ingot" compare "$work/int8" "$work/nvfp4" --reference "$example" --require 'outputs.kl<=B' --levels structure
demand 2 "neither <=B nor >=B" int8 nvfp4 'weights.cosine>=1'
expect 2 "--reference" "$ingot" compare "$work/int8" "$work/nvfp4" --require 'weights.cosine>=B'
"$ingot" compare "$work/nvfp4" "$work/int8" --reference "$example" --levels structure --text "$work/text.json" \
  --require 'text.kl<=B' --json >"$work/demand" 2>/dev/null && fail "exit code 0 of a demand that fails"
holds "d['passed'] is False and d['demands'][0]['worse'] == -f['text.kl']['interval'][0] > 0" demand
expect 2 "--reference" "$ingot" compare "$work/int8" "$work/nvfp4" --reference-config "$example/config.json"
expect 2 "--levels layers" "$ingot" compare "$work/int8" "$work/nvfp4" --prompts "$work/text.json"
expect 2 "cannot be written" "$ingot" compare "$work/int8" "$work/nvfp4" --html "$work/no/such/page.html"
expect 0 "Usage" "$ingot" compare --help
finish
