#!/usr/bin/env bash
# Bytes that loaders read: V3's shapes against figures derived by hand from the shapes, and a small model's by hand.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# by_loader OPTION...: $work/json with the loaders of vLLM by name.
by_loader() {
  "$ingot" inspect "$@" --json >"$work/json" 2>"$work/stderr" || fail "inspect $*: $(cat "$work/stderr")"
}
facts='loading = d["loading"]; vllm = {row["loader"]: row for row in loading["loaders"] if row["engine"] == "vllm"}'
facts+="; near = lambda value, gigabytes: abs(value / 1e9 / gigabytes - 1) < 0.01"
facts+="; mean = lambda values: sum(values) / len(values)"

expect 0 "" "$ingot" synth "$work/v3" --family deepseek_v3 --like 671b-headers
by_loader "$work/v3" --loading --tp 8
holds "near(loading['bytes'], 688.57) and near(loading['bytes'] - loading['draft_bytes'], 673.15)"
holds "all(near(n, 283) for n in vllm['lazy']['read_bytes'])"
holds "all(near(n, 673) for n in vllm['eager']['read_bytes'])"
holds "near(mean(vllm['prefetch']['read_bytes']), 84.1)"
holds "near(mean(vllm['fastsafetensors']['read_bytes']), 84.1)"
holds "all(near(n, 84.1) for n in vllm['instanttensor']['read_bytes'])"
holds "all(near(n, 85.1) for n in vllm['rank files']['read_bytes'])"
holds "near(sum(vllm['rank files']['read_bytes']), 681)"
holds "'lazy, own experts' not in vllm"
by_loader "$work/v3" --loading --tp 8 --ep 8
holds "all(near(n, 101) for n in vllm['lazy, own experts']['asked_bytes'])"
holds "all(near(n, 101) for n in vllm['instanttensor, own experts']['read_bytes'])"
holds "near(sum(vllm['instanttensor, own experts']['read_bytes']), 808)"
# Experts, an eighth; attention and dense layers, an eighth of the outputs and all of the inputs; all else.
holds "near(vllm['lazy']['read_bytes'][0], 654.07 / 8 + 9.53 / 8 + 8.41 + 1.14)"
# Two nodes: each reads the files of its ranks, half of all on average.
by_loader "$work/v3" --loading --tp 8 --pp 2
holds "len(vllm['rank files']['read_bytes']) == 16 and near(sum(vllm['rank files']['read_bytes']) / 2, 340)"
# Without parallelism every loader reads all that is used.
by_loader "$example" --loading
holds "{row['read_bytes'][0] for row in vllm.values()} <= {loading['bytes'] - loading['draft_bytes'], loading['bytes']}"
holds "vllm['lazy']['read_bytes'] == [loading['bytes'] - loading['draft_bytes']]"

# The ways to make it less: layers for drafts in files of their own, a number of files that the ranks divide, and names
# in order end each its line.
expect 0 "layers for drafts in files of their own" "$ingot" inspect "$work/v3" --loading --tp 8
expect 0 "files that 8 divides" "$ingot" inspect "$work/v3" --loading --tp 8
expect 0 "--order name" "$ingot" inspect "$example" --loading
expect 0 "" "$ingot" convert "$example" "$work/named" --order name --files 2
expect 0 "are for drafts" "$ingot" inspect "$work/named" --loading
grep -q -e "--order name" -e "files of their own" "$work/stdout" && fail "advice that was taken is given again"

expect 2 "--gpu" "$ingot" inspect "$example" --loading --gpu h100
expect 2 "--loading" "$ingot" inspect "$example" --tp 2
expect 0 "" "$ingot" convert "$example" "$work/ranks" --to bf16 --tp 2
expect 2 "one rank's slices" "$ingot" inspect "$work/ranks/rank-00000-of-00002" --loading
finish
