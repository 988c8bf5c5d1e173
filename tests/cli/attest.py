#!/usr/bin/env python3
"""Statements about outputs, and outputs made again from their source.

    attest.py INGOT EXAMPLE GOLDEN [all]

Every kind of conversion is derived again from its manifest. Of one output, weights, scales, JSON, recipe and statement are
changed in many places, one at a time: each change is refused, by `attest --verify` always, by `rederive` where it is in
what a conversion derives. With `all` 300 changes instead of 30, and samples of 256 x 58 experts."""
import base64
import json
import os
import pty
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios

ingot, example, golden = sys.argv[1:4]
is_all = sys.argv[4:] == ["all"]
signers = os.path.join(golden, "oms/signers")
work = tempfile.mkdtemp(prefix="ingot-attest-")


def at(*names):
    return os.path.join(work, *names)


def run(status, *words, says=(), **options):
    done = subprocess.run([ingot, *words], capture_output=True, stdin=subprocess.DEVNULL, **options)
    text = (done.stdout + done.stderr).decode()
    if done.returncode != status or not all(word in text for word in ([says] if isinstance(says, str) else says)):
        sys.exit(f"FAILED: ingot {' '.join(words)}: exit code {done.returncode}, expected {status} and {says!r}:\n{text[:2000]}")
    return text


def convert(name, *options, source=example):
    run(0, "convert", source, at(name), *options, "--progress", "never", "--quiet")
    return at(name)


def key_of(name):
    """A copy that only its owner can read."""
    path = at(name)
    shutil.copy(os.path.join(signers, name), path)
    os.chmod(path, 0o600)
    return path


def header_of(path):
    with open(path, "rb") as file:
        n = struct.unpack("<Q", file.read(8))[0]
        return 8 + n, {name: row for name, row in json.loads(file.read(n)).items() if name != "__metadata__"}


def flip(path, place, bit=0):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def expect(holds, what):
    if not holds:
        sys.exit(f"FAILED: {what}")


