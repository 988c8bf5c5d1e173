#!/usr/bin/env bash
# A family of a file is as good as one of the program: the same bytes, found again by every command.
source "$(dirname "$0")/expect.sh"
ingot=$1

# same A B: every file but the manifest, the records and the family itself.
same() {
  local left
  left=$(diff -rq "$1" "$2" | grep -vE "ingot\.json|ingot-family\.yaml")
  [ -z "$left" ] || fail "$left"
}

for family in deepseek_v3 qwen3_moe glm_moe_dsa; do
  "$ingot" synth "$work/$family" --family "$family" --like tiny >/dev/null 2>&1 || fail "synth $family"
  { "$ingot" list families "$family" --yaml && echo "# mine"; } > "$work/$family.yaml" || fail "list $family --yaml"
  for to in nvfp4 bf16; do
    "$ingot" convert "$work/$family" "$work/built-in" --to $to --progress never >/dev/null 2>&1 || fail "$family $to"
    expect 0 "" "$ingot" convert "$work/$family" "$work/file" --family-file "$work/$family.yaml" --to $to --progress never
    same "$work/built-in" "$work/file"
    rm -r "$work/built-in" "$work/file"
  done
done

# A model of no known family.
cp -r "$work/qwen3_moe" "$work/unknown"
sed -i 's/"model_type": *"qwen3_moe"/"model_type": "my_moe"/' "$work/unknown/config.json"
sed -i 's/^family: .*/family: my_moe/; s/^model_types: .*/model_types: [my_moe]/' "$work/qwen3_moe.yaml"
expect 2 "--family-file a file" "$ingot" convert "$work/unknown" "$work/out" --to nvfp4
expect 2 "ingot family learn DIR makes one" "$ingot" convert "$work/unknown" "$work/out" --to nvfp4
# inspect shows it all the same, with a warning; a word that is no family stays an error.
expect 0 "warning: model_type 'my_moe'" "$ingot" inspect "$work/unknown"
grep -q "^family  *generic" "$work/stdout" || fail "no family generic: $(head -3 "$work/stdout")"
grep -q -- "ingot family learn" "$work/stderr" || fail "no remedy in the warning"
expect 0 "bf16" "$ingot" inspect "$work/unknown" model.embed_tokens.weight
expect 0 "fits      yes" "$ingot" inspect "$work/unknown" --gpu-memory 80GB
expect 2 "there is no family 'my_moe'" "$ingot" inspect "$work/unknown" --family my_moe
expect 2 "there is no family 'as-stored'" "$ingot" inspect "$work/unknown" --family as-stored
expect 0 "my_moe" "$ingot" inspect "$work/unknown" --family-file "$work/qwen3_moe.yaml"
expect 0 "" "$ingot" convert "$work/unknown" "$work/out" --family-file "$work/qwen3_moe.yaml" --to nvfp4 --progress never
cmp "$work/out/ingot-family.yaml" "$work/qwen3_moe.yaml" || fail "the output lacks its family"
grep -q '"family_file"' "$work/out/ingot.json" || fail "the manifest lacks the hash of the family"
expect 0 " 0 errors" "$ingot" check "$work/out"
expect 0 "PASS" "$ingot" verify "$work/unknown" "$work/out" --levels structure,weights
expect 0 "" "$ingot" convert "$work/unknown" "$work/out" --family-file "$work/qwen3_moe.yaml" --to nvfp4 --resume
echo "# changed" >> "$work/qwen3_moe.yaml"
judge 2 "--family-file (its files have changed)" \
  "$ingot" convert "$work/unknown" "$work/out" --family-file "$work/qwen3_moe.yaml" --to nvfp4 --resume

