#!/usr/bin/env bash
# INT4 with zero points: less error than without, the same model however it is cut, and refusals that name what works.
# Values are decoded in NumPy (tests/differential), which shares nothing with the program.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
here=$(realpath "$(dirname "$0")")
golden=$here/../golden/families
kimi=$golden/kimi_k2_thinking

same() { # same ONE OTHER WHY: the same files of weights
  for file in "$1"/*.safetensors; do cmp "$file" "$2/$(basename "$file")" || fail "$3: $(basename "$file")"; done
}
run() { "$ingot" "$@" --progress never >"$work/stdout" 2>"$work/stderr" </dev/null || fail "$*: $(head -c 600 "$work/stderr")"; }

# The squared error of the routed experts, by a decoder of its own, as a ratio to that of --search mse.
for group in 32 128; do
  run convert "$example" "$work/mse$group" --to int4 --group-size "$group"
  run convert "$example" "$work/zeros$group" --to int4 --group-size "$group" --zero-points
  expect 0 "PASS" "$ingot" verify "$example" "$work/zeros$group" --levels structure,weights
  expect 0 "0 errors" "$ingot" check "$work/zeros$group"
done
python3 - "$example" "$work" <<'P' || fail "errors of experts"
import sys
import numpy as np
from container import quantization_config, read_checkpoint, read_config
from weights import logical_tensors

def experts(folder):
    config = read_config(folder)
    found = logical_tensors(read_checkpoint(folder), config)
    return {name: weight for name, weight in found.items() if ".mlp.experts." in name}, quantization_config(config)

source, _ = experts(sys.argv[1])
for group, most in (32, 0.81), (128, 0.90):
    errors = []
    for kind in "mse", "zeros":
        made, said = experts(f"{sys.argv[2]}/{kind}{group}")
        quantized = [name for name in made if made[name].scheme == "int4-group"]
        assert len(quantized) == 24, len(quantized)
        has_zeros = {("weight_zero_point" in made[name].parts) for name in quantized}
        assert has_zeros == {kind == "zeros"}, (group, kind, has_zeros)
        groups = [row["weights"] for row in said["config_groups"].values()]
        symmetric = {weights["symmetric"] for weights in groups if weights["num_bits"] == 4}
        assert symmetric == {kind != "zeros"}, symmetric
        differences = (made[name].values.astype(np.float64) - source[name].values for name in quantized)
        errors.append(sum((one**2).sum() for one in differences))
    print(group, errors[1] / errors[0])
    assert errors[1] <= most * errors[0], (group, errors)
P

# Whole, cut in the same pass, and cut afterwards: one model, which computes the same.
run convert "$kimi" "$work/kimi.bf16" --to bf16
run convert "$work/kimi.bf16" "$work/whole" --to int4 --group-size 32 --zero-points
expect 0 "PASS" "$ingot" verify "$work/kimi.bf16" "$work/whole"
run convert "$work/kimi.bf16" "$work/cut" --to int4 --group-size 32 --zero-points --tp 2 --threads 1
run convert "$work/whole" "$work/later" --tp 2
run merge "$work/cut" "$work/joined"
run merge "$work/later" "$work/rejoined"
same "$work/whole" "$work/joined" "cut with zero points"
same "$work/whole" "$work/rejoined" "cut afterwards"
expect 0 "PASS" "$ingot" verify "$work/kimi.bf16" "$work/cut"
for side in whole cut; do
  "$ingot" generate "$work/$side" --tokens 5,6,7,8 --greedy --max-new-tokens 8 --profile f32 >"$work/$side.words" 2>"$work/stderr" ||
    fail "generate $side: $(cat "$work/stderr")"
done
cmp "$work/whole.words" "$work/cut.words" || fail "slices compute another model"
run convert "$work/kimi.bf16" "$work/range" --to int4 --group-size 32 --zero-points --search amax
expect 0 "PASS" "$ingot" verify "$work/kimi.bf16" "$work/range"

# From a recipe; a copy keeps the codes; the records name the option.
printf 'to: int4\nzero-points: true\ngroup-size: 32\n' >"$work/recipe.yaml"
run convert "$work/kimi.bf16" "$work/by_recipe" --recipe "$work/recipe.yaml"
same "$work/whole" "$work/by_recipe" "a recipe gives other bytes"
run convert "$work/whole" "$work/kept" --to int4 --group-size 32
same "$work/whole" "$work/kept" "codes are not kept"
cp "$work/whole/ingot.json" "$work/json"
holds "d['recipe']['choices']['zero_points'] is True"

# A damaged zero point: a word of eight rows is another.
cp -r "$work/whole" "$work/bad"
chmod -R u+w "$work/bad"
python3 - "$work/bad" <<'P' || fail "edit"
import json, pathlib, struct, sys
path = sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors"))[-1]
data = bytearray(path.read_bytes())
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + length])
name = next(name for name in header if name.endswith("weight_zero_point"))
data[8 + length + header[name]["data_offsets"][0]] ^= 0x33
path.write_bytes(data)
P
rm "$work/bad/ingot.json"
expect 1 "misrounded" "$ingot" verify "$work/kimi.bf16" "$work/bad" --levels structure,weights

# Statistics weight the search: columns without any weight are given up.
python3 - "$work" <<'P' || fail "statistics"
import sys
import numpy as np
from container import read_checkpoint, read_config, write_file
from statistics_file import write_statistics
from judge import Model
write_statistics(Model(sys.argv[1] + "/kimi.bf16"), 1, sys.argv[1] + "/statistics.safetensors")
P
run convert "$work/kimi.bf16" "$work/weighted" --to int4 --group-size 32 --zero-points --importance "$work/statistics.safetensors"
expect 0 "PASS" "$ingot" verify "$work/kimi.bf16" "$work/weighted" --levels structure,weights
cat "$work"/whole/*.safetensors | cmp -s - <(cat "$work"/weighted/*.safetensors) && fail "statistics change nothing"

# Scales and zero points by moments, and under GPTQ: less error of the outputs, by the whole moments in NumPy.
stats=$work/stats
"$ingot" calibrate "$example" --text "$here/../../README.md" --max-tokens 1000 --out "$stats" --without cache >/dev/null 2>"$work/stderr" || fail "calibrate"
run convert "$example" "$work/source-f32" --to f32
run convert "$work/zeros32" "$work/zeros32-f32" --to f32
for method in "hessian:--search hessian:0.97" "gptq:--gptq:0.7"; do
  IFS=: read -r name options most <<<"$method"
  # shellcheck disable=SC2086  # words of options
  run convert "$example" "$work/$name" --to int4 --group-size 32 --zero-points $options --importance "$stats"
  expect 0 "PASS" "$ingot" verify "$example" "$work/$name" --levels structure,weights
  run convert "$work/$name" "$work/$name-f32" --to f32
  read -r mean _ n _ < <(python3 "$here/gptq_traces.py" "$work/source-f32" "$work/zeros32-f32" "$work/$name-f32" "$stats")
  echo "zero points, $name: trace $mean of that without, $n tensors"
  awk "BEGIN { exit !($mean < $most && $n == 24) }" || fail "$name with zero points: $mean of the trace, $n tensors"
done

# Refused, with words that work.
expect 2 "give --zero-points without --search" \
  "$ingot" convert "$example" "$work/none" --to int4 --zero-points --search signed
expect 2 "it loads zero points of experts turned over" "$ingot" convert "$example" "$work/none" --to int4 --zero-points --for sglang
expect 2 "--zero-points gives int4-group zero points" "$ingot" convert "$example" "$work/none" --to nvfp4 --zero-points
expect 2 "--zero-points gives int4-group zero points" "$ingot" convert "$kimi" "$work/none" --to int4 --zero-points
expect 2 "leave one of them out" "$ingot" convert "$work/kimi.bf16" "$work/none" --to int4 --zero-points --scales-from "$kimi"
expect 2 "symmetric int4 (convert it again with --to int4 without --zero-points, or use --layout hf)" \
  "$ingot" convert "$example" "$work/none" --to int4 --zero-points --layout vllm-sharded --tp 2
run convert "$example" "$work/none" --to int4 --zero-points --for vllm --dry-run
finish
