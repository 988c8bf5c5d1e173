#!/usr/bin/env python3
"""Compares what the engines themselves tell of loaded weights with the files: `ingot check --live-answer`.

    live.py vllm|sglang INGOT [--only TEXT] [--record] [--keep FOLDER] [--own-card NAME [--answers]]

Each job is a small random model in a form that ingot writes, on one or two ranks. The engine loads and processes it on a
CPU as for a card, and its own code makes the answer of its end point (vllm_live.py, sglang_live.py say what is replaced
there). A job's result says by state, and by the form or the kernel that `ingot check` names, how many parameters and
bytes are so; it is compared with live.jsonl, --record writes the rows again. Nothing may differ or be missing. Then
copies are loaded of which one bit of the files is another, and of which two experts have exchanged their names: the
parameters that hold these, and no others, must differ from the files.

`--own-card h200` runs the jobs that are for such a card on the card of this machine, with nothing described or replaced
(`--card own` of both programs); `--answers` ends when they are written, so that they can be compared elsewhere.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import types

import matrix

EXPECTED = matrix.HERE / "live.jsonl"
QUIET = ["--quiet", "--progress", "never", "--mtp", "drop", "--allow", "engine-refuses=*"]
MODELS = {**matrix.MODELS, **matrix.FURTHER_MODELS}
BLOCKS, BLOCKS_CT, ROWS, INT8 = (
    "fp8-block, deepseek", "fp8-block, compressed-tensors", "fp8-channel, compressed-tensors", "int8-channel, compressed-tensors"
)
NVFP4 = "nvfp4 static, compressed-tensors"
FORMS = {
    **matrix.FORMS, **matrix.FURTHER_FORMS,
    "mxfp8 dynamic, plain experts": [*matrix.FURTHER_FORMS["mxfp8 dynamic"], *matrix.PLAIN_EXPERTS],
}
# FP8 with one scale a weight: as compressed-tensors, as plain `fp8`, as ModelOpt. Conversions give weights that engines join one
# scale; in forms that end so each weight has its own, as other programs write them.
APART, LATENT_APART = ", scales apart", ", latent scales apart"
TENSORS = ["fp8-tensor static, compressed-tensors", "fp8-tensor, deepseek", "fp8-tensor static, modelopt"]
DYNAMIC = "fp8-tensor dynamic, compressed-tensors, plain experts"
MXFP8 = "mxfp8 dynamic, plain experts"
# SGLang's rank files cannot have kv_b_proj so.
KV_B_TOO = [f"{form}, kv_b_proj too" for form in (ROWS, INT8)]
FORMS |= {form: FORMS[form.removesuffix(", kv_b_proj too")] for form in KV_B_TOO}
# Schemes of which the processing was read for one dialect, or that are next to another one.
MIXED = ["fp8-channel, modelopt, plain experts", "fp8-channel weight-only, plain experts", "fp8-tensor weight-only, plain experts",
         "int8-channel static, plain experts", "nvfp4, fp8-block attention", "fp8-block, deepseek, plain shared experts"]
# SGLang takes the scale of q_a_proj for kv_a_proj_with_mqa too (deepseek_weight_loader.py:463): its values are then wrong, and
# `ingot check` has to say so.
WRONG_IN_SGLANG = [f"deepseek_v3, {form}{LATENT_APART}, tp 2" for form in TENSORS[:2]]
PACKED = ["mxfp4, compressed-tensors", "mxfp8 dynamic", "int4-group, compressed-tensors", "nvfp4 weight-only, modelopt"]
# SGLang splits it by its rows when it is transposed already.
PLAIN_KV_B = ["--rule", "role:kv-b-proj=bf16"]


def jobs(engine):
    """Model, form, and how the engine is started, of each job."""
    five = ["bf16", BLOCKS, BLOCKS_CT, ROWS, INT8]
    further = ["deepseek_v2", "deepseek_v32", "glm_moe_dsa", "kimi_k2"]
    ranks = [{"tp": 1}, {"tp": 2}]
    for form in TENSORS[:2]:
        yield "deepseek_v3", form + LATENT_APART, {"tp": 2}
    for model in ("deepseek_v3", "qwen3_moe"):
        for form in TENSORS:
            for how in [*ranks, {"tp": 2, "ep": True}]:
                yield model, form + APART, how
            yield model, form, {"tp": 2}
        yield model, DYNAMIC + APART, {"tp": 2}
        yield model, TENSORS[0] + APART, {"tp": 2, "card": "blackwell"}
    if engine == "sglang":
        for model in ("deepseek_v3", "qwen3_moe"):
            for form in five:
                for how in [*ranks, *([{"tp": 2, "ep": True}] if form in ("bf16", BLOCKS) else [])]:
                    yield model, form, how
        for model in further:
            for form in ("bf16", BLOCKS):
                yield model, form, {"tp": 2}
        for form in ("bf16", BLOCKS, BLOCKS_CT, ROWS):
            yield "deepseek_v3", form, {"tp": 2, "card": "blackwell"}
        for form in (BLOCKS, BLOCKS_CT):
            yield "deepseek_v3", form, {"tp": 2, "card": "blackwell", "deep_gemm_scales": True}
        for how in ranks:
            yield "deepseek_v3", "int8-block, deepseek", how
            yield "deepseek_v3", NVFP4, {**how, "card": "blackwell", "packs": True}
        for form in (PACKED[2], *MIXED[1:3], *MIXED[4:]):
            yield "deepseek_v3", form, {"tp": 2, "packs": True}
        for form in KV_B_TOO:
            yield "deepseek_v3", form, {"tp": 2}
        yield "deepseek_v3", BLOCKS, {"tp": 1, "hash": "card"}
        yield "deepseek_v3", BLOCKS, {"tp": 1, "unfused": False}
        return
    for model in ("deepseek_v3", "qwen3_moe"):
        for mxfp8 in ("cutedsl", "cutlass"):
            for how in ranks:
                yield model, MXFP8, {**how, "card": "blackwell", "mxfp8": mxfp8}
        # Kernels that a CPU does not have pack these, or some of their modules.
        for form in PACKED:
            yield model, form, {"tp": 2, "packs": True}
        yield model, "nvfp4 static, modelopt", {"tp": 2, "card": "blackwell", "packs": True}
        for form in five:
            for how in [*ranks, {"tp": 2, "card": "blackwell"}, *([{"tp": 2, "ep": True}] if form in ("bf16", BLOCKS) else [])]:
                yield model, form, how
        # INT4, other NVFP4, and NVFP4 on other cards are packed by kernels that a CPU does not have.
        yield model, NVFP4, {"tp": 2, "card": "blackwell"}
        yield model, BLOCKS, {"tp": 2, "pp": 2}
        yield model, "bf16", {"tp": 2, "card": "ampere"}
        yield model, INT8, {"tp": 2, "card": "ampere"}
        yield model, BLOCKS, {"tp": 2, "deep_gemm": False}
    for form in MIXED:
        yield "deepseek_v3", form, {"tp": 2, "packs": True}
    for model in further:
        for form in ("bf16", BLOCKS):
            yield model, form, {"tp": 2}


CARDS = {"hopper": "h200", "blackwell": "b200", "ampere": "a100"}
# Kernels of vLLM's latent attention for cards have only the released widths of heads.
RELEASED = ["--like", "layer", *matrix.WIDTHS[2:-4], "--heads", "4", "--vocab", "512", "--scheme", "bf16"]


def jobs_on_own_card(engine, name):
    """The jobs that are for cards of that name, on the card of this machine."""
    seen = set()
    for model, form, how in jobs(engine):
        own = {key: value for key, value in how.items() if key not in ("card", "hash", "packs", "mxfp8")} | {"on": name}
        job = title(model, form, own)
        if CARDS[how.get("card", "hopper")] == name and job not in seen:
            seen.add(job)
            yield model, form, own


def options_of(engine, folder, form, how):
    """The options of vllm_live.py or sglang_live.py."""
    options = types.SimpleNamespace(
        model=folder, tp=1, pp=1, ep=False, card="hopper", hash="cpu", timeout=3600, sharded=False, mtp=False, own=(),
        quantization=None, unfused=True, dtype="bfloat16", engine="{}", deep_gemm=True, deep_gemm_scales=False,
        mxfp8=None, packs=False,
    )
    options.__dict__.update(how)
    if "on" in how:
        options.card, options.hash = "own", "card"
    if engine == "sglang" and form.startswith(INT8):
        options.quantization = "w8a8_int8"
    if engine == "vllm":
        options.model = str(folder)
    return options


def run(words, status=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode not in (status if isinstance(status, tuple) else (status,)):
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


class Folders:
    """The models and the forms of them, each made when it is first asked for."""

    def __init__(self, ingot, root, own_card):
        self.ingot, self.root, self.own_card = ingot, root, own_card

    def model(self, model):
        folder = self.root / model
        if not folder.exists():
            words = MODELS[model]
            if self.own_card and model != "qwen3_moe":
                words = [*words[:-len(matrix.WIDTHS)], *RELEASED]
            run([self.ingot, "synth", folder, *words])
        return folder

    def form(self, engine, model, form):
        kv_b = PLAIN_KV_B if engine == "sglang" and form in (ROWS, INT8) and model != "qwen3_moe" else []
        folder = self.root / f"{model}, {form}{', plain kv_b' if kv_b else ''}"
        if folder.exists():
            return folder
        if form.endswith((APART, LATENT_APART)):
            plain = form.removesuffix(APART).removesuffix(LATENT_APART)
            shutil.copytree(self.form(engine, model, plain), folder)
            for file in folder.glob("*.safetensors"):
                file.write_bytes(with_scales_apart(file.read_bytes(), form.endswith(LATENT_APART)))
            return folder
        run([self.ingot, "convert", self.model(model), folder, *FORMS[form], *kv_b, *QUIET])
        return folder


def header_of(data):
    size = struct.unpack("<Q", data[:8])[0]
    return size, json.loads(data[8:8 + size])


def with_scales_apart(data, also_latent):
    """The file with another scale for each weight that has one: half to twice as large, of some a thousandth. q_a_proj and
    kv_a_proj_with_mqa share one, unless they are latent too."""
    size, header = header_of(data)
    changed = bytearray(data)
    for name, row in header.items():
        if name.endswith(".weight_scale") and row["dtype"] == "F32" and math.prod(row["shape"]) == 1:
            drawn = hashlib.sha256((name if also_latent else name.replace("kv_a_proj_with_mqa", "q_a_proj")).encode()).digest()
            factor = 2 ** (drawn[0] / 128 - 1) / (1 if drawn[1] % 8 else 1024)
            begin = 8 + size + row["data_offsets"][0]
            changed[begin:begin + 4] = struct.pack("<f", struct.unpack_from("<f", data, begin)[0] * factor)
    return bytes(changed)


def with_flipped_bit(data, name):
    """The file with another value of one bit in the middle of a tensor."""
    size, header = header_of(data)
    begin, end = header[name]["data_offsets"]
    changed = bytearray(data)
    changed[8 + size + (begin + end) // 2] ^= 1
    return bytes(changed)


def with_exchanged_experts(data, one, other):
    """The file with all tensors of two experts under each other's names."""
    size, header = header_of(data)
    moved = {}
    for name, row in header.items():
        for a, b in ((one, other), (other, one)):
            if f".{a}." in name:
                moved[name] = header[name.replace(f".{a}.", f".{b}.")]["data_offsets"]
    for name, offsets in moved.items():
        header[name]["data_offsets"] = offsets
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", size) + text.ljust(size) + data[8 + size:] if len(text) <= size else sys.exit("the header grew")


