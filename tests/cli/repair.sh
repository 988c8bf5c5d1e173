#!/usr/bin/env bash
# Repairs: JSON about the weights, the index, and global scales that differ among fused weights. With `all` scales of
# activations in every form; else each scheme and each dialect in one of them.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
here=$(cd "$(dirname "$0")" && pwd)

convert() { # OUT OPTION...
  local out=$1
  shift
  "$ingot" convert "$example" "$work/$out" "$@" --progress never >/dev/null 2>"$work/stderr" ||
    fail "convert $*: $(head -c 400 "$work/stderr")"
  rm "$work/$out/ingot.json" "$work/$out/ingot.tensors.jsonl.zst"
}
inodes() { stat -c %i "$1"/*.safetensors | tr '\n' ' '; }
sums() { (cd "$1" && sha256sum -- *); }

# Lists of modules: the config is made again, the weights are links, and the source does not change.
convert lists --to fp8-channel
python3 - "$work/lists/config.json" <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
config["quantization_config"]["ignore"] = ["lm_head"]
json.dump(config, open(sys.argv[1], "w"), indent=2)
P
sums "$work/lists" >"$work/before"
expect 1 "does not load" "$ingot" check "$work/lists" --engine vllm
expect 0 "2 of 2 weights files stay as they are" "$ingot" repair "$work/lists" "$work/mended" --dry-run
[ ! -e "$work/mended" ] || fail "a dry run has written something"
expect 0 "config.json: quantization_config.ignore: 1 entries -> 9 entries" "$ingot" repair "$work/lists" "$work/mended"
[ "$(inodes "$work/lists")" = "$(inodes "$work/mended")" ] || fail "weights are no links"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/mended" --deep
expect 0 "vLLM 0.33 loads this checkpoint" "$ingot" check "$work/mended" --engine vllm
expect 0 "PASS" "$ingot" verify "$example" "$work/mended" --levels weights
sums "$work/lists" | cmp -s - "$work/before" || fail "the source has changed"
expect 2 "mended" "$ingot" repair "$work/lists" "$work/mended"
expect 0 "" "$ingot" repair "$work/lists" "$work/written" --links no
[ "$(inodes "$work/lists")" != "$(inodes "$work/written")" ] || fail "weights are links"
cmp -s "$work/mended/ingot.tensors.jsonl.zst" "$work/written/ingot.tensors.jsonl.zst" || fail "records differ without links"
# A correct checkpoint stays as it is.
expect 0 "of the source, linked or copied" "$ingot" repair "$work/mended" "$work/again"
cmp -s "$work/mended/config.json" "$work/again/config.json" || fail "a second repair changes the config"

# FP8 in blocks among other schemes as earlier versions wrote it: SGLang finds no size of blocks.
convert blocks --to nvfp4 --dialect compressed-tensors
cp "$work/blocks/config.json" "$work/now.json"
python3 - "$work/blocks/config.json" <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
block = config["quantization_config"]
old = {"Linear": r"re:.*(self_attn\.\w*proj\w*|wq_b|wk)$"}
for group in block["config_groups"].values():
    group["targets"] = [old.get(target, target) for target in group["targets"]]
block["ignore"].remove("re:.*norm$")
assert "Linear" not in json.dumps(block)
json.dump(config, open(sys.argv[1], "w"), indent=2)
P
expect 1 'without the target "Linear"' "$ingot" check "$work/blocks" --engine sglang
expect 0 "ct.block-target" "$ingot" check "$work/blocks"
expect 0 "vLLM 0.33 loads this checkpoint" "$ingot" check "$work/blocks" --engine vllm
expect 0 "2 of 2 weights files stay as they are" "$ingot" repair "$work/blocks" "$work/blocks-mended"
python3 -c 'import json, sys; a, b = (json.load(open(p)) for p in sys.argv[1:]); sys.exit(a != b)' \
  "$work/now.json" "$work/blocks-mended/config.json" || fail "repair does not write the target Linear"
expect 0 "SGLang 0.5.23 " "$ingot" check "$work/blocks-mended" --engine sglang

# Engines know FP8 activations with INT4 weights, so they stay; changes are named, value by value.
convert int4 --to int4 --group-size 32
say() { # BITS: of activations
  python3 - "$work/int4/config.json" "$1" <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
block = config["quantization_config"]
block["ignore"].pop()
block["config_groups"]["group_0"]["input_activations"] = {
    "num_bits": int(sys.argv[2]), "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
json.dump(config, open(sys.argv[1], "w"), indent=2)
P
}
say 8
expect 0 "quantization_config.ignore: " "$ingot" repair "$work/int4" "$work/w4a8"
grep -q '"num_bits": 8' "$work/w4a8/config.json" || fail "activations are lost"
expect 0 "PASS" "$ingot" verify "$work/int4" "$work/w4a8" --levels structure
say 3
expect 0 "config_groups.group_0.input_activations.num_bits: 3 -> 8" "$ingot" repair "$work/int4" "$work/w4a3"
expect 0 "input_activations dynamic in 8 bits of type float, in the source dynamic in 3" \
  "$ingot" verify "$work/int4" "$work/w4a3" --levels structure

# An algorithm that no loader knows is named with the one that may be meant, and none is made up. One of the two files
# that say it is enough.
convert algo --to nvfp4 --dialect modelopt --activations weight-only
sed -i 's/"W4A16_NVFP4"/"W4A16_NVPF4"/' "$work/algo/config.json"
expect 0 "quant_algo: \"W4A16_NVPF4\" -> \"W4A16_NVFP4\"" "$ingot" repair "$work/algo" "$work/algo-mended"
sed -i 's/"W4A16_NVFP4"/"W4A16_NVPF4"/' "$work/algo/hf_quant_config.json"
expect 2 "quant_algo 'W4A16_NVPF4', which no loader knows; did you mean W4A16_NVFP4?" "$ingot" check "$work/algo"
expect 2 "config.json: says quant_algo 'W4A16_NVPF4', which no loader knows; did you mean W4A16_NVFP4?" \
  "$ingot" repair "$work/algo" "$work/out" --dry-run

# Nothing is said at all: the dialect that holds such weights.
cp -r "$work/lists" "$work/silent"
python3 - "$work/silent/config.json" <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
del config["quantization_config"]
json.dump(config, open(sys.argv[1], "w"), indent=2)
P
expect 0 "quantization_config: absent -> " "$ingot" repair "$work/silent" "$work/told"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/told"

# No index, and one that names another file.
cp -r "$work/lists" "$work/unindexed"
rm "$work/unindexed/model.safetensors.index.json"
expect 0 "the index is rebuilt" "$ingot" repair "$work/unindexed" "$work/indexed"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/indexed"
cp "$work/lists/model.safetensors.index.json" "$work/unindexed"
sed -i 's/00001-of-00002/00007-of-00002/' "$work/unindexed/model.safetensors.index.json"
expect 0 "the index is rebuilt" "$ingot" repair "$work/unindexed" "$work/indexed2"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/indexed2"

# A file that is missing is no fault of the index.
cp -r "$work/lists" "$work/half"
rm "$work/half/model-00002-of-00002.safetensors"
expect 2 "model-00002-of-00002.safetensors: model.safetensors.index.json names it, but it is not here" \
  "$ingot" repair "$work/half" "$work/out"
expect 2 "fetch this file" "$ingot" repair "$work/half" "$work/out" --dry-run

# Scales that are not called as the dialect calls them.
cp -r "$work/lists" "$work/renamed"
python3 "$here/edit_checkpoint.py" "$work/renamed" '
for name in [n for n in t if n.endswith("o_proj.weight_scale")]:
    t[name + "_inv"] = t.pop(name)'
expect 0 "repacked 3" "$ingot" repair "$work/renamed" "$work/called"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/called"

# Global scales apart: by a power of two nothing is lost, else as much as is said.
convert apart --to nvfp4
python3 "$here/edit_checkpoint.py" "$work/apart" '
for name, factor in [("model.layers.1.mlp.experts.0.up_proj", 2.0), ("model.layers.1.mlp.experts.3.gate_proj", 1.37),
                     ("model.layers.1.mlp.experts.4.gate_proj", 3e3)]:
    dtype, shape, data = t[name + ".weight_global_scale"]
    t[name + ".weight_global_scale"] = (dtype, shape, struct.pack("<f", struct.unpack("<f", data)[0] * factor))'
expect 2 "nvfp4.fused-global" "$ingot" check "$work/apart"
# No other command gives a clean bill: one verdict, first, with the command that mends it.
expect 1 "nvfp4.fused-global" "$ingot" check "$work/apart" --engine vllm
head -1 "$work/stdout" | grep -q "^vLLM 0.33 loads this checkpoint without an error and computes garbage: .*(ingot repair mends it)$" ||
  fail "the verdict is not first: $(head -1 "$work/stdout")"
[ "$(grep -c "reads these weights\|vLLM 0.33" "$work/stdout")" = 1 ] || fail "two verdicts"
expect 0 "nvfp4.fused-global" "$ingot" convert "$work/apart" "$work/none" --max-shard-size 1GB --dry-run
grep "^loaded by" "$work/stdout" | grep -q "vLLM 0.33" && fail "a copy is said to be loaded"
expect 0 "loaded by" "$ingot" convert "$work/apart" "$work/none" --to bf16 --dry-run
grep "^loaded by" "$work/stdout" | grep -q "vLLM 0.33" || fail "encoded weights are not said to be loaded"
expect 0 "3 tensors get the global scale of those with which loaders fuse them" "$ingot" repair "$work/apart" "$work/joint"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/joint" --deep
expect 0 "not read: codes and plain weights" "$ingot" check "$work/joint" --engine vllm
python3 "$here/joint_globals.py" "$work/apart/model.safetensors" "$work/joint/model.safetensors" || fail "block scales"
# Verification knows the rule: what a ratio near one costs passes, the same in any other way does not.
python3 "$here/edit_checkpoint.py" "$work/apart" '
for name in ["model.layers.1.mlp.experts.4.gate_proj"]:
    dtype, shape, data = t[name + ".weight_global_scale"]
    t[name + ".weight_global_scale"] = (dtype, shape, struct.pack("<f", struct.unpack("<f", data)[0] / 3e3))'
expect 0 "2 tensors get the global scale" "$ingot" repair "$work/apart" "$work/joint2"
expect 0 "PASS" "$ingot" verify "$work/apart" "$work/joint2" --levels structure,weights
rm "$work/joint2/ingot.json" "$work/joint2/ingot.tensors.jsonl.zst"
python3 "$here/edit_checkpoint.py" "$work/joint2" '
name = "model.layers.1.mlp.experts.3.gate_proj.weight_scale"
dtype, shape, data = t[name]
t[name] = (dtype, shape, bytes([data[0] - 1]) + data[1:])'
expect 1 "weights.changed" "$ingot" verify "$work/apart" "$work/joint2" --levels weights

# Farther apart than block scales reach: refused in a dry run too, instead of weights that are lost.
cp -r "$work/apart" "$work/far"
python3 "$here/edit_checkpoint.py" "$work/far" '
for name in ["model.layers.1.mlp.experts.4.gate_proj", "model.layers.1.mlp.experts.0.gate_proj"]:
    dtype, shape, data = t[name + ".weight_global_scale"]
    t[name + ".weight_global_scale"] = (dtype, shape, struct.pack("<f", struct.unpack("<f", data)[0] * 1e4))'
expect 2 "experts.4.gate_proj.weight': has a global scale of " "$ingot" repair "$work/far" "$work/out" --dry-run
expect 2 "2 faults" "$ingot" repair "$work/far" "$work/out"

# Scales of activations are kept where their weights' parts get other names or shapes, and where nothing is said at all.
inputs() { # DIR: all scales of activations, as numbers
  python3 - "$1" <<'P'
import struct, sys
from container import read_checkpoint
kinds = ("input_scale", "activation_scale", "input_global_scale")
stored = [tensor for name, tensor in read_checkpoint(sys.argv[1]).items() if name.endswith(kinds)]
found = {tensor.name.rsplit(".", 1)[0]: struct.unpack("<f", tensor.data[:4])[0] for tensor in stored}
assert found
print(sorted(found.items()))
P
}
forms=("nvfp4 modelopt" "fp8-tensor compressed-tensors")
[ "${3:-}" = all ] && forms+=("nvfp4 compressed-tensors" "fp8-tensor modelopt")
for form in "${forms[@]}"; do
  read -r scheme dialect <<<"$form"
  name=inputs-$scheme-$dialect
  convert "$name" --to "$scheme" --dialect "$dialect" --activations static --input-scale 0.375
  python3 "$here/edit_checkpoint.py" "$work/$name" '
for name in [n for n in t if n.endswith(("input_scale", "input_global_scale"))]:
    dtype, shape, data = t.pop(name)
    number = struct.unpack("<f", data)[0] * (1 + hash(len(name)) % 7)
    put(name, dtype, shape, struct.pack("<f", number))'
  inputs "$work/$name" >"$work/wanted"
  cp -r "$work/$name" "$work/$name-renamed"
  python3 "$here/edit_checkpoint.py" "$work/$name-renamed" '
for name in [n for n in t if n.endswith("o_proj.input_scale") or ".experts." in n and n.endswith("input_scale")]:
    put(name.replace("input_scale", "activation_scale"), *t.pop(name))
for name in [n for n in t if n.endswith("weight_packed") and ".experts.0." in n]:
    put(name.replace("weight_packed", "weight"), *t.pop(name))'
  expect 0 "repacked" "$ingot" repair "$work/$name-renamed" "$work/$name-called"
  inputs "$work/$name-called" | cmp -s - "$work/wanted" || fail "$name: renamed parts change scales of activations"
  expect 0 "0 errors" "$ingot" check "$work/$name-called"
  python3 "$here/edit_checkpoint.py" "$work/$name" 'c.pop("quantization_config")'
  rm -f "$work/$name/hf_quant_config.json"
  expect 0 "quantization_config: absent -> " "$ingot" repair "$work/$name" "$work/$name-told"
  inputs "$work/$name-told" | cmp -s - "$work/wanted" || fail "$name: a silent config costs scales of activations"
  expect 0 "" "$ingot" check "$work/$name-told" --engine vllm
done

# One that no engine could compute with is refused, and the remedy named works.
convert dead --to fp8-tensor --dialect compressed-tensors --activations static --input-scale 1
python3 "$here/edit_checkpoint.py" "$work/dead" '
name = "model.layers.1.self_attn.o_proj.input_scale"
t[name] = (*t[name][:2], bytes(4))'
expect 2 "zero-scale=model.layers.1.self_attn.o_proj.weight" "$ingot" repair "$work/dead" "$work/refused"
[ -z "$(ls "$work/refused")" ] || fail "a dead scale was published"
expect 0 "weights files stay as they are" "$ingot" repair "$work/dead" "$work/accepted" \
  --allow zero-scale=model.layers.1.self_attn.o_proj.weight

# Scales of the right name in another shape than that of the loader's parameter.
cp -r "$work/lists" "$work/flat"
python3 "$here/edit_checkpoint.py" "$work/flat" '
for name in [n for n in t if n.endswith("weight_scale") and ".experts." in n]:
    dtype, shape, data = t[name]
    t[name] = (dtype, shape[:1], data)'
expect 2 "ct.scale-shape" "$ingot" check "$work/flat"
expect 0 "repacked" "$ingot" repair "$work/flat" "$work/tall"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/tall" --deep
expect 0 "PASS" "$ingot" verify "$example" "$work/tall" --levels weights

# A claim about scales that they do not keep.
convert claim --to fp8 --fp8-grid amax --search amax
python3 "$here/edit_checkpoint.py" "$work/claim" 'c["quantization_config"]["scale_fmt"] = "ue8m0"'
expect 0 'scale_fmt: "ue8m0" -> absent' "$ingot" repair "$work/claim" "$work/unclaimed"
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/unclaimed" --deep

# FP4 experts with FP8, which no dialect derives: the config about them stays.
golden=$here/../golden/families
expect 0 "weights files stay as they are" "$ingot" repair "$golden/deepseek_v4" "$work/v4"
cmp -s "$golden/deepseek_v4/config.json" "$work/v4/config.json" || fail "the config of DeepSeek-V4 has changed"
# The same in another order is no change.
expect 0 "2 of 2 weights files" "$ingot" repair "$example" "$work/release"
cmp -s "$example/config.json" "$work/release/config.json" || fail "the config of the release has changed"

# Refusals, with nothing published.
expect 2 "read and never written" "$ingot" repair "$golden/qwen3_moe_awq" "$work/out"
cp -r "$golden/deepseek_v4" "$work/v4-silent"
python3 - "$work/v4-silent/config.json" <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
del config["quantization_config"]
json.dump(config, open(sys.argv[1], "w"))
P
expect 2 "copy quantization_config from the release" "$ingot" repair "$work/v4-silent" "$work/out"
expect 2 "no such directory" "$ingot" repair "$work/nowhere" "$work/out"
cp -r "$work/lists" "$work/short"
truncate -s 1000000 "$work/short/model-00002-of-00002.safetensors"
expect 2 "model-00002-of-00002.safetensors" "$ingot" repair "$work/short" "$work/out"
"$ingot" convert "$example" "$work/slices" --to bf16 --tp 2 --progress never >/dev/null 2>&1 || fail "slices"
expect 2 "ingot merge" "$ingot" repair "$work/slices" "$work/out"
[ ! -e "$work/out" ] || fail "something was published"
# Without a config the message names repair, which makes it again from the weights.
for options in "" "--dialect modelopt --activations weight-only"; do
  rm -rf "$work"/lost*
  # shellcheck disable=SC2086
  convert lost --to nvfp4 $options
  cp "$work/lost/config.json" "$work/config.json"
  rm -f "$work/lost/hf_quant_config.json"
  python3 - "$work/lost/config.json" <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
del config["quantization_config"]
json.dump(config, open(sys.argv[1], "w"), indent=2)
P
  expect 2 "ingot repair makes one" "$ingot" check "$work/lost"
  expect 2 "ingot repair makes one" "$ingot" convert "$work/lost" "$work/none"
  expect 0 "quantization_config: absent -> " "$ingot" repair "$work/lost" "$work/lost-mended" --progress never
  expect 0 "0 errors" "$ingot" check "$work/lost-mended"
  expect 0 "vLLM 0.33 loads this checkpoint" "$ingot" check "$work/lost-mended" --engine vllm
done
finish