# A family that is made for it and proven: converted at once, without a flag, and as its file.
expect 0 "role: expert-up" "$ingot" inspect "$work/unknown" --family auto
expect 0 "proven: every tensor has a row and its shape" "$ingot" family learn "$work/unknown" --python none --out "$work/learned.yaml"
expect 2 "there already" "$ingot" family learn "$work/unknown" --python none --out "$work/learned.yaml"
expect 2 "ingot family learn $work/unknown --out my.yaml" "$ingot" inspect "$work/unknown" --family auto --write-family my.yaml
expect 2 "nothing asks for this" "$ingot" family learn "$work/unknown" --python none --answer gate_up=halves
expect 0 " 0 errors" "$ingot" check "$work/unknown" --family auto
expect 2 "--family auto" "$ingot" convert "$work/unknown" "$work/auto" --accept-family --to nvfp4
expect 0 "" "$ingot" convert "$work/unknown" "$work/auto" --family auto --to nvfp4 --progress never
expect 0 "" "$ingot" convert "$work/unknown" "$work/given" --family-file "$work/learned.yaml" --to nvfp4 --progress never
same "$work/auto" "$work/given"
same "$work/auto" "$work/out"
grep -q '"family_proof": "every tensor has a row' "$work/given/ingot.json" || fail "the manifest lacks the proof"
sed -i 's/role: router/role: router, dtype: F32/' "$work/learned.yaml"
expect 0 "" "$ingot" convert "$work/unknown" "$work/changed" --family-file "$work/learned.yaml" --to nvfp4 --progress never
grep -q family_proof "$work/changed/ingot.json" && fail "a changed file is called proven"
expect 0 "" "$ingot" convert "$work/unknown" "$work/cast" --family auto --to bf16 --progress never

