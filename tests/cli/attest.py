#!/usr/bin/env python3
"""Statements about outputs, and outputs made again from their source.

    attest.py INGOT EXAMPLE GOLDEN [all]

Every kind of conversion is derived again from its manifest. Of one output, weights, scales, JSON, recipe and statement are
changed in many places, one at a time: each change is refused, by `attest --verify` always, by `rederive` where it is in
what a conversion derives. With `all` 300 changes instead of 30, and samples of 256 x 58 experts."""
import base64
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

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


def keys(out):
    """Who may sign, and by what words."""
    public = os.path.join(signers, "p256.pub.pem")
    encrypted = key_of("p256-encrypted.pem")
    run(2, "attest", out, "--key", encrypted, "--form", "model-signing", says="is encrypted", start_new_session=True)
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
    # A folder of ranks, and a statement elsewhere.
    ranks = convert("ranks", "--to", "bf16", "--tp", "2")
    run(0, "attest", ranks, "--key", key, "--source", example, "--bundle", at("ranks.json"))
    run(0, "attest", "--verify", ranks, "--key", public, "--bundle", at("ranks.json"), says="as they were signed")
    run(0, "rederive", ranks, "--source", example, "--bundle", at("ranks.json"), says="is not checked")
    os.symlink("ingot.json", os.path.join(ranks, "link"))
    run(2, "attest", "--verify", ranks, "--key", public, "--bundle", at("ranks.json"), says="is a symbolic link")
    shutil.rmtree(other)
    shutil.rmtree(ranks)


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
                 lambda: self.text("ingot.intoto.json", False), lambda: self.text(self.random.choice(self.weights), False)]
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
    # 20 draws: beyond four standard deviations in one of 15,000 runs, and seeds are fixed.
    expect(abs(found - 20 * share) <= 4 * (20 * share * (1 - share)) ** 0.5, f"found by {found} of 20 samples of {share}")


try:
    key, public = key_of("ed25519.pem"), os.path.join(signers, "ed25519.pub.pem")
    every_conversion()
    files_of_options(key)
    others()
    signed = convert("signed", "--to", "int8")
    keys(signed)
    statements(signed, key, public)
    other_version(signed)
    run(0, "attest", "--verify", signed, "--key", public)
    Mutants(signed, public, 66).all(300 if is_all else 30)
    run(0, "attest", "--verify", signed, "--key", public, "--source", example)
    run(0, "rederive", signed, "--source", example, "--all", "--key", public)
    if is_all:
        samples()
finally:
    shutil.rmtree(work)
print("ok")
