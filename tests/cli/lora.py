#!/usr/bin/env python3
"""convert --lora folds adapters of PEFT: its own merges, the forms of other programs, and a base in INT4 against NumPy.
lora.py INGOT GOLDEN FAMILIES"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "differential"))
from container import read_file, write_file  # noqa: E402
from numbers_of_bits import bf16, round_bf16  # noqa: E402

ingot, golden, families = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
# What PEFT's FP32 merge has in three roundings is here in one; DoRA's norm is summed in another order there.
ROUNDED_OTHERWISE = {"plain-gauss", "rslora", "patterns", "dora", "stacked-gate-up-rslora", "per-expert-dora"}


def run(*arguments, fails=None):
    done = subprocess.run([ingot, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    if fails is None:
        assert done.returncode == 0, (arguments, text[-3000:])
    else:
        assert done.returncode != 0, (arguments, text[-3000:])
        for words in fails if isinstance(fails, list) else [fails]:
            assert words in text, (arguments, words, text[-3000:])
    return text


def tensors_of(folder):
    return {own.name: own for path in sorted(pathlib.Path(folder).glob("*.safetensors")) for own in read_file(path)}


def values(own):
    if own.dtype == "BF16":
        return bf16(own.data).reshape(own.shape).astype(np.float64)
    return np.frombuffer(own.data, "<f4").reshape(own.shape).astype(np.float64)


def adapter(folder, config, tensors):
    """Writes an adapter: FP32 arrays by name."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/adapter_config.json", "w") as file:
        json.dump({"peft_type": "LORA", **config}, file)
    write_file(f"{folder}/adapter_model.safetensors",
               {name: ("F32", list(array.shape), np.ascontiguousarray(array, "<f4").tobytes())
                for name, array in tensors.items()})
    return folder


def parts_of(folder):
    """Config and tensors of an adapter of the golden set."""
    config = json.loads((folder / "adapter_config.json").read_text())
    return config, {own.name: values(own) for own in read_file(folder / "adapter_model.safetensors")}


def merges_of_peft(temp):
    for base in ("dense", "moe", "gpt_oss"):
        source = tensors_of(golden / base / "base")
        for folder in sorted((golden / base).iterdir()):
            if folder.name == "base":
                continue
            out = temp / f"{base}-{folder.name}"
            run("convert", golden / base / "base", out, "--rule", "*=f32", "--lora", folder)
            found = tensors_of(out)
            wanted = {own.name: own for own in read_file(folder / "merged.safetensors")}
            assert found.keys() == source.keys(), folder
            n_changed = 0
            for name, own in found.items():
                assert own.dtype == "F32", (folder, name)
                want = values(wanted.get(name, source[name]))
                n_changed += name in wanted
                distance = np.abs(values(own) - want).max(initial=0)
                assert distance <= (2e-7 if folder.name in ROUNDED_OTHERWISE else 0), (folder, name, distance)
            assert n_changed == len(wanted), folder


def same_output(temp, name, base, folder, wanted, *options):
    out = temp / name
    text = run("convert", golden / base / "base", out, "--rule", "*=f32", "--lora", folder, *options)
    found = tensors_of(out)
    assert {key: own.data for key, own in found.items()} == {key: own.data for key, own in wanted.items()}, name
    return text


