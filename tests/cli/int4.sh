#!/usr/bin/env bash
# INT4 checkpoints as they are released: read exactly, copied, cut, encoded again, computed with. Values and answers are
# those of other programs (tests/golden/PROVENANCE.md). With `all` also what repeats a claim for other schemes.
source "$(dirname "$0")/expect.sh"
ingot=$1
here=$(dirname "$0")
golden=$here/../golden/families
kimi=$golden/kimi_k2_thinking

run() { "$ingot" "$@" --progress never >"$work/stdout" 2>"$work/stderr" </dev/null || fail "$*: $(head -c 600 "$work/stderr")"; }
# Claims about values, which one program judges at the end: what they name stays.
hashes() { printf 'hashes\t%s\t%s\n' "$@" >>"$work/claims"; }
same() { printf 'same\t%s\t%s\n' "$@" >>"$work/claims"; }
# Prompts and the greedy tokens that were recorded; token 1 ends an answer.
python3 - "$golden" "$work" <<'P' || fail "recorded answers"
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("*.greedy.json"):
    recorded = json.loads(path.read_text())
    greedy = recorded["greedy"]
    wanted = greedy[: greedy.index(1) + 1] if 1 in greedy else greedy
    name = sys.argv[2] + "/" + path.name.removesuffix(".greedy.json")
    pathlib.Path(name + ".ids").write_text(",".join(map(str, recorded["input_ids"])))
    pathlib.Path(name + ".wanted").write_text(" ".join(map(str, wanted)))
P
answers() { # answers NAME DIRECTORY
  local got wanted
  wanted=$(cat "$work/$1.wanted")
  "$ingot" generate "$2" --tokens "$(cat "$work/$1.ids")" --greedy --max-new-tokens 20 --profile f32 >"$work/answer" 2>"$work/stderr" || fail "generate $2: $(cat "$work/stderr")"
  got=$(tr ',\n' '  ' <"$work/answer" | xargs)
  [ "$got" = "$wanted" ] || fail "$2 answers $got, not $wanted"
}

# Read, checked, decoded, copied and run, whoever packed it.
for name in kimi_k2_thinking qwen3_moe_awq qwen3_moe_gptq qwen3_moe_gptq_actorder qwen3_moe_gptq_asym qwen3_moe_gptq_asym_actorder; do
  expect 0 "0 errors" "$ingot" check "$golden/$name"
  run convert "$golden/$name" "$work/$name.f32" --to f32
  hashes "$work/$name.f32" "$golden/$name.decoded.json"
  # One engine refuses an order of groups, the other zero points of experts.
  allow=() errors="0 errors"
  if [ "$name" = qwen3_moe_gptq_asym_actorder ]; then
    expect 2 "none of vLLM 0.33, SGLang 0.5.23 loads this" "$ingot" convert "$golden/$name" "$work/none"
    allow=(--allow 'engine-refuses=*') errors=engine.refused-by-all
  fi
  run convert "$golden/$name" "$work/$name.copy" "${allow[@]}"
  expect 0 "$errors" "$ingot" check "$work/$name.copy"
  expect 0 "PASS" "$ingot" verify "$golden/$name" "$work/$name.copy"
  run convert "$work/$name.copy" "$work/$name.again" --to f32
  hashes "$work/$name.again" "$golden/$name.decoded.json"
  answers "$name" "$golden/$name"
  answers "$name" "$work/$name.copy"
done
run convert "$kimi" "$work/kimi.bf16" --to bf16
hashes "$work/kimi.bf16" "$golden/kimi_k2_thinking.decoded.json"
same "$kimi" "$work/kimi_k2_thinking.copy"

# Forms that no release above has, packed by compressed-tensors and NumPy; and Kimi K2.5, whose model and
# quantization_config are nested.
for name in pack_quantized gptq_v2; do
  mkdir "$work/$name"
  cp "$golden/../int4/$name"/{config.json,model.safetensors} "$work/$name"
  python3 "$here/edit_checkpoint.py" "$work/$name" 'c["architectures"] = ["MadeUpForCausalLM"]'
  expect 0 "0 errors" "$ingot" check "$work/$name" --family generic
  run convert "$work/$name" "$work/$name.f32" --family generic --to f32
  hashes "$work/$name.f32" "$golden/../int4/$name/decoded.json"
done
expect 2 "columns that are no multiple of 8 are not read" \
  "$ingot" check "$golden/../int4/pack_quantized_ragged" --family generic
run convert "$golden/kimi_k25" "$work/k25" --to f32
hashes "$work/k25" "$golden/kimi_k25.decoded.json"
run convert "$golden/kimi_k25" "$work/k25.int4"
same "$golden/kimi_k25" "$work/k25.int4"
answers kimi_k25 "$golden/kimi_k25"

