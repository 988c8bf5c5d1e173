#!/usr/bin/env python3
"""Models of every family with widths of hundreds and 8 experts, in every scheme, whole and for --tp 2 --ep 2.

    family_matrix.py INGOT GOLDEN [CHECKPOINT...]    GOLDEN: tests/golden/families

The configs are those of the small checkpoints, every width times 8. `ingot synth` makes the model, `convert` each
output; `check` and `verify` judge it, and slices that are merged again hold the same values as what was never cut. A
refusal has to name a remedy. Prints what fails, and at the end how many outputs there were."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SCHEMES = ["fp8", "fp8-channel", "fp8-tensor", "int8", "int8-block", "nvfp4", "mxfp4", "mxfp8", "int4"]
CUT = ["--tp", "2", "--ep", "2", "--tp-fit", "retile"]
WIDTH = re.compile(r"(hidden_size|intermediate_size|intermediate|_dim|_rank|state_size|channels|_width|mlp_size)$")
# Groups of experts, of which a few are kept: they have to divide the number of experts.
GROUPS = re.compile(r"^n_group$")
EXPERTS = re.compile(r"^(n_routed_experts|num_experts|num_local_experts|moe_num_experts)$")
FACTOR, N_EXPERTS, N_GROUPS = 8, 8, 4
# Families whose release has stacks, which others have too.
STACKED = {"inkling", "step3p7"}
# Texts of refusals that no option can avoid for this model.
NO_WAY = ["does not say which shape", "has no experts to share out"]


def widened(value, key=""):
    if isinstance(value, dict):
        return {name: widened(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [widened(entry, key) for entry in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if GROUPS.search(key) and value > 1:
        return N_GROUPS
    return N_EXPERTS if EXPERTS.search(key) else value * FACTOR if WIDTH.search(key) else value


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, (done.stderr.strip() or done.stdout.strip()).replace("\n", " / ")[:300]


ingot, golden, chosen = sys.argv[1], sys.argv[2], sys.argv[3:]
configs = {os.path.basename(path).split(".")[0]: path
           for path in glob.glob(os.path.join(golden, "headers", "*.config.json"))}
configs.update({os.path.basename(os.path.dirname(path)): path for path in glob.glob(os.path.join(golden, "*", "config.json"))})
for path in glob.glob(os.path.join(golden, "..", "forward", "*", "checkpoint", "config.json")):
    configs.setdefault(os.path.basename(os.path.dirname(os.path.dirname(path))), path)
failures, n_outputs, n_refused = [], 0, 0
for name, path in sorted(configs.items()):
    if chosen and name not in chosen:
        continue
    with tempfile.TemporaryDirectory(prefix="ingot-matrix-") as work:
        model, config = os.path.join(work, "model"), os.path.join(work, "config.json")
        with open(path) as source, open(config, "w") as file:
            json.dump(widened(json.load(source)), file)

        def succeeds(claim, *words):
            global n_refused
            status, text = run(ingot, *words)
            if status == 2 and ("(" in text or any(words in text for words in NO_WAY)):
                n_refused += 1
            elif status != 0:
                failures.append(f"{name}: {claim}: {text}")
            return status == 0

        def holds(claim, *words):
            status, text = run(ingot, *words)
            if status != 0:
                failures.append(f"{name}: {claim}: {text}")

        stacked = ["--stacked"] if name in STACKED else []
        if not succeeds("synth", "synth", model, "--config", config, *stacked):
            continue
        holds("synth: check", "check", model)
        for scheme in SCHEMES:
            options = ["--to", scheme, "--progress", "never"] + (["--group-size", "32"] if scheme == "int4" else [])
            whole, cut, joined = (os.path.join(work, word) for word in ["whole", "cut", "joined"])
            has_whole = succeeds(scheme, "convert", model, whole, *options)
            if has_whole:
                n_outputs += 1
                holds(scheme + ": check", "check", whole)
                holds(scheme + ": verify", "verify", model, whole)
            if succeeds(scheme + ", cut", "convert", model, cut, *options, *CUT):
                n_outputs += 1
                holds(scheme + ", cut: check", "check", cut)
                holds(scheme + ", cut: merge", "merge", cut, joined)
                if has_whole:
                    holds(scheme + ", cut: merged", "verify", whole, joined, "--levels", "weights",
                          "--require", "weights.relative_error<=0")
            for folder in [whole, cut, joined]:
                shutil.rmtree(folder, ignore_errors=True)

for failure in failures:
    print(failure)
print(f"{n_outputs} outputs, {n_refused} refusals with a remedy or a reason, {len(failures)} failures")
sys.exit(1 if failures or n_outputs == 0 else 0)