def write_statistics(path):
    """Mean squares for the layers of the example, and ranges."""
    index = json.load(open(os.path.join(example, "model.safetensors.index.json")))["weight_map"]
    rows = {}
    for file in sorted(set(index.values())):
        rows.update(header_of(os.path.join(example, file))[1])
    header, data = {}, b""
    for name, row in sorted(rows.items()):
        if name.endswith("_proj.weight") and len(row["shape"]) == 2:
            values = struct.pack(f"<{row['shape'][1]}f", *(1 + i % 7 for i in range(row["shape"][1])))
            header[name.replace(".weight", ".input_mean_square")] = {
                "dtype": "F32", "shape": [row["shape"][1]], "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def every_conversion():
    """Each kind of output is equal when it is made again, every tensor."""
    recipe = at("recipe.yaml")
    with open(recipe, "w") as file:
        file.write("rules:\n  - {match: 'role:experts', scheme: nvfp4}\n  - {match: 'layers:0', scheme: keep}\nto: fp8-channel\n")
    kinds = [("--to bf16", 1), ("--to int8 --for vllm-ascend", 1), ("--to fp8-channel --for vllm", 0),
             ("--to nvfp4 --dialect modelopt --activations static --input-scale 0.1", 1), ("--to mxfp4", 0),
             ("--to int4 --group-size row --zero-points", 1), ("--max-shard-size 2MB", 1), ("--files 4 --order name", 1),
             ("--align 4096", 0), (f"--recipe {recipe} --rule *layers.1.*experts*=bf16", 1),
             ("--to nvfp4 --tp 2 --ep 4 --tp-fit bf16", 1), ("--tp 2 --ep 2 --tp-fit retile --links no", 0),
             ("--to bf16 --layout deepseek-mp --mp 2 --mtp drop", 1), ("--to bf16 --layout vllm-sharded --tp 2", 0),
             ("--to bf16 --experts stacked", 0), ("--to bf16 --layers 0", 0), ("--to nvfp4 --quantize-attention --search 4over6", 0),
             ("--to fp8-channel --via bf16", 0)]
    for i, (options, is_quick) in enumerate(kinds):
        if is_quick or is_all:
            out = convert(f"kind-{i}", *options.split())
            run(0, "rederive", out, "--source", example, "--all", "--progress", "never", says="misses    nothing")
            run(0, "rederive", out, "--source", example, "--sample", "5", "--seed", str(i), says=["B: equal", "side files: equal", "misses    1 altered"])
            shutil.rmtree(out)


def files_of_options(key):
    """A conversion with a file is made again only with it."""
    statistics = at("statistics.safetensors")
    write_statistics(statistics)
    out = convert("weighted", "--to", "nvfp4", "--importance", statistics)
    run(2, "rederive", out, "--source", example, says="give --with importance=PATH")
    run(2, "rederive", out, "--source", example, "--with", "importance", says="is not OPTION=PATH")
    given = ("--source", example, "--with", f"importance={statistics}")
    run(0, "rederive", out, *given, says=["B: equal", "side files: equal"])
    run(2, "rederive", out, *given, "--with", "kv-scales=x", says="made without this option")
    run(2, "attest", out, "--key", key, "--source", example, says="give --with importance=PATH")
    run(0, "attest", out, "--key", key, *given)
    run(0, "rederive", out, *given, "--key", os.path.join(signers, "ed25519.pub.pem"), says=["B: equal", "side files: equal"])
    changed = at("changed.safetensors")
    shutil.copy(statistics, changed)
    flip(changed, os.path.getsize(changed) - 3, 5)
    run(2, "rederive", out, "--source", example, "--with", f"importance={changed}", says="says of --importance")
    os.remove(os.path.join(out, "ingot.intoto.json"))
    run(2, "rederive", out, "--source", example, "--with", f"importance={changed}", says="its recipe is not the one")


def write_tensors(path, tensors):
    """A safetensors file of (dtype, shape, bytes) by name."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def derived(out, source, key, public, **inputs):
    """An output that is equal when it is made again, from its manifest and from a statement; and one that was changed is not."""
    given = ["--source", source]
    for name, path in inputs.items():
        given += ["--with", f"{name}={path}"]
    equal = ["misses    nothing", "side files: equal"]
    run(0, "rederive", out, *given, "--all", "--progress", "never", says=equal)
    run(0, "attest", out, "--key", key, *given, "--progress", "never")
    run(0, "attest", "--verify", out, "--key", public, "--source", source)
    run(0, "rederive", out, *given, "--all", "--key", public, "--progress", "never", says=equal)
    name = sorted(name for name in os.listdir(out) if name.endswith(".safetensors"))[0]
    path = os.path.join(out, name)
    # A hard link would change the source too.
    shutil.copy(path, at("own"))
    os.replace(at("own"), path)
    flip(path, os.path.getsize(path) - 3)
    run(1, "rederive", out, *given, "--all", says=f"{name}: tensor")
    flip(path, os.path.getsize(path) - 3)


def without_records(folder):
    """Makes an output look like one of another tool."""
    for name in ["ingot.json", "ingot.tensors.jsonl.zst"]:
        os.remove(os.path.join(folder, name))
    return folder


def pruned(key, public):
    """By a statement, which has the lists; tests of prune have the manifests."""
    few, kept = at("few"), at("kept.json")
    run(0, "synth", few, "--family", "qwen3_moe", "--like", "tiny", "--layers", "1", "--experts", "9", "--hidden", "128",
        "--moe-intermediate", "128", "--vocab", "64", "--heads", "2")
    with open(kept, "w") as file:
        file.write('{"0": [0, 1, 2, 4, 5, 6, 7, 8]}')
    run(0, "prune", few, at("once"), "--keep-map", kept, "--no-measure", "--progress", "never")
    derived(at("once"), few, key, public)
    # A pruned output is converted.
    cast = convert("cast", "--to", "fp8-channel", source=at("once"))
    derived(cast, at("once"), key, public)


def repaired(key, public):
    broken = without_records(convert("broken", "--to", "fp8-channel"))
    path = os.path.join(broken, "config.json")
    config = json.load(open(path))
    config["quantization_config"]["ignore"] = ["lm_head"]
    with open(path, "w") as file:
        json.dump(config, file, indent=2)
    for name, options in [("mended", []), ("written", ["--links", "no"])]:
        run(0, "repair", broken, at(name), *options, "--progress", "never")
    derived(at("mended"), broken, key, public)
    run(0, "rederive", at("written"), "--source", broken, "--all", says="side files: equal")
    # The same values under another config are another source.
    os.remove(os.path.join(at("mended"), "ingot.intoto.json"))
    config["quantization_config"]["ignore"] = ["lm_head", "model.nothing"]
    with open(path, "w") as file:
        json.dump(config, file, indent=2)
    run(2, "attest", at("mended"), "--key", key, "--source", broken, says="is not the source that")


def composed(key, public):
    vendor = without_records(convert("vendor", "--to", "nvfp4", "--dialect", "modelopt", "--activations", "weight-only"))
    own = without_records(convert("own-build", "--to", "fp8-channel"))
    norm = "model.norm.weight"
    os.mkdir(at("norms"))
    rows = header_of(os.path.join(vendor, sorted(name for name in os.listdir(vendor) if name.endswith(".safetensors"))[-1]))[1]
    shape = next(row["shape"] for row in list(rows.values()) + [{"shape": [256]}] if len(row["shape"]) == 1 and row["shape"][0] == 256)
    write_tensors(at("norms/model.safetensors"), {norm: ("BF16", shape, b"\x80\x3f" * shape[0])})
    with open(at("both.yaml"), "w") as file:
        file.write(f"base: {vendor}\nsources: {{own: {own}}}\noverlays: {{norms: {at('norms')}}}\n"
                   "rules:\n- {match: 'role:attention', from: own}\n")
    run(0, "compose", at("both.yaml"), at("both"), "--progress", "never")
    derived(at("both"), vendor, key, public, own=own, norms=at("norms"))
    run(2, "rederive", at("both"), "--source", vendor, "--with", f"own={own}", says="give --with norms=PATH")
    run(2, "rederive", at("both"), "--source", vendor, "--with", f"own={vendor}", "--with", f"norms={at('norms')}",
        says="is not what")
    os.remove(os.path.join(at("both"), "ingot.intoto.json"))
    run(2, "rederive", at("both"), "--source", own, "--with", f"own={vendor}", "--with", f"norms={at('norms')}")
    with open(at("edits.yaml"), "w") as file:
        file.write(f"base: {vendor}\nedits: {at('norms')}\n")
    run(0, "compose", at("edits.yaml"), at("edited"), "--progress", "never")
    derived(at("edited"), vendor, key, public, edits=at("norms"))


def adapted(key, public):
    """With an adapter; and with tensors that were taken over from an earlier output."""
    adapter = at("adapter")
    os.mkdir(adapter)
    with open(os.path.join(adapter, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["o_proj"]}, file)
    prefix = "base_model.model.model.layers.1.self_attn.o_proj.lora_"
    halves = [struct.pack("<512f", *((i * 37 % 101 - 50) / 100 for i in range(512))), struct.pack("<512f", *((i % 7 - 3) / 50 for i in range(512)))]
    write_tensors(os.path.join(adapter, "adapter_model.safetensors"),
                  {prefix + "A.weight": ("F32", [2, 256], halves[0]), prefix + "B.weight": ("F32", [256, 2], halves[1])})
    out = convert("adapted", "--to", "nvfp4", "--lora", adapter, "--lora-scale", "0.5", "--keep-touched", "fp8")
    run(2, "rederive", out, "--source", example, says="give --with lora=PATH")
    derived(out, example, key, public, lora=adapter)
    flip(os.path.join(adapter, "adapter_model.safetensors"), os.path.getsize(os.path.join(adapter, "adapter_model.safetensors")) - 2)
    run(2, "rederive", out, "--source", example, "--with", f"lora={adapter}", says="is not what")
    changed = at("newer")
    shutil.copytree(example, changed)
    flip(os.path.join(changed, "model-00001-of-00002.safetensors"), header_of(os.path.join(changed, "model-00001-of-00002.safetensors"))[0] + 1000)
    before = convert("before", "--to", "int8")
    after = convert("after", "--to", "int8", "--base", before, source=changed)
    derived(after, changed, key, public)


def asked(words, typed, status, says):
    """Runs ingot at a terminal of its own, at which a passphrase is typed; a number is a signal in its place."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(ingot, [ingot, *words])
    shown = b""
    while b"passphrase of " not in shown or b": " not in shown[shown.index(b"passphrase of "):]:
        shown += os.read(terminal, 1000)
    while termios.tcgetattr(terminal)[3] & termios.ECHO:
        pass
    if isinstance(typed, bytes):
        os.write(terminal, typed)
    else:
        os.kill(process, typed)
    try:
        while more := os.read(terminal, 1000):
            shown += more
    except OSError:
        pass
    ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(terminal)
    expect(ended == status and says in shown and b"sesame" not in shown, f"a passphrase at a terminal: {ended}, {shown}")


def keys(out):
    """Keys that may sign, and passphrases."""
    public = os.path.join(signers, "p256.pub.pem")
    encrypted = key_of("p256-encrypted.pem")
    sign = ["attest", out, "--key", encrypted, "--form", "model-signing"]
    run(2, *sign, says="is encrypted", start_new_session=True)
    asked(sign, b"open sesame\n", 0, b"signed with ECDSA P-256")
    run(0, "attest", "--verify", out, "--key", public, "--form", "model-signing", says="as they were signed")
    os.remove(os.path.join(out, "model.sig"))
    asked(sign, b"open the sesame\n", 2, b"the passphrase does not open it")
    asked(sign, signal.SIGINT, -signal.SIGINT, b"")
    expect(not os.path.exists(os.path.join(out, "model.sig")), "no key, no signature")
    run(2, *sign, "--passphrase-fd", "77", says="descriptor 77")
    run(2, *sign, "--passphrase-fd", "4294967295", says="--passphrase-fd")
    # A wrong one by descriptor, and none.
    for text in (b"sesame\n", b""):
        reading, writing = os.pipe()
        os.write(writing, text)
        os.close(writing)
        run(2, *sign, "--passphrase-fd", str(reading), says="the passphrase does not open it", pass_fds=[reading])
        os.close(reading)
    reading, writing = os.pipe()
    os.write(writing, b"open sesame\nmore")
    done = subprocess.run([ingot, "attest", out, "--key", encrypted, "--form", "model-signing", "--passphrase-fd", str(reading)],
                          pass_fds=[reading], capture_output=True)
    expect(done.returncode == 0 and b"sesame" not in done.stdout + done.stderr, f"a passphrase by descriptor: {done.stderr}")
    run(0, "attest", "--verify", out, "--key", public, "--form", "model-signing", says="as they were signed")
    run(1, "attest", "--verify", out, "--key", os.path.join(signers, "p384.pub.pem"), "--form", "model-signing",
        says="was signed by another key")
    run(2, "attest", out, "--key", key_of("ed25519.pem"), "--form", "model-signing", says="does not verify")
    run(2, "attest", out, "--key", key_of("p384.pem"), says="give --source DIR")
    os.chmod(at("p384.pem"), 0o640)
    run(2, "attest", out, "--key", at("p384.pem"), "--form", "model-signing", says="others can read or write (mode 0640")
    run(2, "attest", "--verify", out, "--key", at("ed25519.pem"), says="it is a private one")
    os.remove(os.path.join(out, "model.sig"))


def others():
    """Bundles of other programs."""
    oms = os.path.join(golden, "oms")
    for bundle, key, status, words in [
            ("p256.sig", "p256", 0, "10 files"), ("p384.sig", "p384", 0, ""), ("altered/no-hint.sig", "p256", 0, ""),
            ("p256.sig", "other", 1, "another key"), ("altered/bad-payload.sig", "p256", 1, "no signature by this key"),
            ("altered/resigned-wrong-root.sig", "p256", 1, "root digest"),
            ("altered/resigned-other-predicate-type.sig", "p256", 2, "no statement about a conversion"),
            ("dsse/ed25519.json", "ed25519", 2, "no statement about a conversion"),
            ("p256-shards.sig", "p256", 2, "only files with sha256")]:
        run(status, "attest", "--verify", os.path.join(oms, "model"), "--key", os.path.join(oms, "keys", key + ".pub.pem"),
            "--bundle", os.path.join(oms, bundle), says=words)


def own_file_of_a_rank(ranks):
    """A file that all ranks load is looked at in each rank's folder: changed in the last one, and missing there."""
    again = ("rederive", ranks, "--source", example, "--all", "--bundle", at("ranks.json"))
    for ending in (".safetensors", "generation_config.json"):
        folder = os.path.join(ranks, "rank-00001-of-00002")
        name = next(name for name in sorted(os.listdir(folder))
                    if name.endswith(ending) and os.stat(os.path.join(folder, name)).st_nlink > 1)
        path = os.path.join(folder, name)
        os.rename(path, at("linked"))
        run(1, *again, says=f"rank-00001-of-00002/{name}: is missing")
        shutil.copy(at("linked"), path)
        run(0, *again)
        flip(path, os.path.getsize(path) - 3)
        says = "tensor" if ending == ".safetensors" else "has other contents"
        run(1, *again, says=f"rank-00001-of-00002/{name}: {says}")
        os.replace(at("linked"), path)


def statements(out, key, public):
    """The statement, and what it says."""
    verify = ("attest", "--verify", out, "--key", public)
    run(2, *verify, says="has neither ingot.intoto.json nor model.sig")
    run(0, "attest", out, "--key", key, "--source", example, "--source-uri", "hf://org/name@0123", says="signed with Ed25519")
    run(0, *verify, "--source", example, says="as they were signed")
    bundle = json.load(open(os.path.join(out, "ingot.intoto.json")))
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    names = {row["name"] for row in statement["subject"]}
    expect(names == set(os.listdir(out)) - {"ingot.intoto.json"}, f"subjects: {names}")
    sources = {row["name"]: row for row in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    expect({"config.json", "model-00001-of-00002.safetensors"} <= sources.keys(), f"sources: {sources.keys()}")
    expect(sources["config.json"]["uri"] == "hf://org/name@0123/config.json", "the address of the source")
    expect("xxh" not in json.dumps(statement).lower(), "a statement rests on SHA-256")
    # A statement names no paths, and is believed with its signature only.
    statement["predicate"]["buildDefinition"]["externalParameters"]["settings"]["importance"] = "/etc/hostname"
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    with open(at("forged.json"), "w") as file:
        json.dump(bundle, file)
    forged = ("rederive", out, "--source", example, "--bundle", at("forged.json"))
    run(2, *forged, says="which names a file")
    run(2, *forged, "--key", public, says="no signature by this key")
    # A second model as the source.
    other = at("other")
    shutil.copytree(example, other)
    flip(os.path.join(other, "model-00001-of-00002.safetensors"), os.path.getsize(
        os.path.join(other, "model-00001-of-00002.safetensors")) - 9)
    run(1, *verify, "--source", other, says="model-00001-of-00002.safetensors: changed")
    run(2, "attest", out, "--key", key, "--source", other, says="is not the source that")
    run(1, "rederive", out, "--source", other, "--all", says="differs in")
    run(2, "rederive", out, "--source", out, says="is the output itself")
    statement_of_out = at("statement-of-out")
    shutil.move(os.path.join(out, "ingot.intoto.json"), statement_of_out)
    run(1, "rederive", out, "--source", other, "--all", says=["differs in", f"{other} is not the source that ingot.json tells of"])
    shutil.move(statement_of_out, os.path.join(out, "ingot.intoto.json"))
    os.makedirs(os.path.join(out, ".ingot-partial"))
    with open(os.path.join(out, ".ingot-partial", "journal.jsonl"), "w") as file:
        file.write("{}\n")
    run(2, "rederive", out, "--source", example, says="is unfinished")
    shutil.rmtree(os.path.join(out, ".ingot-partial"))
    # A folder of ranks, and a statement elsewhere.
    ranks = convert("ranks", "--to", "bf16", "--tp", "2")
    run(0, "attest", ranks, "--key", key, "--source", example, "--bundle", at("ranks.json"))
    run(0, "attest", "--verify", ranks, "--key", public, "--bundle", at("ranks.json"), says="as they were signed")
    run(0, "rederive", ranks, "--source", example, "--bundle", at("ranks.json"), says="is not checked")
    own_file_of_a_rank(ranks)
    run(2, "rederive", os.path.join(ranks, "rank-00001-of-00002"), "--source", example, says="is the folder of one rank")
    os.symlink("ingot.json", os.path.join(ranks, "link"))
    run(2, "attest", "--verify", ranks, "--key", public, "--bundle", at("ranks.json"), says="is a symbolic link")
    shutil.rmtree(other)
    shutil.rmtree(ranks)


def hostile(out, key, public):
    """Statements that are none, or that say what none says: refused by name, and never followed."""
    path = os.path.join(out, "ingot.intoto.json")
    text = open(path, "rb").read()
    for n in range(0, len(text), len(text) // (60 if is_all else 6)):
        with open(at("cut.json"), "wb") as file:
            file.write(text[:n])
        run(2, "attest", "--verify", out, "--key", public, "--bundle", at("cut.json"))
    bundle = json.loads(text)
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    deep = b"[" * 100000 + b"]" * 100000
    texts = [deep, payload.replace(b'"subject"', b'"subject": [], "subject"', 1), payload[:-9], b"", b"\xff\xfe" + payload,
             payload.replace(b'"predicate":', b'"predicate": ' + deep + b', "x":', 1)]

    def changed(change):
        statement = json.loads(payload)
        change(statement, statement["predicate"]["buildDefinition"]["externalParameters"]["settings"])
        return json.dumps(statement).encode()

    for settings in [{"redundant-experts": "x"}, {"expert-map": 3}, {"family": 7}, {"to": ["int8"]}, {"rule": {"a": 1}}, {"repair": 1},
                     {"repair": True}, {"compose": 3}, {"compose": {"givers": "x", "rules": 1}}, {"kept-experts": {"a": [1]}},
                     {"kept-experts": [{"num_experts": -1, "layers": {"0": [1e9]}}]}, {"lora": "/etc"}, {"recipe": "/etc/passwd"},
                     {"kv-scales": "/dev/zero"}, {"family-file": "/etc/passwd"}, {"importance": None}, {"nothing": True},
                     {"max-shard-size": -5}, {"tp": 1e300}, {"layers": "0-99999999999999999999"},
                     {"compose": {"givers": [], "rules": [{"match": "*", "scheme": "keep", "from": "x"}]}}]:
        texts.append(changed(lambda _, own, settings=settings: own.update(settings)))
    texts.append(changed(lambda whole, _: whole["predicate"].update(runDetails=[])))
    texts.append(changed(lambda whole, _: whole["predicate"]["buildDefinition"].update(externalParameters=None)))
    for made in texts[::1 if is_all else 3]:
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(made).decode()
        with open(at("hostile.json"), "w") as file:
            json.dump(bundle, file)
        run(2, "rederive", out, "--source", example, "--bundle", at("hostile.json"), says="error: ")
        run(1, "attest", "--verify", out, "--key", public, "--bundle", at("hostile.json"), says="no signature by this key")
    with open(at("hostile.json"), "wb") as file:
        file.truncate(80 << 20)
    run(2, "attest", "--verify", out, "--key", public, "--bundle", at("hostile.json"))
    # Names of subjects are compared, and never opened.
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(changed(
        lambda whole, _: whole["subject"].append({"name": "../" * 9 + "dev/zero", "digest": {"sha256": "0" * 64}}))).decode()
    with open(at("hostile.json"), "w") as file:
        json.dump(bundle, file)
    run(0, "rederive", out, "--source", example, "--bundle", at("hostile.json"), "--sample", "1")


def folders(out, public):
    """A file that was added, removed, renamed, or is a link; in every place."""
    verify = ("attest", "--verify", out, "--key", public)
    for name in sorted(set(os.listdir(out)) - {"ingot.intoto.json"})[::1 if is_all else 5]:
        path = os.path.join(out, name)
        os.rename(path, path + ".2")
        run(1, *verify, says=[f"{name}: missing", f"{name}.2: not listed"])
        os.symlink(name + ".2", path)
        run(2, *verify, says="is a symbolic link")
        os.remove(path)
        os.rename(path + ".2", path)
    for name in ("modeling_more.py", ".hidden", "extra/config.json"):
        path = os.path.join(out, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("1")
        run(1, *verify, says=f"{name}: not listed")
        os.remove(path)
    os.rmdir(os.path.join(out, "extra"))
    os.mkfifo(os.path.join(out, "pipe"))
    run(2, *verify, says="is no file")
    os.remove(os.path.join(out, "pipe"))
    run(0, *verify)


def killed(out, key, public):
    """A signing that ends at any moment leaves the statement that was there, or its own; what else it leaves goes with the next."""
    path = os.path.join(out, "ingot.intoto.json")
    left = os.path.join(out, ".ingot.intoto.json-0123456789abcdef")
    sign = [ingot, "attest", out, "--key", key, "--source", example]
    with open(left, "w") as file:
        file.write("half a statement")
    run(1, "attest", "--verify", out, "--key", public, says="not listed")
    run(0, *sign[1:])
    expect(not os.path.exists(left), "the leftover of a signing that was killed")
    before = open(path, "rb").read()
    for i in range(60 if is_all else 6):
        process = subprocess.Popen(sign, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(0.001 * i)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        # Ed25519 is no random signature: the same statement has the same.
        expect(open(path, "rb").read() == before, "a statement that is whole")
    run(0, *sign[1:])
    run(0, "attest", "--verify", out, "--key", public, "--source", example)
    expect(not [name for name in os.listdir(out) if name.startswith(".")], "nothing is left")


def other_version(out):
    """A version that is another says so first."""
    path = os.path.join(out, "ingot.json")
    # A statement would be believed instead.
    shutil.move(os.path.join(out, "ingot.intoto.json"), at("away"))
    text = open(path).read()
    with open(path, "w") as file:
        file.write(text.replace('"version": "', '"version": "9.', 1))
    expect(open(path).read() != text, "the manifest has a version")
    printed = run(0, "rederive", out, "--source", example, says="another version may make other bytes")
    expect(printed.count("another version") == 1, "said once")
    with open(path, "w") as file:
        file.write(text)
    shutil.move(at("away"), os.path.join(out, "ingot.intoto.json"))
    run(2, "rederive", example, "--source", example, says="has no ingot.json")


class Mutants:
    """Changes of an output, each undone after it was judged."""

    def __init__(self, out, public, seed):
        self.out, self.public, self.random = out, public, random.Random(seed)
        self.weights = [name for name in sorted(os.listdir(out)) if name.endswith(".safetensors")]
        self.headers = {name: header_of(os.path.join(out, name)) for name in self.weights}

    def judge(self, name, is_derived, change, what):
        path = os.path.join(self.out, name)
        before = open(path, "rb").read()
        change(path)
        expect(open(path, "rb").read() != before, f"{what}: nothing was changed")
        done = subprocess.run([ingot, "attest", "--verify", self.out, "--key", self.public], capture_output=True)
        expect(done.returncode in ((1, 2) if name == "ingot.intoto.json" else (1,)), f"{what}: attest --verify passes it: {done}")
        if is_derived:
            done = subprocess.run([ingot, "rederive", self.out, "--source", example, "--all"], capture_output=True)
            words = what.split("'")[1] if "'" in what else ""
            expect(done.returncode == 1 and words.encode() in done.stdout, f"{what}: rederive passes it, or names another: {done}")
        with open(path, "wb") as file:
            file.write(before)

    def tensor(self, ending):
        file = self.random.choice(self.weights)
        begin, rows = self.headers[file]
        fitting = [name for name in sorted(rows) if name.endswith(ending)]
        if not fitting:
            return self.tensor(ending)
        name = self.random.choice(fitting)
        place = begin + self.random.randrange(*rows[name]["data_offsets"])
        self.judge(file, True, lambda path: flip(path, place, self.random.randrange(8)), f"byte {place} of '{name}'")

    def text(self, name, is_derived):
        place = self.random.randrange(os.path.getsize(os.path.join(self.out, name)) - 1)
        self.judge(name, is_derived, lambda path: flip(path, place, self.random.randrange(5)), f"byte {place} of {name}")

    def statement(self):
        """A letter of the statement or of its signature; the rest of a bundle is not signed."""
        text = open(os.path.join(self.out, "ingot.intoto.json"), "rb").read()
        envelope = json.loads(text)["dsseEnvelope"]
        signed = self.random.choice([envelope["payload"], envelope["payload"], envelope["signatures"][0]["sig"]])
        # The last letters may hold bits that mean nothing.
        place = text.index(signed.encode()) + self.random.randrange(len(signed) - 4)
        self.judge("ingot.intoto.json", False, lambda path: flip(path, place, self.random.randrange(5)),
                   f"byte {place} of ingot.intoto.json")

    def recipe(self):
        """Another recipe, told by the manifest."""
        which = self.random.choice(["scheme", "match", "to", "via", "mtp"])

        def change(path):
            manifest = json.load(open(path))
            recipe = manifest["recipe"]
            rule = self.random.choice(recipe["rules"])
            {"scheme": lambda: rule.update(scheme="bf16" if rule["scheme"] != "bf16" else "keep"),
             "match": lambda: rule.update(match="role:router"),
             "to": lambda: recipe.update(to="fp8-channel"),
             "via": lambda: recipe["choices"].update(via="bf16"),
             "mtp": lambda: recipe.update(mtp="drop")}[which]()
            with open(path, "w") as file:
                json.dump(manifest, file, indent=2)
        path = os.path.join(self.out, "ingot.json")
        before = open(path, "rb").read()
        self.judge("ingot.json", False, change, "recipe of ingot.json")
        # Without a statement that is believed instead, the recipe means another output, or none.
        shutil.move(os.path.join(self.out, "ingot.intoto.json"), at("away"))
        change(path)
        done = subprocess.run([ingot, "rederive", self.out, "--source", example, "--all"], capture_output=True)
        # Values of the example pass through BF16 unchanged, so that this recipe makes the same bytes.
        expect(done.returncode in (1, 2) or which == "via", f"rederive by another recipe ({which}): {done}")
        with open(path, "wb") as file:
            file.write(before)
        shutil.move(at("away"), os.path.join(self.out, "ingot.intoto.json"))

    def all(self, n):
        kinds = [lambda: self.tensor(".weight"), lambda: self.tensor("_scale"), lambda: self.text("config.json", True), self.recipe,
                 self.statement, lambda: self.text(self.random.choice(self.weights), False)]
        for i in range(n):
            kinds[i % len(kinds)]()


def samples():
    """A changed block of one expert of 256 x 58: found by --all, and by samples as often as is stated."""
    source, out = at("many"), at("many-int8")
    run(0, "synth", source, "--family", "deepseek_v3", "--layers", "61", "--dense-layers", "3", "--mtp-layers", "0", "--experts",
        "256", "--hidden", "128", "--moe-intermediate", "128", "--intermediate", "128", "--vocab", "256", "--heads", "1",
        "--shards", "4")
    run(0, "convert", source, out, "--to", "int8", "--progress", "never", "--quiet")
    index = json.load(open(os.path.join(out, "model.safetensors.index.json")))["weight_map"]
    name = "model.layers.37.mlp.experts.201.up_proj.weight"
    begin, rows = header_of(os.path.join(out, index[name]))
    flip(os.path.join(out, index[name]), begin + rows[name]["data_offsets"][0] + 3000)
    run(1, "rederive", out, "--source", source, "--all", says=name)
    drawn, found = 8192, 0
    for seed in range(20):
        text = subprocess.run([ingot, "rederive", out, "--source", source, "--sample", str(drawn), "--seed", str(seed), "--json"],
                              capture_output=True).stdout
        document = json.loads(text)["rederivation"]
        found += bool(document["differing_tensors"])
    share = drawn / document["tensors"]
    expect(abs(document["misses"][0]["probability"] - (1 - share)) < 1e-9, f"misses {document['misses']} of {share}")
    print(f"256 x 58 experts, {document['tensors']} tensors: a changed byte of one is found by --all, and by {found} of 20 samples "
          f"of {drawn} ({20 * share:.1f} expected)")
    # 20 draws: beyond four standard deviations in one of 15,000 runs, and seeds are fixed.
    expect(abs(found - 20 * share) <= 4 * (20 * share * (1 - share)) ** 0.5, f"found by {found} of 20 samples of {share}")


try:
    key, public = key_of("ed25519.pem"), os.path.join(signers, "ed25519.pub.pem")
    every_conversion()
    pruned(key, public)
    repaired(key, public)
    composed(key, public)
    adapted(key, public)
    files_of_options(key)
    others()
    signed = convert("signed", "--to", "int8")
    keys(signed)
    statements(signed, key, public)
    other_version(signed)
    run(0, "attest", "--verify", signed, "--key", public)
    hostile(signed, key, public)
    folders(signed, public)
    killed(signed, key, public)
    Mutants(signed, public, 66).all(300 if is_all else 30)
    run(0, "attest", "--verify", signed, "--key", public, "--source", example)
    run(0, "rederive", signed, "--source", example, "--all", "--key", public)
    if is_all:
        samples()
finally:
    shutil.rmtree(work)
print("ok")