# A single weights file, under the config that says how it is packed; parts of weights at its borders are left out.
for name in qwen3_moe_awq qwen3_moe_gptq_asym_actorder; do
  cp -r "$golden/$name" "$work/alone"
  chmod -R u+w "$work/alone"
  one=("$work/alone/model.safetensors" --config "$work/alone/config.json")
  expect 0 "int4-group of 1x64" "$ingot" inspect "${one[@]}"
  expect 0 "0 errors, 0 warnings" "$ingot" check "${one[@]}"
  python3 "$here/edit_checkpoint.py" "$work/alone" \
    'e = "model.layers.0.mlp.experts."; del t[e + "0.up_proj.qweight"], t[e + "1.up_proj.scales"], t[e + "1.up_proj.qzeros"]'
  expect 0 "tensors whose codes or scales are in another file" "$ingot" inspect "${one[@]}"
  expect 2 "is of a packed weight, but there is no 'model.layers.0.mlp.experts.0.up_proj.qweight'" "$ingot" check "$work/alone"
  expect 2 "is packed, but there is no 'model.layers.0.mlp.experts.1.up_proj.scales'" "$ingot" check "$work/alone"
  rm -rf "$work/alone"
done

# A part by the name under which AWQ's and GPTQ's parts are read would be the same part twice.
cp -r "$golden/qwen3_moe_gptq" "$work/twice"
chmod -R u+w "$work/twice"
python3 "$here/edit_checkpoint.py" "$work/twice" \
  'e = "model.layers.0.mlp.experts.0.up_proj."; t[e + "weight_scale"] = t[e + "scales"]'
expect 2 "is here as well as 'model.layers.0.mlp.experts.0.up_proj.scales', which is the same part" "$ingot" check "$work/twice"

# vLLM no longer takes an order of groups; and a weight of GPTQ is proved by tensors of several files.
expect 2 "it no longer takes weights with an order of groups" \
  "$ingot" convert "$golden/qwen3_moe_gptq_actorder" "$work/none" --for vllm
# SGLang packs zero points of experts the other way round, and joins the latents with their shapes.
expect 2 "it loads zero points of experts turned over" "$ingot" convert "$golden/qwen3_moe_awq" "$work/none" --for sglang
expect 2 "it joins them with their weight_shape" \
  "$ingot" convert "$here/../../examples/tiny-v32" "$work/none" --to int4 --quantize-attention --for sglang
cp -r "$golden/qwen3_moe_gptq" "$work/consumed"
expect 2 "proved by tensors of several" "$ingot" convert "$work/consumed" "$work/none" --to bf16 --consume-source

# A cast and back under the release's scales is the release, to the byte.
run convert "$work/kimi.bf16" "$work/kimi.back" --to int4 --scales-from "$kimi"
same "$kimi" "$work/kimi.back"
expect 0 "PASS" "$ingot" verify "$kimi" "$work/kimi.back"

# Cut between groups and words (what cuts join to: tests/differential/outputs.py).
run convert "$kimi" "$work/tp" --tp 2
expect 0 "0 errors" "$ingot" check "$work/tp/rank-00001-of-00002"
answers kimi_k2_thinking "$work/tp"
expect 2 "64 columns / 4 ranks = 16, the int4-group group has 32 columns (--tp-fit pad or bf16; or --etp 2)" \
  "$ingot" convert "$kimi" "$work/none" --tp 4
run convert "$kimi" "$work/pad" --tp 4 --tp-fit pad
answers kimi_k2_thinking "$work/pad"
expect 2 "64, the order of groups has 128 columns (--tp-fit bf16; or --tp 1)" \
  "$ingot" convert "$golden/qwen3_moe_gptq_actorder" "$work/none" --tp 2 --ep 2

# Encoded from other schemes and to them, in groups of every size.
schemes=(fp8 nvfp4)
[ "${2:-}" != all ] || schemes=(fp8 fp8-channel int8 nvfp4 mxfp4)
for search in amax mse signed; do
  run convert "$work/kimi.bf16" "$work/$search" --to int4 --group-size 32 --search "$search"
  expect 0 "PASS" "$ingot" verify "$work/kimi.bf16" "$work/$search"
done
run convert "$kimi" "$work/row" --to int4 --group-size row
expect 0 "PASS" "$ingot" verify "$kimi" "$work/row"
expect 0 "0 errors" "$ingot" check "$work/row"
for to in "${schemes[@]}"; do
  run convert "$kimi" "$work/$to" --to "$to"
  expect 0 "PASS" "$ingot" verify "$kimi" "$work/$to"
  run convert "$work/$to" "$work/$to.int4" --to int4 --group-size 32
  expect 0 "PASS" "$ingot" verify "$work/$to" "$work/$to.int4"
done
run convert "$work/kimi.bf16" "$work/attention" --to int4 --group-size row --quantize-attention
expect 0 "o-proj" "$ingot" verify "$work/kimi.bf16" "$work/attention" --levels weights

# Groups that are of the asked size already are kept.
run convert "$kimi" "$work/kept" --to int4 --group-size 32
same "$kimi" "$work/kept"

printf 'to: int4\nsearch: signed\ngroup-size: 32\n' >"$work/recipe.yaml"
run convert "$work/kimi.bf16" "$work/by_recipe" --recipe "$work/recipe.yaml"
same "$work/signed" "$work/by_recipe"

