#!/usr/bin/env bash
# Output of check: every finding at once, exit status 2 for an error, and the hashes of a manifest.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
"$ingot" convert "$example" "$work/out" --to bf16 --progress never >/dev/null || fail "convert"
expect 0 "0 errors" "$ingot" check "$work/out"
expect 0 "0 errors" "$ingot" check "$example" --deep
grep -qE '^read [0-9.]+ MB: cold at [0-9.]+ .?B/s, hot at [0-9.]+ .?B/s$' "$work/stdout" || fail "no rates: $(cat "$work/stdout")"
# Every byte of every file, and of files that ranks share once.
expect 0 "" "$ingot" convert "$example" "$work/shared" --tp 2 --ep 2 --tp-fit bf16
for directory in "$example" "$work/shared"; do
  bytes=$(find "$directory" -name '*.safetensors' -printf '%i %s\n' | sort -u | awk '{ n += $2 } END { print n }')
  "$ingot" check "$directory" --deep --json 2>"$work/stderr" | python3 -c '
import json, sys
read = json.load(sys.stdin)["reading"]
assert read["bytes"] == int(sys.argv[1]) and read["cold_seconds"] > 0 and read["hot_seconds"] > 0, (read, sys.argv)' "$bytes" ||
    fail "not all of $directory was read: $(cat "$work/stderr")"
done
expect 0 "" "$ingot" check "$example" --source-of "$work/out"

# One byte in the middle of a weight, and one of a side file: both are named.
python3 - "$work/out/model-00002-of-00002.safetensors" <<'P'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(9_000_000)
    byte = f.read(1)
    f.seek(9_000_000)
    f.write(bytes([byte[0] ^ 1]))
P
echo >>"$work/out/tokenizer.json"
expect 2 "model-00002-of-00002.safetensors" "$ingot" check "$work/out"
expect 2 "tokenizer.json" "$ingot" check "$work/out"
# Without hashes only the size of the side file tells.
expect 2 "tokenizer.json" "$ingot" check "$work/out" --no-hashes
cp "$example/tokenizer.json" "$work/out"
expect 0 "0 errors" "$ingot" check "$work/out" --no-hashes
expect 2 "model-00002-of-00002.safetensors" "$ingot" check "$work/out"

# Two independent faults of a source are told together.
mkdir "$work/in"
cp "$example"/*.json "$example"/*.safetensors "$work/in"
python3 - "$work/in" <<'P'
import json, struct, sys
def patch(file, tensor, at, data):
    path = f"{sys.argv[1]}/{file}"
    with open(path, "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        h = json.loads(f.read(n))
        f.seek(8 + n + h[tensor]["data_offsets"][0] + at)
        f.write(data)
patch("model-00001-of-00002.safetensors", "model.layers.0.self_attn.o_proj.weight_scale_inv", 0, struct.pack("<f", -1.0))
patch("model-00002-of-00002.safetensors", "model.layers.4.self_attn.o_proj.weight", 77, b"\x7f")
P
expect 2 "model.layers.0.self_attn.o_proj" "$ingot" check "$work/in"
expect 2 "model.layers.4.self_attn.o_proj" "$ingot" check "$work/in" --deep
expect 2 "model.layers.0.self_attn.o_proj" "$ingot" check "$work/in" --deep
expect 2 "" "$ingot" check "$work/in" --source-of "$work/out"
expect 2 "absent" "$ingot" check "$work/absent"
# Beliefs of one engine.
"$ingot" convert "$example" "$work/int8" --to int8 --progress never >/dev/null 2>&1 || fail "convert"
expect 0 "loads this checkpoint, with --quantization w8a8_int8" "$ingot" check "$work/int8" --engine sglang
expect 0 "vLLM 0.32 loads this checkpoint" "$ingot" check "$work/int8" --engine vllm:0.32
expect 0 "model.layers.{1-5}.mlp.experts.{0-15}.down_proj" "$ingot" check "$work/int8" --engine vllm --modules
"$ingot" check "$work/int8" --engine vllm | grep -q "linear layers" && fail "modules that were not asked for"
expect 2 "not version '0.31'" "$ingot" check "$work/int8" --engine vllm:0.31
# Slices are for the engine whose own layout they have, and a file is for none.
expect 2 "ingot merge makes one" "$ingot" check "$work/shared" --engine vllm
expect 0 "" "$ingot" convert "$example" "$work/sharded" --to bf16 --layout vllm-sharded --tp 2
expect 0 "with --load-format sharded_state --tensor-parallel-size 2" "$ingot" check "$work/sharded" --engine vllm
expect 2 "ingot merge makes one" "$ingot" check "$work/sharded" --engine sglang
expect 2 "by itself is no checkpoint" "$ingot" check "$example/model-00001-of-00002.safetensors" --engine vllm
# Engines know no manifest.
sed -i '1s/{/{"edited": true,/' "$work/int8/config.json"
expect 2 "the manifest says" "$ingot" check "$work/int8" --no-hashes
expect 0 "vLLM 0.33 loads this checkpoint" "$ingot" check "$work/int8" --engine vllm
sed -i 's/"ignore": *\[/"ignore": ["re:.*o_proj$",/' "$work/int8/config.json"
expect 1 "vLLM 0.33 does not load this checkpoint" "$ingot" check "$work/int8" --engine vllm
"$ingot" check "$work/int8" --engine vllm --json 2>"$work/stderr" |
  python3 -c 'import json, sys; r = json.load(sys.stdin); assert r["passed"] is False; print(*[m["name"] for m in r["engine"]["modules"] if not m["agrees"]])' >"$work/names"
[ "$(cat "$work/names")" = "model.layers.{0-5}.self_attn.o_proj" ] || fail "believed otherwise: $(cat "$work/names" "$work/stderr")"
finish
