#!/usr/bin/env bash
# Choosing a conversion: selectors of roles and layers, and outputs for an engine.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
json() { "$ingot" "$@" --json >"$work/json" 2>"$work/stderr" </dev/null || fail "$*: $(cat "$work/stderr")"; }

# Tensors of each selector: the sums are those of the checkpoint.
json list roles "$example"
holds "{r['selector']: r['tensors'] for r in d['roles']}['role:experts'] == 240"
holds "{r['selector']: r['tensors'] for r in d['roles']}['layers:1-4'] == 268"
cp "$work/json" "$work/roles"
for selector in role:experts role:attention role:indexer layers:0 layers:mtp 'role:expert-up'; do
  json inspect "$example" --tensors "$selector"
  holds "[len(d['tensors']), sum(p['bytes'] for t in d['tensors'] for p in t['parts'])] == [[r['tensors'], r['bytes']] for r in json.load(open('$work/roles'))['roles'] if r['selector'] == '$selector'][0]"
done
json inspect "$example" --tensors 'layers:last & role:shared-experts'
holds "[t['layer'] for t in d['tensors']] == [4, 4, 4]"
expect 0 "role:mlp" "$ingot" list roles
expect 0 "role:embedding" "$ingot" list roles "$example" --markdown
expect 2 "no row of schemes has" "$ingot" list schemes "$example"
expect 2 "belongs to ingot list roles DIR" "$ingot" list roles --family generic
expect 2 "groups are experts" "$ingot" convert "$example" "$work/none" --rule role:expert=int8
expect 2 "ingot list roles DIR" "$ingot" convert "$example" "$work/none" --rule 'layers:0 & role:experts=int8'
printf 'rules:\n- {match: "layers:0-1 &", scheme: bf16}\n' >"$work/bad.yaml"
expect 2 "bad.yaml: line 2: " "$ingot" convert "$example" "$work/none" --recipe "$work/bad.yaml"

# A rule of a group reaches the output and the manifest.
expect 0 "quantized 240" "$ingot" convert "$example" "$work/experts" --rule 'role:experts=int8' --rule 'role:linear=bf16' --progress never
grep -q '"match": *"role:experts"' "$work/experts/ingot.json" || fail "the manifest lacks the rule"

# Outputs for an engine: dialect and command.
expect 0 "serve with: vllm serve $work/w8a8 --quantization ascend" "$ingot" convert "$example" "$work/w8a8" --to int8 --for vllm-ascend --progress never
grep -q '"for": *"vllm-ascend"' "$work/w8a8/ingot.json" || fail "the manifest lacks the engine"
[ -e "$work/w8a8/quant_model_description.json" ] || fail "not in the dialect of Ascend"
expect 0 "--model-path '$work/a b' --quantization w8a8_int8" "$ingot" convert "$example" "$work/a b" --to int8 --for sglang --dry-run
expect 0 "loaded by    vLLM 0.33 (read in its source), SGLang" "$ingot" convert "$example" "$work/none" --to fp8 --dry-run
# Of this family the others were not tried, whatever they read of others.
expect 0 "; not tried for this family: TensorRT-LLM, transformers 5" "$ingot" convert "$example" "$work/none" --to fp8 --dry-run
json convert "$example" "$work/none" --to fp8 --dry-run
holds "{e['engine']: e['evidence'] for e in d['engines'] if e['loads']}['transformers'] == 'not tried for this family'"
expect 0 "transformers 5.24 should load this checkpoint (not tried for this family)" "$ingot" check "$example" --engine transformers
json list trials
holds "{'family': 'qwen3', 'engine': 'SGLang 0.5.23'}.items() <= next(r for r in d['trials'] if r['family'] == 'qwen3' and r['engine'][0] == 'S').items()"
holds "not any(r['family'] == 'dbrx' for r in d['trials'])"
json convert "$example" "$work/none" --to int8-block --dry-run
holds "[e['engine'] for e in d['engines'] if e['loads']] == ['sglang'] and 'blockwise_int8' in d['engines'][0]['reason']"
# The table of docs/engines.md says what the rows of `list engines` say, of every form that a dialect writes.
"$ingot" list engines --json >"$work/engines" || fail "list"
"$ingot" list dialects --json >"$work/dialects" || fail "list"
python3 - "$work/engines" "$work/dialects" "$(dirname "$0")/../../docs/engines.md" <<'P' || fail "docs/engines.md has another table of engines"
import json, re, sys
rows = json.load(open(sys.argv[1]))["engines"]
# Each refusal has its reason and a form that loads: no page repeats them.
for row in rows:
    if row["result"].startswith(("refused", "garbage", "rounded", "with ")):
        assert row["reason"] and row["loads"], row
