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
from numbers_of_bits import E4M3, bf16, round_bf16  # noqa: E402

ingot, golden, families = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
# PEFT's FP32 merge rounds three times, and this one once; DoRA's norm is summed in another order there; a part of the
# base that an adapter started with was taken out and comes back.
ROUNDED_OTHERWISE = {"plain-gauss", "rslora", "patterns", "dora", "stacked-gate-up-rslora", "per-expert-dora", "from-corda",
                     "from-eva", "from-lora_ga", "from-mica", "from-olora", "from-orthogonal", "from-pissa"}


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
    for base in ("dense", "moe", "gpt_oss", "conv1d"):
        source = tensors_of(golden / base / "base")
        for folder in sorted((golden / base).iterdir()):
            if folder.name == "base":
                continue
            out = temp / f"{base}-{folder.name}"
            # No family here has linear layers of [inputs, outputs].
            family = ["--family", "generic"] if base == "conv1d" else []
            run("convert", golden / base / "base", out, "--rule", "*=f32", "--lora", folder, *family)
            found = tensors_of(out)
            wanted = {own.name: own for own in read_file(folder / "merged.safetensors")}
            assert found.keys() == source.keys(), folder
            n_changed = 0
            for name, own in found.items():
                assert own.dtype == "F32", (folder, name)
                want = values(wanted.get(name, source[name]))
                assert tuple(own.shape) == want.shape, (folder, name, own.shape)
                n_changed += name in wanted
                distance = np.abs(values(own) - want).max(initial=0)
                assert distance <= (2e-7 if folder.name in ROUNDED_OTHERWISE else 0), (folder, name, distance)
            assert n_changed == len(wanted), folder


def other_vocabularies(temp):
    """Rows for more or fewer tokens: config.json says how many, slices give the whole again, verify compares."""
    for name, size in (("more-tokens", 101), ("fewer-tokens", 90), ("more-tokens-adapted", 97)):
        out, folder = temp / f"dense-{name}", golden / "dense" / name
        assert json.loads((out / "config.json").read_text())["vocab_size"] == size, name
        run("check", out)
        run("verify", golden / "dense" / "base", out, "--lora", folder)
    folder = adapter(temp / "a-words", *parts_of(golden / "dense" / "more-tokens"))
    (folder / "tokenizer.json").write_text("{}")
    text = run("convert", golden / "dense" / "base", temp / "dry", "--dry-run", "--lora", folder)
    assert "tokenizer.json of its own" in text, text
    # One of the two is left out, or has another size.
    config, tensors = parts_of(golden / "dense" / "more-tokens")
    head = "base_model.model.lm_head.weight"
    lacking = {name: array for name, array in tensors.items() if "lm_head" not in name}
    refuse(temp, "does not give its other rows", config, lacking)
    refuse(temp, "an adapter has one vocabulary", config, {**lacking, head: tensors[head][:99]})
    refuse(temp, "an adapter has one vocabulary", config, {**lacking, head: tensors[head][:96]})
    # Rows that no training has seen: 96 to 98 of 100.
    config, tensors = parts_of(golden / "dense" / "tokens")
    refuse(temp, "does not give its other rows", {**config, "trainable_token_indices": [3, 99, 7]}, tensors)


