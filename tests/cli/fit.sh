#!/usr/bin/env bash
# Whether it fits: what a rank holds of a checkpoint, or of a conversion that has not been made, and how long that takes.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
json() { result 0 "$@"; }
# result STATUS WORD...: the document of a command with that exit status.
result() {
  "$ingot" "${@:2}" --json >"$work/json" 2>"$work/stderr" </dev/null
  local got=$?
  [ $got -eq "$1" ] || fail "exit status $got instead of $1: ${*:2}: $(cat "$work/stderr")"
}
facts='f = d.get("fit")'
inspect() { json inspect "$example" --gpu-memory "$@"; }

# One rank holds the whole model; a cached token has 128 + 16 values of BF16 and an index key, in each of 5 layers.
json inspect "$example"
weights=$(python3 -c "import json,sys; print(sum(p['bytes'] for t in json.load(sys.stdin)['tensors'] for p in t['parts']))" \
  < <("$ingot" inspect "$example" --tensors --json))
inspect 80GB
holds "f['weight_bytes'] == $weights == sum(f['weights'].values()) and f['ranks'] == 1 and f['fits']"
holds "f['weights']['experts'] == 7866240 and f['weights']['attention'] == 1499544"
bf16=$(python3 -c "import json,sys; print(json.load(sys.stdin)['fit']['cache_bytes_per_token'])" <"$work/json")
python3 - "$example/config.json" "$bf16" <<'P' || fail "the cache has $bf16 bytes per token"
import json, sys
c, got = json.load(open(sys.argv[1])), int(sys.argv[2])
values = c["kv_lora_rank"] + c["qk_rope_head_dim"]
index = (2 * c["index_head_dim"], c["index_head_dim"] + 4)  # BF16, or FP8 with one FP32 scale
assert got in [c["num_hidden_layers"] * (2 * values + i) for i in index], got
P
# FP8: the latent with an FP32 scale per 128 values, the rope key in BF16.
inspect 80GB --kv-cache fp8
holds "$bf16 - f['cache_bytes_per_token'] == 5 * (2 * 128 - (128 + 4))"