def checked(ingot, folder, answer, how, status=0):
    """What `ingot check` says of the file of an answer."""
    card = how.get("on") or CARDS[how.get("card", "hopper")]
    words = [ingot, "check", folder, "--live-answer", answer, "--gpu", card, "--json"]
    return json.loads(run(words, status))["live"]


def summary(live):
    """Parameters and bytes by state and fact."""
    found = {}
    for row in live["parameters"]:
        key = row["state"] + (f": {row['fact']}" if row["fact"] else "")
        count, n_bytes = found.get(key, (0, 0))
        found[key] = (count + 1, n_bytes + row["bytes"])
    return {key: list(found[key]) for key in sorted(found)}


def title(model, form, how):
    words = [f"{key} {value}" for key, value in how.items() if value is not True]
    return ", ".join([model, form, *words, *(key for key, value in how.items() if value is True)])


def named_changes(engine, live, folders, tp):
    """Faults where a changed copy of a model is not told from the model by the right names."""
    faults = []
    on_blackwell = [(MXFP8, {"card": "blackwell", "mxfp8": "cutedsl"})] if engine == "vllm" and not folders.own_card else []
    for form, card in [*((form, {}) for form in ("bf16", BLOCKS, INT8, TENSORS[0] + APART)), *on_blackwell]:
        folder = folders.form(engine, "deepseek_v3", form)
        file = "model.safetensors"
        data = (folder / file).read_bytes()
        layer, experts = "model.layers.1.", "model.layers.1.mlp.experts"
        cases = {
            f"{layer}self_attn.o_proj.weight": with_flipped_bit(data, f"{layer}self_attn.o_proj.weight"),
            f"{layer}input_layernorm.weight": with_flipped_bit(data, f"{layer}input_layernorm.weight"),
            f"{experts}.5.up_proj.weight": with_flipped_bit(data, f"{experts}.5.up_proj.weight"),
            "experts exchanged": with_exchanged_experts(data, "mlp.experts.3", "mlp.experts.9"),
        }
        for case, changed in cases.items():
            # Experts in BF16 may be packed on Blackwell, and one layer has no other to compare with.
            if card and "expert" in case:
                continue
            how, kept = {"tp": tp, **card}, folder.parent / f"{engine}, {form}, tp {tp}, {case}.json"
            if folders.own_card:
                how["on"] = folders.own_card
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                copy = pathlib.Path(shutil.copytree(folder, pathlib.Path(scratch, "changed")))
                (copy / file).write_bytes(changed)
                answer = answered(live, options_of(engine, copy, form, how), kept)
            found = checked(folders.ingot, folder, answer, how, (0, 1))
            named = sorted({row["name"].replace(".routed_experts", "") for row in found["parameters"] if row["state"] == "differs"})
            parts = {"w13_weight", "w2_weight"}
            if form in (INT8, TENSORS[0] + APART):
                parts |= {"w13_weight_scale", "w2_weight_scale"}
            if engine == "vllm" and form == BLOCKS:
                parts |= {"w13_weight_scale_inv", "w2_weight_scale_inv"}
            wanted = [case]
            if case.startswith(experts):
                wanted = [f"{experts}.w13_weight"]
            if case == "experts exchanged":
                wanted = sorted(f"{experts}.{part}" for part in parts)
            if named != wanted:
                faults.append(f"{form}, {case}: {named} differ instead of {wanted}")
            print(f"  {form}, tp {tp}, {case}: differs: {', '.join(named)}", flush=True)
    return faults