def tied_heads(temp):
    """A head that is the embedding becomes one of its own where the adapter changes it, and only there."""
    base = temp / "tied"
    os.makedirs(base)
    config = json.loads((golden / "dense" / "base" / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    stored = tensors_of(golden / "dense" / "base")
    write_file(base / "model.safetensors", {name: (own.dtype, list(own.shape), own.data) for name, own in stored.items()
                                            if name != "lm_head.weight"})
    table = values(stored["model.embed_tokens.weight"])
    rng = np.random.default_rng(3)
    a, b = rng.integers(-64, 65, (4, 32)) / 64, rng.integers(-64, 65, (96, 4)) / 1024
    pair = {"base_model.model.lm_head.lora_A.weight": a, "base_model.model.lm_head.lora_B.weight": b}
    folder = adapter(temp / "a-head", {"r": 4, "lora_alpha": 8}, pair)

    def convert(name, of, head, embedding, *options):
        out = temp / name
        run("convert", base, out, "--rule", "*=f32", "--lora", of, *options)
        if "--tp" in options:
            run("merge", out, temp / f"{name}-whole")
            out = temp / f"{name}-whole"
        found = tensors_of(out)
        assert ("lm_head.weight" in found) == (head is not None), name
        assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] == (head is None), name
        if head is not None:
            assert np.array_equal(values(found["lm_head.weight"]), head.astype(np.float32)), name
        assert np.array_equal(values(found["model.embed_tokens.weight"]), embedding.astype(np.float32)), name
        if "--tp" not in options:
            run("verify", base, out, "--lora", of)
            run("check", out)

    convert("untied", folder, table + 2 * (b @ a), table)
    convert("untied-cut", folder, table + 2 * (b @ a), table, "--tp", "2")
    # modules_to_save: both alike stay one, a head that was trained apart does not.
    more = rng.integers(-64, 65, (100, 32)) / 256
    both = {"base_model.model.model.embed_tokens.weight": more, "base_model.model.lm_head.weight": more}
    convert("tied-more", adapter(temp / "a-both", {"r": 4}, both), None, more)
    both["base_model.model.lm_head.weight"] = more[::-1]
    convert("untied-more", adapter(temp / "a-apart", {"r": 4}, both), more[::-1], more)
    # New tokens only: all rows behind the last are there.
    rows = {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta": more[:3]}
    tokens = adapter(temp / "a-new", {"r": 4, "trainable_token_indices": [97, 5, 96]}, rows)
    grown = np.concatenate([table, more[[2, 0]]])
    grown[5] = more[1]
    convert("new-tokens", tokens, None, grown)


def sections_of_linear_attention(temp):
    """in_proj_q, k and v, as tinker calls them, are rows of in_proj_qkv."""
    base = families / "qwen3_5_moe"
    stored = tensors_of(base)
    name = next(name for name in stored if name.endswith("layers.0.linear_attn.in_proj_qkv.weight"))
    rng = np.random.default_rng(4)
    want, first = values(stored[name]), 0
    want, tensors = want.copy(), {}
    for word, rows in (("q", 32), ("k", 32), ("v", 96)):
        a, b = rng.integers(-64, 65, (2, want.shape[1])) / 64, rng.integers(-64, 65, (rows, 2)) / 1024
        module = f"base_model.model.model.layers.0.linear_attn.in_proj_{word}"
        tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = a, b
        want[first : first + rows] += 2 * (b @ a)
        first += rows
    folder = adapter(temp / "a-sections", {"r": 2, "lora_alpha": 4}, tensors)
    run("convert", base, temp / "sections", "--rule", "*=f32", "--lora", folder)
    assert np.array_equal(values(tensors_of(temp / "sections")[name]), want.astype(np.float32))


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
    folder = adapter(temp / "a-block", config, block)
    text = same_output(temp, "block", "moe", folder, wanted, "--expert-b-order", "block")
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

    # SGLang: the A of gate and of up one after the other, B [E, out, r]; gate and up have A of their own here.
    config2, single = parts_of(golden / "moe" / "per-expert")
    sglang = {}
    for layer in (0, 1):
        prefix = f"base_model.model.model.layers.{layer}.mlp.experts"
        for leaf, words in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            if f"{prefix}.0.{words[0]}.lora_A.weight" not in single:
                continue
            for side in "AB":
                sglang[f"{prefix}.{leaf}.lora_{side}.weight"] = np.stack([np.concatenate(
                    [single[f"{prefix}.{e}.{word}.lora_{side}.weight"] for word in words]) for e in range(n_experts)])
    sglang |= {name: array for name, array in single.items() if ".experts." not in name}
    same_output(temp, "sglang", "moe", adapter(temp / "a-sglang", config2, sglang), tensors_of(temp / "moe-per-expert"))

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


def other_ways(temp):
    """Every way to the same output has the same bytes: an earlier output, tensors made again, layouts of engines."""
    base, folder, out = golden / "moe" / "base", golden / "moe" / "stacked", temp / "ways"
    run("convert", base, out, "--to", "fp8-channel", "--lora", folder)
    wanted = {key: own.data for key, own in tensors_of(out).items()}
    run("convert", base, temp / "based", "--to", "fp8-channel", "--lora", folder, "--base", out)
    assert {key: own.data for key, own in tensors_of(temp / "based").items()} == wanted
    run("rederive", out, "--source", base, "--all", "--with", f"lora={folder}")
    run("rederive", out, "--source", base, "--all", fails="lora=PATH")
    run("rederive", out, "--source", base, "--all", "--with", f"lora={golden / 'moe' / 'attention'}", fails="(--with)")
    run("convert", base, temp / "folded", "--to", "bf16", "--lora", folder)
    for of, options in (("direct", ("--lora", folder)), ("folded", ())):
        source = base if of == "direct" else temp / "folded"
        run("convert", source, temp / f"state-{of}", "--to", "bf16", "--layout", "vllm-sharded", "--tp", "2", *options)
    states = [{str(path.relative_to(temp / f"state-{of}")): path.read_bytes()
               for path in sorted((temp / f"state-{of}").rglob("*.safetensors"))} for of in ("direct", "folded")]
    assert states[0] and states[0] == states[1]
    # An adapter over a composed model: experts are those of the base with it, attention is encoded in the other's form.
    run("convert", base, temp / "fp8", "--to", "fp8-channel")
    (temp / "compose.yaml").write_text(f"base: {base.resolve()}\nsources: {{own: fp8}}\nlora: {folder.resolve()}\n"
                                       "rules: [{match: 'role:attention', from: own}]\n")
    run("compose", temp / "compose.yaml", temp / "composed")
    run("verify", temp / "compose.yaml", temp / "composed")
    composed, folded = tensors_of(temp / "composed"), tensors_of(temp / "folded")
    for name, own in folded.items():
        assert "self_attn" in name or composed[name].data == own.data, name
    assert composed["model.layers.0.self_attn.q_proj.weight"].dtype == "F8_E4M3"


def int4_codes(words):
    codes = (words[:, :, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    return codes.reshape(len(words), -1).astype(np.int64) - 8


def kimi(temp):
    """Experts in INT4 of a Kimi K2, some with an adapter: new codes and scales by NumPy, the rest as it was."""
    source = families / "kimi_k2_thinking"
    before = tensors_of(source)
    rank, alpha = 4, 6
    rng = np.random.default_rng(5)
    names = [f"model.layers.1.mlp.experts.{e}.{p}" for e in (0, 3) for p in ("gate_proj", "up_proj", "down_proj")]
    tensors, wanted, changed_values = {}, {}, {}
    for name in names:
        stored = before[f"{name}.weight_packed"]
        packed = np.frombuffer(stored.data, "<u4").reshape(stored.shape)
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
        changed_values[name] = changed.astype(np.float64)
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
    words = [ingot, "convert", source, temp / "kimi-json", "--search", "amax", "--lora", folder, "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    report = json.loads(done.stdout)
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
    run("convert", source, temp / "wide8", "--lora", folder, "--keep-touched", "fp8")
    wide = tensors_of(temp / "wide8")
    for name in names:
        assert wide[f"{name}.weight"].dtype == "F8_E4M3", name
        scale = values(wide[f"{name}.weight_scale"])
        codes = np.frombuffer(wide[f"{name}.weight"].data, np.uint8).reshape(wide[f"{name}.weight"].shape)
        got = E4M3[codes].astype(np.float64) * np.kron(scale, np.ones((128, 128)))[: wide[f"{name}.weight"].shape[0],
                                                                              : wide[f"{name}.weight"].shape[1]]
        assert np.abs(got - changed_values[name]).max() <= np.abs(changed_values[name]).max() / 15, name
    run("verify", source, temp / "wide8", "--lora", folder)
    # By threads and parts: the same bytes.
    run("convert", source, temp / "one", "--search", "amax", "--lora", folder, "--threads", "1")
    assert {k: o.data for k, o in tensors_of(temp / "one").items()} == {k: o.data for k, o in after.items()}
    for part in (0, 1):
        run("convert", source, temp / "parts", "--search", "amax", "--lora", folder, "--part", f"{part}/2")
    run("convert", source, temp / "parts", "--search", "amax", "--lora", folder, "--part", "join")
    assert {k: o.data for k, o in tensors_of(temp / "parts").items()} == {k: o.data for k, o in after.items()}


def act_order(temp):
    """Columns in an order of groups: new codes and scales by NumPy in the order that stays, with zero points too."""
    for family, has_zeros in (("qwen3_moe_gptq_actorder", False), ("qwen3_moe_gptq_asym_actorder", True)):
        source, plain = families / family, temp / f"{family}-plain"
        allow = ["--allow", "engine-refuses=*"] if has_zeros else []  # an engine each takes one of the two
        run("convert", source, plain, *allow)
        before = tensors_of(plain)
        rng = np.random.default_rng(6)
        names = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts.0.up_proj"]
        tensors, wanted = {}, {}
        for name in names:
            order = np.frombuffer(before[f"{name}.weight_g_idx"].data, "<i4")
            assert not np.array_equal(order, np.sort(order)), name
            weight = decoded_int4(before, name).astype(np.float64)
            a = rng.integers(-64, 65, (2, weight.shape[1])) / 64
            b = rng.integers(-64, 65, (len(weight), 2)) / 4096
            tensors[f"base_model.model.{name}.lora_A.weight"], tensors[f"base_model.model.{name}.lora_B.weight"] = a, b
            wanted[name] = (weight + 4 * (b @ a)).astype(np.float32)
        folder = adapter(temp / f"a-{family}", {"r": 2, "lora_alpha": 8}, tensors)
        out = temp / family
        run("convert", source, out, "--search", "amax", "--lora", folder, *allow)
        after = tensors_of(out)
        assert after.keys() == before.keys()
        for name, own in before.items():
            is_new = any(name.startswith(f"{module}.weight") for module in names)
            if not is_new or name.endswith(("g_idx", "shape")):
                assert after[name].data == own.data, name
        for name, want in wanted.items():
            order = np.frombuffer(after[f"{name}.weight_g_idx"].data, "<i4")
            got, scale = decoded_int4(after, name), scales_of(after[f"{name}.weight_scale"])
            # Half a step, but for ends of groups whose zero point was rounded to a whole code.
            steps = np.abs(got - want) / scale[:, order]
            assert np.mean(steps > 0.5001) < (1e-3 if has_zeros else 1e-9) and steps.max() < 1, (name, steps.max())
            if has_zeros:
                continue
            for group in range(scale.shape[1]):
                amax = np.abs(want[:, order == group]).max(axis=1)
                near = np.abs(scale[:, group] - amax / 7) <= amax / 7 / 128
                assert np.all(near | (amax == 0)), (name, group)
        assert (out / "config.json").read_bytes() == (plain / "config.json").read_bytes()
        run("verify", source, out, "--lora", folder)


def scales_of(own):
    return values(own) if own.dtype != "F16" else np.frombuffer(own.data, "<f2").reshape(own.shape).astype(np.float64)


def decoded_int4(tensors, name):
    own = tensors[f"{name}.weight_packed"]
    codes = int4_codes(np.frombuffer(own.data, "<u4").reshape(own.shape)) + 8
    scale = scales_of(tensors[f"{name}.weight_scale"])
    order = np.frombuffer(tensors[f"{name}.weight_g_idx"].data, "<i4")
    zeros = 8
    if f"{name}.weight_zero_point" in tensors:
        own = tensors[f"{name}.weight_zero_point"]
        packed = np.frombuffer(own.data, "<u4").reshape(own.shape)
        zeros = (packed[:, None, :] >> (4 * np.arange(8, dtype=np.uint32))[None, :, None]) & 15
        zeros = zeros.reshape(-1, packed.shape[1])[: len(codes)].astype(np.int64)[:, order]
    return ((codes - zeros) * scale[:, order]).astype(np.float32)


def records_of(out):
    text = subprocess.run(["zstd", "-dcq", out / "ingot.tensors.jsonl.zst"], capture_output=True, check=True).stdout
    return {record["name"]: record for record in map(json.loads, text.decode().splitlines())}


def refuse(temp, fails, config, arrays, *options, base=golden / "dense" / "base"):
    folder = adapter(temp / "a-hostile", config, arrays)
    run("convert", base, temp / "refused", "--lora", folder, *options, fails=fails)
    assert not (temp / "refused").exists() or not list((temp / "refused").glob("*.safetensors"))
    shutil.rmtree(temp / "refused", ignore_errors=True)


def hostile(temp):
    base = golden / "dense" / "base"
    config, tensors = parts_of(golden / "dense" / "plain")
    some = {name: array for name, array in tensors.items() if "layers.0.self_attn.q_proj" in name}
    a_name = next(name for name in some if "lora_A" in name)
    folder = temp / "a-hostile"

    def bad(fails, config_too={}, arrays=None):
        refuse(temp, fails, {"r": 4, "lora_alpha": 8, **config_too}, some if arrays is None else arrays)

    def in_line(n):
        return f"a-hostile/adapter_config.json: line {n}: "

    bad([in_line(1), "peft_type", "LOHA"], {"peft_type": "LOHA"})
    for option in ("kasa_config", "layer_replication", "alora_invocation_tokens", "use_qalora", "use_bdlora",
                   "arrow_config", "velora_config", "monteclora_config", "of_next_year"):
        bad([in_line(1), option], {option: [[0, 1]]})
    bad("init_lora_weights", {"init_lora_weights": "of_next_year"})
    for start in ("pissa_niter_4", "olora", "corda", "lora_ga"):
        bad([start, "path_initial_model_for_weight_conversion", "lora-base"], {"init_lora_weights": start})
    bad(["loftq", "give the checkpoint that was left as the source"], {"init_lora_weights": "loftq"})
    bad("rank 4", {"r": 3})
    bad("no lora_B", {}, {a_name: some[a_name]})
    for nothing in (np.nan, np.inf):
        bad(["adapter_model.safetensors", "NaN or infinite"], {},
            {name: np.where(array == array.max(), nothing, array) for name, array in some.items()})
    bad("which the model does not have", {}, {name.replace("q_proj", "r_proj"): own for name, own in some.items()})
    # All of them are listed.
    bad(["r_proj", "s_proj", "2 faults"], {}, {name.replace("q_proj", word): own for name, own in some.items()
                                               for word in ("r_proj", "s_proj")})
    for name in ("../../../etc/passwd", "model.layers.0/../1.self_attn.q_proj", "", ".", "\u0000"):
        bad("does not have", {}, {f"base_model.model.{name}.{own.rsplit('.', 2)[1]}.weight": array
                                  for own, array in some.items()})
    bad("of shape [4, 31]", {}, {name: own[:, :31] if name == a_name else own for name, own in some.items()})
    bad([in_line(1), "rank 0"], {"r": 0})
    empty = {name: own[:0] if "lora_A" in name else own[:, :0] for name, own in some.items()}
    bad("has no numbers", {}, empty)
    bad("has shape [3]", {}, {"base_model.model.model.norm.weight": np.ones(3)})
    bad("use_dora", {}, {**some, a_name.replace("lora_A.weight", "lora_magnitude_vector"): np.ones(32)})
    bad([in_line(1), "lora_alpha"], {"lora_alpha": 1e39})
    bad(["q_proj", "too large for FP32"], {"lora_alpha": 1e30}, {name: own * 1e6 for name, own in some.items()})
    # Expressions that are too many, explode, or are none.
    bad("adapter_config.json", {"rank_pattern": {f"x{n}": 4 for n in range(10**6)}})
    bad([in_line(1), "10000 expressions"], {"alpha_pattern": {f"x+{n}": 4 for n in range(10**4 + 1)}})
    bad([in_line(1), "backtracks too much"], {"rank_pattern": {"(((a|.)+)+)+[!?]": 4}})
    bad([in_line(1), "is not a regular expression"], {"rank_pattern": {"(": 4}})
    bad([in_line(1), "rank_pattern"], {"rank_pattern": {"q_proj": "4"}})
    bad([in_line(1), "trainable_token_indices"], {"trainable_token_indices": [-1]})
    (folder / "adapter_config.json").write_text('{\n  "r": 4,\n  "rank_pattern": {\n    "(": 2\n  }\n}')
    run("convert", base, temp / "refused", "--lora", folder, fails=in_line(4))
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA",\n "r": 4,}')
    run("convert", base, temp / "refused", "--lora", folder, fails=["adapter_config.json", "in line 2"])
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    # A header that lies, and a file that ends early.
    data = (folder / "adapter_model.safetensors").read_bytes()
    for lie in (data[: len(data) // 2], data[:7], b"", data.replace(b"[4, 32]", b"[9, 32]"),
                data.replace(b"[4, 32]", b"[0, 32]"), (2**62).to_bytes(8, "little") + data[8:], data + b"more"):
        assert lie != data
        (folder / "adapter_model.safetensors").write_bytes(lie)
        run("convert", base, temp / "refused", "--lora", folder, fails="adapter_model.safetensors")
    os.rename(folder / "adapter_model.safetensors", folder / "adapter_model.bin")
    run("convert", base, temp / "refused", "--lora", folder, fails=["a-hostile", "pickled"])
    run("convert", base, temp / "refused", "--lora", temp / "nowhere", fails="adapter_config.json")
    run("convert", base, temp / "refused", "--lora-scale", "2", fails="--lora")
    # DoRA of an embedding has another form.
    config, tensors = parts_of(golden / "dense" / "embedding")
    lengths = {"base_model.model.model.embed_tokens.lora_magnitude_vector": np.ones(32)}
    refuse(temp, "DoRA of an embedding", {**config, "use_dora": True}, {**{name: own for name, own in tensors.items()
           if "embed_tokens" in name}, **lengths})
    bad("lora_A", {}, {name: own[:, :, None, None] for name, own in some.items()})
    bad("two or three dimensions", {}, {name: np.ones(()) for name in some})
    # Accepted where the user says so.
    folder = adapter(temp / "a-pissa", {"r": 4, "lora_alpha": 8, "init_lora_weights": "pissa"}, some)
    run("convert", base, temp / "refused", "--lora", folder, "--allow", "lora-base=*.k_proj.weight", fails="lora-base")
    run("convert", base, temp / "pissa", "--lora", folder, "--allow", "lora-base=*.q_proj.weight")
    allowed = json.loads((temp / "pissa" / "ingot.json").read_text())["recipe"]["allow"]
    assert allowed["lora-base"] == ["*.q_proj.weight"], allowed
    # Another base is a warning; of the same name it is none.
    for name, warns in (("someone/other-model", True), ("someone/base", False)):
        folder = adapter(temp / "a-base", {"r": 4, "lora_alpha": 8, "base_model_name_or_path": name}, some)
        text = run("convert", base, temp / "dry", "--lora", folder, "--dry-run")
        assert ("made for someone/other-model" in text) == warns, text


with tempfile.TemporaryDirectory() as folder:
    temp = pathlib.Path(folder)
    merges_of_peft(temp)
    other_vocabularies(temp)
    tied_heads(temp)
    sections_of_linear_attention(temp)
    forms_of_other_programs(temp)
    scaled(temp)
    cut_and_from_a_recipe(temp)
    other_ways(temp)
    kimi(temp)
    act_order(temp)
    hostile(temp)