# Ranks: a quarter of the experts each, and the latent cache on every rank.
inspect 80GB --tp 2 --ep 4 --tp-fit bf16
holds "f['ranks'] == 4 and f['weights']['experts'] == 7866240 // 4 and f['cache_bytes_per_token'] == $bf16"
cp "$work/json" "$work/planned"
"$ingot" convert "$example" "$work/ranks" --tp 2 --ep 4 --tp-fit bf16 --progress never >/dev/null 2>&1 || fail "ranks"
python3 - "$work" <<'P' || fail "the ranks hold something else than was planned"
import json, struct, sys, glob
fit = json.load(open(sys.argv[1] + "/planned"))["fit"]
def data(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return sum(t["data_offsets"][1] - t["data_offsets"][0] for n, t in header.items() if n != "__metadata__")
ranks = [sum(map(data, glob.glob(d + "/*.safetensors"))) for d in sorted(glob.glob(sys.argv[1] + "/ranks/rank-*"))]
assert max(ranks) == fit["weight_bytes"] == ranks[fit["tightest_rank"]], (ranks, fit)
assert min(ranks) == fit["lightest_weight_bytes"], (ranks, fit)
P

# Grouped-query attention: keys and values of the heads of a rank. A family without a forward pass has no cache here.
"$ingot" synth "$work/qwen" --family qwen3_moe --like tiny >/dev/null 2>&1 || fail "synth"
for tp in 1 2; do
  json inspect "$work/qwen" --gpu-memory 80GB --tp $tp --tp-fit bf16
  python3 - "$work" $tp <<'P' || fail "the cache of qwen3_moe at tp $tp"
import json, sys
c, f, tp = json.load(open(sys.argv[1] + "/qwen/config.json")), json.load(open(sys.argv[1] + "/json"))["fit"], int(sys.argv[2])
assert f["cache_bytes_per_token"] == 2 * 2 * c["num_hidden_layers"] * max(1, c["num_key_value_heads"] // tp) * c["head_dim"], (c, f)
P
done
json inspect "$example" --family generic --gpu-memory 80GB
holds "f['cache_bytes_per_token'] is None and f['weight_bytes'] == $weights and f['fits']"
# Pipeline stages: each has the cache of its layers.
inspect 80GB --pp 2 --pp-layers 0-3,4-4
holds "f['ranks'] == 2 and f['tightest_rank'] == 0 and f['cache_bytes_per_token'] == $bf16 * 4 // 5"

# Whether it fits, and how many sequences would.
inspect 80GB --context 128k --sequences 64
holds "f['cache_bytes'] == 64 * 131072 * f['cache_bytes_per_token'] and f['context'] == 131072"
holds "f['sequences_that_fit'] == f['tokens_that_fit'] // 131072 == (72 * 10**9 - f['weight_bytes']) // f['cache_bytes_per_token'] // 131072"
holds "f['fits'] == (f['sequences_that_fit'] >= 64)"
result 1 inspect "$example" --gpu-memory 10MB
holds "not f['fits'] and f['tokens_that_fit'] == 0"
expect 1 "fits      no: " "$ingot" inspect "$example" --gpu-memory 8MB
expect 0 "fits      yes" "$ingot" inspect "$example" --gpu-memory 80GB --kv-cache int8

# A GPU by name, and how many are needed: the smallest power of two in which tp = ep = n fits.
json inspect "$example" --gpu H100
holds "f['device_bytes'] == 81559 * 2**20 and f['fits'] and f['gpu'] == {'name': 'h100', 'needed': 1}"
expect 0 "needs     1 b200" "$ingot" inspect "$example" --gpu b200 --context 4k
"$ingot" synth "$work/large" --family deepseek_v3 --like headers --layers 24 >/dev/null 2>&1 || fail "synth"
json inspect "$work/large" --gpu a100
needed=$(python3 -c "import json,sys; print(json.load(sys.stdin)['fit']['gpu']['needed'])" <"$work/json")
holds "f['ranks'] == f['tp'] == f['ep'] == $needed > 2 and f['fits']"
result 1 inspect "$work/large" --gpu-memory 81920MiB --tp $((needed / 2)) --ep $((needed / 2))
json inspect "$work/large" --gpu-memory 81920MiB --tp "$needed" --ep "$needed"
"$ingot" synth "$work/dense" --config "$(dirname "$0")/../golden/families/headers/llama.config.json" --like headers >/dev/null 2>&1 || fail "synth"
expect 0 "needs     2 a100 (tp 2)" "$ingot" inspect "$work/dense" --gpu a100 --context 128k --sequences 4000
# With ranks, the fit is theirs.
result 1 inspect "$work/large" --gpu a100 --tp 2 --ep 2
holds "f['ranks'] == 2 and not f['fits'] and f['gpu']['needed'] == $needed"
json inspect "$work/large" --gpu b200 --to nvfp4
holds "f['gpu']['needed'] < $needed"
# Where it cannot be cut any more, the reason ends the count.
expect 1 "needs     more than 2 h100, and for 4 it cannot be cut: family generic" "$ingot" inspect "$work/large" --gpu h100 --family generic
expect 1 "needs     more than 1 h100, and for 2 it cannot be cut: tensor '" "$ingot" inspect "$example" --gpu h100 --context 1M --sequences 100000000
expect 1 "needs     more than 8 h100, and for 16 it cannot be cut: 8 attention heads" "$ingot" inspect "$example" --gpu h100 --context 1M --sequences 100000000 --tp-fit bf16
expect 2 "did you mean h100?" "$ingot" inspect "$example" --gpu h10
expect 2 "a100,l40s,h100,h200,b200" "$ingot" inspect "$example" --gpu tpu
expect 2 "--gpu" "$ingot" inspect "$example" --gpu h100 --gpu-memory 80GB
expect 2 "--gpu" "$ingot" inspect "$example" --gpu h100 model.norm.weight
expect 0 "81,559" "$ingot" list gpus

# So many of them, in each of some schemes, and how the GPU computes those.
json inspect "$example" --gpu b200 --count 1
facts='f = {row["to"]: row for row in d["fits"]}'
holds "d['passed'] and list(f) == ['bf16', 'fp8', 'int8', 'int4', 'nvfp4'] and f['fp8']['fit']['weight_bytes'] == $weights"
holds "f['nvfp4']['computed'] == 'natively' and f['int8']['computed'] == 'refused by vLLM' and 'decoded' in f['int4']['computed']"
json inspect "$example" --gpu a100 --count 2
holds "f['int8']['fit']['tp'] == f['int8']['fit']['ep'] == 2 and 'the FP8 block has' in f['fp8']['obstacle'] and f['fp8']['fit'] is None"
expect 1 "bf16, fp8, int8, int4, nvfp4: 16 experts cannot be dealt" "$ingot" inspect "$example" --gpu h100 --count 3
json inspect "$example" --gpu h100 --count 2 --to int8
facts='f = d.get("fit")'
holds "f['tp'] == f['ep'] == 2 and f['fits'] and 'fits' not in d"
expect 0 "natively" "$ingot" inspect "$example" --gpu h100 --count 1 --context 4k
expect 2 "--count requires --gpu" "$ingot" inspect "$example" --count 8
expect 2 "--count excludes --tp" "$ingot" inspect "$example" --gpu h100 --count 8 --tp 8

# A conversion that has not been made, only from its plan.
inspect 80GB --to bf16
holds "f['weights']['experts'] == 2 * 240 * 128 * 256"
inspect 80GB --to int8 --for vllm --rule 'role:attention=bf16' --mtp drop
holds "f['weights']['attention'] < 2 * 1499544 and f['weight_bytes'] < $weights"
inspect 80GB --recipe "$(dirname "$example")/recipes/nvfp4-attention-fp8.yaml"
holds "f['weights']['experts'] < 7866240 * 0.6"

expect 2 "as in 5GB" "$ingot" inspect "$example" --gpu-memory 80
expect 2 "no number of tokens" "$ingot" inspect "$example" --gpu-memory 80GB --context 128q
expect 2 "--sequences requires --context" "$ingot" inspect "$example" --gpu-memory 80GB --sequences 2
expect 2 "--kv-cache 'fp4' is none of" "$ingot" inspect "$example" --gpu-memory 80GB --kv-cache fp4
expect 2 "--gpu-memory" "$ingot" inspect "$example" --to bf16
expect 2 "does not load int8-block" "$ingot" inspect "$example" --gpu-memory 80GB --to int8-block --for vllm
expect 2 "is not a size" "$ingot" inspect "$example" --gpu-memory lots

# The time is only in the text of a dry run; nothing stays on the disk.
mkdir "$work/empty"
expect 0 "time         about " "$ingot" convert "$example" "$work/empty/out" --to int8 --dry-run
grep -qE "limited by (reading|writing|computing): reads .*writes .*computes " "$work/stdout" || fail "no rates: $(cat "$work/stdout")"
[ -z "$(ls -A "$work/empty")" ] || fail "a dry run left $(ls -A "$work/empty")"
json convert "$example" "$work/empty/out" --to int8 --dry-run
holds "'time' not in d"
finish