def forms_of_other_programs(temp):
    """One adapter of stacked experts, written as others write it, gives the same bytes."""
    wanted = tensors_of(temp / "moe-stacked")
    config, tensors = parts_of(golden / "moe" / "stacked")
    n_experts, rank = 4, config["r"]
    inner = "mlp.experts.base_layer.lora_"

    def each_b(order):
        return {name: order(array) if "experts" in name and "lora_B" in name else array
                for name, array in tensors.items()}

    block = each_b(lambda b: b.reshape(len(b), rank, n_experts).transpose(0, 2, 1).reshape(len(b), -1))
    text = same_output(temp, "block", "moe", adapter(temp / "a-block", config, block), wanted, "--expert-b-order", "block")
    assert "unsloth" not in text, text
    (temp / "a-block" / "README.md").write_text("made with unsloth")
    text = run("convert", golden / "moe" / "base", temp / "dry", "--dry-run", "--lora", temp / "a-block")
    assert "--expert-b-order" in text, text

    vllm = each_b(lambda b: b.reshape(len(b), rank, n_experts))
    vllm = {name: array.reshape(n_experts, rank, -1) if "experts" in name and "lora_A" in name else array
            for name, array in vllm.items()}
    same_output(temp, "vllm", "moe", adapter(temp / "a-vllm", config, vllm), wanted)

    # PEFT up to 0.18 took [E, outputs, inputs] for [E, inputs, outputs].
    old = dict(tensors)
    for name, a in tensors.items():
        if "experts" in name and "lora_A" in name:
            b = tensors[name.replace("lora_A", "lora_B")].reshape(-1, rank, n_experts)
            old[name] = b.transpose(2, 1, 0).reshape(n_experts * rank, -1)
            old[name.replace("lora_A", "lora_B")] = (
                a.reshape(n_experts, rank, -1).transpose(2, 1, 0).reshape(-1, rank * n_experts))
    same_output(temp, "old", "moe", adapter(temp / "a-old", {**config, "peft_version": "0.18.0"}, old), wanted)

    # One projection a tensor, as tinker has it: A of gate and up is the same.
    tinker = {}
    for name, array in tensors.items():
        if "experts" not in name:
            tinker[name.removeprefix("base_model.model.")] = array
        elif "lora_A" in name:
            a = array.reshape(n_experts, rank, -1)
            b = tensors[name.replace("lora_A", "lora_B")].reshape(-1, rank, n_experts).transpose(2, 0, 1)
            layer = name.split("mlp.experts")[0]
            leaves = {"w1": b[:, :b.shape[1] // 2], "w3": b[:, b.shape[1] // 2:]} if inner in name else {"w2": b}
            for leaf, own in leaves.items():
                tinker[f"{layer}mlp.experts.{leaf}.lora_A.weight"] = a
                tinker[f"{layer}mlp.experts.{leaf}.lora_B.weight"] = own
    same_output(temp, "tinker", "moe", adapter(temp / "a-tinker", config, tinker), wanted)

    # The model has stacks, the adapter single experts, and the other way round.
    run("convert", golden / "moe" / "base", temp / "stacks", "--experts", "stacked")
    for name in ("per-expert", "stacked"):
        run("convert", temp / "stacks", temp / f"{name}-of-stacks", "--experts", "stacked", "--rule", "*=f32", "--lora",
            golden / "moe" / name)
        run("convert", temp / f"{name}-of-stacks", temp / f"{name}-single", "--experts", "separate")
        single, want = tensors_of(temp / f"{name}-single"), tensors_of(temp / f"moe-{name}")
        assert {key: own.data for key, own in single.items()} == {key: own.data for key, own in want.items()}, name


def scaled(temp):
    """--lora-scale 2 is twice alpha."""
    config, tensors = parts_of(golden / "dense" / "plain")
    twice = adapter(temp / "a-twice", {**config, "lora_alpha": 2 * config["lora_alpha"]}, tensors)
    run("convert", golden / "dense" / "base", temp / "twice", "--rule", "*=f32", "--lora", twice)
    same_output(temp, "scale", "dense", golden / "dense" / "plain", tensors_of(temp / "twice"), "--lora-scale", "2")


def cut_and_from_a_recipe(temp):
    """Slices of ranks give the whole output again; a recipe names the adapter by a path from its own folder."""
    base, wanted = golden / "dense" / "base", tensors_of(temp / "dense-plain")
    run("convert", base, temp / "ranks", "--rule", "*=f32", "--lora", golden / "dense" / "plain", "--tp", "2")
    run("merge", temp / "ranks", temp / "merged")
    assert {key: own.data for key, own in tensors_of(temp / "merged").items()} == {
        key: own.data for key, own in wanted.items()}
    os.makedirs(temp / "recipes")
    path = os.path.relpath((golden / "dense" / "plain").resolve(), (temp / "recipes").resolve())
    (temp / "recipes" / "r.yaml").write_text(f"lora: {path}\nrules: [{{match: '*', scheme: f32}}]\n")
    run("convert", base, temp / "by-recipe", "--recipe", temp / "recipes" / "r.yaml")
    assert {key: own.data for key, own in tensors_of(temp / "by-recipe").items()} == {
        key: own.data for key, own in wanted.items()}


def int4_codes(words):
    codes = (words[:, :, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    return codes.reshape(len(words), -1).astype(np.int64) - 8


def kimi(temp):
    """Experts in INT4 of a Kimi K2 with an adapter of some of them: new codes and scales by NumPy, the rest as it was."""
    source = families / "kimi_k2_thinking"
    before = tensors_of(source)
    rank, alpha = 4, 6
    rng = np.random.default_rng(5)
    names = [f"model.layers.1.mlp.experts.{e}.{p}" for e in (0, 3) for p in ("gate_proj", "up_proj", "down_proj")]
    tensors, wanted = {}, {}
    for name in names:
        packed = np.frombuffer(before[f"{name}.weight_packed"].data, "<u4").reshape(before[f"{name}.weight_packed"].shape)
        scale = values(before[f"{name}.weight_scale"])
        group = packed.shape[1] * 8 // scale.shape[1]
        weight = (int4_codes(packed).astype(np.float32) *
                  np.repeat(scale, group, axis=1).astype(np.float32)).astype(np.float64)
        a = rng.standard_normal((rank, weight.shape[1])).astype(np.float32)
        b = (rng.standard_normal((len(weight), rank)) * np.abs(weight).mean() / 4).astype(np.float32)
        tensors[f"base_model.model.{name}.lora_A.weight"], tensors[f"base_model.model.{name}.lora_B.weight"] = a, b
        total = np.zeros_like(weight)
        for k in range(rank):
            total += b[:, k : k + 1].astype(np.float64) * a[k].astype(np.float64)
        changed = (weight + np.float64(alpha / rank) * total).astype(np.float32)
        groups = changed.reshape(len(changed), -1, group)
        amax = np.abs(groups).max(axis=2)
        new_scale = round_bf16(np.where(amax > 0, amax / np.float32(7), np.float32(1)).astype(np.float32))
        codes = np.clip(np.rint(groups / new_scale[:, :, None]), -8, 7).astype(np.int64).reshape(changed.shape) + 8
        words = np.zeros(packed.shape, np.uint32)
        for place in range(8):
            words |= (codes[:, place::8].astype(np.uint32) << np.uint32(4 * place))
        decoded = (codes - 8) * np.repeat(new_scale, group, axis=1).astype(np.float64)
        step, got = changed.astype(np.float64) - weight, decoded.astype(np.float32) - weight
        wanted[name] = (words.tobytes(), new_scale, (step * got).sum() / (step * step).sum())
    folder = adapter(temp / "a-kimi", {"r": rank, "lora_alpha": alpha}, tensors)
    out = temp / "kimi"
    run("convert", source, out, "--search", "amax", "--lora", folder)
    after = tensors_of(out)
    assert after.keys() == before.keys()
    for name, own in before.items():
        module = name.rsplit(".", 1)[0]
        if module in wanted and not name.endswith("shape"):
            continue
        assert after[name].data == own.data and after[name].dtype == own.dtype, name
    records = records_of(out)
    for name, (codes, scale, survival) in wanted.items():
        assert np.array_equal(values(after[f"{name}.weight_scale"]), scale.astype(np.float64)), name
        assert after[f"{name}.weight_packed"].data == codes, name
        found = records[f"{name}.weight"]["change"]["survival"]
        assert abs(found - survival) < 1e-6, (name, found, survival)
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    manifest = json.loads((out / "ingot.json").read_text())
    assert len(manifest["recipe"]["choices"]["lora"][0]["hash"]) == 32, manifest["recipe"]
    report = json.loads(run("convert", source, temp / "kimi-json", "--search", "amax", "--lora", folder, "--json"))
    assert len(report["changes"]["tensors"]) == len(names), report["changes"]

    # Verification sees the source as the adapter makes it, and refuses to compare without it.
    run("verify", source, out, "--lora", folder)
    run("verify", source, out, fails="--lora")
    other = adapter(temp / "a-other", {"r": rank, "lora_alpha": 2 * alpha}, tensors)
    run("verify", source, out, "--lora", other, fails="not what its ingot.json records")
    run("convert", source, temp / "judged", "--lora", folder, "--to", "nvfp4", "--verify", "weights")

    # Wider, with the tensors that loaders fuse.
    run("convert", source, temp / "wide", "--lora", folder, "--keep-touched", "bf16")
    wide = tensors_of(temp / "wide")
    for name in names:
        assert wide[f"{name}.weight"].dtype == "BF16", name
    assert wide["model.layers.1.mlp.experts.1.up_proj.weight"].dtype == "BF16"
    assert wide["model.layers.2.mlp.experts.0.up_proj.weight_packed"].data == before[
        "model.layers.2.mlp.experts.0.up_proj.weight_packed"].data
    # By threads and parts: the same bytes.
    run("convert", source, temp / "one", "--search", "amax", "--lora", folder, "--threads", "1")
    assert {k: o.data for k, o in tensors_of(temp / "one").items()} == {k: o.data for k, o in after.items()}
    for part in (0, 1):
        run("convert", source, temp / "parts", "--search", "amax", "--lora", folder, "--part", f"{part}/2")
    run("convert", source, temp / "parts", "--search", "amax", "--lora", folder, "--part", "join")
    assert {k: o.data for k, o in tensors_of(temp / "parts").items()} == {k: o.data for k, o in after.items()}


def records_of(out):
    text = subprocess.run(["zstd", "-dcq", out / "ingot.tensors.jsonl.zst"], capture_output=True, check=True).stdout
    return {record["name"]: record for record in map(json.loads, text.decode().splitlines())}


def hostile(temp):
    base = golden / "dense" / "base"
    config, tensors = parts_of(golden / "dense" / "plain")
    some = {name: array for name, array in tensors.items() if "layers.0.self_attn.q_proj" in name}
    a_name = next(name for name in some if "lora_A" in name)

    def refuse(fails, config_too={}, arrays=None, *options):
        folder = adapter(temp / "a-hostile", {"r": 4, "lora_alpha": 8, **config_too}, some if arrays is None else arrays)
        run("convert", base, temp / "refused", "--lora", folder, *options, fails=fails)
        assert not (temp / "refused").exists() or not list((temp / "refused").glob("*.safetensors"))
        shutil.rmtree(temp / "refused", ignore_errors=True)

    refuse(["peft_type", "LOHA"], {"peft_type": "LOHA"})
    refuse("kasa_config", {"kasa_config": {"x": 1}})
    refuse("layer_replication", {"layer_replication": [[0, 1]]})
    refuse("alora_invocation_tokens", {"alora_invocation_tokens": [1]})
    refuse("of_next_year", {"of_next_year": True})
    refuse("init_lora_weights", {"init_lora_weights": "mica"})
    refuse(["pissa", "lora-base"], {"init_lora_weights": "pissa_niter_4"})
    refuse("rank 4", {"r": 3})
    refuse("no lora_B", {}, {a_name: some[a_name]})
    refuse("NaN or infinite", {}, {name: np.where(array == array.max(), np.nan, array) for name, array in some.items()})
    refuse("which the model does not have", {}, {name.replace("q_proj", "r_proj"): own for name, own in some.items()})
    refuse("of shape [4, 31]", {}, {name: own[:, :31] if name == a_name else own for name, own in some.items()})
    refuse("rank 0", {"r": 0})
    empty = {name: own[:0] if "lora_A" in name else own[:, :0] for name, own in some.items()}
    refuse("has no numbers", {}, empty)
    refuse("has shape [3]", {}, {"base_model.model.model.norm.weight": np.ones(3)})
    refuse("use_dora", {}, {**some, a_name.replace("lora_A.weight", "lora_magnitude_vector"): np.ones(32)})
    folder = temp / "a-hostile"
    data = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(data[: len(data) // 2])
    run("convert", base, temp / "refused", "--lora", folder, fails="adapter_model.safetensors")
    os.rename(folder / "adapter_model.safetensors", folder / "adapter_model.bin")
    run("convert", base, temp / "refused", "--lora", folder, fails="pickled")
    run("convert", base, temp / "refused", "--lora", temp / "nowhere", fails="adapter_config.json")
    run("convert", base, temp / "refused", "--lora-scale", "2", fails="--lora")
    # Accepted where the user says so.
    folder = adapter(temp / "a-pissa", {"r": 4, "lora_alpha": 8, "init_lora_weights": "pissa"}, some)
    run("convert", base, temp / "pissa", "--lora", folder, "--allow", "lora-base=*")


with tempfile.TemporaryDirectory() as folder:
    temp = pathlib.Path(folder)
    merges_of_peft(temp)
    forms_of_other_programs(temp)
    scaled(temp)
    cut_and_from_a_recipe(temp)
    kimi(temp)
    hostile(temp)
