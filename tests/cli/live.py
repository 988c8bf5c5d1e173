#!/usr/bin/env python3
"""`ingot check --live` against fakes of vLLM's and SGLang's end points.

    live.py INGOT

What engines hold is made here from the files of whole models, joined and cut by NumPy, under the names that their
modules have. The fakes fail the test for any request but the one for checksums."""
import copy
import hashlib
import http.server
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

ingot = sys.argv[1]
work = tempfile.mkdtemp(prefix="ingot-live-")
WORDS = {"BF16": "<u2", "F32": "<f4", "F8_E4M3": "u1", "I8": "u1"}


def at(*names):
    return os.path.join(work, *names)


def expect(holds, what):
    if not holds:
        sys.exit(f"FAILED: {what}")


def run(status, *words, says=(), **more):
    done = subprocess.run([ingot, *words], capture_output=True, stdin=subprocess.DEVNULL,
                          env={**os.environ, "INGOT_LIVE_TOKEN": more.get("token", "")})
    text = (done.stdout + done.stderr).decode()
    for word in [says] if isinstance(says, str) else says:
        expect(word in text, f"ingot {' '.join(words)}: no {word!r} in:\n{text[:3000]}")
    expect(done.returncode == status, f"ingot {' '.join(words)}: exit code {done.returncode}, expected {status}:\n{text[:3000]}")
    return text


# Models.

def tensors_of(folder):
    """The tensors of a model, as words of their width."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            data = file.read()
        for key, row in header.items():
            if key != "__metadata__":
                begin, end = row["data_offsets"]
                tensors[key] = np.frombuffer(data[begin:end], WORDS[row["dtype"]]).reshape(row["shape"])
    return tensors


def scales_apart(folder):
    """Gives weights of one scale other ones, also where engines join them; q_a_proj and kv_a_proj_with_mqa keep one."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        data = bytearray(file.read())
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    scales = {name: name.replace("kv_a_proj_with_mqa", "q_a_proj") for name in header if name.endswith(".weight_scale")}
    order = sorted(set(scales.values()))
    for name, drawn in scales.items():
        at = 8 + size + header[name]["data_offsets"][0]
        scale = struct.unpack_from("<f", data, at)[0] * (1, 0.5625, 1.75)[order.index(drawn) % 3]
        data[at:at + 4] = struct.pack("<f", scale)
    os.remove(path)
    with open(path, "wb") as file:
        file.write(data)


