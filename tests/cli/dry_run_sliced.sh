#!/usr/bin/env bash
# Cuts of eight layers of the real 671B checkpoint, planned from headers only: cuts that do not fit are refused with names
# and remedies, others are planned rank by rank below 1 GiB. Sizes are compared with those that follow from the source's
# own headers. With `all` every layer, and cuts that repeat a claim for other numbers of ranks.
source "$(dirname "$0")/expect.sh"
ingot=$1
layers=(--layers 8)
[ "${2:-}" = all ] && layers=()
expect 0 "" "$ingot" synth "$work/in" --family deepseek_v32 --like 671b-headers "${layers[@]}"

# plan STATUS OPTIONS...: a dry run; the document in $work/plan, what it took on stdout.
plan() {
  local status=$1 got seconds kilobytes
  shift
  /usr/bin/time -f '%e %M' -o "$work/time" "$ingot" convert "$work/in" "$work/out" --dry-run --assume-disk 2TB --json "$@" >"$work/plan" 2>"$work/stderr"
  got=$?
  [ $got -eq "$status" ] || fail "exit status $got instead of $status: $*: $(head -c 600 "$work/stderr" "$work/plan")"
  read -r seconds kilobytes < <(tail -1 "$work/time")
  echo "$*: $seconds s, $((kilobytes / 1024)) MiB"
  [ "$kilobytes" -le $((1024 * 1024)) ] || fail "the plan took $kilobytes KiB: $*"
  [ ! -e "$work/out" ] || fail "a dry run wrote something: $*"
}

# holds EXPRESSION: a claim in Python about the plan d, its ranks, and the source s.
holds() {
  python3 - "$work" "$1" <<'P' || fail "not so: $1"
import glob, json, os, pickle, re, struct, sys
work, claim = sys.argv[1:]

class Source:
    """Sizes from the headers: of a tensor, and of what a block of n x k makes of its scales."""
    def __init__(self):
        self.shapes = {}
        self.n_bytes = {}
        for path in glob.glob(work + "/in/*.safetensors"):
            with open(path, "rb") as f:
                header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            for name, entry in header.items():
                if name != "__metadata__":
                    self.shapes[name] = entry["shape"]
                    self.n_bytes[name] = entry["data_offsets"][1] - entry["data_offsets"][0]
        self.total = sum(self.n_bytes.values())
        self.experts = self.of(r"\.mlp\.experts\.\d+\.")

    def of(self, pattern):
        return sum(n for name, n in self.n_bytes.items() if re.search(pattern, name))

    def retiled(self, rows, cols):
        total = self.total
        for name, n in self.n_bytes.items():
            if name.endswith("_scale_inv"):
                shape = self.shapes[name.removesuffix("_scale_inv")]
                total += 4 * -(-shape[0] // rows) * -(-shape[1] // cols) - n
        return total

    def as_bf16(self):
        return sum(2 * n if name + "_scale_inv" in self.n_bytes else n for name, n in self.n_bytes.items() if not name.endswith("_scale_inv"))

cache = work + "/source.pickle"
if os.path.exists(cache):
    s = Source.__new__(Source)
    s.__dict__ = pickle.load(open(cache, "rb"))
else:
    s = Source()
    pickle.dump(s.__dict__, open(cache, "wb"))
d = json.load(open(work + "/plan"))
files, ranks = d["files"], d["slicing"]["ranks"]
headers = 300 * sum(f["tensors"] for f in files)

def is_about(n_bytes):
    """As many bytes, and a header in each file."""
    return 0 < d["bytes_out"] - n_bytes < headers

def experts_per_rank(ranks):
    """The experts of each layer, from the bytes that a rank loads."""
    return set(round((r["bytes"] - (s.total - s.experts)) / (s.experts / 256)) for r in ranks)

assert d["bytes_out"] == sum(f["bytes"] for f in files)
result = eval(claim)
if not result:
    print(d["bytes_out"], s.total, len(files), [r["bytes"] for r in ranks[:3]], file=sys.stderr)
sys.exit(not result)
P
}

# TP 32 leaves 64 of an expert's 2048 rows to a rank, half a block.
plan 2 --tp 32
for text in "'model.layers.3.mlp.experts.0.gate_proj.weight'" "2048 rows / 32 ranks = 64, the FP8 block has 128 rows" \
  "'model.layers.3.mlp.shared_experts.down_proj.weight'" "--tp-fit retile, pad or bf16" "--tp 16" "--etp 16"; do
  cat "$work/plan" "$work/stderr" | grep -qF -- "$text" || fail "the refusal does not say: $text"
done
plan 0 --tp 32 --tp-fit retile
holds "len(ranks) == 32 and is_about(s.retiled(64, 64)) and len(set(r['bytes'] for r in ranks)) == 1"
plan 0 --tp 32 --tp-fit pad
# 2048 and 18432 become 4096 and 20480; codes are bytes, a scale is four for 128 x 128.
holds "is_about(s.total + s.of(r'mlp.(experts.\d+|shared_experts).(gate|up|down)_proj') + s.of(r'mlp.(gate|up|down)_proj') // 9)"

# Every byte of the source is written once, whatever the number of ranks that load it.
plan 0 --tp 8 --ep 16 --pp 4
holds "len(ranks) == 64 and is_about(s.total) and [r['stage'] for r in ranks] == [r // 16 for r in range(64)]"
# 64 of 256 experts have a second slot, on a rank of its own.
python3 -c 'import json; print(json.dumps([slot % 256 for slot in range(320)]))' >"$work/redundant.json"
plan 0 --ep 320 --expert-map "$work/redundant.json" --redundant-experts
holds "len(ranks) == 320 and is_about(s.total + s.experts // 4)"
plan 0 --to bf16 --layout deepseek-mp --mp 16 --mtp drop
holds "len(files) == 16 and max(f['bytes'] for f in files) - min(f['bytes'] for f in files) < headers"
if [ "${2:-}" = all ]; then
  plan 0 --tp 32 --tp-fit bf16
  holds "s.total < d['bytes_out'] < s.as_bf16() + headers"
  plan 0 --tp 8 --ep 16
  holds "len(ranks) == 16 and is_about(s.total)"
  plan 0 --ep 256
  holds "len(ranks) == 256 and is_about(s.total) and experts_per_rank(ranks) == {1}"
  # By layers, each with an order of its own, and unevenly: 256 slots on 24 ranks.
  python3 -c 'import json; print(json.dumps({"layers": {str(l): [(l + 7 * slot) % 256 for slot in range(256)] for l in range(3, 62)}}))' >"$work/uneven.json"
  plan 0 --ep 24 --expert-map "$work/uneven.json" --uneven-experts
  holds "len(ranks) == 24 and is_about(s.total) and experts_per_rank(ranks) == {10, 11}"
  plan 0 --to nvfp4 --tp 16 --ep 2
  holds "len(ranks) == 16"
fi
finish
