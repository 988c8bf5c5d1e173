#!/usr/bin/env python3
"""compose.py INGOT SMALL: one checkpoint of several. Each recipe of docs/compose.md runs on a small model, and every
value and stored byte of its output is that of the source which the recipe names, by decoders in NumPy; recipes that are
no recipe are refused with file and line. Then resumed, in parts, in ranks, and verified."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "differential"))
sys.dont_write_bytecode = True

import numpy as np

from container import read_checkpoint, read_config, write_file
from grids import encoded, judge_codes, judge_scales
from numbers_of_bits import E4M3, F32, e4m3_codes, round_bf16, round_e4m3
from weights import logical_tensors

ingot, small = map(os.path.abspath, sys.argv[1:3])
families = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "families")
SIDES = "--experts 4 --hidden 64 --moe-intermediate 32 --vocab 64 --heads 2".split()
faults = []


def fail(text):
    faults.append(text)
    print("FAIL:", text, file=sys.stderr)


def run(code, *arguments, says="", cwd=None):
    """Runs ingot; the exit code, and words of the message, must be these. Returns both outputs together."""
    words = [ingot, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd)
    said = done.stdout + done.stderr
    if done.returncode != code or says not in said.replace("\n", " "):
        fail(f"{' '.join(words[1:])}: exit {done.returncode} (not {code}), or not '{says}' in:\n{said[:1500]}")
    return said


def recipe(name, text):
    path = os.path.join(work, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def made(name, *options):
    """An output of `convert`, as another tool's: without records."""
    folder = os.path.join(work, name)
    run(0, "convert", small, folder, *options, "--progress", "never")
    for record in ["ingot.json", "ingot.tensors.jsonl.zst", "README.md"]:
        if os.path.exists(os.path.join(folder, record)):
            os.remove(os.path.join(folder, record))
    return folder


def weights(folder):
    return logical_tensors(read_checkpoint(folder), read_config(folder))


def is_attention(name):
    return ".self_attn." in name and "_proj" in name and ".indexer." not in name


def is_mtp(name):
    return name.startswith("model.layers.2.")


def compare(out, chosen, rounded=()):
    """Whether every weight of `out` has the values of its source, and, but for `rounded`, the codes of it."""
    written = weights(out)
    if written.keys() != chosen.keys():
        return fail(f"{out}: has {sorted(written.keys() ^ chosen.keys())[:4]}, or lacks them")
    for name, wanted in chosen.items():
        own = written[name]
        if own.scheme == "raw":
            continue
        values = round_bf16(wanted.values) if name in rounded else wanted.values
        if not np.array_equal(own.values, values):
            return fail(f"{out}: {name} ({own.scheme}) has other values than its source")
        if name not in rounded and own.parts["weight"].data != wanted.parts["weight"].data:
            return fail(f"{out}: {name} has other codes than its source")


def number(value, shape=(1,)):
    """A stored tensor of one number."""
    return ("F32", shape, np.float32(value).tobytes())


def laid_over(name, base, tensors, words=""):
    """The recipe of a base with these stored tensors laid over it, and its output; all else has the base's bytes."""
    os.mkdir(f"{work}/{name}")
    write_file(f"{work}/{name}/some.safetensors", tensors)
    text, out = recipe(f"{name}.yaml", f"base: {base}\noverlays: {{{name}: {name}}}\n{words}"), f"{work}/over-{name}"
    run(0, "compose", text, out, "--verify", "structure,weights", "--progress", "never")
    before, after = read_checkpoint(base), read_checkpoint(out)
    if after.keys() != before.keys() | tensors.keys():
        fail(f"{name}: has {sorted(after.keys() ^ (before.keys() | tensors.keys()))[:4]}, or lacks them")
    for stored, one in after.items():
        old = before.get(stored)
        if (one.dtype, one.shape, one.data) != tensors.get(stored, old and (old.dtype, old.shape, old.data)):
            fail(f"{name}: {stored} is neither that of the overlay nor that of the base")
    run(0, "verify", text, out, says="PASS")
    run(0, "verify", base, out, "--sources", f"{name}={work}/{name}", says="PASS")
    return text, out


def manifest(folder):
    with open(os.path.join(folder, "ingot.json")) as file:
        return json.load(file)


