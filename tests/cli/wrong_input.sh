#!/usr/bin/env bash
# Wrong input: one clear error that names file, tensor, fact and remedy, exit status 2, no file under a final name.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

fresh() {
  rm -rf "$work/in" "$work/out"
  mkdir "$work/in"
  cp "$example"/*.json "$example"/*.safetensors "$work/in"
}
refused() {
  expect 2 "$1" "$ingot" convert "$work/in" "$work/out" --to bf16 --progress never
  expect_unpublished "$work/out"
}
edit_header() {  # edit_header FILE 'python statements over header h'
  python3 - "$work/in/$1" "$2" <<'P'
import json, struct, sys
path, code = sys.argv[1:]
data = open(path, "rb").read()
n = struct.unpack("<Q", data[:8])[0]
h = json.loads(data[8:8 + n])
exec(code)
text = json.dumps(h).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
P
}
edit_json() { python3 - "$work/in/$1" "$2" <<'P'
import json, sys
path, code = sys.argv[1:]
d = json.load(open(path))
exec(code)
json.dump(d, open(path, "w"))
P
}
one=model-00001-of-00002.safetensors two=model-00002-of-00002.safetensors

expect 2 "absent" "$ingot" convert "$work/absent" "$work/out" --to bf16
fresh; truncate -s -1000 "$work/in/$two"; refused "$two"
fresh; truncate -s 4 "$work/in/$one"; refused "$one"
fresh; : >"$work/in/$one"; refused "$one"
fresh; printf 'x' >>"$work/in/$one"; refused "$one"
fresh; rm "$work/in/$two"; refused "$two"
fresh; rm "$work/in/config.json"; refused "config.json"
fresh; echo '{"model_type": ' >"$work/in/config.json"; refused "config.json"
fresh; edit_json config.json 'd["hidden_size"] = "wide"'; refused "hidden_size"
fresh; edit_json config.json 'd["num_hidden_layers"] = 10**30'; refused "config.json"
fresh; edit_json config.json 'd["model_type"] = "gpt_j"'; refused "gpt_j"
fresh; edit_json model.safetensors.index.json 'd["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors"'; refused "ghost.weight"
fresh; edit_json model.safetensors.index.json 'd["weight_map"]["ghost.weight"] = "../escape.safetensors"'; refused "escape"
fresh; edit_json model.safetensors.index.json 'del d["weight_map"]["model.norm.weight"]'; refused "model.norm.weight"
fresh; edit_header $two 'h["model.nrom.weight"] = h.pop("model.norm.weight")'; refused "model.nrom.weight"
fresh; edit_header $one 'h["lm_head.weight"]["shape"] = [256, 2048]'; refused "lm_head.weight"
fresh; edit_header $one 'h["lm_head.weight"]["shape"] = [2**33, 2**33]'; refused "lm_head.weight"
fresh; edit_header $one 'h["lm_head.weight"]["data_offsets"][0] -= 2'; refused "$one"
fresh; edit_header $one 'h["lm_head.weight"]["dtype"] = "F7"'; refused "F7"
# A scale that is not there, and one that has no weight, with the index telling the same story.
fresh
edit_header $one 'h["model.layers.0.stray_scale_inv"] = h.pop("model.layers.0.self_attn.o_proj.weight_scale_inv")'
edit_json model.safetensors.index.json 'm = d["weight_map"]; m["model.layers.0.stray_scale_inv"] = m.pop("model.layers.0.self_attn.o_proj.weight_scale_inv")'
refused "model.layers.0.self_attn.o_proj.weight"
fresh; edit_header $one 't = h["model.layers.0.self_attn.o_proj.weight_scale_inv"]; t["shape"] = [4, 1]'; refused "o_proj"
fresh; edit_header $one 't = h["model.layers.0.self_attn.o_proj.weight_scale_inv"]; t["dtype"] = "I32"'; refused "o_proj"
fresh; edit_header $one 'h["model.layers.0.self_attn.o_proj.weight"]["dtype"] = "I8"'; refused "o_proj"
fresh; rm "$work/in/$one"; ln -s "$one" "$work/in/$one"; refused "$one"
fresh; rm "$work/in/$one"; mkdir "$work/in/$one"; refused "$one"
fresh; rm "$work/in/$one"; mkfifo "$work/in/$one"; refused "$one"

fresh
expect 2 "contain" "$ingot" convert "$work/in" "$work/in/out" --to bf16
expect 2 "contain" "$ingot" convert "$work/in" "$work/in" --to bf16
expect 2 "matches no tensor" "$ingot" convert "$work/in" "$work/out" --rule 'model.layers.77.*=bf16'
expect 2 "no scheme" "$ingot" convert "$work/in" "$work/out" --to int3
expect 2 "fp8.plain-module" "$ingot" convert "$work/in" "$work/out" --rule 'lm_head.weight=fp8'
expect 2 "ct.plain-module" "$ingot" convert "$work/in" "$work/out" --to int8 --rule 'role:router=int8'
expect 2 "vLLM 0.33" "$ingot" convert "$work/in" "$work/out" --to fp8-tensor --dialect compressed-tensors
expect 2 "ingot calibrate" "$ingot" convert "$work/in" "$work/out" --to fp8-tensor --activations static
expect 2 "nvfp4 needs a matrix" "$ingot" convert "$work/in" "$work/out" --rule 'model.norm.weight=nvfp4'
expect 2 "mem-limit" "$ingot" convert "$work/in" "$work/out" --to bf16 --mem-limit 1MB
expect 2 "not a size" "$ingot" convert "$work/in" "$work/out" --to bf16 --mem-limit lots
expect 2 "allow" "$ingot" convert "$work/in" "$work/out" --to bf16 --allow everything
printf 'rules:\n  - {match: "*", sheme: bf16}\n' >"$work/bad.yaml"
expect 2 "sheme" "$ingot" convert "$work/in" "$work/out" --recipe "$work/bad.yaml"
[ ! -e "$work/out" ] || fail "a refused command created its output"

# Names from strangers reach the terminal escaped, and JSON documents stay valid.
expect 2 'a\x1b[31m: no such directory' "$ingot" inspect "$work/"$'a\e[31m'
! grep -q $'\e' "$work/stderr" || fail "an escape character of a file name reached the terminal"
fresh; edit_header $two 'h["model.\x1b[2Jnorm.weight"] = h.pop("model.norm.weight")'; refused 'model.\x1b[2Jnorm.weight'
"$ingot" inspect "$work/"$'\xff' --json >"$work/json" 2>/dev/null
holds 'd["error"]["file"].endswith("\\xff")'
fresh

mkdir "$work/closed"
chmod 500 "$work/closed"
if [ "$(id -u)" -ne 0 ]; then
  expect 2 "ermission" "$ingot" convert "$work/in" "$work/closed/out" --to bf16 --progress never
else
  # root may write anywhere; a file where a folder should be is refused to anyone.
  expect 2 "" "$ingot" convert "$work/in" "$example/config.json/out" --to bf16 --progress never
fi

# Finished, unfinished and foreign targets.
expect 0 "cast" "$ingot" convert "$work/in" "$work/out" --to bf16 --progress never
expect 2 "--force" "$ingot" convert "$work/in" "$work/out" --to bf16 --progress never
expect 0 "plan for" "$ingot" convert "$work/in" "$work/out" --to bf16 --dry-run --force
expect 0 "already finished" "$ingot" convert "$work/in" "$work/out" --to bf16 --progress never --resume
expect 0 "already finished" "$ingot" convert "$work/in" "$work/out" --to bf16 --dry-run --resume
expect 2 "cannot resume" "$ingot" convert "$work/in" "$work/out" --progress never --resume
mkdir -p "$work/unfinished/.ingot-partial/files" "$work/foreign/folder"
expect 2 "unfinished" "$ingot" inspect "$work/unfinished"
expect 2 "unfinished" "$ingot" convert "$work/in" "$work/unfinished" --to bf16 --progress never
expect 2 "not empty" "$ingot" convert "$work/in" "$work/foreign" --to bf16 --progress never
expect 2 "not a directory" "$ingot" convert "$work/in" "$work/bad.yaml" --to bf16 --progress never
rm "$work/in/$one" && ln -s "$(realpath "$example")/$one" "$work/in/$one"
expect 2 "symbolic link" "$ingot" convert "$work/in" "$work/none" --to bf16 --progress never --consume-source

# A disk that is too small: the whole plan, what is missing and what would help; of another host by --assume-disk.
"$ingot" convert "$example" "$work/none" --to bf16 --dry-run --assume-disk 2MB >"$work/stdout" 2>"$work/stderr"
[ $? -eq 2 ] || fail "a plan that does not fit has not status 2"
for text in "plan for" "peak memory" "MISSING"; do grep -qF "$text" "$work/stdout" || fail "no '$text' in the plan"; done
for text in "has 2000000 free" "are missing" "another disk" "fewer bits"; do
  grep -qF -- "$text" "$work/stderr" || fail "no '$text' in: $(cat "$work/stderr")"
done
"$ingot" convert "$example" "$work/none" --to bf16 --dry-run --assume-disk 2MB --json >"$work/plan"
[ $? -eq 2 ] || fail "as JSON it has not status 2"
holds "d['error']['code'] == 'no-space' and d['files']" plan
holds "d['disk_bytes_missing'] == d['disk_bytes_needed'] - 2_000_000 > 0" plan
expect 0 "assumed" "$ingot" convert "$example" "$work/none" --to bf16 --dry-run --assume-disk 200MB
judge 2 "--dry-run" "$ingot" convert "$example" "$work/none" --to bf16 --assume-disk 200MB
[ ! -e "$work/none" ] || fail "a refused command created its output"

# A weight without columns has rows of no scales, whose product with a tiny global scale is looked at.
python3 - "$work/empty" <<'P'
import struct, sys
from container import write_checkpoint
tensors = {"a.weight": ("U8", [64, 0], b""), "a.weight_scale": ("F8_E4M3", [64, 0], b""),
           "b.weight": ("U8", [16, 16], bytes(256)), "b.weight_scale": ("F8_E4M3", [16, 2], b"\x38" * 32)}
tensors.update({name + ".weight_scale_2": ("F32", [], struct.pack("<f", 1e-36)) for name in "ab"})
block = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
write_checkpoint(sys.argv[1], [tensors], {"model_type": "none", "quantization_config": block})
P
"$ingot" check "$work/empty" --family generic >"$work/stdout" 2>&1
[ $? -le 2 ] || fail "check ended by a signal: $(cat "$work/stdout")"
for words in "" "--dialect compressed-tensors" "--dialect compressed-tensors --lossless-only"; do
  # shellcheck disable=SC2086
  "$ingot" convert "$work/empty" "$work/none" --family generic --force --progress never $words >"$work/stdout" 2>&1
  [ $? -le 2 ] || fail "convert $words ended by a signal: $(cat "$work/stdout")"
done
finish
