#!/usr/bin/env python3
"""Every command with --json prints one document, of the form in docs/schema/, however it ends.

    json_documents.py INGOT EXAMPLE SCHEMAS

Runs all commands with good and bad outcomes. Standard output has to be one JSON document that its schema accepts, without
a key that the schema does not know, and `error`, `errors` and `passed` have to agree with the exit code. Every key of
the table has to be in some document, wherever the table has it."""
import functools
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import jsonschema

ingot, example, folder = sys.argv[1:4]
stacked = os.path.join(folder, "../../tests/golden/families/qwen3_5_moe")
sys.path.insert(0, folder)
sys.dont_write_bytecode = True
import make  # noqa: E402

failures = []
schemas = make.schemas()
commands = sorted(schemas.keys() - {"generate-line", "document"})
seen = set()
validator_of = functools.cache(lambda name: jsonschema.Draft202012Validator(schemas[name]))


def keys_of(schema, place):
    """The place of every key of a schema, by its name and its type, which documents share with the part that they have."""
    for key, kind in schema.get("properties", {}).items():
        yield (key, id(kind)), f"{place}.{key}"
        yield from keys_of(kind, f"{place}.{key}")
    for kind in [schema[word] for word in ("items", "additionalProperties") if schema.get(word)] + schema.get("anyOf", []):
        yield from keys_of(kind, place)


def note(value, schema, parts):
    """Notes the keys of a schema that a value has."""
    if "$ref" in schema:
        note(value, parts[schema["$ref"].split("/")[-1]], parts)
    for kind in schema.get("anyOf", []):
        note(value, kind, parts)
    if isinstance(value, list):
        for part in value:
            note(part, schema.get("items", {}), parts)
    elif isinstance(value, dict):
        for key in value.keys() & schema.get("properties", {}).keys():
            seen.add((key, id(schema["properties"][key])))
            note(value[key], schema["properties"][key], parts)


def kind_of(value):
    """Equal for values that differ in names (strings with a dot) and in the size of numbers only."""
    if isinstance(value, dict):
        return tuple((key, kind_of(value[key])) for key in sorted(value))
    if isinstance(value, list):
        return frozenset(map(kind_of, value))
    if isinstance(value, str):
        return "." in value or value
    return value if value is None or isinstance(value, bool) else (type(value), value < 0)


def one_of_a_kind(value):
    """The value with one row of each kind in its lists: a schema that takes it takes hundreds of the same."""
    if isinstance(value, dict):
        return {key: one_of_a_kind(part) for key, part in value.items()}
    if isinstance(value, list):
        return list({kind_of(row): one_of_a_kind(row) for row in value}.values())
    return value


def faults_of(document, name):
    document = one_of_a_kind(document)
    note(document, schemas[name], schemas[name]["$defs"])
    return [f"{name}: {'/'.join(map(str, fault.absolute_path))}: {fault.message[:300]}"
            for fault in validator_of(name).iter_errors(document)]


def judge(words, status, code, text):
    """The document, after it was held against its schema and the exit code."""
    def fail(what):
        failures.append(f"ingot {' '.join(words)}: {what}")
    if code != status:
        fail(f"exit code {code} instead of {status}: {text[:500]}")
    try:
        document = json.loads(text)
    except ValueError as fault:
        sys.exit(f"FAILED: ingot {' '.join(words)}: not one document: {fault}: {text[:200]!r}")
    command = document.get("command")
    for fault in faults_of(document, command if command in commands else "document"):
        fail(fault)
    error, errors, passed = document["error"], document["errors"], document.get("passed")
    if document["summary"] != {"errors": len(errors), "warnings": len(document["warnings"])}:
        fail(f"summary {document['summary']} of {len(errors)} errors and {len(document['warnings'])} warnings")
    if error is not None and not errors:
        fail("an error that is not among the errors")
    if code == 0 and (error is not None or passed is False):
        fail(f"exit code 0 with error {error}, passed {passed}")
    if code == 1 and passed is not False:
        fail(f"exit code 1 with passed {passed}")
    if code not in (0, 1) and not errors:
        fail("exit code 2 without an error")
    return document


def run(status, *words):
    done = subprocess.run([ingot, *words, "--json"], capture_output=True, stdin=subprocess.DEVNULL)
    return judge(words, status, done.returncode, done.stdout.decode())