def records(folder):
    text = subprocess.run(["zstd", "-dc", os.path.join(folder, "ingot.tensors.jsonl.zst")], capture_output=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def same_files(one, other):
    names = sorted(os.listdir(one))
    return names == sorted(os.listdir(other)) and all(
        open(os.path.join(one, name), "rb").read() == open(os.path.join(other, name), "rb").read()
        for name in names if os.path.isfile(os.path.join(one, name)) and name != "ingot.verify.json")


with tempfile.TemporaryDirectory() as work:
    os.environ["HF_HUB_CACHE"] = f"{work}/hub"
    vendor = made("vendor", "--to", "nvfp4", "--dialect", "modelopt", "--activations", "weight-only")
    own = made("own", "--to", "fp8-channel")
    for folder, licence in [(vendor, "nvidia-open"), (own, "mit")]:
        with open(os.path.join(folder, "README.md"), "w") as file:
            file.write(f"---\nlicense: {licence}\n---\n")
    of_vendor, of_own = weights(vendor), weights(own)

    # The vendor's NVFP4 experts, and attention of one's own in FP8: in the dialect that holds both.
    both_text = "base: vendor\nsources: {own: own}\nrules:\n- {match: 'role:attention', from: own}\n"
    both = recipe("both.yaml", both_text)
    out = os.path.join(work, "both")
    said = run(0, "compose", both, out, "--verify", "structure,weights", "--progress", "never")
    chosen = {name: (of_own if is_attention(name) else of_vendor)[name] for name in of_vendor}
    compare(out, chosen)
    method = read_config(out)["quantization_config"]
    if method["quant_method"] != "modelopt" or method["quant_algo"] != "MIXED_PRECISION":
        fail(f"{out}: the config does not describe two schemes: {json.dumps(method)[:300]}")
    run(0, "compose", both, f"{work}/none", "--dialect", "compressed-tensors", "--dry-run", says="compressed-tensors")
    sources = manifest(out).get("sources", [])
    if [(row["name"], row.get("license")) for row in sources] != [("base", "nvidia-open"), ("own", "mit")]:
        fail(f"the manifest does not list the sources with their licences: {sources}")
    for record in records(out):
        giver = "own" if is_attention(record["name"]) else "base"
        are_its = [part["file"].startswith("own/") == (giver == "own") for part in record["source"]]
        if record["giver"] != giver or not all(are_its):
            fail(f"the record of {record['name']} names another giver than {giver}")
            break
    with open(os.path.join(out, "README.md")) as file:
        card = file.read()
    if "- nvidia-open\n- mit\n" not in card or "| own | not told | mit |" not in card:
        fail("the model card does not list the sources with their licences")
    run(0, "check", out, "--deep")
    run(2, "check", vendor, "--source-of", out, says="was composed of several checkpoints")
    run(0, "verify", both, out, says="PASS")
    run(0, "verify", vendor, out, "--sources", f"own={own}", says="PASS")
    run(2, "verify", vendor, out, says="--sources own=DIR")
    run(0, "check", out, "--engine", "vllm", says="loads this checkpoint")

    # An output in which one value of a taken tensor is another one is not what the manifest says.
    spoilt = os.path.join(work, "spoilt")
    shutil.copytree(out, spoilt)
    for stored in read_checkpoint(spoilt).values():
        if stored.name == "model.layers.0.self_attn.o_proj.weight":
            with open(stored.file, "r+b") as file:
                file.seek(stored.begin)
                file.write(bytes(byte ^ 0x08 for byte in stored.data[:4096]))
    run(1, "verify", both, spoilt, "--levels", "weights")

    # In parts, resumed, and under another name for a directory, from where that is: the same bytes.
    parts = os.path.join(work, "parts")
    moved = os.path.join(work, "moved")
    shutil.copytree(own, moved)
    for part in ["0/2", "1/2"]:
        run(0, "compose", both, parts, "--part", part, "--source", "own=moved", "--verify", "structure,weights",
            "--progress", "never", cwd=work)
    run(0, "join", parts, "--progress", "never")
    if not same_files(out, parts):
        fail("parts do not join to the bytes of one run")
    run(0, "compose", both, out, "--resume", "--verify", "structure,weights", "--progress", "never", says="already")

    # Models of the hub's cache, by their names.
    for name, folder in [("vendor", vendor), ("own", own)]:
        cached = f"{work}/hub/models--acme--{name}"
        os.makedirs(f"{cached}/refs")
        with open(f"{cached}/refs/main", "w") as file:
            file.write("c0ffee")
        shutil.copytree(folder, f"{cached}/snapshots/c0ffee")
    hub = recipe("hub.yaml", both_text.replace("vendor", "acme/vendor").replace("{own: own}", "{own: acme/own@c0ffee}"))
    run(0, "compose", hub, f"{work}/of-hub", "--progress", "never")
    run(0, "verify", hub, f"{work}/of-hub", "--levels", "weights", says="PASS")
    run(0, "verify", "acme/vendor", f"{work}/of-hub", "--levels", "weights", "--sources", "own=acme/own", says="PASS")
    compare(f"{work}/of-hub", chosen)
    if [row.get("models") for row in manifest(f"{work}/of-hub")["sources"]] != [["acme/vendor"], ["acme/own"]]:
        fail(f"the manifest does not name the models: {manifest(f'{work}/of-hub')['sources']}")
    run(2, "compose", recipe("hub.yaml", both_text.replace("vendor", "acme/none")), f"{work}/none", "--dry-run",
        says="hub.yaml: line 1: 'base' is")
    run(2, "compose", hub, f"{work}/none", "--dry-run", "--source", "own=acme/none", says="hf download acme/none")

    # Two outputs side by side, against what both were made of, and against each other.
    coarse = recipe("coarse.yaml",
                    both_text.replace("from: own", "from: own, scheme: nvfp4") + "activations: weight-only\n")
    run(0, "compose", coarse, f"{work}/coarser", "--progress", "never")
    for reference in ([both], [vendor, "--sources", f"own={own}"]):
        said = run(0, "compare", out, f"{work}/coarser", "--reference", *reference, "--json", "--progress", "never")
        figures = {row["figure"]: row for row in json.loads(said[said.index("{"):said.rindex("}") + 1])["figures"]}
        error = figures["weights.relative_error"]
        if error["a"] != 0 or not 0 < error["b"] < 0.1:
            fail(f"compare sees no composed source: {error}")
    run(2, "compare", out, f"{work}/coarser", "--reference", vendor, says="--sources own=DIR")
    run(0, "compare", f"{work}/coarser", out, "--progress", "never")
    run(2, "compare", f"{work}/coarser", out, "--sources", f"own={own}", says="--reference")

    # For an engine: in its dialect, with the command that serves it, or refused with what it makes of the schemes.
    for engine, code, says in [("vllm", 0, "vllm serve"), ("transformers", 2, "without their global scales"),
                               ("vllm-ascend", 2, "does not load"), ("nothing", 2, "line 3: --for 'nothing' is none of")]:
        text = both_text.replace("rules:", f"for: {engine}\nrules:")
        run(code, "compose", recipe(f"for-{engine}.yaml", text), f"{work}/for-{engine}", "--progress", "never", says=says)
    found = weights(f"{work}/for-vllm")  # whose global scales are reciprocals, not always exact ones
    if any(found[name].parts[key].data != part.data for name, weight in chosen.items()
           for key, part in weight.parts.items() if key == "weight"):
        fail("a recipe for vLLM gives other codes")
    if read_config(f"{work}/for-vllm")["quantization_config"]["quant_method"] != "compressed-tensors":
        fail("a recipe for vLLM is not written in the dialect that vLLM loads mixtures in")
    run(0, "compose", f"{work}/for-vllm.yaml", f"{work}/none", "--dry-run", "--for", "sglang", says="sglang.launch_server")

    # Ranks: their slices merge to the same model.
    run(0, "compose", both, f"{work}/ranks", "--tp", "2", "--ep", "2", "--tp-fit", "retile", "--verify",
        "structure,weights", "--progress", "never")
    run(0, "merge", f"{work}/ranks", f"{work}/merged", "--progress", "never")
    compare(f"{work}/merged", chosen)
    run(0, "verify", f"{work}/ranks", f"{work}/merged", says="PASS")
    run(2, "verify", both, f"{work}/merged", says="does not say in its manifest which tensor is of which checkpoint")

    # The MTP layer of another build, in BF16, next to a model without one.
    plain = made("plain", "--to", "bf16", "--mtp", "drop")
    mtp = recipe("mtp.yaml", f"base: {plain}\nsources: {{mtp: {small}}}\nrules:\n"
                 "- {match: 'layers:mtp', from: mtp, scheme: bf16}\n")
    graft = os.path.join(work, "graft")
    run(0, "compose", mtp, graft, "--verify", "structure,weights", "--progress", "never")
    of_small = weights(small)
    chosen = {**weights(plain), **{name: weight for name, weight in of_small.items() if is_mtp(name)}}
    compare(graft, chosen, {name for name in of_small if is_mtp(name) and of_small[name].scheme != "f32"})
    if read_config(graft)["num_nextn_predict_layers"] != 1:
        fail("config.json does not promise the MTP layer")
    run(0, "check", graft)

    # An overlay: scales of a cache and a corrected head over the base, the rest byte for byte.
    numbers = {f"model.layers.{layer}.self_attn.{side}_proj.{side}_scale": number(0.25 + layer)
               for layer in range(3) for side in "kv"}
    stored = read_checkpoint(vendor)
    head = stored["lm_head.weight"]
    new_head = head.data[2:] + head.data[:2]
    laid, over = laid_over("scales", vendor, {**numbers, "lm_head.weight": (head.dtype, head.shape, new_head)})
    if "kv_cache" not in json.dumps(read_config(over)) + open(f"{over}/hf_quant_config.json").read():
        fail("the config does not declare the cache whose scales were laid over the base")
    write_file(f"{work}/scales/some.safetensors", {"lm_hed.weight": (head.dtype, head.shape, new_head)})
    run(2, "compose", laid, f"{work}/none", "--dry-run", says="'scales'")
    write_file(f"{work}/scales/some.safetensors", {"lm_head.weight": (head.dtype, head.shape[::-1], new_head)})
    run(2, "compose", laid, f"{work}/none", "--dry-run", says="the base's")
    with open(f"{work}/scales/some.safetensors", "wb") as file:
        file.write(b"\xff" * 40)
    run(2, "compose", laid, f"{work}/none", "--dry-run", says="some.safetensors")

    # A base whose codes are only read (INT8 in words) takes none.
    eight = os.path.join(families, "..", "other_tools", "auto_round_8bit")
    norm = read_checkpoint(eight)["model.norm.weight"]
    write_file(f"{work}/scales/some.safetensors", {norm.name: (norm.dtype, norm.shape, norm.data)})
    run(2, "compose", recipe("eight.yaml", f"base: {eight}\noverlays: {{scales: scales}}\n"), f"{work}/none", "--dry-run",
        says="convert it first, and put the overlay over")

    # An overlay of 24 scalars: the scales of keys and values of 12 layers.
    deep = os.path.join(work, "deep")
    run(0, "synth", deep, "--family", "qwen3_moe", "--like", "tiny", "--layers", "12", *SIDES)
    laid_over("caches", deep, {
        f"model.layers.{layer}.self_attn.{side}_proj.{side}_scale": number(2.0**-9 + layer / 8 + (side == "v") / 16)
        for layer in range(12) for side in "kv"})

    # Scales of activations: of weights whose config says that these are not quantized, only where the recipe says that
    # they are now; of weights that have such, in their place.
    inputs = {f"{name.removesuffix('.weight')}.input_scale": number(2.0**-6 * (1 + at / 32), ())
              for at, (name, weight) in enumerate(of_vendor.items()) if weight.scheme == "nvfp4"}
    _, static = laid_over("inputs", vendor, inputs, "activations: static\n")
    with open(f"{static}/hf_quant_config.json") as file:
        algorithm = json.load(file)["quantization"]["quant_algo"]
    if algorithm != "NVFP4":
        fail(f"the config says {algorithm} of weights that have scales of activations")
    some = dict(list(inputs.items())[:5])
    for tensors, words, says in [
        (inputs, "", "activations: static"),
        (some, "activations: static\n", "needs --activation-scales"),
        (dict.fromkeys(inputs, number(np.nan, ())), "activations: static\n", "is nan; it must be finite"),
    ]:
        write_file(f"{work}/inputs/some.safetensors", tensors)
        text = recipe("inputs.yaml", f"base: vendor\noverlays: {{inputs: inputs}}\n{words}")
        run(2, "compose", text, f"{work}/refused", "--progress", "never", says=says)
    llama = os.path.join(families, "llama_fp8_static")
    laid_over("ranges", llama, {name: number(0.375, one.shape) for name, one in read_checkpoint(llama).items()
                                if name.endswith("input_scale")})

    # Over weights of AWQ and GPTQ, which are written as compressed-tensors: the same codes, and the overlay's bytes.
    for name in ["qwen3_moe_awq", "qwen3_moe_gptq_actorder"]:
        base, norm = os.path.join(families, name), "model.layers.0.input_layernorm.weight"
        old = read_checkpoint(base)[norm]
        given = {norm: (old.dtype, old.shape, old.data[2:] + old.data[:2]),
                 "model.layers.0.self_attn.k_scale": number(0.5), "model.layers.0.self_attn.v_scale": number(0.25)}
        os.mkdir(f"{work}/{name}")
        write_file(f"{work}/{name}/some.safetensors", given)
        packed = recipe(f"{name}.yaml", f"base: {base}\noverlays: {{few: {name}}}\n")
        run(0, "compose", packed, f"{work}/over-{name}", "--verify", "structure,weights", "--progress", "never")
        run(0, "verify", packed, f"{work}/over-{name}", says="PASS")
        after, before = weights(f"{work}/over-{name}"), weights(base)
        for stored, one in after.items():
            if stored in given and one.parts["weight"].data != given[stored][2]:
                fail(f"{name}: {stored} has other bytes than the overlay")
            if stored not in given and not np.array_equal(one.values, before[stored].values):
                fail(f"{name}: {stored} has other values than the base")
        if after.keys() != before.keys() | given.keys():
            fail(f"{name}: an overlay changes the tensors")
        # Edited values are encoded in INT4 again.
        edited_name = "model.layers.0.mlp.experts.0.up_proj.weight"
        values = before[edited_name].values * F32(1.25)
        write_file(f"{work}/{name}/some.safetensors", {edited_name: ("F32", values.shape, values.tobytes())})
        packed = recipe(f"{name}.yaml", f"base: {base}\nedits: {name}\nsearch: amax\n")
        run(0, "compose", packed, f"{work}/edit-{name}", "--verify", "structure,weights", "--progress", "never")
        for complaint in judge_codes(weights(f"{work}/edit-{name}")[edited_name], values):
            fail(f"{name}: {complaint}")

    # An adapter of experts in INT4, as those of Kimi K2: codes and scales are those of the sum, by NumPy.
    kimi = os.path.join(families, "kimi_k2_thinking")
    before, pairs, sums = weights(kimi), {}, {}
    draw = np.random.default_rng(65)
    for expert in (0, 3):
        for side in ("gate", "up", "down"):
            name = f"model.layers.1.mlp.experts.{expert}.{side}_proj"
            values = before[name + ".weight"].values.astype(np.float64)
            a, b = (draw.normal(0, 0.1, size).astype("<f4") for size in ((4, values.shape[1]), (values.shape[0], 4)))
            for half, matrix in (("A", a), ("B", b)):
                pairs[f"base_model.model.{name}.lora_{half}.weight"] = ("F32", matrix.shape, matrix.tobytes())
            product = np.zeros_like(values)
            for rank in range(4):
                product += b[:, rank : rank + 1].astype(np.float64) * a[rank].astype(np.float64)
            sums[name + ".weight"] = (values + 1.5 * product).astype(F32)
    os.mkdir(f"{work}/adapter")
    write_file(f"{work}/adapter/adapter_model.safetensors", pairs)
    with open(f"{work}/adapter/adapter_config.json", "w") as file:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 6}, file)
    tuned = recipe("tuned.yaml", f"base: {kimi}\nlora: adapter\nsearch: amax\n")
    run(0, "compose", tuned, f"{work}/tuned", "--verify", "structure,weights", "--progress", "never",
        says="change left")
    run(0, "verify", tuned, f"{work}/tuned", says="PASS")
    for name, weight in weights(f"{work}/tuned").items():
        if name not in sums:
            if any(part.data != before[name].parts[key].data for key, part in weight.parts.items()):
                fail(f"{name} has no pair, and has other bytes than the base")
            continue
        wrong, _ = judge_scales(weight, sums[name], {"search": "amax"}, [], "int4-group")
        if wrong.any() or not np.array_equal(weight.values, encoded("int4", sums[name], weight.spread)):
            fail(f"{name}: {wrong.sum()} scales, or codes, are not those of the sum")

    # Experts stacked in one source and one by one in the other: they get the form of the base.
    run(0, "synth", f"{work}/newer", "--family", "qwen3_moe", "--like", "tiny", "--layers", "2", "--seed", "1", *SIDES)
    run(0, "synth", f"{work}/older", "--family", "qwen3_moe", "--like", "tiny", "--layers", "2", *SIDES)
    for build in ("newer", "older"):
        for form in ("stacked", "separate"):
            run(0, "convert", f"{work}/{build}", f"{work}/{build}-{form}", "--to", "bf16", "--progress", "never",
                *(["--experts", form] if form == "stacked" else []))
    for form, other in (("stacked", "separate"), ("separate", "stacked")):
        forms = recipe(f"{form}.yaml", f"base: older-{form}\nsources: {{newer: newer-{other}}}\nrules:\n"
                       "- {match: 'role:experts', from: newer}\n")
        run(0, "compose", forms, f"{work}/of-{form}", "--verify", "structure,weights", "--progress", "never")
        base, newer = read_checkpoint(f"{work}/older-{form}"), read_checkpoint(f"{work}/newer-{form}")
        found = read_checkpoint(f"{work}/of-{form}")
        if found.keys() != base.keys():
            fail(f"experts that are {form} in the base have another form")
        for name, one in found.items():
            if one.data != (newer if ".experts." in name else base)[name].data:
                fail(f"{name}: of a base with experts {form}, has other bytes than its source")

    # A rank-one edit of an NVFP4 expert, which fits under the global scale that it shares: only its own codes and block
    # scales are others, those of the scheme for the new values. Values that do not fit: the whole set is encoded again.
    gate, up = (f"model.layers.1.mlp.experts.3.{side}_proj" for side in ("gate", "up"))
    q_b = "model.layers.0.self_attn.q_b_proj"
    draw = np.random.default_rng(65)
    before = weights(vendor)
    rows, columns = before[gate + ".weight"].values.shape
    left, right = (draw.normal(0, 0.02, size).astype("<f4") for size in ((rows, 1), (1, columns)))
    pair = {gate + ".lora_A.weight": ("F32", right.shape, right.tobytes()),
            gate + ".lora_B.weight": ("F32", left.shape, left.tobytes())}
    wanted = (before[gate + ".weight"].values.astype(np.float64) + left.astype(np.float64) @ right).astype(np.float32)
    edited = os.path.join(work, "edited")
    os.mkdir(f"{work}/edits")
    text = recipe("edit.yaml", "base: vendor\nedits: edits\n")

    def judge(name, values, kept):
        weight = weights(edited)[name]
        if kept and weight.scale_of_all != before[name].scale_of_all:
            fail(f"{name}: another global scale, though the values fit under the one that it shares")
        wrong, _ = judge_scales(weight, values, {}, [], "bf16")
        if wrong.any():
            fail(f"{name}: {wrong.sum()} scales are not those of a search")
        for complaint in judge_codes(weight, values):
            fail(f"{name}: {complaint}")

    def unchanged(touched):
        now, own = read_checkpoint(edited), read_checkpoint(vendor)
        for name in own:
            if now[name].data != own[name].data and name.rsplit(".", 1)[0] not in touched:
                fail(f"{name} is not edited, and has other bytes")

    write_file(f"{work}/edits/edits.safetensors", pair)
    run(0, "compose", text, edited, "--verify", "structure,weights", "--progress", "never")
    judge(gate + ".weight", wanted, True)
    unchanged({gate})
    run(0, "verify", text, edited, says="PASS")
    run(0, "verify", vendor, edited, "--sources", f"edits={work}/edits", says="PASS")
    run(2, "verify", vendor, edited, says="edits")
    large = (before[gate + ".weight"].values * np.float32(40)).astype("<f4")
    head = before["lm_head.weight"].values
    write_file(f"{work}/edits/edits.safetensors", {
        gate + ".weight": ("F32", large.shape, large.tobytes()),
        "lm_head.weight": ("F32", head.shape, (head * np.float32(1.5)).astype("<f4").tobytes())})
    said = run(0, "compose", text, edited, "--force", "--verify", "structure,weights", "--progress", "never")
    if "encoded again" not in said or up not in said:
        fail(f"the report does not name the weight that was encoded again: {said[:600]}")
    judge(gate + ".weight", large, False)
    if weights(edited)[gate + ".weight"].scale_of_all != weights(edited)[up + ".weight"].scale_of_all:
        fail("an edit leaves fused weights with two global scales")
    if not np.array_equal(weights(edited)["lm_head.weight"].values, round_bf16(head * np.float32(1.5))):
        fail("an edited head is not rounded to BF16")
    unchanged({gate, up, "lm_head"})
    for tensors, says in [({gate + ".lora_A.weight": pair[gate + ".lora_A.weight"]}, "is half of a low-rank pair"),
                          ({"model.nothing.weight": pair[gate + ".lora_A.weight"]}, "which the model does not have"),
                          ({gate + ".weight": pair[gate + ".lora_A.weight"]}, "has shape"),
                          ({gate + ".weight": ("I32", large.shape, large.tobytes())}, "is I32: edits are values")]:
        write_file(f"{work}/edits/edits.safetensors", tensors)
        run(2, "compose", text, f"{work}/none", "--dry-run", says=says)
    nan = large.copy()
    nan[3, 5] = np.nan
    write_file(f"{work}/edits/edits.safetensors", {gate + ".weight": ("F32", nan.shape, nan.tobytes())})
    run(2, "compose", text, f"{work}/nan", "--progress", "never", says="NaN")

    # Fused weights of two sources have one global scale, or are refused with the remedy.
    fused = [("mlp.experts.0.up_proj", "mlp.experts.0.gate_proj"), ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa")]
    coarse = made("coarse", "--to", "nvfp4", "--search", "amax", "--quantize-attention")
    fine = made("fine", "--to", "nvfp4", "--search", "mse", "--quantize-attention")
    for stored in read_checkpoint(coarse).values():
        if stored.name.endswith(tuple(f"{taken}.weight_global_scale" for taken, _ in fused)):
            with open(stored.file, "r+b") as file:
                file.seek(stored.begin)
                file.write((np.frombuffer(stored.data, "<f4") * 2).tobytes())
    fuse = "base: fine\nsources: {up: coarse}\nrules:\n" + "".join(
        f"- {{match: '*.{taken}.weight', from: up}}\n" for taken, _ in fused)
    said = run(2, "compose", recipe("fuse.yaml", fuse), f"{work}/no", says="fused: rescale")
    if not all(f"1.{name}.weight'" in said for pair in fused for name in pair):
        fail(f"not every pair with two global scales is named: {said}")
    rescaled = os.path.join(work, "rescaled")
    run(0, "compose", recipe("rescale.yaml", fuse + "fused: rescale\n"), rescaled, "--progress", "never")
    run(0, "rederive", rescaled, "--source", fine, "--with", f"up={coarse}", "--all")
    written, of_fine, of_coarse = weights(rescaled), weights(fine), weights(coarse)
    n_rescaled = 0
    for name, weight in written.items():
        source = (of_coarse if name.endswith(tuple(f".{taken}.weight" for taken, _ in fused)) else of_fine)[name]
        if weight.parts["weight"].data != source.parts["weight"].data:
            fail(f"{name}: its codes have changed with the global scale")
        if weight.scheme != "nvfp4":
            continue
        # The nearest E4M3 to the old block scale times the ratio of the globals, which divide; none vanishes.
        ratio = F32(weight.scale_of_all / source.scale_of_all)
        nearest = np.maximum(e4m3_codes(round_e4m3(source.scales * ratio)), 1)
        if not np.array_equal(weight.scales, source.scales if ratio == 1 else E4M3[nearest]):
            fail(f"{name}: its block scales are not those of the joint global scale")
        n_rescaled += ratio != 1
    pairs = [[written[f"model.layers.1.{name}.weight"].scale_of_all for name in pair] for pair in fused]
    if any(one != other for one, other in pairs) or n_rescaled < len(fused):
        fail("fused weights still have two global scales")

    # Hostile and mistaken recipes: one sentence with the file, and with the line.
    def refused(text, says, *options, names_file=True):
        path = recipe("bad.yaml", text)
        said = run(2, "compose", path, f"{work}/none", "--dry-run", *options, says=says)
        if names_file and path not in said:
            fail(f"no file is named for {text[:60]!r}: {said[:300]}")

    head = "base: vendor\nsources: {own: own}\n"
    refused("", "is a map")
    refused("rules: []\n", "needs `base: DIR`")
    refused("base: [vendor]\n", "line 1")
    refused("base: nowhere\n", "line 1: 'base' is")
    refused("base: both.yaml\n", "no other recipe")
    refused("base: vendor\nsources: {own: both.yaml}\n", "line 2: 'own' is")
    refused("base: vendor\nsources: {again: vendor/../vendor}\n", "are one directory")
    refused("base: vendor\nsources: {base: own}\n", "names two directories")
    refused("base: vendor\nsources: {'a/b': own}\n", "letters, digits")
    refused("base: vendor\nsources: {edits: own}\n", "line 2: 'edits' is the name of")
    refused("base: vendor\nsources: {own: own, own: vendor}\n", "line 2")
    refused("base: vendor\nsources: {'..': own}\n", "letters, digits")
    refused("base: vendor\nsources: own\n", "line 2: sources is not a map")
    refused("base: vendor\nsources: {x: hub}\n", "line 2: 'x': ")  # a folder, and no checkpoint
    refused("base: vendor\nedits: hub\n", "line 2: 'edits': ")
    refused("base: vendor\nlora: hub\n", "line 2: 'lora': ")
    refused(head + "rules:\n- {match: 're:^(.*)*(.*)*(.*)*x$', from: own}\n", "line 4: pattern 're:")
    refused(head + "rules:\n- {match: '*.q_a_proj.weight', from: own}\n", "loaders fuse it with", names_file=False)
    os.symlink("round", f"{work}/round")
    refused("base: round\n", "line 1: 'base' is")
    os.mkdir(f"{work}/heads")
    refused(head + "rules:\n- {match: 'role:attention', from: owm}\n", "line 4: no source 'owm'")
    refused(head + "rules:\n- {match: 'role:attention', form: own}\n", "line 4")
    refused(head + "rules:\n- {match: 'role:attention'}\n", "line 4: a rule needs match and from or scheme")
    refused(head + "rules:\n- {match: 'model.nothing.*', from: own}\n", "line 4: --recipe 'model.nothing.* from own'")
    refused(head + "side-files: own\n", "line 3: side-files 'own' is not base")
    refused(head + "fused: nan\n", "line 3: fused 'nan'")
    refused(head + "input-scale: nan\n", "line 3")
    refused(head + "scheme: bf16\n", "line 3")
    refused("base: &a vendor\nsources: {own: *a}\n", "line 1")
    refused(head + "rules:\n" + "- {match: '*a', from: own}\n" * 10001, "more than 10000 rules")
    refused(head + "rules:\n" + "- {match: '*a', from: own}\n" * 1000000, "bytes")
    refused(head, "names no 'other'", "--source", "other=own")
    refused(head, "is not NAME=DIR", "--source", "own", names_file=False)
    refused(head + "dialect: deepseek\nrules:\n- {match: 'role:attention', from: own}\n",
            "dialect deepseek holds one quantized scheme", names_file=False)
    refused("base: own\nsources: {x: vendor}\nrules:\n- {match: '*', from: x}\n- {match: '*', scheme: nvfp5}\n",
            "line 5")
    run(2, "convert", small, f"{work}/none", "--recipe", both, "--dry-run", says="ingot compose")
    run(2, "compose", both, own, says="own")

    # A rule that never wins, a source that gives nothing, and an overlay over what is taken from elsewhere, are told.
    late = head + "rules:\n- {match: 'role:attention', scheme: keep}\n- {match: 'role:attention', from: own}\n"
    run(0, "compose", recipe("late.yaml", late), f"{work}/none", "--dry-run", says="selects nothing new")
    run(0, "compose", recipe("late.yaml", late), f"{work}/none", "--dry-run", says="source 'own' gives no tensor")

    name = "model.layers.0.self_attn.q_b_proj.weight"
    one = read_checkpoint(vendor)[name]
    write_file(f"{work}/heads/some.safetensors", {name: (one.dtype, one.shape, one.data)})
    run(0, "compose", recipe("idle.yaml", both_text + "overlays: {heads: heads}\n"), f"{work}/none", "--dry-run",
        says="1 stored tensor(s) of overlays have no effect")
    shutil.copytree(f"{work}/heads", f"{work}/again")
    refused(both_text + "overlays: {heads: heads, again: again}\n", "is in an overlay before this one too")

    # Another model, and another tokenizer.
    run(0, "synth", f"{work}/deeper", "--family", "qwen3_moe", "--like", "tiny", "--layers", "3", *SIDES)
    for base, source, says in [("older", "deeper", "num_hidden_layers 3, the base's has 2"),
                               ("deeper", "older", "num_hidden_layers 2, the base's has 3")]:
        refused(f"base: {base}\nsources: {{x: {source}}}\nrules:\n- {{match: 'layers:0-1&role:attention', from: x}}\n",
                "line 2: 'x': " + f"{work}/{source}: config.json has " + says)
    said = run(0, "compose", recipe("seeds.yaml", "base: older\nsources: {newer: newer}\nrules:\n"
                                    "- {match: 'role:attention', from: newer}\n"), f"{work}/none", "--dry-run")
    for fact in ("1 embedding tensor(s)", "1 head tensor(s)", "2 router tensor(s)"):
        if f"source 'newer': {fact} have other values than the base's" not in said:
            fail(f"another training is not told by its {fact}: {said[:600]}")
    other = os.path.join(work, "other")
    run(0, "synth", other, "--family", "deepseek_v32", "--like", "tiny", "--vocab", "640", "--experts", "4")
    refused(f"base: vendor\nsources: {{x: {other}}}\n", "n_routed_experts 4, the base's has 8")
    refused(f"base: vendor\nsources: {{x: {other}}}\nrules:\n- {{match: 'role:attention', from: x}}\n",
            "line 2: 'x': ")
    shutil.copytree(own, f"{work}/words")
    with open(f"{work}/words/tokenizer_config.json", "w") as file:
        json.dump({"chat_template": "{{ messages }}"}, file)
    words = "base: vendor\nsources: {own: words}\nrules:\n- {match: 'role:attention', from: own}\n"
    refused("base: vendor\nsources: {x: older}\n", "is of family qwen3_moe, the base of deepseek_v32")
    refused(words, "line 2: source 'own' has another tokenizer_config.json than the base: which one is meant?")
    run(0, "compose", recipe("words.yaml", words + "side-files: base\n"), f"{work}/none", "--dry-run",
        says="the base's is written")
    trained = os.path.join(work, "trained")
    shutil.copytree(own, trained)
    for stored in read_checkpoint(trained).values():
        if stored.name == "model.layers.1.input_layernorm.weight":
            with open(stored.file, "r+b") as file:
                file.seek(stored.begin)
                file.write(stored.data[2:4] + stored.data[:2])
    run(0, "compose", recipe("trained.yaml", words.replace("words", "trained")), f"{work}/none", "--dry-run",
        says="1 input-norm tensor(s) have other values than the base's")

sys.exit(1 if faults else 0)
