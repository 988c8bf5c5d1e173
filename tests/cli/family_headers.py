#!/usr/bin/env python3
"""Every family reads its checkpoint as others count it; conversions and cuts of it give back what they took.

    family_headers.py INGOT GOLDEN [all | CHECKPOINT...]    GOLDEN: tests/golden/families

Every checkpoint is read and counted, and made again where only its header is known. Conversions and cuts are tried with
every eighth family, with `all` or chosen checkpoints with each.

counts.jsonl has, per checkpoint, the counts that count_tensors.py finds in the header. Checkpoints are in a folder
there or below ../forward; the others have only a header, and the weights are made up here. The table of
docs/families.md, of the families for which something does not work, is compared with the results (its rows for the
families that were tried) and printed when it differs."""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

WIDTH = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I64": 8, "I32": 4}
# A period of values, near 0.1 and above 0 where scales are among them.
BYTES = {2: b"".join(struct.pack("<H", 0x3D80 + i % 97 + (0x8000 if i % 3 == 0 else 0)) for i in range(4999)),
         4: b"".join(struct.pack("<f", 0.01 + i / 50000) for i in range(997)),
         1: bytes(i % 0x70 for i in range(4999)), 8: bytes(8)}
EXPONENTS = bytes(120 + i % 7 for i in range(4999))