def rows(whole, n, i):
    return whole[len(whole) * i // n:len(whole) * (i + 1) // n]


def cols(whole, n, i):
    # A scale of rows has one column, which all ranks have.
    return whole if whole.shape[1] == 1 else whole[:, whole.shape[1] * i // n:whole.shape[1] * (i + 1) // n]


def parameters(model, config, rank, tp, dp=1, ep=1):
    """The parameters of deepseek_v3 on a rank of one stage."""
    d, t = divmod(rank, tp)
    made, parts = {}, ["weight", "weight_scale", "weight_scale_inv"]

    def add(name, pieces, form):
        for part in parts:
            found = [model[f"{piece}.{part}"] for piece in pieces if f"{piece}.{part}" in model]
            if found:
                made[f"{name}.{part}"] = form(found)
    padded = -(-config["vocab_size"] // 64) * 64

    def vocabulary(found):
        return rows(np.pad(found[0], ((0, padded - len(found[0])), (0, 0))), tp, t)
    whole = np.concatenate
    add("model.embed_tokens", ["model.embed_tokens"], vocabulary)
    add("lm_head", ["lm_head"], vocabulary)
    add("model.norm", ["model.norm"], whole)
    for layer in range(config["num_hidden_layers"]):
        own = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm"):
            add(f"{own}.{name}", [f"{own}.{name}"], whole)
        attention = f"{own}.self_attn"
        add(f"{attention}.fused_qkv_a_proj", [f"{attention}.q_a_proj", f"{attention}.kv_a_proj_with_mqa"], whole)
        for name in ("q_b_proj", "kv_b_proj"):
            add(f"{attention}.{name}", [f"{attention}.{name}"], lambda found: rows(found[0], tp, t))
        add(f"{attention}.o_proj", [f"{attention}.o_proj"], lambda found: cols(found[0], tp, t))

        def block(name, of):
            add(f"{name}.gate_up_proj", [f"{of}.gate_proj", f"{of}.up_proj"], lambda found: whole([rows(x, tp, t) for x in found]))
            add(f"{name}.down_proj", [f"{of}.down_proj"], lambda found: cols(found[0], tp, t))
        mlp = f"{own}.mlp"
        if layer < config["first_k_dense_replace"]:
            block(mlp, mlp)
            continue
        add(f"{mlp}.gate", [f"{mlp}.gate"], whole)
        made[f"{mlp}.gate.e_score_correction_bias"] = model[f"{mlp}.gate.e_score_correction_bias"]
        block(f"{mlp}.shared_experts", f"{mlp}.shared_experts")
        n = config["n_routed_experts"]
        experts = range(n * rank // ep, n * (rank + 1) // ep) if ep > 1 else range(n)
        cut, mine = (1, 0) if ep > 1 else (tp * dp, rank)
        for part in parts:
            names = [[f"{mlp}.experts.{e}.{x}_proj.{part}" for x in ("gate", "up", "down")] for e in experts]
            if names[0][0] in model:
                w13 = [whole([rows(model[gate], cut, mine), rows(model[up], cut, mine)]) for gate, up, _ in names]
                made[f"{mlp}.experts.routed_experts.w13_{part}"] = np.stack(w13)
                made[f"{mlp}.experts.routed_experts.w2_{part}"] = np.stack([cols(model[down], cut, mine) for *_, down in names])
    return made


# FP8 in blocks of 128 x 128.

CODES = np.array([(-1) ** (c >> 7) * (2.0 ** ((c >> 3 & 15) - 7) * (1 + (c & 7) / 8) if c >> 3 & 15 else (c & 7) * 2.0 ** -9)
                  if c & 127 != 127 else np.nan for c in range(256)], np.float32)


def spread(scale, like):
    """A scale for each code."""
    wide = np.repeat(np.repeat(scale, 128, axis=-2), 128, axis=-1)
    return wide[..., :like.shape[-2], :like.shape[-1]]


def to_bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def powers_of_two(codes, scale):
    """Codes under scales that are powers of two, and these, as DeepGEMM makes them while vLLM loads."""
    values = CODES[codes] * spread(scale, codes)
    pad = [(0, -side % 128) for side in codes.shape]
    blocks = np.pad(np.abs(values), pad).reshape(-(-codes.shape[0] // 128), 128, -1, 128).max(axis=(1, 3))
    new = np.exp2(np.ceil(np.log2(np.maximum(blocks, np.float32(1e-4)).astype(np.float64) / 448))).astype(np.float32)
    scaled = values * (np.float32(1) / spread(new, codes))
    grid = CODES[:127].astype(np.float64)
    nearest = np.abs(np.abs(scaled)[..., None].astype(np.float64) - grid)
    best = nearest.min(axis=-1, keepdims=True)
    ties = nearest == best
    even = np.where(ties & (np.arange(127) % 2 == 0), 0, np.where(ties, 1, 2)).argmin(axis=-1)
    return (even | (np.signbit(scaled) << 7)).astype(np.uint8), new


# Hashes.

def sum_of_words(data):
    """SGLang's hash of a tensor on a GPU (kernels/ops/memory/gpu_tensor_hash.py of 0.5.23)."""
    def mix(x):
        x = x ^ (x >> np.uint32(16))
        x = x * np.uint32(0x85EBCA6B)
        x = x ^ (x >> np.uint32(13))
        x = x * np.uint32(0xC2B2AE35)
        return x ^ (x >> np.uint32(16))

    def rotate(x, r):
        return (x << np.uint32(r)) | (x >> np.uint32(32 - r))
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
    n, total, sums = len(words), 0, []
    if n == 0:
        return f"{0:016x}"
    index = np.arange(n, dtype=np.uint32)
    for factor, seed, turn in ((0x27D4EB2D, 0x243F6A88, 15), (0x165667B1, 0x243F6A88 * 0x9E3779B1 & 0xFFFFFFFF ^ 0xDEADBEEF, 13)):
        mixed = mix(words ^ ((index * np.uint32(factor) + np.uint32(seed)) ^ rotate(index, turn))).astype(np.uint64)
        sums.append((np.add.reduceat(mixed, np.arange(0, n, 8192)) & 0xFFFFFFFF).astype(np.uint32))
    high, low = (mix(s ^ np.uint32(n * 4 & 0xFFFFFFFF)).astype(np.uint64) for s in sums)
    for part in ((high << np.uint64(32)) | low).tolist():
        total = total + part & 2 ** 64 - 1
    total ^= total >> 30
    total = total * 0xBF58476D1CE4E5B9 & 2 ** 64 - 1
    total ^= total >> 27
    total = total * 0x94D049BB133111EB & 2 ** 64 - 1
    return f"{total ^ total >> 31:016x}"


def sha(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def vllm(ranks, tp):
    """vLLM's answer for parameters by rank."""
    return {"checksums": {f"dp{rank // tp}:pp0:pcp0:tp{rank % tp}:{name}": sha(array)
                          for rank, made in enumerate(ranks) for name, array in made.items()}}


def sglang(ranks, tp):
    def name_of(name):
        return name.replace(".routed_experts.", ".").replace(".fused_qkv_a_proj.", ".fused_qkv_a_proj_with_mqa.")
    answer = {"success": True, "message": "Success.", "ranks": []}
    for rank, made in enumerate(ranks):
        sums = {name_of(name): sum_of_words(np.ascontiguousarray(array).tobytes()) for name, array in made.items()}
        sums["draft.model.norm.weight"] = sum_of_words(b"draft")
        whole = hashlib.sha256("".join(name + sums[name] for name in sorted(sums)).encode()).hexdigest()
        info = {"role": "target", "tp_rank": rank, "tp_size": tp, "dp_rank": 0, "dp_size": 1, "pp_rank": 0, "pp_size": 1,
                "rank": rank, "size": tp}
        answer["ranks"].append({"checksums": sums, "per_gpu_checksum": whole, "parallelism_info": [info]})
    return answer


# End points.

class Fake(http.server.BaseHTTPRequestHandler):
    path_of, status, body, headers_out, token, delay, bad = "/weight_checker", 200, b"", {}, "", 0, []

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if json.loads(asked) != {"action": "checksum"} or asked != b'{"action": "checksum"}':
            Fake.bad.append(asked)
        status, body = (Fake.status, Fake.body) if self.path == Fake.path_of else (404, b'{"detail": "Not Found"}')
        if Fake.token and self.headers["Authorization"] != f"Bearer {Fake.token}":
            status, body = 401, b'{"error": "Unauthorized"}'
        time.sleep(Fake.delay)
        self.send_response(status)
        for name, value in Fake.headers_out.items():
            self.send_header(name, value)
        if "Content-Length" not in Fake.headers_out:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass

    def do_GET(self):
        Fake.bad.append(b"GET " + self.path.encode())

    def log_message(self, *_):
        pass


def serve(**values):
    defaults = {"path_of": "/weight_checker", "status": 200, "body": b"", "headers_out": {}, "token": "", "delay": 0}
    for name, value in {**defaults, **values}.items():
        setattr(Fake, name, value)


def answer_file(answer):
    with open(at("answer.json"), "w") as file:
        json.dump(answer, file)
    return at("answer.json")


def compare(status, folder, answer, *options, says=()):
    return run(status, "check", folder, "--live-answer", answer_file(answer), *options, says=says)


def changed(ranks, name, change, rank=0):
    copies = [dict(made) for made in ranks]
    copies[rank][name] = change(copies[rank][name].copy())
    return copies


def try_vllm(plain, config):
    model = tensors_of(plain)
    two = [parameters(model, config, t, 2) for t in range(2)]
    good = vllm(two, 2)
    compare(0, plain, good, says=["tensor 2, pipeline 1, data 1", "as stored", "MB are those of the files"])
    # The forms of an answer.
    workers = [{key: value for key, value in good["checksums"].items() if f":tp{t}:" in key} for t in range(2)]
    compare(0, plain, workers, says="as stored")

    w13 = "model.layers.1.mlp.experts.routed_experts.w13_weight"

    def flip(array):
        array.reshape(-1)[7] ^= 1
        return array

    def exchange(array):
        array[[1, 2]] = array[[2, 1]]
        return array
    for name, change in ((w13, exchange), (w13, flip), ("model.layers.0.self_attn.kv_b_proj.weight", flip)):
        compare(1, plain, vllm(changed(two, name, change, 1), 2), "--gpu", "h100", says=[f"tp1: {name}: differs"])
    compare(1, plain, vllm(changed(two, w13, np.zeros_like), 2), says=[f"tp0: {w13}: differs: all zeros"])
    # Experts of a card on which other kernels may have packed them; not if another rank shows that they have not.
    packed = changed(changed(two, w13, flip, 0), w13, flip, 1)
    compare(0, plain, vllm(packed, 2), "--gpu", "b200", says="not comparable 2 parameters")
    compare(1, plain, vllm(changed(two, w13, flip), 2), "--gpu", "b200", says=f"tp0: {w13}: differs")
    half = two[0][w13].shape[1] // 2
    swapped = vllm(changed(two, w13, lambda array: np.roll(array, half, axis=1)), 2)
    compare(0, plain, swapped, "--gpu", "b200", says="gate and up exchanged")
    compare(1, plain, swapped, "--gpu", "h100", says=f"{w13}: differs: other bytes than the files")

    lost = copy.deepcopy(good)
    del lost["checksums"]["dp0:pp0:pcp0:tp1:model.norm.weight"]
    compare(1, plain, lost, says="tp1: model.norm.weight: missing")
    more = copy.deepcopy(good)
    more["checksums"]["dp0:pp0:pcp0:tp0:model.layers.0.workspace"] = "0" * 64
    compare(0, plain, more, says="unexpected     1 parameters")
    # A trusted start.
    run(0, "check", plain, "--live-answer", answer_file(more), "--learn", at("learned.json"), says="unexpected")
    compare(0, plain, more, "--against", at("learned.json"), says="as learned     1 parameters")
    more["checksums"]["dp0:pp0:pcp0:tp0:model.layers.0.workspace"] = "1" * 64
    compare(1, plain, more, "--against", at("learned.json"), says="workspace: differs: not what the trusted start had")
    run(2, "check", plain, "--live-answer", answer_file(good), "--learn", at("learned.json"))
    # Experts that are dealt out: to two ranks of tensor parallelism, or of data parallelism.
    for tp, dp in ((2, 1), (1, 2), (2, 2)):
        dealt = vllm([parameters(model, config, r, tp, dp, tp * dp) for r in range(tp * dp)], tp)
        compare(0, plain, dealt, "--gpu", "h100", says=[f"data {dp}, expert {tp * dp}", "as stored"])
        compare(1, plain, dealt, "--gpu", "h100", "--live-ep", "1", says="w13_weight: differs")
    compare(0, plain, vllm([parameters(model, config, r, 1, 2) for r in range(2)], 1), says="data 2, expert 1")
    compare(2, plain, good, "--live-ep", "3", says="to all 2 ranks of a stage, or to none")
    return two, good


def try_schemes(plain, fp8, config):
    for word in ("int8", "fp8-channel"):
        folder = at(word)
        run(0, "convert", plain, folder, "--to", word, "--for", "vllm", "--progress", "never", "--quiet", "--allow",
            "engine-refuses=*")
        stored = [parameters(tensors_of(folder), config, t, 2) for t in range(2)]
        turned = [{name: array.T if array.dtype.itemsize == 1 and array.ndim == 2 else array for name, array in made.items()}
                  for made in stored]
        compare(0, folder, vllm(turned, 2), "--gpu", "h100", says=["transposed", "as stored"])
        compare(1, folder, vllm(stored, 2), "--gpu", "h100", says="o_proj.weight: differs: other bytes")
    model = tensors_of(fp8)
    ranks = [parameters(model, config, r, 1, 2, 2) for r in range(2)]
    compare(0, fp8, vllm(ranks, 1), "--gpu", "h100", says=["expert 2", "as stored"])
    # DeepGEMM: codes under scales that are powers of two, and these; on Blackwell their exponents, a row for each of codes.
    encoded, packed = [], []
    for made in ranks:
        encoded.append(dict(made))
        packed.append(dict(made))
        for name, scale in made.items():
            codes = name.replace("_scale_inv", "")
            if name.endswith("weight_scale_inv") and scale.ndim == 2:
                encoded[-1][codes], encoded[-1][name] = powers_of_two(made[codes], scale)
                packed[-1][codes] = encoded[-1][codes]
                exponents = (np.frexp(encoded[-1][name])[1] + 126).astype(np.uint8)
                exponents = np.pad(exponents, ((0, 0), (0, -exponents.shape[1] % 4)))
                packed[-1][name] = np.repeat(exponents, 128, axis=0)[:len(made[codes])]
    compare(0, fp8, vllm(encoded, 1), "--gpu", "h100", says="scales made powers of two\n")
    compare(0, fp8, vllm(packed, 1), "--gpu", "b200", says=["scales made powers of two, packed"])
    # Where others show that DeepGEMM did it, one that fits no form differs; else it may be packed in some other way.
    o_proj = "model.layers.0.self_attn.o_proj.weight"

    def other_code(array):
        array.reshape(-1)[5] ^= 1
        return array
    compare(1, fp8, vllm(changed(encoded, o_proj, other_code), 1), "--gpu", "h100", says=f"{o_proj}: differs")
    strange = [{name: array + 1 if name.endswith("_scale_inv") and array.ndim == 2 else array for name, array in made.items()}
               for made in encoded]
    compare(0, fp8, vllm(strange, 1), "--gpu", "h100", says=["not comparable", "DeepGEMM"])
    sums = [{name: to_bf16(CODES[made[name]] * spread(made[name + "_scale_inv"], made[name]))
             if name + "_scale_inv" in made else array for name, array in made.items() if not name.endswith("_scale_inv")}
            for made in [parameters(model, config, 0, 1)]]
    compare(0, fp8, sglang(sums, 1), "--gpu", "h100", says=["SGLang", "decoded to BF16", "1 parameters of drafts"])
    compare(1, fp8, sglang(changed(sums, "model.layers.0.mlp.down_proj.weight", lambda array: array ^ 1), 1), "--gpu", "h100",
            says="model.layers.0.mlp.down_proj.weight: differs")


def try_layouts(plain, good, two):
    """Rank files of an engine as the directory, and stages of a pipeline."""
    run(0, "convert", plain, at("ranks"), "--layout", "vllm-sharded", "--tp", "2", "--mtp", "drop", "--progress", "never", "--quiet")
    compare(0, at("ranks"), good, says=["tensor 2", "as stored"])
    stages = {}
    for t, made in enumerate(two):
        for name, array in made.items():
            stage = 0 if name.startswith(("model.embed_tokens.", "model.layers.0.")) else 1
            stages[f"dp0:pp{stage}:pcp0:tp{t}:{name}"] = sha(array)
    compare(0, plain, {"checksums": stages}, says=["tensor 2, pipeline 2", "as stored"])
    of_other = {key.replace("pp1", "pp0") if "layers.1.input_layernorm" in key else key: value for key, value in stages.items()}
    compare(1, plain, {"checksums": of_other}, says=["pp1:tp0: model.layers.1.input_layernorm.weight: missing", "unexpected     2"])


def try_recorded(folders, config):
    """Compares files with answers that the engines' own modules gave (tests/golden/PROVENANCE.md)."""
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "live")
    others_of_it = ("made of kv_b_proj", "a scale of the cache")
    facts = ("told with its weight", *others_of_it)
    for name in sorted(os.listdir(golden)):
        _, form, tp = name.removesuffix(".json").split("-")
        with open(os.path.join(golden, name)) as file:
            answer = json.load(file)
        rows = json.loads(compare(0, folders[form], answer, "--gpu", "h200", "--json"))["live"]["parameters"]
        others = [row for row in rows if row["state"] != "equal" and row["fact"] not in facts]
        expect(not others, f"{name}: {others[:3]}")
        if form == "tensor":
            made = {row["fact"] for row in rows if row["state"] == "equal"}
            expect({"as stored", "transposed", "the largest", "the largest of each expert", "under the largest scale"} <= made,
                   f"{name}: {made}")
            continue
        n, n_ranks = len([row for row in rows if row["fact"] not in others_of_it]), int(tp.removeprefix("tp"))
        model = tensors_of(folders[form])
        wanted = sum(len(parameters(model, config, t, n_ranks)) for t in range(n_ranks))
        expect(n == wanted and n_ranks * 20 < n, f"{name}: {n} parameters, not {wanted}")


def try_ledger(fp8):
    """The ledger of SGLang's presharded weights, against changed files and as another text."""
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "live", "sglang_ledger-fp8-tp1.json")
    with open(golden) as file:
        ledger = json.load(file)
    compare(0, fp8, ledger, "--gpu", "h200", says=["SGLang", "expert 1", "as stored", "a scale of the cache"])
    experts, moved = "model.layers.1.mlp.experts", at("fp8-moved")
    shutil.copytree(fp8, moved)
    [name] = [name for name in os.listdir(fp8) if name.endswith(".safetensors")]
    with open(os.path.join(fp8, name), "rb") as file:
        data = bytearray(file.read())
    end = 8 + struct.unpack("<Q", data[:8])[0]

    def compare_moved(header, weights, named):
        with open(os.path.join(moved, name), "wb") as file:
            file.write(data[:8] + header + weights)
        rows = json.loads(compare(1, moved, ledger, "--gpu", "h200", "--json"))["live"]["parameters"]
        differing = {row["name"] for row in rows if row["state"] == "differs"}
        expect(differing == named, f"{differing} differ, not {named}")
    key, flipped = "model.layers.0.self_attn.o_proj.weight", bytearray(data[end:])
    flipped[json.loads(data[8:end])[key]["data_offsets"][0] + 9] ^= 4
    compare_moved(data[8:end], flipped, {key})
    header = data[8:end].replace(b"s.1.mlp.experts.1.", b"?").replace(b"s.1.mlp.experts.2.", b"s.1.mlp.experts.1.")
    parts = [f"{part}_weight{scale}" for part in ("w13", "w2") for scale in ("", "_scale_inv")]
    compare_moved(header.replace(b"?", b"s.1.mlp.experts.2."), data[end:], {f"{experts}.{part}" for part in parts})

    def spoiled(says, change, status=2):
        other = copy.deepcopy(ledger)
        change(other)
        compare(status, fp8, other, says=says)
    reads = ledger["rank_to_reads"]["0"]
    spoiled("'version' is not known", lambda of: of.update(version=2))
    spoiled("'world_size' is not that of the ranks", lambda of: of.update(world_size=2))
    spoiled("redundant experts", lambda of: of["shard_config"].update(ep_num_redundant_experts=8))
    spoiled("several groups for experts", lambda of: of["shard_config"].update(moe_dp_size=2))
    spoiled("has no list of a rank at '1'", lambda of: of["rank_to_reads"].update({"1": []}))
    spoiled("tells of no parameter", lambda of: of.update(rank_to_reads={}))
    spoiled("is not that of the digests of its rank", lambda of: of["rank_to_reads"]["0"].pop())
    spoiled("twice", lambda of: of["rank_to_reads"]["0"].append(reads[0]))
    spoiled("is not 32 lower-case", lambda of: of["rank_to_reads"]["0"][0].update(stored_key=reads[0]["stored_key"].upper()))
    spoiled("rank_checksums", lambda of: of.pop("rank_checksums"))
    run(0, "check", fp8, "--live-answer", golden, "--learn", at("ledger.json"))
    run(0, "check", fp8, "--live-answer", golden, "--against", at("ledger.json"), says="as learned")
    run(2, "check", fp8, "--live-answer", golden, "--against", at("learned.json"), says="was another engine's, or a ledger's")


def try_answers(plain, good, two):
    """Answers that are none."""
    def text(answer, says, status=2):
        with open(at("answer.json"), "w") as file:
            file.write(answer)
        run(status, "check", plain, "--live-answer", at("answer.json"), says=says)
    key = "dp0:pp0:pcp0:tp0:model.norm.weight"
    for answer, says in (
            ("", "answer.json"), ("{}", "no answer of vLLM's or SGLang's"), ("[]", "tells of no parameter"),
            ('{"checksums": {}}', "tells of no parameter"), ('{"checksums": 3}', "is no object"),
            (json.dumps({"checksums": {key: "0" * 63}}), "is not 64 lower-case"),
            (json.dumps({"checksums": {key: "A" * 64}}), "is not 64 lower-case"),
            (json.dumps({"checksums": {key: 7}}), "is not 64 lower-case"),
            (json.dumps({"checksums": {"dp0:tp0:x": "0" * 64}}), "is no key of vLLM"),
            (json.dumps({"checksums": {key.replace("pcp0", "pcp1"): "0" * 64}}), "context parallelism"),
            (json.dumps({"checksums": {key.replace("tp0", "tp99999999999"): "0" * 64}}), "is no key of vLLM"),
            ('{"checksums": {"%s": "%s", "%s": "%s"}}' % (key, "0" * 64, key, "1" * 64), "occurs twice"),
            (json.dumps({"success": False, "message": "NotImplementedError\x1b[2J"}), "SGLang refuses: NotImplementedError\\x1b[2J"),
            (json.dumps({"detail": "Duplicate weight checksum keys"}), "Duplicate weight checksum keys"),
            (json.dumps(good)[:2000], "answer.json")):
        text(answer, says)
    of_sglang = sglang([{name: array for name, array in two[0].items() if "norm" in name}], 1)
    of_sglang["ranks"][0]["checksums"]["model.norm.weight"] = "0" * 16
    text(json.dumps(of_sglang), "'per_gpu_checksum' is not that of the digests")
    of_sglang["ranks"][0]["parallelism_info"][0]["pp_rank"] = 2 ** 32 - 1
    text(json.dumps(of_sglang), "ranks that cannot be")


def try_http(plain, good):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    body = json.dumps(good).encode()
    serve(body=body)
    run(0, "check", plain, "--live", url, says="as stored")
    run(0, "check", plain, "--live", url + "/weight_checker", says="as stored")
    document = json.loads(run(0, "check", plain, "--live", url + "/", "--json"))
    expect(document["passed"] and document["live"]["tp"] == 2, "the document of a live check")
    serve(body=body, path_of="/weights_checker")
    run(0, "check", plain, "--live", url, says="as stored")
    os.environ["http_proxy"] = "http://127.0.0.1:1"  # nobody is there, and nobody is asked
    run(0, "check", plain, "--live", url, says="as stored")
    del os.environ["http_proxy"]
    serve(body=body, token="s3cret-word")
    run(2, "check", plain, "--live", url, says=["HTTP status 401: Unauthorized", "INGOT_LIVE_TOKEN"])
    expect("s3cret" not in run(0, "check", plain, "--live", url, token="s3cret-word"), "a token is printed")
    expect("s3cret" not in run(2, "check", plain, "--live", url, token="s3cret-wrong"), "a token is printed")
    run(2, "check", plain, "--live", url, token="two\nlines", says="has a control character")
    for status, text, says in ((422, b'{"detail": "not one of checksum"}', "422: not one of"), (500, b"oh", "HTTP status 500"),
                               (404, b"{}", "VLLM_SERVER_DEV_MODE=1"), (200, b"<html>", "is not valid JSON"),
                               (200, b'{"success": false, "message": "busy"}', "SGLang refuses: busy")):
        serve(status=status, body=text)
        run(2, "check", plain, "--live", url, says=says)
    serve(status=307, headers_out={"Location": url + "/reset"})
    run(2, "check", plain, "--live", url, says=["HTTP status 307", "redirects are not followed"])
    serve(body=body[:1000], headers_out={"Content-Length": str(len(body))})
    run(2, "check", plain, "--live", url, "--live-timeout", "2", says=url)
    serve(body=body, delay=3)
    run(2, "check", plain, "--live", url, "--live-timeout", "1", says=url)
    serve(body=b" " * (257 << 20))
    run(2, "check", plain, "--live", url, says="answers with more than 268435456 bytes")
    for address, says in (("ftp://127.0.0.1", "does not begin with http"), ("http://me@127.0.0.1", "has a name or password"),
                          ("http://192.0.2.1:8000", "plain HTTP to another host"), ("http://localhost.example", "plain HTTP"),
                          ("http://127.0.0.1.example/", "plain HTTP"), ("http://127.0.0.1/?action=reset", "has a query"),
                          ("http:// 127.0.0.1", "has a blank"), ("http://", "names no host")):
        run(2, "check", plain, "--live", address, says=says)
    run(2, "check", plain, "--live", "http://192.0.2.1:9", "--allow-http", token="x", says="a token is not sent")
    run(2, "check", plain, "--live", "http://127.0.0.1:1", says="127.0.0.1")
    run(2, "check", plain, "--live", url, "--live-answer", "x", says="excludes")
    run(2, "check", plain, "--learn", "x", says="--live")
    server.shutdown()
    expect(not Fake.bad, f"other requests than for checksums: {Fake.bad}")


try:
    run(0, "synth", at("fp8"), "--family", "deepseek_v3", "--like", "tiny")
    run(0, "convert", at("fp8"), at("plain"), "--to", "bf16", "--progress", "never", "--quiet")
    config = json.load(open(at("plain", "config.json")))
    expect(sum_of_words(b"abc") == "d8af575884d43b13" and sum_of_words(bytes(32768)) == "d08a74f374a53cfa", "the sum of words")
    two, good = try_vllm(at("plain"), config)
    try_schemes(at("plain"), at("fp8"), config)
    try_layouts(at("plain"), good, two)
    run(0, "convert", at("plain"), at("int8-amax"), "--to", "int8", "--search", "amax", "--rule", "role:kv-b-proj=bf16", "--progress",
        "never", "--quiet", "--allow", "engine-refuses=*")
    run(0, "convert", at("plain"), at("tensor"), "--to", "fp8-tensor", "--activations", "static", "--input-scale", "1",
        "--progress", "never", "--quiet", "--allow", "engine-refuses=*")
    scales_apart(at("tensor"))
    try_recorded({"fp8": at("fp8"), "plain": at("plain"), "int8": at("int8-amax"), "tensor": at("tensor")}, config)
    try_ledger(at("fp8"))
    try_answers(at("plain"), good, two)
    if "libcurl, which is not usable" in run(2, "check", at("plain"), "--live", "http://127.0.0.1:1"):
        print("no libcurl here: nothing is asked over HTTP")
    else:
        try_http(at("plain"), good)
finally:
    shutil.rmtree(work)
print("ok")
