#!/usr/bin/env python3
"""ingot prune leaves experts out: every byte of the output is that of a checkpoint that this script assembles of the
kept experts by names and shapes, with NumPy, from the list in the manifest; verify and check know it, and it runs.
prune.py INGOT GOLDEN [all]"""
import functools
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy

from small_models import faults_of, folders_of

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "differential"))
from container import read_file, read_rows  # noqa: E402
from numbers_of_bits import bf16  # noqa: E402

ingot, golden = map(os.path.abspath, sys.argv[1:3])
# A default run takes forms of their own: groups, MTP layers, hash tables, stacks with parts, rows behind the experts,
# words of other packers.
usual = """arch/deepseek_v3/checkpoint arch_variants/deepseek_v2_grouped/checkpoint families/deepseek_v4 families/gpt_oss
    families/mixtral_awq families/qwen3_moe_gptq_asym_actorder families/qwen3_5_moe_fp8 families/kimi_k25
    families/mistral4_fp8 forward/longcat_flash/checkpoint forward/inkling/checkpoint forward/ernie4_5_moe/checkpoint
    forward/dbrx/checkpoint""".split()
is_all = "all" in sys.argv[3:]
models = folders_of(golden) if is_all else [f"{golden}/{name}" for name in usual]
COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
# The rows of a router and of all that has an entry for each expert.
ROWS = re.compile(r"(\.gate\.(weight|bias|bias_vl|e_score_correction_bias|expert_bias|balancing_biases)|gate\.wg\.weight"
                  r"|router\.(gate|layer|classifier|proj)\.(weight|bias)|router\.(weight|bias|expert_bias|per_expert_scale)"
                  r"|e_score_correction_bias|\.expert_bias|router_bias|router_mlp\.out_proj\.weight)$")
# A stack, with its parts.
STACK = re.compile(r"\.(experts\.(?!\d)(?!mlp\.\d)|moe\.(gate|up|down)_proj|\w*(moe|mlp)\.(in|out)put_linear)")
SINGLE = re.compile(r"^(.*\.(?:experts|experts\.mlp)\.)(\d+)(\..*)$")