def make(golden, name, directory):
    header, data, at = {}, [], 0
    for line in open(os.path.join(golden, "headers", name + ".txt")):
        tensor, dtype, sides = line.split()
        shape = [] if sides == "-" else [int(side) for side in sides.split("x")]
        size = WIDTH[dtype]
        for side in shape:
            size *= side
        period = EXPONENTS if dtype == "F8_E8M0" else BYTES[WIDTH[dtype]]
        data.append((period * (size // len(period) + 1))[:size])
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    os.makedirs(directory)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))
    with open(os.path.join(golden, "headers", name + ".config.json")) as source:
        with open(os.path.join(directory, "config.json"), "w") as file:
            file.write(source.read())


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def first_line(text):
    return " / ".join(text.strip().split("\n")[:3])


def differences(counted, report):
    """Roles that the counting script has by other names than ingot are in its `rest`."""
    found = {row["name"]: [row["tensors"], row["parameters"]] for row in report["by_role"]}
    rest = [0, 0]
    for role in [role for role in found if role not in ROLES]:
        rest = [a + b for a, b in zip(rest, found.pop(role))]
    if rest[0]:
        found["rest"] = rest
    roles = set(found) | set(counted["roles"])
    return [f"{role}: {found.get(role)}, counted {counted['roles'].get(role)}" for role in sorted(roles)
            if found.get(role) != counted["roles"].get(role)]


ingot, golden, chosen = sys.argv[1], sys.argv[2], sys.argv[3:]
tries_all = bool(chosen)
if chosen == ["all"]:
    chosen = []
lines = [json.loads(line) for line in open(os.path.join(golden, "counts.jsonl"))]
ROLES = {role for line in lines for role in line["roles"]} - {"rest"}
COLUMNS = ["inspect", "convert", "--ep", "--tp", "merge", "verify weights", "generate", "verify layers"]
# Towers for images and sound, scales of what is quantized here, and rows that a checkpoint may leave out.
UNPROMISED = re.compile(r"visual|vision|\bvit[_.]|audio|projector|patch_merge|weight_scale_inv$|\.scale$|global_scale$|"
                        r"conv1d\.bias$|self_attn\.(slope_rate|\w+_decay)$|ple_embedding\.(layer_multipliers|ngram_heads_\w+)$|"
                        r"model\.layers\.2\.(embed_tokens|shared_head\.head)|\.compressor\.|attn\.indexer\.|gate\.tid2eid|"
                        r"layers\.\d\.ffn\.gate\.bias|^mtp\.\d\.(ffn\.gate\.bias|norm\.|hc_head|m|conf)|^mtp\.(layers|norm|fc|pre_fc)")
# Checkpoints with stacks, of families that have experts in both forms.
STACKED = {"dbrx", "gemma4", "granitemoe", "granitemoehybrid", "hy_v4", "hy_v4_vl", "inkling", "inkling2", "inkling2_loop",
           "jetmoe", "muse_spark", "qwen3_vl_moe", "qwen4_exp", "step3p7", "zaya"}
# Checkpoints with a header whose integers are constants of the computation: made-up ones are refused.
CONSTANTS = {"qwen4_exp"}
# Tensors that a config promises and the checkpoint does not hold.
NOT_STORED = {"ernie4_5_moe": re.compile(r"model\.mtp_")}
# The reasons of refused cuts.
NOT_CUT = {"--ep": "the model has no experts to share out",
           "--tp": "1 mamba_n_groups cannot be cut|3 KV heads can neither"}
failures, matrix, seen = [], {}, []


def succeeds(*words):
    return run(ingot, *words)[0] == 0


def try_synthesis(name, directory, out):
    """`ingot synth` makes the same tensors from the config, except those that no config promises."""
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    # Families that have experts in both forms.
    stacked = ["--stacked"] if name in STACKED else []
    status, text, trouble = run(ingot, "synth", out, "--config", os.path.join(directory, "config.json"), *stacked)
    if status != 0:
        failures.append(f"{name}: synth: {first_line(trouble or text)}")
        return
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        made = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    made.pop("__metadata__", None)
    # A config does not give the prefix of the names of its text model.
    header = {re.sub(r"language_model\.|^thinker\.", "", tensor): facts for tensor, facts in header.items()}
    for tensor in sorted(set(made) - set(header)):
        if name not in NOT_STORED or not NOT_STORED[name].match(tensor):
            failures.append(f"{name}: synth makes {tensor}, which the checkpoint does not have")
    for tensor in sorted(set(header) - set(made)):
        if not UNPROMISED.search(tensor):
            failures.append(f"{name}: synth does not make {tensor}")
    for tensor in sorted(set(header) & set(made)):
        shape = header[tensor]["shape"]
        if header[tensor]["dtype"] == "I8":  # two codes each
            shape = shape[:-1] + [2 * shape[-1]]
        if shape != made[tensor]["shape"]:
            failures.append(f"{name}: synth makes {tensor} {made[tensor]['shape']}, not {shape}")
    done = run(ingot, "check", out)
    if done[0] != 0:
        failures.append(f"{name}: check of what synth made: {first_line(done[1] or done[2])}")


def try_family(name, directory, out):
    """The COLUMNS that work with a checkpoint that `inspect` reads; failures of required ones are kept."""
    works = {"inspect"}

    def require(claim, done):
        if done[0] != 0:
            failures.append(f"{name}: {claim}: {first_line(done[2] or done[1])}")
        return done[0] == 0

    quiet = ["--progress", "never"]
    # Every scheme of every family is for family_matrix.py.
    for scheme in ["bf16", "fp8"] if len(matrix) % 3 == 0 else ["bf16"]:
        written = out + scheme
        if require(scheme, run(ingot, "convert", directory, written, "--to", scheme, *quiet)):
            works.add("convert")
            if require(scheme + ": verify", run(ingot, "verify", directory, written, "--levels", "structure,weights")):
                works.add("verify weights")
    plain = out + "bf16"
    config = open(os.path.join(directory, "config.json")).read()
    n_experts = re.search(r'"(?:n_routed|num|num_local|moe_num)_experts": *(\d+)', config)
    ranks = "1" if not n_experts else "2" if int(n_experts[1]) % 2 == 0 else n_experts[1]
    for cut, options in [("--ep", ["--ep", ranks]), ("--tp", ["--tp", "2", "--tp-fit", "retile"])]:
        done = run(ingot, "convert", plain, out + cut, *options, *quiet)
        if done[0] == 2 and re.search(NOT_CUT[cut], done[2]):
            continue
        if not require(cut, done):
            continue
        works.add(cut)
        last = cut
    # Those of the last cut, with every level that the family has.
    if "--ep" in works and require("merge", run(ingot, "merge", out + last, out + "joined")):
        generates = succeeds("generate", plain, "--tokens", "1 2 3", "--max-new-tokens", "2")
        levels = "structure,weights" + (",layers" if generates else "")
        profile = ["--profile", "f32"] if generates else []
        if require("merge: verify", run(ingot, "verify", plain, out + "joined", "--levels", levels, *profile)):
            works |= {"merge"} | ({"generate", "verify layers"} if generates else set())
    return works


with tempfile.TemporaryDirectory(prefix="ingot-families-") as work:
    for counted in lines:
        name = counted["checkpoint"]
        if chosen and name not in chosen:
            continue
        has_header = os.path.exists(os.path.join(golden, "headers", name + ".txt"))
        is_own = os.path.isdir(os.path.join(golden, name))
        directory = os.path.join(golden, name if is_own else f"../forward/{name}/checkpoint")
        is_made = has_header and name not in CONSTANTS
        if is_made:
            directory = os.path.join(work, name)
            make(golden, name, directory)
        status, text, trouble = run(ingot, "inspect", directory, "--json")
        if status != 0:
            failures.append(f"{name}: inspect: {first_line(trouble or text)}")
            continue
        if is_made or not (is_own or has_header):
            try_synthesis(name, directory, os.path.join(work, "synth-" + name))
        report = json.loads(text)
        failures += [f"{name}: {text}" for text in differences(counted, report)]
        if report["family"] in seen:
            continue
        seen.append(report["family"])
        if tries_all or len(seen) % 8 == 1:
            matrix[report["family"]] = try_family(name, directory, os.path.join(work, name + "-"))
    for family in [] if chosen else ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"]:
        if family in seen:
            continue
        seen.append(family)
        directory = os.path.join(work, "made-" + family)
        if tries_all and succeeds("synth", directory, "--family", family, "--like", "tiny"):
            matrix[family] = try_family(family, directory, directory + "-")

if not chosen:
    docs = open(os.path.join(golden, "../../../docs/families.md")).read()
    exceptions = ["| family | works |", "|---|---|"]
    for row in json.loads(run(ingot, "list", "families", "--json")[1])["families"]:
        if row["name"] == "generic":
            continue
        documented = re.search(rf"^\| `{row['name']}` \| (inspect.*|-) \|$", docs, re.M)
        if row["name"] in seen and row["name"] not in matrix:  # not tried
            exceptions += [documented[0]] if documented else []
            continue
        works = [column for column in COLUMNS if column in matrix.get(row["name"], set())]
        if works != list(COLUMNS):
            exceptions.append(f"| `{row['name']}` | {', '.join(works) or '-'} |")
    if "\n".join(exceptions) + "\n\n" not in docs:
        failures.append("docs/families.md has another table than:\n" + "\n".join(exceptions))

for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