def stopped(number, *words):
    """The document of a command that a signal stops while it works."""
    started = subprocess.Popen([ingot, *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    def catches():
        mask = next(line for line in open(f"/proc/{started.pid}/status") if line.startswith("SigCgt:"))
        return int(mask.split()[1], 16) >> (number - 1) & 1
    while started.poll() is None and not catches():
        time.sleep(0.001)
    started.send_signal(number)
    text = started.communicate()[0].decode()
    document = judge(words, -number, started.returncode, text)
    expect(document.get("error", {}).get("code") == "interrupted", f"no word of the signal: {document.get('error')}")


def expect(holds, what):
    if not holds:
        failures.append(what)


def write_ranges(path, n_layers):
    """Ranges of the latent caches of so many layers, as ingot calibrate writes them."""
    names = [f"model.layers.{layer}.self_attn.{end}" for layer in range(n_layers) for end in ("latent_amax", "rope_key_amax")]
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + struct.pack("<f", 100) * len(names))


def try_all(work):
    def at(name):
        return os.path.join(work, name)
    quiet = ("--progress", "never")
    text, loads = at("text.txt"), at("loads.safetensors")
    open(text, "w").write("There was once a small fox, and his name was Sam. One day he found a kite.")
    absent, broken, unread = at("absent"), at("broken"), at("unread")

    # Words that are not understood, of any command.
    for command in [*commands, "help", "completions", "nonsense"]:
        document = run(2, command, "--bogus")
        expect(document["command"] == command, f"command {document['command']} instead of {command}")
        expect(document["error"]["code"] == "invalid-argument", f"{command} --bogus: {document['error']}")
    run(2)

    # Checkpoints that are not there, or damaged.
    shutil.copytree(example, broken)
    first = sorted(glob.glob(broken + "/*.safetensors"))[0]
    os.truncate(first, os.path.getsize(first) - 1000)
    shutil.copytree(example, unread)
    open(unread + "/config.json", "w").write("{")
    for directory in (absent, broken, unread):
        run(2, "inspect", directory)
        run(2, "check", directory)
        run(2, "convert", directory, at("none"), "--to", "bf16")
        run(2, "convert", directory, at("none"), "--to", "bf16", "--dry-run")
        run(2, "merge", directory, at("none"))
        run(2, "repair", directory, at("none"))
        run(2, "prune", directory, at("none"), "--keep", "0.75", "--statistics", at("none"))
        run(2, "verify", directory)
        run(2, "verify", example, directory, "--levels", "structure")
        run(2, "compare", directory, example)
        run(2, "generate", directory, "--prompt", "x")
        run(2, "calibrate", directory, "--text", text, "--out", at("none"))
        run(2, "balance", directory, "--text", text, "--ep", "2", "--out", at("none"))
    run(2, "join", absent)
    run(2, "verify", "--join", absent)
    run(2, "list", "roles", absent)

    run(0, "inspect", example)
    write_ranges(at("cache.safetensors"), json.load(open(example + "/config.json"))["num_hidden_layers"])
    overlay = ("convert", example, at("overlay"), "--kv-scales", at("cache.safetensors"), "--kv-scales-only")
    run(0, *overlay, "--dry-run")
    run(0, *overlay)
    run(2, *overlay)
    run(0, "inspect", example, "--tensors")
    run(0, "inspect", example, "lm_head.weight")
    run(2, "inspect", example, "no.such.weight")
    run(0, "inspect", example, "--gpu-memory", "80GB", "--to", "bf16", "--tp", "2", "--context", "4k")
    run(0, "inspect", example, "--gpu", "h100")
    run(0, "inspect", example, "--loading")
    expect(len(run(0, "inspect", example, "--gpu", "h100", "--count", "1")["fits"]) == 5, "not five schemes")
    expect(run(0, "inspect", example, "--gpu", "h100", "--count", "2")["fits"][1]["obstacle"], "no obstacle")
    expect("yaml" in run(0, "inspect", example, "--family", "auto")["proposal"], "no proposal")
    expect(run(0, "list", "engines", "--since", "vllm:0.32")["changes"], "list engines --since")
    expect(run(0, "list", "engines", "--since", "sglang")["changes"] == [], "list engines --since the newest")
    for table in sorted(schemas["list"]["properties"].keys() - schemas["document"]["properties"].keys() - {"changes"}):
        expect(run(0, "list", table)[table], f"list {table}")
    run(0, "list", "roles", example)
    run(2, "list", "nonsense")
    run(0, "check", example)
    run(0, "check", example, "--deep")
    run(2, "check", example, "--engine", "nonsense")
    run(0, "synth", at("synth"), "--family", "deepseek_v3", "--like", "tiny")
    run(2, "synth", at("synth"), "--family", "deepseek_v3", "--like", "tiny")
    run(0, "calibrate", example, "--text", text, "--out", loads, *quiet)
    run(2, "calibrate", example, "--text", text, "--out", loads, *quiet)
    open(at("word.txt"), "w").write("fox")
    expect(run(0, "calibrate", example, "--text", at("word.txt"), "--out", at("few"), *quiet)["unvisited"], "a word visits all")
    run(0, "balance", example, "--loads", loads, "--ep", "2", "--out", at("map.json"))
    run(2, "balance", example, "--loads", loads, "--ep", "2", "--out", at("map.json"))

    learned = run(0, "family", "learn", example, "--python", "none")
    expect(learned["proof"] and learned["yaml"] and not learned["questions"], "a family that is not proven")
    asked = run(2, "family", "learn", stacked, "--without", "qwen3_5_moe", "--python", "none")
    expect(asked["questions"][0]["key"] == "gate_up" and asked["proof"] is None, "no question about gates and ups")

    # Versions: a delta, its check, a base that is not its, and both ways into its place.
    run(0, "synth", at("newer"), "--family", "deepseek_v3", "--like", "tiny", "--seed", "1")
    run(0, "delta", "make", at("synth"), at("newer"), "--out", at("stream"))
    run(2, "delta", "check", at("newer"), at("stream"))
    expect(run(0, "delta", "check", at("synth"), at("stream"))["states"], "no states")
    shutil.copytree(at("synth"), at("base"))
    expect(run(0, "delta", "apply", at("base"), at("stream"))["method"] == "exchange", "no exchange")
    expect(run(0, "delta", "apply", at("base"), at("stream"))["method"] == "none", "applied twice")

    # Conversions: plans, results, and outputs that are not published.
    run(0, "convert", example, at("none"), "--to", "nvfp4", "--dry-run", *quiet)
    run(0, "convert", example, at("none"), "--to", "int8", "--tp", "2", "--dry-run", "--part", "0/2")
    refused = run(2, "convert", example, at("none"), "--to", "bf16", "--dry-run", "--assume-disk", "1MB")
    expect(refused["error"]["code"] == "no-space" and refused["files"], "a plan that the disk cannot hold")
    run(0, "convert", example, at("none"), "--to", "int8", "--explain", "lm_head.weight")
    run(0, "convert", example, at("none"), "--to", "int8", "--tp", "2", "--explain", "model.layers.0.mlp.up_proj.weight")
    run(0, "convert", at("synth"), at("none"), "--to", "bf16", "--layout", "vllm-sharded", "--tp", "2", "--mtp", "drop",
        "--explain", "model.layers.0.mlp.up_proj.weight")
    run(0, "convert", example, at("none"), "--to", "nvfp4", "--importance", loads, "--dry-run", *quiet)
    run(0, "convert", example, at("none"), "--bits", "6", "--importance", loads, "--dry-run", *quiet)
    run(0, "calibrate", example, "--text", text, "--out", at("stats"), *quiet)
    lora = os.path.join(folder, "../../tests/golden/lora/dense")
    run(0, "convert", f"{lora}/base", at("lora"), "--lora", f"{lora}/plain", *quiet)
    run(0, "convert", example, at("none"), "--to", "nvfp4", "--gptq", "--importance", at("stats"), "--dry-run", *quiet)
    run(2, "convert", example, at("none"), "--explain", "no.such.weight")
    several = run(2, "convert", example, at("none"), "--rule", "*.experts.*.up_proj.weight=nvfp4", "--dialect", "deepseek")
    expect(len(several["errors"]) > 1 and several["errors"][0]["tensor"], "faults of several tensors in one")
    run(0, "convert", example, at("nvfp4"), "--to", "nvfp4", *quiet)
    expect(run(0, "convert", example, at("nvfp4"), "--to", "nvfp4", "--resume", *quiet)["already_done"], "done twice")
    run(2, "convert", example, at("nvfp4"), "--to", "nvfp4", *quiet)
    based = run(0, "convert", example, at("based"), "--to", "nvfp4", "--base", at("nvfp4"), "--delta", at("deltas"), *quiet)
    expect(based["taken"] > 0 and based["files_taken"] > 0 and based["delta_bytes"] == 0, "nothing taken over from a base")
    with open(at("compose.yaml"), "w") as file:
        file.write("base: nvfp4\nsources: {own: %s}\nrules:\n- {match: 'role:attention', from: own}\n" % example)
    composed = run(0, "compose", at("compose.yaml"), at("none"), "--dry-run", *quiet)
    expect([row["name"] for row in composed["givers"]] == ["base", "own"], "the givers of a composed model")
    run(0, "compose", at("compose.yaml"), at("none"), "--explain", "lm_head.weight")
    run(0, "compose", at("compose.yaml"), at("composed"), *quiet)
    run(2, "compose", at("compose.yaml"), at("composed"), *quiet)
    gates = ("--verify", "weights", *quiet)
    int8 = ("convert", example, at("int8"), "--to", "int8", "--kv-scales", at("cache.safetensors"), *gates)
    kept = run(0, *int8)
    record = json.load(open(at("int8/ingot.verify.json")))
    expect(record == kept["verification"] and not faults_of(record, "verify"), "the record of a verification")
    failed = run(1, "convert", example, at("gated"), "--to", "int8", *gates, "--require", "weights.relative_error<=0")
    expect(failed["published"] is False and os.path.isdir(failed["unfinished"]), "a refused output is called published")
    expect(failed["verification"]["passed"] is False and failed["verification"]["gates"], "no report of a failed gate")
    run(1, *int8, "--require", "weights.relative_error<=0", "--resume")
    lost = run(1, "convert", example, at("lossy"), "--to", "int8", "--lossless-only", *quiet)
    expect(lost["error"]["tensor"] and lost["published"] is False, "the tensor that loses a value is not named")
    expect(run(0, "convert", example, at("f32"), "--to", "f32", "--lossless-only", *quiet)["passed"], "F32 is lossless")
    for part in ("0/2", "1/2"):
        run(0, "convert", example, at("parts"), "--to", "bf16", "--part", part, *quiet)
    run(0, "join", at("parts"), "--dry-run")
    run(0, "join", at("parts"))
    run(0, "join", at("parts"))
    run(0, "convert", example, at("ranks"), "--tp", "2", "--ep", "2", "--tp-fit", "retile", *quiet)
    run(0, "inspect", at("ranks"))
    run(0, "inspect", at("ranks/rank-00001-of-00002"))
    run(0, "merge", at("ranks"), at("merged"), *quiet)
    run(2, "merge", example, at("none"))
    json.dump({"checksums": {"dp0:pp0:pcp0:tp0:model.norm.weight": "0" * 64}}, open(at("live.json"), "w"))
    run(0, "convert", at("synth"), at("plain"), "--to", "bf16", *quiet)
    run(1, "check", at("plain"), "--live-answer", at("live.json"))
    run(2, "check", at("plain"), "--live", "http://127.0.0.1:1")
    signers = os.path.join(folder, "../../tests/golden/oms/signers")
    shutil.copy(os.path.join(signers, "p256.pem"), at("key.pem"))
    os.chmod(at("key.pem"), 0o600)
    of_int8 = ("--source", example, "--with", f"kv-scales={at('cache.safetensors')}")
    run(0, "attest", at("int8"), "--key", at("key.pem"), *of_int8)
    verify = ("attest", "--verify", at("int8"), "--key", os.path.join(signers, "p256.pub.pem"))
    run(0, *verify, "--source", example)
    open(at("int8/notes"), "w").write("not listed")
    run(1, *verify, "--source", at("nvfp4"))
    os.remove(at("int8/notes"))
    run(1, *verify[:-1], os.path.join(signers, "p384.pub.pem"))
    run(0, "rederive", at("int8"), *of_int8)
    whole = {path: open(path, "rb").read() for path in (glob.glob(at("int8/*.safetensors"))[0], at("int8/config.json"))}
    for path, was in whole.items():
        open(path, "wb").write(was[:-1] + bytes([was[-1] ^ 1]))
    run(1, "rederive", at("int8"), *of_int8, "--all")
    for path, was in whole.items():
        open(path, "wb").write(was)
    os.remove(at("int8/ingot.intoto.json"))
    run(0, "repair", at("int8"), at("mended"), *quiet)
    run(0, "repair", at("int8"), at("none"), "--dry-run")
    layers = json.load(open(f"{stacked}/config.json"))["text_config"]["num_hidden_layers"]
    json.dump({layer: [0, 2, 3, 5] for layer in range(layers)}, open(at("kept.json"), "w"))
    run(0, "prune", stacked, at("pruned"), "--keep-map", at("kept.json"), *quiet)
    run(0, "prune", stacked, at("none"), "--keep-map", at("kept.json"), "--dry-run")
    run(1, "check", at("int8"), "--engine", "transformers")
    run(0, "check", at("int8"), "--engine", "vllm")
    run(0, "check", example, "--source-of", at("int8"))
    run(2, "check", at("synth"), "--source-of", at("int8"))

    # Verification, with all levels and a gate that fails; a page that the disk cannot hold, when the report is there.
    few = ("--prompts", text, *quiet)
    every = ("--levels", "all", "--text", text, "--tokens", "4", *few)
    run(0, "verify", example, at("int8"), *every)
    run(0, "verify", at("int8"), "--text", text, *quiet)
    limits = run(0, "verify", example, at("int8"), "--progress", "always")["limits"]
    expect({row["work"] for row in limits} == {"computing", "reading", "waiting", "other programs"}, "limits of verify")
    expect(limits == sorted(limits, key=lambda row: -row["share"]), "the largest limit is not first")
    failed = run(1, "verify", example, at("int8"), "--require", "weights.relative_error<=0", *quiet)
    expect(failed["passed"] is False and failed["weights"], "no report of a failed gate")
    full = run(2, "verify", example, at("int8"), "--levels", "structure", "--html", "/dev/full", *quiet)
    expect(full["error"] and full["gates"] is not None and full["passed"], "no report with a page that cannot be written")
    reports = [at("part0.json"), at("part1.json")]
    for i, report in enumerate(reports):
        json.dump(run(0, "verify", example, at("int8"), "--part", f"{i}/2", *quiet), open(report, "w"))
    run(0, "verify", "--join", *reports)
    run(2, "verify", "--join", reports[0])
    run(0, "compare", at("int8"), at("nvfp4"), "--reference", example, "--require", "weights.sqnr>=B", *every)
    run(0, "compare", at("int8"), at("nvfp4"), "--levels", "structure,weights,layers", *few)

    run(0, "generate", example, "--prompt", "What is 2 + 2?", "--greedy", "--draft", "1")
    run(0, "generate", at("ranks"), "--prompt", "2", "--max-new-tokens", "2", "--ranks", "threads")
    messages = [{"role": "user", "content": "2"}]
    json_lines = [{"seconds": 0, "id": 7, "prompt": "2"}, {"seconds": 0, "messages": messages, "tools": []}]
    open(at("prompts.jsonl"), "w").write("\n".join(map(json.dumps, json_lines)))
    lines = subprocess.run([ingot, "generate", example, "--arrivals", at("prompts.jsonl"), "--max-new-tokens", "2", "--jsonl"],
                           capture_output=True, check=True).stdout.decode().splitlines()
    for line in lines:
        failures.extend(faults_of(json.loads(line), "generate-line"))
    expect(len(lines) == 2, f"{len(lines)} lines of two answers")

    open(text, "w").write("There was once a small fox, and his name was Sam. " * 4000)
    stopped(signal.SIGTERM, "calibrate", example, "--text", text, "--out", at("never"), *quiet)
    stopped(signal.SIGINT, "generate", example, "--tokens", "1", "--max-new-tokens", "100000", "--temperature", "2")


with tempfile.TemporaryDirectory(prefix="ingot-json-") as work:
    try_all(work)
# A key of the table that no document has would be a promise that is not kept.
promised = {}
for name, schema in schemas.items():
    for place, part in [(name, schema), *schema["$defs"].items()]:
        promised.update(keys_of(part, place))
failures.extend(f"docs/schema/documents.keys: no document has {promised[key]}" for key in promised.keys() - seen)
for failure in failures:
    print("FAILED:", failure, file=sys.stderr)
sys.exit(1 if failures else 0)
