#!/usr/bin/env bash
# `ingot family learn` with what a class of the model says. A program in place of Python gives what class_model.py prints,
# and in place of a small random model the golden of a family, which transformers computed. Where INGOT_TORCH_PYTHON
# names a Python that has transformers and torch, it is asked too.
source "$(dirname "$0")/expect.sh"
ingot=$1
golden=$(dirname "$0")/../golden/forward

cat > "$work/class" <<'END'
#!/bin/bash
# -c SCRIPT CONFIG FOLDER
from=$(dirname "$3")
cp -r "$from" "$4/model"
cp "$from/../golden.safetensors" "$4/recorded.safetensors"
cat "$(dirname "$0")/said"
END
chmod +x "$work/class"
learn() { "$ingot" family learn "$golden/$1/checkpoint" --without "$1" --python "${2:-$work/class}" --out "$work/$1.yaml"; }

# The forward pass of a family that has it, or of two that have a part each; what it is proven by goes into the manifest.
echo '{"model": true, "source": "a class", "plan": {"model.layers.0.self_attn.q_proj.weight": "colwise"}}' > "$work/said"
expect 0 "those of a class, by the forward pass of exaone_moe" learn dots1
grep -q "q_proj.weight.*; transformers' tp_plan: colwise$" "$work/dots1.yaml" || fail "no plan in the reason"
grep -q "^forward: inherited" "$work/dots1.yaml" || fail "no forward pass in the file"
expect 0 "" "$ingot" convert "$golden/dots1/checkpoint" "$work/fp8" --family-file "$work/dots1.yaml" --to fp8 --progress never
grep -q '"family_proof": ".*; tokens and states of a small model are those of a class' "$work/fp8/ingot.json" ||
  fail "the manifest does not say that it was computed"
expect 0 "by the forward pass of kimi_k2" learn glm4_moe_lite
expect 0 "by the forward pass of olmo2 with the mixture of olmoe" learn flex_olmo
expect 0 "PASS" "$ingot" verify "$golden/flex_olmo/checkpoint" --family-file "$work/flex_olmo.yaml" \
  --reference "$golden/flex_olmo/golden.safetensors"

# A class that none computes, and one that is not there: the proof says so.
expect 0 "not computed as a class: no forward pass of" learn arcee
echo '{"why": "nobody knows it"}' > "$work/said"
expect 0 "not computed: nobody knows it" learn llama
expect 0 "not computed: there is no program" learn axk1 "$work/none"

# The order of stacks is that of the class.
stacks=$(dirname "$0")/../golden/families/qwen3_5_moe
echo '{"why": "not made", "stacks": {"is_transposed": false, "is_concatenated": true,
  "names": ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"]}}' > "$work/said"
expect 0 "gates and ups in halves, as transformers' class has them" \
  "$ingot" family learn "$stacks" --without qwen3_5_moe --python "$work/class"

if [ -n "${INGOT_TORCH_PYTHON:-}" ]; then
  rm "$work"/*.yaml
  expect 0 "Dots1ForCausalLM, by the forward pass of exaone_moe" learn dots1 "$INGOT_TORCH_PYTHON"
  grep -q "o_proj.weight.*; transformers' tp_plan: rowwise$" "$work/dots1.yaml" || fail "no plan of transformers"
else
  echo "skipped: INGOT_TORCH_PYTHON names no Python that has transformers"
fi
finish
