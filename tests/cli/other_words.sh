#!/usr/bin/env bash
# Words about a quantization in other places than usual: no command passes them on next to those that it wrote.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
here=$(cd "$(dirname "$0")" && pwd)

# made NAME CODE OPTION...: an output without records, edited (edit_checkpoint.py).
made() {
  local out=$1 code=$2
  shift 2
  "$ingot" convert "$example" "$work/$out" "$@" --progress never >/dev/null 2>"$work/stderr" ||
    fail "convert $*: $(head -c 400 "$work/stderr")"
  rm "$work/$out/ingot.json" "$work/$out/ingot.tensors.jsonl.zst"
  python3 "$here/edit_checkpoint.py" "$work/$out" "$code"
}
config_has() { python3 -c 'import json, sys; print(sum(k in json.load(open(sys.argv[1])) for k in sys.argv[2:]))' "$work/$1/config.json" "${@:2}"; }
# Stored tensors whose name has this ending.
ending() { python3 "$here/edit_checkpoint.py" "$work/$1" "print(sum(n.endswith('$2') for n in t))"; }

# The older key of the block is read where there is no other, and none is left behind.
made older 'c["compression_config"] = c.pop("quantization_config")' --to fp8-channel
expect 0 "0 errors" "$ingot" check "$work/older"
expect 0 "vLLM 0.33 loads this checkpoint" "$ingot" check "$work/older" --engine vllm
expect 1 "compression_config is not read" "$ingot" check "$work/older" --engine transformers
expect 0 "" "$ingot" convert "$work/older" "$work/older-bf16" --to bf16
[ "$(config_has older-bf16 compression_config quantization_config)" = 0 ] || fail "a block of no weights is left"
expect 0 "PASS" "$ingot" verify "$work/older" "$work/older-bf16" --levels structure,weights
expect 0 "" "$ingot" convert "$work/older" "$work/older-int4" --to int4
[ "$(config_has older-int4 quantization_config)$(config_has older-int4 compression_config)" = 10 ] || fail "not one block"
expect 0 "" "$ingot" convert "$work/older" "$work/older-copy" --max-shard-size 1GB
cmp -s "$work/older/config.json" "$work/older-copy/config.json" || fail "a copy has another config"
expect 0 "" "$ingot" repair "$work/older" "$work/older-mended"
[ "$(config_has older-mended compression_config quantization_config)" = 1 ] || fail "repaired to several blocks"
# A block that stayed behind is about weights that are gone; a second one is told of, and goes.
cp -r "$work/older-bf16" "$work/left" && rm "$work/left/ingot.json"
python3 "$here/edit_checkpoint.py" "$work/left" 'c["compression_config"] = {"quant_method": "compressed-tensors", "format": "float-quantized"}'
expect 2 "quantized.config-without-weights" "$ingot" check "$work/left"
made twice 'c["compression_config"] = c["quantization_config"]; c["vision_config"] = {"quantization_config": {"quant_method": "fp8"}}' --to fp8-channel
expect 0 "quantized.one-block" "$ingot" check "$work/twice"
expect 0 "" "$ingot" convert "$work/twice" "$work/once" --to bf16
grep -q "quantization\|compression" "$work/once/config.json" && fail "a block is left"

# Settings of the tool that made the codes go where the codes go.
echo '{"bits": 4}' >"$work/older/quantize_config.json"
expect 0 "" "$ingot" convert "$work/older" "$work/told-copy" --max-shard-size 1GB
[ -e "$work/told-copy/quantize_config.json" ] || fail "a copy lacks a file"
expect 0 "" "$ingot" convert "$work/older" "$work/told-bf16" --to bf16
[ ! -e "$work/told-bf16/quantize_config.json" ] || fail "a file about codes that are gone is left"
expect 0 "PASS" "$ingot" verify "$work/older" "$work/told-bf16" --levels structure

# Input scales that the block says are not used become no 4-bit activations.
made unused '
for n in [n for n in t if n.endswith(".weight_scale_2")]:
    put(n[:-14] + "input_scale", "F32", [], struct.pack("<f", 0.01))' --to nvfp4 --dialect modelopt --activations weight-only