def run(*arguments):
    return subprocess.run([ingot, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def text_of(config):
    nested = [value for key, value in config.items() if isinstance(value, dict) and any(k in value for k in COUNTS)]
    return nested[0] if nested and not any(key in config for key in COUNTS) else config


def layer_of(name, n_layers):
    """The number that a list has for the layer of a tensor; MTP layers are behind the main ones."""
    is_mtp = re.search(r"(^|\.)mtp\.", name)
    number = re.search(r"(?:layers|blocks|mtp|h)\.(\d+)\.", name)
    return None if not number else str(int(number[1]) + (n_layers if is_mtp else 0))


def cut(tensor, side, entries):
    dtype, shape, data = tensor
    before = int(numpy.prod(shape[:side], dtype=int))
    whole = numpy.frombuffer(data, numpy.uint8).reshape(before, shape[side], -1)
    return dtype, [*shape[:side], len(entries), *shape[side + 1:]], whole[:, entries].tobytes()


def floats(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        return bf16(data).reshape(shape)
    return numpy.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4").reshape(shape)


def redirected(table, router, kept):
    dtype, shape, data = table
    rows = floats(router).astype("<f8")
    norms = numpy.linalg.norm(rows, axis=1)
    likeness = rows @ rows[kept].T / numpy.maximum(norms[:, None] * norms[kept][None], 1e-300)
    order = numpy.argsort(-likeness, axis=1, kind="stable")
    result = []
    for entries in numpy.frombuffer(data, {"I64": "<i8", "I32": "<i4"}[dtype]).reshape(shape):
        places = [kept.index(entry) if entry in kept else None for entry in entries]
        for i, entry in enumerate(entries):
            if places[i] is None:
                places[i] = next(int(n) for n in order[entry] if n not in places)
        result.append(places)
    return dtype, shape, numpy.array(result, {"I64": "<i8", "I32": "<i4"}[dtype]).tobytes()


def assembled(tensors, lists, n_experts, n_layers):
    result = {}
    for name, tensor in tensors.items():
        kept = lists.get(layer_of(name, n_layers))
        single = SINGLE.match(name)
        shape = tensor[1]
        if kept is None or re.match("(model.)?(vision|visual|audio)", name) or "shared" in name and "router" not in name:
            result[name] = tensor
        elif single:
            if int(single[2]) in kept:
                result[f"{single[1]}{kept.index(int(single[2]))}{single[3]}"] = tensor
        elif name.endswith("tid2eid"):
            result[name] = redirected(tensor, tensors[name.replace("tid2eid", "weight")], kept)
        elif STACK.search(name) and shape and shape[0] == n_experts and len(tensor[2]) > 4:
            result[name] = cut(tensor, 0, kept)
        elif STACK.search(name) and shape and len(shape) > 1 and shape[0] % n_experts == 0 and shape[0] > n_experts:
            rows = shape[0] // n_experts  # one matrix for all experts
            result[name] = cut(tensor, 0, [expert * rows + row for expert in kept for row in range(rows)])
        elif ROWS.search(name) and max(shape[:2]) >= n_experts:
            side = 1 if shape[0] == 1 else 0
            result[name] = cut(tensor, side, [*kept, *range(n_experts, shape[side])])
        else:
            result[name] = tensor
    return result


def list_for(source, layers, n_experts, groups, n_kept):
    """A list of one's own, another one for each layer."""
    lists, width = {}, n_experts // groups
    for layer in layers:
        offset = int(layer) % width
        lists[layer] = sorted(group * width + (offset + step) % width
                              for group in range(groups) for step in range(n_kept // groups))
    return lists


faults, refused, made = [], [], 0
with tempfile.TemporaryDirectory() as work:
    for model in models:
        name = os.path.relpath(model, golden)
        config = json.load(open(f"{model}/config.json"))
        keys = text_of(config)
        key = next((key for key in COUNTS if isinstance(keys.get(key), int) and keys[key] > 1), None)
        if key is None or run("inspect", model).returncode != 0:
            continue
        n_experts, groups = keys[key], keys.get("n_group") or 1
        tensors = read_rows(model)
        n_layers = next((keys[k] for k in ("num_hidden_layers", "num_layers", "n_layers", "n_layer") if k in keys), 0)
        layers = sorted({layer_of(t, n_layers) for t in tensors if (SINGLE.match(t) or STACK.search(t)) and "vision" not in t} - {None})
        topk = max([keys[k] for k in ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k") if isinstance(keys.get(k), int)] or [1])
        n_kept = max(n_experts - max(1, n_experts // 4) if groups == 1 else n_experts - groups, topk)
        kept = f"{work}/{name.replace('/', '-')}.json"
        json.dump({"num_experts": n_experts, "layers": list_for(model, layers, n_experts, groups, n_kept)}, open(kept, "w"))
        out = f"{work}/{name.replace('/', '-')}"
        made_of = run("prune", model, out, "--keep-map", kept, "--no-measure")
        if made_of.returncode != 0:
            refused.append(f"{name}: {made_of.stderr.strip()[:400]}")
            continue
        made += 1

        def require(holds, what):
            if not holds:
                faults.append(f"{name}: {what}")

        lists = json.load(open(f"{out}/ingot.json"))["recipe"]["choices"]["kept_experts"][-1]["layers"]
        require(text_of(json.load(open(f"{out}/config.json")))[key] == n_kept, "config.json says another number")
        wanted, got = assembled(tensors, lists, n_experts, n_layers), read_rows(out)
        require(wanted.keys() == got.keys(),
                f"names {sorted(wanted.keys() - got.keys())[:3]} are missing, {sorted(got.keys() - wanted.keys())[:3]} are more")
        for tensor in wanted.keys() & got.keys():
            require(wanted[tensor][:2] == got[tensor][:2], f"{tensor} is {got[tensor][:2]}, not {wanted[tensor][:2]}")
            require(wanted[tensor][2] == got[tensor][2], f"{tensor} has other bytes")
        derived = run("rederive", out, "--source", model, "--all")
        require(derived.returncode == 0, "rederive: " + derived.stderr)
        faults += [f"{name}: {fault}" for fault in faults_of(run, model, out)]
    print(f"{made} of {len(models)} made; refused:", *refused, sep="\n  ")
    print("faults:", *faults, sep="\n  ")
    assert not faults
    assert is_all or not refused and made == len(models), refused

# The bundled model: 16 experts in 4 groups, of which 2 give 4 to a token, and an MTP layer.
example = os.path.abspath(os.path.join(golden, "../../examples/tiny-v32"))


def expect(code, text, *arguments):
    done = run(*arguments)
    assert done.returncode == code, f"{arguments}: {done.returncode} {done.stdout} {done.stderr}"
    assert text in done.stdout + done.stderr, f"{arguments} lacks '{text}': {done.stdout} {done.stderr}"
    return done.stdout


def same(one, other):
    """The same weights and config in two folders."""
    a, b = read_rows(one), read_rows(other)
    assert a == b, f"{one} and {other} differ: {[name for name in a.keys() | b.keys() if a.get(name) != b.get(name)][:3]}"
    assert json.load(open(one + "/config.json")) == json.load(open(other + "/config.json"))


def statistics(folder):
    return {own.name: numpy.frombuffer(own.data, {"F32": "<f4", "I64": "<i8"}[own.dtype])
            for own in read_file(folder + "/inputs.safetensors")
            if own.name.endswith((".expert_saliency", ".expert_tokens"))}


def lists_of(folder):
    return json.load(open(folder + "/ingot.json"))["recipe"]["choices"]["kept_experts"][-1]["layers"]


with tempfile.TemporaryDirectory() as work:
    at = functools.partial(os.path.join, work)
    text = at("text.txt")
    open(text, "w").write("The capital of France is Paris. What is 2 + 2? Once upon a time there was a fox.\n" * 4)
    expect(0, "", "calibrate", example, "--text", text, "--out", at("stats"), "--without", "blocks,moments,cache")
    scores = statistics(at("stats"))
    for keep, n_kept in (("0.75", 12), ("8", 8)):
        for by in ("saliency", "tokens"):
            out = at(f"{by}-{keep}")
            expect(0, "", "prune", example, out, "--keep", keep, "--by", by, "--statistics", at("stats"), "--no-measure")
            for layer, kept in lists_of(out).items():
                score = scores[f"model.layers.{layer}.expert_{by}"]
                wanted = []
                for group in range(0, 16, 4):
                    order = sorted(range(group, group + 4), key=lambda expert: (-score[expert], expert))
                    wanted += sorted(order[:n_kept // 4])
                assert kept == wanted, f"{by} {layer}: {kept}, not {wanted}"
            expect(0, "PASS", "verify", example, out)
            expect(0, "", "check", example, "--source-of", out)
    pruned, half = at("saliency-0.75"), at("saliency-8")
    assert len(lists_of(pruned)) == 5, "the MTP layer has a list of its own"
    asked = ["--keep", "0.75", "--statistics", at("stats"), "--no-measure"]

    # Like every conversion: in parts, cut for ranks, with another scheme, continued; also from a pruned source.
    for part in ("0/2", "1/2"):
        expect(0, "", "prune", example, at("parts"), *asked, "--part", part)
    expect(0, "", "join", at("parts"))
    same(at("parts"), pruned)
    expect(0, "", "prune", example, at("ranks"), *asked, "--tp", "2", "--ep", "2", "--tp-fit", "retile")
    expect(0, "PASS", "verify", example, at("ranks"))
    expect(0, "", "merge", at("ranks"), at("merged"))
    expect(0, "", "prune", example, at("bf16"), *asked, "--to", "bf16")
    expect(0, "", "convert", pruned, at("cast"), "--to", "bf16")
    same(at("bf16"), at("cast"))
    for made in ("bf16", "cast", "merged"):
        expect(0, "PASS", "verify", example, at(made))
    json.dump({layer: [n for n in range(12) if n % 3 < 2] for layer in lists_of(pruned)}, open(at("again.json"), "w"))
    expect(0, "", "prune", pruned, at("twice"), "--keep-map", at("again.json"), "--no-measure")
    assert len(json.load(open(at("twice/ingot.json")))["recipe"]["choices"]["kept_experts"]) == 2
    for source in (example, pruned):
        expect(0, "PASS", "verify", source, at("twice"))
    kept = json.load(open(at("twice/ingot.json")))["recipe"]["choices"]["kept_experts"]
    json.dump({layer: [kept[0]["layers"][layer][n] for n in kept[1]["layers"][layer]] for layer in kept[0]["layers"]},
              open(at("once.json"), "w"))
    expect(0, "", "prune", example, at("once"), "--keep-map", at("once.json"), "--no-measure")
    same(at("once"), at("twice"))
    json.dump({layer: kept for layer, kept in lists_of(pruned).items() if layer != "5"}, open(at("main.json"), "w"))
    expect(0, "MTP layer 5 keeps the experts of layer 4", "prune", example, at("mtp"), "--keep-map", at("main.json"), "--no-measure")
    # A map for the whole model, in which experts alternate between two ranks.
    json.dump([*range(0, 16, 2), *range(1, 16, 2)], open(at("map.json"), "w"))
    expect(0, "", "prune", example, at("mapped"), *asked, "--ep", "2", "--expert-map", at("map.json"))
    slots = json.load(open(at("mapped/ingot.json")))["slicing"]["expert_map"]["layers"]
    for layer, kept in lists_of(pruned).items():
        assert slots[layer] == [kept.index(n) for n in [*range(0, 16, 2), *range(1, 16, 2)] if n in kept], slots[layer]
    expect(0, "PASS", "verify", example, at("mapped"))

    # In one pass as in two: statistics and scales of the whole model, by the numbers that experts have there.
    json.dump(lists_of(pruned), open(at("same.json"), "w"))
    in_nvfp4 = ["--to", "nvfp4", "--importance", at("stats"), "--activations", "static", "--activation-scales", at("stats")]
    expect(0, "", "prune", example, at("one-pass"), *asked, *in_nvfp4)
    expect(0, "", "convert", example, at("nvfp4"), *in_nvfp4)
    expect(0, "", "prune", at("nvfp4"), at("two-passes"), "--keep-map", at("same.json"), "--no-measure")
    same(at("one-pass"), at("two-passes"))
    expect(0, "PASS", "verify", example, at("one-pass"))
    expect(0, "", "rederive", at("one-pass"), "--source", example, "--all", "--with", f"importance={at('stats')}",
           "--with", f"activation-scales={at('stats')}")
    assert any(name.endswith("mlp.experts.11.up_proj.input_global_scale") for name in read_rows(at("one-pass")))
    expect(0, "", "convert", example, at("plain"), "--to", "bf16")
    in_grid = ["--to", "fp8", "--scales-from", example, "--no-measure"]
    expect(0, "", "prune", at("plain"), at("grid"), "--keep-map", at("same.json"), *in_grid)
    weights, wanted = read_rows(at("grid")), read_rows(pruned)
    assert all(weights[name] == tensor for name, tensor in wanted.items() if tensor[0] == "F8_E4M3")
    # Made again from the lists in the manifest, of this job or of its source; measured, and shared out to ranks.
    for source, out in ((example, pruned), (pruned, at("cast")), (pruned, at("twice"))):
        expect(0, "", "rederive", out, "--source", source, "--all")
    expect(2, "was pruned 2 times", "rederive", at("twice"), "--source", example, "--all")
    expect(2, "fingerprint", "balance", pruned, "--loads", at("stats"), "--ep", "2", "--out", at("loads.json"))
    expect(0, "", "balance", pruned, "--text", text, "--ep", "2", "--out", at("loads.json"))
    expect(0, "", "convert", pruned, at("balanced"), "--ep", "2", "--expert-map", at("loads.json"))
    for source in (example, pruned):
        expect(0, "PASS", "verify", source, at("balanced"))
    open(at("recipe.yaml"), "w").write(f"base: {pruned}\nsources: {{own: {at('one-pass')}}}\n"
                                       "rules:\n- {match: 'role:experts', from: own}\n")
    expect(0, "", "compose", at("recipe.yaml"), at("composed"))
    expect(0, "PASS", "verify", at("recipe.yaml"), at("composed"))
    open(at("recipe.yaml"), "w").write(f"base: {example}\nsources: {{own: {pruned}}}\n"
                                       "rules:\n- {match: 'role:experts', from: own}\n")
    expect(2, "n_routed_experts 12", "compose", at("recipe.yaml"), at("not-composed"))
    expect(2, "was made of a model with 16", "verify", pruned, half)
    expect(0, "", "compare", pruned, half, "--reference", example)

    # Numbers by layer, where the config of a class can say them.
    hunyuan = f"{golden}/forward/hunyuan_v1_moe/checkpoint"
    config = json.load(open(hunyuan + "/config.json"))
    n_layers = config["num_hidden_layers"]
    uneven = {str(layer): list(range(layer % 3, 6)) for layer in range(n_layers)}
    json.dump(uneven, open(at("uneven.json"), "w"))
    expect(0, "different numbers of experts", "prune", hunyuan, at("uneven"), "--keep-map", at("uneven.json"),
           "--measure")
    assert json.load(open(at("uneven/config.json")))["num_experts"] == [len(kept) for kept in uneven.values()]
    assert read_rows(at("uneven")) == assembled(read_rows(hunyuan), uneven, 6, n_layers)
    expect(0, "PASS", "verify", hunyuan, at("uneven"))
    expect(0, "", "check", at("uneven"), "--source-of", at("uneven"))
    expect(0, "", "rederive", at("uneven"), "--source", hunyuan, "--all")
    expect(0, "", "generate", at("uneven"), "--tokens", "1 2 3", "--greedy", "--max-new-tokens", "2")
    expect(0, "", "convert", at("uneven"), at("uneven-tp"), "--tp", "2")
    expect(0, "PASS", "verify", hunyuan, at("uneven-tp"))
    expect(2, "different numbers of experts", "convert", at("uneven"), at("uneven-ep"), "--ep", "2")
    json.dump({layer: list(range(3)) for layer in uneven}, open(at("even.json"), "w"))
    expect(0, "", "prune", at("uneven"), at("even"), "--keep-map", at("even.json"), "--no-measure")
    for source in (hunyuan, at("uneven")):
        expect(0, "PASS", "verify", source, at("even"))

    # Wrong input.
    def refuse(text, *arguments):
        expect(2, text, "prune", example, at("none"), *arguments)
        assert not os.path.exists(at("none")), f"{arguments} left something"

    whole = {layer: list(range(12)) for layer in "12345"}
    for document, fact in (
            ("{", "json"), ("[]", "no object of layers"), ("{}", "no object of layers"),
            ({"layers": []}, "no object of layers"), ({**whole, "3": [*range(11), 10]}, "expert 10 a second time"),
            ({**whole, "3": []}, "no list of the experts"), ({**whole, "3": "all"}, "no list of the experts"),
            ({**whole, "3": [0, -1]}, "no number of an expert"),
            ({**whole, "3": [0, 1.5]}, "no number of an expert"), ({**whole, "3": [2 ** 70]}, "does not fit 64 bits"),
            ({**whole, "3": [[0]]}, "no number of an expert"), ({**whole, "3": [*range(11), 16]}, "has no expert 16"),
            ({**whole, "0": [0]}, "layer 0 has no experts"), ({**whole, "9": [0]}, "layer 9 has no experts"),
            ({**whole, "model.layers.3.mlp": [0]}, "a second list"), ({**whole, "three": [0]}, "is no layer"),
            ({"num_experts": 8, "layers": whole}, "has expert 11, of 8"),
            ({"num_experts": 64, "layers": whole}, "is for 64 experts"),
            ({"num_experts": "16", "layers": whole}, "is no number"),
            ({layer: whole[layer] for layer in "124"}, "layer 3 has experts"),
            ({**whole, "3": [0, 1, 2, 3]}, "hunyuan_v1_moe"),
            ({layer: list(range(16)) for layer in whole}, "nothing is left out"), ("[" * 100000, "json")):
        with open(at("hostile.json"), "w") as file:
            file.write(document if isinstance(document, str) else json.dumps(document))
        refuse(fact, "--keep-map", at("hostile.json"))
    refuse("--no-measure leaves", *asked, "--text", text)
    refuse("one part of a job", "--keep", "0.75", "--statistics", at("stats"), "--text", text, "--part", "0/2")
    refuse("fold it in", *asked, "--lora", f"{golden}/lora/dense/plain-gauss")

    refuse("nearest number that fits is 12 (--keep 0.75)", "--keep", "0.875", "--statistics", at("stats"))
    refuse("nearest number that fits is 8 (--keep 0.5)", "--keep", "0.625", "--statistics", at("stats"))
    refuse("'num_experts_per_tok' is 4", "--keep", "2", "--statistics", at("stats"))
    refuse("--keep", "--keep", "1.5", "--statistics", at("stats"))
    refuse("--statistics", "--keep", "0.75")
    refuse("--keep-map", "--to", "bf16")
    refuse("--importance", *asked, "--importance", at("stats"))  # nothing is quantized
    refuse("--consume-source", *asked, "--consume-source")
    refuse("saliency, tokens", *asked, "--by", "size")
    other = f"{golden}/arch/deepseek_v3/checkpoint"
    expect(2, "fingerprint", "prune", other, at("none"), "--keep", "0.75", "--statistics", at("stats"))
    expect(2, "no routed experts", "prune", f"{golden}/families/llama_fp8_static", at("none"), "--keep", "0.5", "--statistics", at("stats"))
    expect(2, "slices", "prune", at("ranks/rank-00000-of-00002"), at("none"), *asked)
    data = bytearray(open(at("stats/inputs.safetensors"), "rb").read())
    begin = next(own.begin for own in read_file(at("stats/inputs.safetensors"))
                 if own.name == "model.layers.2.expert_saliency")
    data[begin:begin + 4] = numpy.float32("nan").tobytes()
    open(at("nan.safetensors"), "wb").write(data)
    refuse("nan", "--keep", "0.75", "--statistics", at("nan.safetensors"))

    # Its cost: the full model next to it.
    if is_all:
        for share in (pruned, half):
            report = json.loads(expect(0, "", "verify", example, share, "--levels", "layers,draft", "--text", text, "--json"))
            assert report["passed"] and report["layers"] and report["draft"] and report["text"]
            expect(1, "", "verify", example, share, "--levels", "layers", "--require", "outputs.kl<=1e-9")
print("all claims hold")