def answered(live, options, kept):
    """The file of what the engine tells, or told in an earlier call."""
    if not kept.exists():
        kept.write_text(json.dumps(live.answer(options)))
    return kept


def recorded():
    lines = [json.loads(line) for line in EXPECTED.read_text().splitlines()]
    return {(row["engine"], row["job"]): row["result"] for row in lines}


def record(results):
    lines = [json.dumps({"engine": engine, "job": job, "result": results[engine, job]}) for engine, job in sorted(results)]
    part = EXPECTED.with_suffix(".part")  # a call that is ended loses no row
    part.write_text("\n".join(lines) + "\n")
    part.replace(EXPECTED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("ingot", type=pathlib.Path)
    parser.add_argument("--only", default="", help="jobs whose title is or contains this; no changed copies")
    parser.add_argument("--record", action="store_true", help="write the results of these jobs into live.jsonl")
    parser.add_argument("--changed", action="store_true", help="only the changed copies")
    parser.add_argument("--own-card", default="", help="run on this machine's card, of this name in `ingot check --gpu`")
    parser.add_argument("--answers", action="store_true", help="only write the answers into the folder of --keep")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for models and answers, taken from there by the next call")
    options = parser.parse_args()
    if options.engine == "sglang":
        import sglang_live as live

        live.prepare()
    else:
        import vllm_live as live

        live.prepare()
    on = f", on {options.own_card}" if options.own_card else ""
    wrong = [job + on for job in WRONG_IN_SGLANG] if options.engine == "sglang" else []
    before, rows, faults = recorded(), {}, []
    with tempfile.TemporaryDirectory() as scratch:
        root = (options.keep or pathlib.Path(scratch)).resolve()
        root.mkdir(exist_ok=True)
        folders = Folders(options.ingot.resolve(), root, options.own_card)
        every = list(jobs_on_own_card(options.engine, options.own_card) if options.own_card else jobs(options.engine))
        titles = {title(*job) for job in every}
        for model, form, how in every:
            job = title(model, form, how)
            if options.changed or (job != options.only if options.only in titles else options.only not in job):
                continue
            folder = folders.form(options.engine, model, form)
            try:
                answer = answered(live, options_of(options.engine, folder, form, how), root / f"{options.engine}, {job}.json")
                if options.answers:
                    continue
                result = summary(checked(folders.ingot, folder, answer, how, (0, 1)))
            except SystemExit as error:
                result = {"refused": str(error)[:300]}
            print(f"{job}: {json.dumps(result)}", flush=True)
            rows[options.engine, job] = result
            if options.record:
                record({**recorded(), **rows})
            if job not in wrong and any(key.startswith(("differs", "missing")) for key in result):
                faults.append(f"{job}: {json.dumps(result)}")
            if not options.record and result != before.get((options.engine, job)):
                faults.append(f"{job}: was {json.dumps(before.get((options.engine, job)))}")
        if not options.only and not options.answers:
            for tp in (1, 2):
                faults += named_changes(options.engine, live, folders, tp)
    print("\n".join(faults))
    print(f"{len(rows)} jobs, {len(faults)} faults", flush=True)
    os._exit(1 if faults else 0)  # threads of engines do not end by themselves


if __name__ == "__main__":
    main()