expect 0 "of inputs are left out" "$ingot" convert "$work/unused" "$work/unused-ct" --dialect compressed-tensors
[ "$(ending unused-ct input_global_scale)" = 0 ] || fail "scales that nothing uses are kept"
# A repair does not turn them into static activations either, with some of them missing too.
expect 0 "" "$ingot" repair "$work/unused" "$work/unused-mended"
grep -q '"quant_algo": *"W4A16_NVFP4"' "$work/unused-mended/config.json" || fail "repaired to other activations"
cp -r "$work/unused" "$work/unused-some"
python3 "$here/edit_checkpoint.py" "$work/unused-some" 'del t[min(n for n in t if n.endswith("input_scale"))]'
expect 0 "" "$ingot" repair "$work/unused-some" "$work/unused-some-mended"
grep -q '"quant_algo": *"W4A16_NVFP4"' "$work/unused-some-mended/config.json" || fail "some: other activations"
python3 - "$work/unused-ct/config.json" <<'P' || fail "activations are quantized"
import json, sys
groups = json.load(open(sys.argv[1]))["quantization_config"]["config_groups"].values()
assert all(g["input_activations"] is None for g in groups), groups
P

# Static scales of outputs are no scales of a cache, and belong to the codes.
outputs='
for n in [n for n in t if n.endswith("_proj.weight_scale")]:
    put(n[:-12] + "output_scale", "BF16", [1], b"\xf5\x3c")
for g in c["quantization_config"]["config_groups"].values():
    g["output_activations"] = {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": True, "dynamic": False}'
made outputs "$outputs" --to fp8-channel
expect 0 "" "$ingot" inspect "$work/outputs"
grep -qi "cache" "$work/stdout" && fail "taken for scales of a cache: $(grep -i cache "$work/stdout")"
"$ingot" check "$work/outputs" >"$work/stdout" 2>&1
grep -qi "cache\|does not have" "$work/stdout" && fail "not known: $(cat "$work/stdout")"
n=$(ending outputs output_scale)
[ "$n" -gt 0 ] || fail "no output scales were made"
expect 0 "" "$ingot" convert "$work/outputs" "$work/outputs-copy" --max-shard-size 1GB
[ "$(ending outputs-copy output_scale)" = "$n" ] || fail "a copy lacks output scales"
grep -q '"output_activations": *{' "$work/outputs-copy/config.json" || fail "a copy says nothing of outputs"
for to in "bf16" "int4"; do
  # shellcheck disable=SC2086
  expect 0 "of quantized outputs are left out" "$ingot" convert "$work/outputs" "$work/outputs-none" --to $to --force
  [ "$(ending outputs-none output_scale)" = 0 ] || fail "$to: output scales of other codes"
done

# A rule for some tensors takes away theirs; the codes that are copied keep their own, and their config.
of_o=$(ending outputs o_proj.output_scale)
expect 0 "$of_o scale(s) of quantized outputs are left out" "$ingot" convert "$work/outputs" "$work/outputs-part" \
  --rule "*.o_proj.weight=bf16"
[ "$of_o" -gt 0 ] && [ "$(ending outputs-part o_proj.output_scale)" = 0 ] || fail "a plain weight has an output scale"
[ "$(ending outputs-part output_scale)" = $((n - of_o)) ] || fail "copied codes lack output scales"
grep -q '"output_activations": *{' "$work/outputs-part/config.json" || fail "copied codes lack their words"

# A tensor of unknown meaning next to codes stays with them, or is refused.
made unknown '
put("model.layers.1.self_attn.o_proj.smooth_factor", "F32", [1], struct.pack("<f", 2))' --to fp8-channel
expect 0 "" "$ingot" convert "$work/unknown" "$work/unknown-copy" --family generic --max-shard-size 1GB
expect 2 "o_proj.smooth_factor" "$ingot" convert "$work/unknown" "$work/none" --family generic --to bf16
expect 2 "its meaning for others is not known" "$ingot" convert "$work/unknown" "$work/none" --to bf16
expect 0 "" "$ingot" convert "$work/unknown" "$work/taken" --family generic --to bf16 --allow "unknown-tensor=*.smooth_factor"
made ranges '
put("model.layers.1.self_attn.o_proj.input_quantizer._amax", "F32", [], struct.pack("<f", 2))' --to bf16
expect 0 "" "$ingot" convert "$work/ranges" "$work/ranges-copy" --max-shard-size 1GB
expect 2 "input_quantizer._amax" "$ingot" convert "$work/ranges" "$work/none" --to fp8-channel
finish