names = {"fp8": "fp8-block", "int8": "int8-channel", "int4": "int4-group"}
known = {"generated text on a GPU": "yes", "generated text": "yes", "loaded": "yes", "loaded, kernels replaced": "loads", "read in its source": "yes (read in its source)",
         "not tried": "not tried"}
# Other scopes are some weights of a scheme.
scopes = {"any weight": "no", "routed experts": "not as routed experts", "other layers": "only as routed experts of `kimi_k3`",
          "q_a_proj, kv_a_proj_with_mqa": "yes, but for MLA's latents",
          "routed experts with weight_scale": "not as routed experts", "weights with weight_scale": "no",
          "routed experts with one scale a row": "yes; rows with `--moe-backend marlin`"}
def form(row):
    return row["scheme"], row["dialect"], row["activations"]
def word(engine, wanted):
    of_form = [r for r in rows if r["family"] == "any" and r["engine"] == engine and form(r) == wanted]
    for row in of_form:
        if row["of"] in scopes and (row["result"] == "refused" or row["of"].endswith("a row")):
            return scopes[row["of"]]
        if row["result"].startswith("with "):
            return f"with `{row['option']}`"
    return known[re.sub(r" in 0[.]32$", "", of_form[0]["result"])]
table = open(sys.argv[3]).read().split("\n| `--to` | `--dialect` |")[1].split("\n\n")[0]
seen, schemes, dialect = set(), [], None
for row in table.splitlines()[2:]:
    cells = [c.strip() for c in row.strip("|").split("|")]
    found = re.findall(r"`([\w-]+)`", cells[0])
    schemes = [names.get(f, f) for f in found] or schemes
    dialect = (re.findall(r"`([\w-]+)`", cells[1]) or [None if found else dialect])[0]
    for scheme in schemes:
        for activations in re.findall(r"weight-only|dynamic|static", re.sub(r"\(.*\)", "", cells[2])) or [""]:
            wanted = scheme, dialect or "any", activations
            seen.add(wanted)
            for engine, cell in zip(["vLLM 0.33", "SGLang 0.5.23"], cells[3:5]):
                said = cell.replace(" (`--quantize-attention`)", "")
                assert said == word(engine, wanted), (engine, wanted, cell, word(engine, wanted))
dialects = {d["name"] for d in json.load(open(sys.argv[2]))["dialects"]} | {"any"}
written = {form(r) for r in rows if "any" not in (r["scheme"], r["activations"]) and r["dialect"] in dialects}
assert seen == written, seen ^ written
P
"$ingot" synth "$work/large" --family deepseek_v3 --like tiny >/dev/null 2>&1 || fail "synth"
cp "$example/tokenizer.json" "$work/large"  # without one no server is said to load it
json convert "$work/large" "$work/none" --to nvfp4 --for trtllm --input-scale 1 --dry-run
holds "d['output_dialect'] == 'modelopt' and d['engines'][2]['serve'].startswith('trtllm-serve ')"
expect 0 "one by one: with --enable-expert-parallel" "$ingot" convert "$work/large" "$work/none" --to bf16 --for vllm --dry-run
expect 0 "" "$ingot" convert "$work/large" "$work/none" --to bf16 --for sglang --dry-run
grep -q "one by one" "$work/stdout" && fail "SGLang skips no experts, and is said to"
expect 2 "does not load int8-block" "$ingot" convert "$example" "$work/none" --to int8-block --for vllm
expect 2 "--dialect modelslim" "$ingot" convert "$example" "$work/none" --to int8 --for vllm --dialect modelslim
expect 2 "or take --layout vllm-sharded" "$ingot" convert "$example" "$work/none" --to int8 --for vllm --tp 2
expect 2 "reads no files of layout vllm-sharded" "$ingot" convert "$example" "$work/none" --to int8 --for sglang --layout vllm-sharded --tp 2
"$ingot" synth "$work/v3" --family deepseek_v3 --like tiny --mtp-layers 0 --experts 4 --scheme bf16 --quiet >/dev/null || fail "synth"
expect 0 "vllm-sharded" "$ingot" convert "$work/v3" "$work/ranks" --to int8 --for vllm --layout vllm-sharded --tp 2 --dry-run
expect 2 "is none of vllm, sglang" "$ingot" convert "$example" "$work/none" --to int8 --for llama.cpp
[ ! -e "$work/none" ] || fail "a refused command wrote something"
json convert "$example" "$work/none" --to fp8 --tp 2 --tp-fit bf16 --dry-run
holds "d['engines'] == []"
finish