# Options that contradict each other are refused, with options that work.
expect 2 "--group-size 32 or row would do" "$ingot" convert "$kimi" "$work/none" --to int4 --group-size 64
expect 2 "--search 4over6 does not belong to int4-group (which has amax, mse, signed, hessian)" \
  "$ingot" convert "$work/kimi.bf16" "$work/none" --to int4 --group-size 32 --search 4over6
expect 2 "--search signed does not belong to nvfp4" "$ingot" convert "$work/kimi.bf16" "$work/none" --to nvfp4 --search signed
expect 2 "--group-size says how many columns" "$ingot" convert "$kimi" "$work/none" --to bf16 --group-size 32
expect 2 "none of 32, 64, 128, row" "$ingot" convert "$kimi" "$work/none" --to int4 --group-size 48

# Damage: each is named.
damage() { # damage TEXT EDIT [CHECKPOINT]: EDIT is Python over config `c` and tensors `t`
  local text=$1
  rm -rf "$work/bad"
  cp -r "${3:-$kimi}" "$work/bad"
  chmod -R u+w "$work/bad"
  python3 "$here/edit_checkpoint.py" "$work/bad" "$2" || fail "edit: $2"
  expect 2 "$text" "$ingot" check "$work/bad"
}
damage "ignore names no module that is here" 'c["quantization_config"]["ignore"] = ["model.layers.7"]'
damage "without its dimensions" 'del t["model.layers.1.mlp.experts.0.up_proj.weight_shape"]'
damage "says per 64 columns" 'c["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 64'
damage "(config_groups.group_0) and has no weight_zero_point, as 29 more of its weights" 'c["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = False'
expect 2 "is asymmetric by config.json" "$ingot" convert "$work/bad" "$work/none" --to bf16
damage "but ignore takes it in" 'c["quantization_config"]["ignore"].append("re:.*experts.0.*")'
damage "says [64, 64]" 'put("model.layers.1.mlp.experts.0.up_proj.weight_shape", "I32", [2], struct.pack("<2i", 64, 64))'
damage "scales are zero or not finite" 'put("model.layers.1.mlp.experts.0.up_proj.weight_scale", "BF16", [64, 3], bytes(384))'
damage "into group 7, of 3" 'put("model.layers.1.mlp.experts.0.up_proj.weight_g_idx", "I32", [96], struct.pack("<96i", *[7] * 96))'
damage "a weight of shape [64, 96] needs [8, 3]" 'put("model.layers.1.mlp.experts.0.up_proj.weight_zero_point", "I32", [64, 3], bytes(768))'
damage "in equal groups of whole words" 'put("model.layers.1.mlp.experts.0.up_proj.weight_scale", "BF16", [64, 5], bytes(640))'
gptq=$golden/qwen3_moe_gptq_asym_actorder
damage "but config.json says group_size 32" 'c["quantization_config"]["group_size"] = 32' "$gptq"
damage "with scales of [2, 64] it must have [2, 8]" 'put("model.layers.0.mlp.experts.0.up_proj.qzeros", "I32", [8, 2], bytes(64))' "$gptq"
damage "is F32, must be I32" 'put("model.layers.0.mlp.experts.0.up_proj.g_idx", "F32", [128], bytes(512))' "$gptq"
damage "into group 7, of 2" 'put("model.layers.0.mlp.experts.0.up_proj.g_idx", "I32", [128], struct.pack("<128i", *[7] * 128))' "$gptq"
damage "there is no 'model.layers.0.mlp.experts.0.up_proj.g_idx'" 'del t["model.layers.0.mlp.experts.0.up_proj.g_idx"]' "$gptq"
damage "but config.json says sym true" 'c["quantization_config"]["sym"] = True' "$gptq"
damage "but config.json says desc_act false" 'c["quantization_config"]["desc_act"] = False' "$gptq"
damage "this version reads 2, 3, 4 and 8" 'c["quantization_config"]["bits"] = 5' "$gptq"
damage "but quantization_config says bits 3" 'c["quantization_config"]["bits"] = 3' "$gptq"
damage "says bits 8 for it" 'c["quantization_config"]["bits"] = 8' "$gptq"
modelopt=$golden/../other_tools/modelopt_mixed
damage "needs one value per column" 'put("model.layers.0.mlp.up_proj.pre_quant_scale", "BF16", [8], bytes(16))' "$modelopt"
cp "$modelopt/model.safetensors" "$work/bad"
chmod u+w "$work/bad/model.safetensors"
python3 "$here/edit_checkpoint.py" "$work/bad" 'put("model.layers.0.mlp.up_proj.pre_quant_scale", "BF16", [64], bytes(128))'
# Values are read by the run only.
"$ingot" convert "$work/bad" "$work/none" --to bf16 2>"$work/said" && fail "a factor of zero is taken"
grep -q "pre_quant_scale at column 0 is 0" "$work/said" || fail "no word of a factor: $(head -c 400 "$work/said")"
rm -rf "$work/none"
damage "is a factor of columns, which a weight in fp8" 'put("model.layers.0.self_attn.q_proj.pre_quant_scale", "BF16", [64], bytes(128))' "$modelopt"

python3 "$here/decoded.py" "$work/claims" >"$work/false" || fail "other values: $(head -c 2000 "$work/false")"
finish
