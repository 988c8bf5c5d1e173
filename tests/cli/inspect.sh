#!/usr/bin/env bash
# Output of inspect: parameters of released models, values of a tensor against a second implementation, patterns.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# Totals that are known of the released models; MTP is counted apart. Headers are real, data are holes.
known() {
  "$ingot" synth "$work/$1" --family "$1" --like 671b-headers >/dev/null || fail "synth $1"
  "$ingot" inspect "$work/$1" --json >"$work/json" || fail "inspect $1"
  python3 - "$work/json" "$@" <<'P' || fail "inspect $1"
import json, sys
d = json.load(open(sys.argv[1]))
family, total, active, tensors = sys.argv[2], *map(int, sys.argv[3:6])
assert d["family"] == family, d["family"]
assert d["parameters"] == total, d["parameters"]
assert d["active_parameters"] == active, d["active_parameters"]
assert sum(row["tensors"] for row in d["by_dtype"]) == tensors, d["by_dtype"]
assert sum(row["parameters"] for row in d["by_scheme"]) == total + d["mtp_parameters"]
assert sum(row["parameters"] for row in d["by_role"]) == total + d["mtp_parameters"]
assert sum(row["bytes"] for row in d["by_scheme"]) == d["bytes"] == sum(row["bytes"] for row in d["by_dtype"])
P
  rm -rf "${work:?}/$1"
}
known deepseek_v3 671026419200 37552297472 91991
known deepseek_v32 671877944064 38403822336 92425

expect 0 "fp8-block of 128x128, scales F32: 300 weights" "$ingot" inspect "$example"
expect 0 "1-4     moe" "$ingot" inspect "$example"

# GPTQ is shown turned, and counted as it is stored.
gptq=$(dirname "$0")/../golden/families/qwen3_moe_gptq
expect 0 "model.safetensors  189 tensors" "$ingot" inspect "$gptq"
"$ingot" inspect "$gptq" --json >"$work/json" || fail "inspect of GPTQ"
python3 - "$gptq/model.safetensors" "$work/json" <<'P' || fail "counts of GPTQ"
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + n])
header.pop("__metadata__", None)
d = json.load(open(sys.argv[2]))
n_bytes = len(data) - 8 - n
assert sum(row["tensors"] for row in d["by_dtype"]) == len(header), d["by_dtype"]
assert d["bytes"] == n_bytes == sum(row["bytes"] for row in d["by_dtype"]) == sum(row["bytes"] for row in d["by_scheme"])
P

# Schemes that are only read have their own names, and their parts the dtype and the bytes of the file.
tools=$(dirname "$0")/../golden/other_tools
expect 0 "fp8-e5m2 of allxall, scales BF16: 7 weights" "$ingot" inspect "$tools/quark_e5m2"
expect 0 "q_proj.weight F8_E5M2 [64, 64], 4,096 bytes" "$ingot" inspect "$tools/quark_e5m2" \
  model.layers.0.self_attn.q_proj.weight
expect 0 "int8-group of " "$ingot" inspect "$tools/quark_int8_zeros"
expect 2 "is fp8-e5m2, a form that is only read (--to bf16)" "$ingot" convert "$tools/quark_e5m2" "$work/none"
expect 2 "scheme 'int8-group' is read and never written" "$ingot" convert "$example" "$work/none" --to int8-group

# Plain copies of forms that nothing writes have the bytes and the config of the source.
for form in muse_spark_nvfp4 thinking_machines fp8_mxfp4_store_dtype; do
  source=$(dirname "$0")/../golden/autumn_forms/$form
  "$ingot" convert "$source" "$work/$form" --family generic --max-shard-size 8kB >"$work/log" 2>&1 ||
    fail "copy of $form"
  cmp "$source/config.json" "$work/$form/config.json" || fail "config of the copy of $form"
  python3 - "$source" "$work/$form" <<'P' || fail "bytes of the copy of $form"
import sys
from container import read_checkpoint
source, copy = map(read_checkpoint, sys.argv[1:])
assert source.keys() == copy.keys(), source.keys() ^ copy.keys()
for name, tensor in source.items():
    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == (copy[name].dtype, copy[name].shape, bytes(copy[name].data)), name
P
done

# One tensor of ragged interest: decoded here without ingot.
name=model.layers.2.mlp.experts.5.down_proj.weight
"$ingot" inspect "$example" "$name" --json >"$work/json" || fail "inspect of one tensor"
python3 - "$example" "$name" "$work/json" <<'P' || fail "statistics of one tensor"
import json, math, struct, sys
from container import read_checkpoint
directory, name, answer = sys.argv[1:]
stored = read_checkpoint(directory)
(rows, cols), codes = stored[name].shape, stored[name].data
scale_cols, raw = stored[name + "_scale_inv"].shape[1], stored[name + "_scale_inv"].data
scales = struct.unpack(f"<{len(raw) // 4}f", raw)

def value(code):
    e, m = code >> 3 & 15, code & 7
    return (-1 if code & 128 else 1) * (m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0**(e - 7))

values = [value(codes[r * cols + c]) * scales[r // 128 * scale_cols + c // 128] for r in range(rows) for c in range(cols)]
s = json.load(open(answer))["tensor"]["statistics"]
assert s["count"] == len(values) and s["nans"] == 0 and s["infinities"] == 0
assert s["zeros"] == sum(v == 0 for v in values)
assert s["min"] == min(values) and s["max"] == max(values) and s["amax"] == max(map(abs, values))
assert math.isclose(s["mean"], math.fsum(values) / len(values), rel_tol=1e-12)
assert math.isclose(s["rms"], math.sqrt(math.fsum(v * v for v in values) / len(values)), rel_tol=1e-12)
expected = {}
for v in values:
    if v:
        power = math.frexp(abs(v))[1] - 1
        expected[power] = expected.get(power, 0) + 1
assert {row["exponent"]: row["count"] for row in s["histogram"]} == expected
P

expect 0 "values  256, 0 zero" "$ingot" inspect "$example" model.norm.weight
# Several are listed, and so is one on request.
[ "$("$ingot" inspect "$example" 'model.layers.2.mlp.experts.*.down_proj.weight' | wc -l)" -eq 17 ] || fail "a list of 16 experts"
[ "$("$ingot" inspect "$example" --tensors model.norm.weight | wc -l)" -eq 2 ] || fail "a list of one"
[ "$("$ingot" inspect "$example" --tensors | wc -l)" -eq 362 ] || fail "a list of all"
expect 2 "no tensor matches" "$ingot" inspect "$example" norm.weight
expect 2 "not a regular expression" "$ingot" inspect "$example" 're:('
expect 0 "active        unknown" "$ingot" inspect "$example" --family generic
expect 2 "there is no family" "$ingot" inspect "$example" --family nobody
finish