# What nothing tells is asked, and not converted by guess.
cp -r "$work/unknown" "$work/strange"
sed -i 's/self_attn\.q_proj/self_attn.q_prox/g' "$work"/strange/*.safetensors "$work"/strange/*.json
expect 2 "q_prox.weight=other'" "$ingot" family learn "$work/strange" --python none --out "$work/strange.yaml"
[ ! -e "$work/strange.yaml" ] || fail "a family that is not proven was written"
expect 2 "--accept-family takes it as it is" "$ingot" convert "$work/strange" "$work/asked" --family auto --to nvfp4
expect 2 "there is no role 'quary'" "$ingot" family learn "$work/strange" --python none \
  --answer 'model.layers.{layer}.self_attn.q_prox.weight=quary'
expect 0 "1 question was answered" "$ingot" family learn "$work/strange" --python none --out "$work/strange.yaml" \
  --answer 'model.layers.{layer}.self_attn.q_prox.weight=q-proj'
grep -q 'q_prox.weight", role: q-proj.*fuse: qkv\|q_prox.weight", role: q-proj' "$work/strange.yaml" || fail "no answer in the file"

# The order of gates and ups in a stack is told by the strengths of their outputs, else asked.
for order in none halves interleaved; do
  rm -rf "$work/stacks" && cp -r "$(dirname "$0")/../golden/families/qwen3_5_moe" "$work/stacks"
  python3 "$(dirname "$0")/edit_checkpoint.py" "$work/stacks" "
import array
for name in [n for n in t if n.endswith('experts.gate_up_proj')]:
    dtype, (experts, rows, cols), data = t[name]
    values = array.array('H', data)
    for i, value in enumerate(values):
        row = i // cols % rows
        is_gate = {'none': False, 'halves': row < rows // 2, 'interleaved': row % 2 == 0}['$order']
        values[i] = value + (2 << 7) if is_gate and value & 0x7f80 else value
    put(name, dtype, [experts, rows, cols], values.tobytes())" || fail "stacks in $order"
  learn=("$ingot" family learn "$work/stacks" --without qwen3_5_moe --python none)
  case $order in
    none) expect 2 "--answer 'gate_up=halves', or interleaved" "${learn[@]}" ;;
    halves) expect 0 "gates and ups in halves, as their values say" "${learn[@]}" ;;
    *) expect 0 "gate_up: interleaved" "${learn[@]}" ;;
  esac
done

# Slices have it too, and come back.
expect 0 "" "$ingot" convert "$work/unknown" "$work/ranks" --family-file "$work/qwen3_moe.yaml" --tp 2 --ep 2 --progress never
expect 0 "my_moe" "$ingot" inspect "$work/ranks"
expect 0 "" "$ingot" merge "$work/ranks" "$work/merged" --progress never
for file in "$work"/unknown/*.safetensors; do
  cmp "$file" "$work/merged/$(basename "$file")" || fail "$file did not come back"
done

# A family file in the checkpoint comes before the program's own family, and the output says so.
cp "$work/glm_moe_dsa.yaml" "$work/glm_moe_dsa/ingot-family.yaml"
expect 0 "comes before the program's own family glm_moe_dsa" "$ingot" inspect "$work/glm_moe_dsa"
echo "family: [" > "$work/glm_moe_dsa/ingot-family.yaml"
expect 2 "ingot-family.yaml: line" "$ingot" inspect "$work/glm_moe_dsa"
expect 0 "" "$ingot" inspect "$work/glm_moe_dsa" --family glm_moe_dsa
expect 2 "excludes --family" "$ingot" inspect "$work/unknown" --family generic --family-file "$work/qwen3_moe.yaml"
expect 2 "did you mean qwen3_moe" "$ingot" list families qwen3_mo --yaml

# Widths and numbers of shared experts that differ from layer to layer.
python3 - "$(dirname "$0")/../golden/families/headers/hunyuan_v1_moe.config.json" > "$work/layers.json" <<'END' || fail "layers.json"
import json, sys
config = json.load(open(sys.argv[1]))
config.update(hidden_size=128, head_dim=32, attention_head_dim=32, intermediate_size=128, moe_intermediate_size=[128, 64],
              num_shared_expert=[2, 1], moe_topk=[3, 1])
print(json.dumps(config))
END
expect 0 "" "$ingot" synth "$work/layers" --config "$work/layers.json"
# 6 experts of 49,152 and 24,576 parameters; 3 and 1 of them are chosen. Shared ones have 49,152.
expect 0 "434,432 (0.43 M) per token" "$ingot" inspect "$work/layers"
expect 0 "[256, 128]" "$ingot" inspect "$work/layers" --tensors "*.0.mlp.shared_mlp.up_proj.weight"
expect 0 "[128, 128]" "$ingot" inspect "$work/layers" --tensors "*.1.mlp.shared_mlp.up_proj.weight"
expect 0 "" "$ingot" check "$work/layers"
expect 0 "" "$ingot" convert "$work/layers" "$work/layers-fp8" --to fp8 --tp 2 --ep 2 --tp-fit retile --progress never
expect 2 "--tp-fit retile or bf16" "$ingot" convert "$work/layers" "$work/padded" --to fp8 --tp 2 --ep 2 --etp 2 --tp-fit pad --progress never
expect 0 "" "$ingot" merge "$work/layers-fp8" "$work/layers-whole"
expect 0 "" "$ingot" verify "$work/layers" "$work/layers-whole" --levels structure,weights

# A text model saved without the rest, under the names that it has in the whole.
mkdir "$work/alone"
cp "$(dirname "$0")/../golden/families/qwen3_5_moe"/*.safetensors "$(dirname "$0")/../golden/families/qwen3_5_moe/config.json" "$work/alone"
python3 "$(dirname "$0")/edit_checkpoint.py" "$work/alone" '
c = c["text_config"] | {"architectures": ["Qwen3_5MoeForCausalLM"]}
for name in [n for n in t if not n.startswith(("model.language_model.", "lm_head."))]:
    del t[name]'
expect 0 "0 errors" "$ingot" check "$work/alone"
expect 0 "" "$ingot" generate "$work/alone" --tokens 1,2,3 --max-new-tokens 2 --greedy
finish
