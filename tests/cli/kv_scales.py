#!/usr/bin/env python3
"""convert --kv-scales writes scales of a cache from ranges of keys and values, in every form of output, and
--kv-scales-only an overlay. kv_scales.py INGOT"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "differential"))
from container import read_rows, write_file  # noqa: E402

ingot = os.path.abspath(sys.argv[1])


def run(*arguments, fails=None):
    done = subprocess.run([ingot, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    if fails is None:
        assert done.returncode == 0, (arguments, text[-2000:])
    else:
        assert done.returncode != 0 and fails in text, (arguments, fails, text[-2000:])
    return text


def scales_of(folder):
    return {name: row for name, row in read_rows(folder).items() if name.endswith(("k_scale", "v_scale"))}


def write_ranges(path, ranges):
    """A file of statistics: F32 values by name."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_file(path, {name: ("F32", [len(values)], np.asarray(values, "<f4").tobytes())
                      for name, values in sorted(ranges.items())})


def bits(amax):
    return (np.float32(amax) / np.float32(448)).tobytes()


def require_scales(folder, wanted):
    found = scales_of(folder)
    assert {name: row[2] for name, row in found.items()} == wanted, (folder, found, wanted)
    assert all(row[:2] == ("F32", [1]) for row in found.values()), found


def config_of(folder):
    return json.load(open(f"{folder}/config.json"))["quantization_config"]


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    run("synth", "gqa", "--family", "qwen3_moe", "--like", "tiny", "--scheme", "bf16", "--layers", 2)
    run("synth", "mla", "--family", "deepseek_v3", "--like", "tiny", "--layers", 2, "--mtp-layers", 1)
    heads = json.load(open("gqa/config.json"))["num_key_value_heads"]
    layers = [f"model.layers.{layer}.self_attn" for layer in range(3)]

    # Grouped attention: the largest over all heads.
    ranges = {}
    for layer, (keys, values) in enumerate([(14, 3.5), (20.5, 0.75)]):
        ranges[layers[layer] + ".k_amax"] = [keys / 2] * (heads - 1) + [keys]
        ranges[layers[layer] + ".v_amax"] = [values] + [values / 4] * (heads - 1)
    write_ranges("gqa.ranges/cache.safetensors", ranges)
    plain = {layers[0] + ".k_scale": bits(14), layers[0] + ".v_scale": bits(3.5),
             layers[1] + ".k_scale": bits(20.5), layers[1] + ".v_scale": bits(0.75)}
    long = {name.replace(".k_scale", ".k_proj.k_scale").replace(".v_scale", ".v_proj.v_scale"): value
            for name, value in plain.items()}
    run("convert", "gqa", "copy", "--kv-scales", "gqa.ranges/cache.safetensors")
    require_scales("copy", plain)
    scheme = config_of("copy")["kv_cache_scheme"]
    assert (scheme["num_bits"], scheme["type"], scheme["strategy"], scheme["dynamic"]) == (8, "float", "tensor", False)
    assert config_of("copy")["config_groups"] == {}
    run("verify", "gqa", "copy", "--levels", "structure,weights")
    run("check", "copy")
    run("check", "gqa", "--source-of", "copy")
    run("convert", "gqa", "int8", "--to", "int8", "--kv-scales", "gqa.ranges/cache.safetensors", "--verify", "structure,weights")
    require_scales("int8", plain)
    run("convert", "gqa", "opt", "--to", "fp8-tensor", "--dialect", "modelopt", "--activations", "static",
        "--input-scale", 1, "--kv-scales", "gqa.ranges/cache.safetensors", "--verify", "structure,weights")
    require_scales("opt", long)
    assert config_of("opt")["kv_cache_scheme"] == {"dynamic": False, "num_bits": 8, "type": "float"}
    described = json.load(open("opt/hf_quant_config.json"))["quantization"]
    assert described["kv_cache_quant_algo"] == "FP8", described

    # Another conversion takes them along; they are made anew where asked for.
    run("convert", "opt", "again", "--to", "int8", "--verify", "structure,weights")
    require_scales("again", plain)
    write_ranges("other.ranges/cache.safetensors", {name: [2 * value for value in values] for name, values in ranges.items()})
    run("convert", "opt", "anew", "--to", "int8", "--kv-scales", "other.ranges/cache.safetensors", "--verify", "structure,weights")
    assert scales_of("anew")[layers[0] + ".k_scale"][2] == bits(28)

    # Every rank has them, and slices merge to what an unsliced conversion writes.
    run("convert", "gqa", "ranks", "--to", "int8", "--tp", 2, "--kv-scales", "gqa.ranges/cache.safetensors")
    for rank in sorted(name for name in os.listdir("ranks") if name.startswith("rank-")):
        require_scales(f"ranks/{rank}", plain)
    run("check", "ranks")
    run("verify", "gqa", "ranks", "--levels", "structure,weights")
    run("merge", "ranks", "merged")
    assert read_rows("merged") == read_rows("int8")

    # Latent attention: one scale, of latent and rope key, MTP layer included.
    ranges = {}
    for layer, (latent, rope) in enumerate([(3, 14), (20.5, 1), (0.75, 0.5)]):
        ranges[layers[layer] + ".latent_amax"] = [latent]
        ranges[layers[layer] + ".rope_key_amax"] = [rope]
    write_ranges("mla.ranges/cache.safetensors", ranges)
    one = {}
    for layer, amax in enumerate([14, 20.5, 0.75]):
        one[layers[layer] + ".k_proj.k_scale"] = one[layers[layer] + ".v_proj.v_scale"] = bits(amax)
    run("convert", "mla", "latent", "--to", "int8", "--kv-scales", "mla.ranges/cache.safetensors", "--verify", "structure,weights")
    require_scales("latent", one)
    text = run("convert", "mla", "fp8", "--kv-scales", "mla.ranges/cache.safetensors")
    assert "--kv-cache-dtype fp8" in text, text
    require_scales("fp8", one)

    # Ranges of another model, of a part of it, and no ranges.
    run("convert", "gqa", "no", "--kv-scales", "mla.ranges/cache.safetensors", fails="another kind of cache")
    write_ranges("part.ranges/cache.safetensors", {name: [1.0] for name in ranges if "layers.1" not in name})
    run("convert", "mla", "no", "--kv-scales", "part.ranges/cache.safetensors", fails="has no range of its cache")
    write_ranges("nan.ranges/cache.safetensors", {**ranges, layers[0] + ".latent_amax": [float("nan")]})
    run("convert", "mla", "no", "--kv-scales", "nan.ranges/cache.safetensors", fails="magnitude of nan")
    write_ranges("none.ranges/cache.safetensors", {"model.layers.0.self_attn.o_proj.input_amax": [1.0]})
    run("convert", "mla", "no", "--kv-scales", "none.ranges/cache.safetensors", fails="is none of")

    # What the stored scales cut off of the model's keys and values, and what scale 1 would.
    def caches(folder, code=0):
        done = subprocess.run([ingot, "verify", "gqa", folder, "--levels", "layers", "--json"], capture_output=True, text=True)
        assert done.returncode == code, (folder, done.stdout[-2000:])
        report = json.loads(done.stdout)
        clipped = [gate for gate in report["gates"] if gate["metric"] == "cache.clipped"]
        assert len(clipped) == (folder != "gqa") and all(gate["passed"] == (code == 0) for gate in clipped), clipped
        return [cache for layer in report["layers"]["layers"] for cache in layer["cache"]]

    def scaled(name, amax):
        write_ranges(f"{name}.ranges/cache.safetensors", {module + end: [amax] * heads for module in layers[:2] for end in (".k_amax", ".v_amax")})
        run("convert", "gqa", name, "--kv-scales", f"{name}.ranges/cache.safetensors")
        return name

    assert caches("gqa") == []
    right = caches(scaled("right", 32))
    assert [cache["of"] for cache in right] == ["keys", "values"] * 2, right
    assert all(cache["clipped"] == 0 and 0.02 < cache["relative_error"] < 0.04 for cache in right), right
    low = caches(scaled("low", 1 / 32), code=1)
    assert all(cache["clipped"] > 0.01 and cache["clipped_at_one"] == 0 for cache in low), low
    assert [cache["relative_error_at_one"] for cache in low] == [cache["relative_error_at_one"] for cache in right]
    assert all(cache["relative_error"] == cache["relative_error_at_one"] for cache in caches(scaled("one", 448)))

    # The file of vLLM 0.4 becomes tensors, with the bits of its numbers.
    def legacy(scales):
        with open("kv_cache_scales.json", "w") as file:
            json.dump({"model_type": "qwen3_moe", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": scales}}}, file)

    legacy({"0": 0.03125, "1": 0.0457589291})
    text = run("convert", "gqa", "tensors", "--to", "int8", "--kv-scales", "kv_cache_scales.json", "--verify", "structure,weights")
    assert "no fingerprint" in text, text
    require_scales("tensors", {layers[0] + ".k_scale": bits(14), layers[0] + ".v_scale": bits(14),
                               layers[1] + ".k_scale": bits(20.5), layers[1] + ".v_scale": bits(20.5)})
    legacy({"0": 0.03125})
    run("convert", "gqa", "no", "--kv-scales", "kv_cache_scales.json", fails="has no range of its cache")
    legacy({"0": 0.03125, "1": 1, "2": 1})
    run("convert", "gqa", "no", "--kv-scales", "kv_cache_scales.json", fails="has a scale of layer 2")
    legacy({"0": 0.03125, "1": 0})
    run("convert", "gqa", "no", "--kv-scales", "kv_cache_scales.json", fails="must be finite and above zero")

    # An overlay next to the weights is the model with scales.
    run("convert", "gqa", "over", "--kv-scales", "gqa.ranges/cache.safetensors", "--kv-scales-only")
    assert sorted(os.listdir("over")) == ["config.json", "model-kv-scales.safetensors", "model.safetensors.index.json"]
    require_scales("over", plain)
    shutil.copytree("gqa", "laid")
    shutil.copytree("over", "laid", dirs_exist_ok=True)
    run("check", "laid")
    assert read_rows("laid") == read_rows("copy")
    named = json.load(open("laid/model.safetensors.index.json"))["weight_map"]
    assert sorted(named) == sorted(read_rows("laid")), named
    run("convert", "laid", "twice", "--kv-scales", "gqa.ranges/cache.safetensors", "--kv-scales-only", fails="stores scales of its cache")
    run("convert", "gqa", "over", "--kv-scales", "gqa.ranges/cache.safetensors", "--kv-scales-only", fails="is there already")
    run("convert", "gqa", "over", "--kv-scales-only", fails="--kv-scales")
print("kv_scales: ok")
