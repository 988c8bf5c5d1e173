#!/usr/bin/env python3
"""convert --layers 0-K makes a model of the first layers: config, lists by layer, index and tensors say so many, engines'
rules hold, verify compares it with the whole source, and it runs. first_layers.py INGOT GOLDEN [all]"""
import json
import os
import subprocess
import sys
import tempfile

from small_models import faults_of, folders_of

ingot, golden = map(os.path.abspath, sys.argv[1:3])
# A default run takes forms of their own: kinds of layers, towers, MTP layers, stacks, shared indexers and caches.
usual = ["arch/deepseek_v3/checkpoint", "arch_variants/glm_shared_indexer/checkpoint", "families/deepseek_v4_base",
         "families/qwen3_vl_moe_fp8", "families/qwen3_5_moe_fp8", "families/glm4_moe_fp8_block", "tiny-v32/bf16"]
forward = """afmoe cohere2 deepseek_v4_dspark ernie4_5_moe flex_olmo gemma3 glm5_next hy_v4_vl jetmoe lfm2
    mimo_v2_flash muse_glimmer qwen3_next_dense qwen4_exp""".split()
models = folders_of(golden) if "all" in sys.argv[3:] else \
    [f"{golden}/{name}" for name in usual + [f"forward/{name}/checkpoint" for name in forward]]


def run(*arguments):
    return subprocess.run([ingot, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def text_of(config):
    nested = [value for value in config.values() if isinstance(value, dict) and "num_hidden_layers" in value and "vocab_size" in value]
    return nested[0] if nested and "num_hidden_layers" not in config else config


def layers_of(config):
    keys = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
    return next((text_of(config)[key] for key in keys if isinstance(text_of(config).get(key), int)), 0)


faults, refused, made = [], [], 0
with tempfile.TemporaryDirectory() as work:
    for model in models:
        name = os.path.relpath(model, golden)
        config = json.load(open(f"{model}/config.json"))
        n = layers_of(config)
        if n < 2 or run("inspect", model).returncode != 0:
            continue
        kept = n // 2
        out = f"{work}/{name.replace('/', '-')}"
        made_of = run("convert", model, out, "--layers", f"0-{kept - 1}", "--progress", "never")
        if made_of.returncode != 0:
            refused.append(f"{name}: {made_of.stderr.strip()[:300]}")
            continue
        made += 1

        def require(holds, what):
            if not holds:
                faults.append(f"{name}: {what}")

        require(layers_of(json.load(open(f"{out}/config.json"))) == kept, "config.json says another number")
        require(json.load(open(f"{out}/ingot.json"))["recipe"]["choices"]["layers"] == f"0-{kept - 1}", "the manifest")
        summary = json.loads(run("inspect", out, "--json").stdout)
        layers = [layer["layer"] for layer in summary.get("layers", [])]
        require(all(layer < kept for layer in layers), f"layers {layers}")
        faults += [f"{name}: {fault}" for fault in faults_of(run, model, out)]
    print(f"{made} of {len(models)} made; refused:", *refused, sep="\n  ")
    print("faults:", *faults, sep="\n  ")
    assert not faults
    if "all" in sys.argv[3:]:
        sys.exit()
    assert not refused and made == len(models), (made, refused)

    # A job goes on with the same layers only, and other ranges are refused.
    model, out = f"{golden}/arch/deepseek_v3/checkpoint", work + "/parts"
    parts = ["convert", model, out, "--to", "int8", "--max-shard-size", "200kB"]
    assert run(*parts, "--layers", "0-1", "--part", "0/2").returncode == 0
    said = run(*parts, "--layers", "0", "--part", "1/2")
    assert said.returncode == 2 and "--layers 0-1 (now 0-0)" in said.stderr, said.stderr
    assert run(*parts, "--layers", "0-1", "--part", "1/2").returncode == 0
    assert run("join", out).returncode == 0
    # Ranks, too, are compared with these layers of the whole.
    ranks = work + "/ranks"
    assert run("convert", model, ranks, "--layers", "0-1", "--tp", "2", "--ep", "2").returncode == 0
    # What is made of such an output has the same layers, and says so.
    merged, cast = work + "/merged", work + "/cast"
    assert run("merge", ranks, merged).returncode == 0
    assert run("convert", merged, cast, "--to", "bf16").returncode == 0
    for made in (out, ranks, merged, cast):
        said = run("verify", model, made)
        assert said.returncode == 0, said.stdout + said.stderr
        said = run("check", model, "--source-of", made)
        assert said.returncode == 0, said.stdout + said.stderr
    for source, made in ((ranks, merged), (merged, cast)):
        said = run("rederive", made, "--source", source, "--all")
        assert said.returncode == 0, said.stdout + said.stderr
    out = work + "/again"
    for word, why in (("1-2", "from the first on"), ("0-900", "leave --layers out"), ("0-4294967296", "the model has the layers"), ("two", "from the first on")):
        said = run("convert", model, out, "--layers", word)
        assert said.returncode == 2 and why in said.stderr, said.stderr
    said = run("convert", model, out, "--layers", "0-1", "--consume-source")
    assert said.returncode == 2 and "--consume-source" in said.stderr, said.stderr
print("all claims hold")
