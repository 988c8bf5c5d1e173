"""Runs the commands of README.md and docs/ on small models, and holds what the pages say against what they do.

pages.py INGOT EXAMPLE [--write]    --write makes the tables of docs/ again that commands print
"""
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

ingot, example = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
root = example.parent.parent
faults = []

# Numbers of devices are those of the large model; the small one needs one.
DEVICES = re.compile(r" --(tensor-parallel-size|tp_size|tp) \d+")


def run(command, work, accepted=(0,)):
    words = f"{ingot} {command.removeprefix('ingot ')}" if command.startswith("ingot ") else command
    result = subprocess.run(words, shell=True, cwd=work, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode not in accepted:
        faults.append(f"exit status {result.returncode}: {command}: {result.stderr[:400]}")
    return result.stdout


def tune(source, tuned):
    """The fine-tuned model: the BF16 weights with another attention in layer 2, of up to 5% another value."""
    shutil.copytree(source, tuned, ignore=shutil.ignore_patterns("ingot*"))
    n_tuned = 0
    for path in tuned.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, tensor in json.loads(data[8:start]).items():
            if ".layers.2.self_attn." not in name or len(tensor["shape"]) != 2:
                continue
            begin, end = (start + offset for offset in tensor["data_offsets"])
            data[begin:end:6] = bytes(byte ^ 6 for byte in data[begin:end:6])
            n_tuned += 1
        path.write_bytes(data)
    assert n_tuned > 0


def cookbook(work):
    shutil.copytree(example, work / "DeepSeek-V3.2")
    vocabulary = json.loads((example / "config.json").read_text())["vocab_size"]
    (work / "dense.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": vocabulary, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False}))
    run("ingot synth Qwen3-8B --config dense.json", work)
    for path in example.glob("tokenizer*"):
        shutil.copy(path, work / "Qwen3-8B")
    (work / "sample.txt").write_text("Once there was a fox, and his name was Sam. He had a yellow kite.\n" * 20)
    jobs = re.split(r"^## \d+\. ", (root / "docs/cookbook.md").read_text(), flags=re.M)[1:]
    if len(jobs) != 11 or "Qwen3-8B" not in jobs[0]:
        faults.append(f"{len(jobs)} jobs instead of 11, or the first is not about a dense model")
    n_commands = 0
    for job in jobs:
        title = job.splitlines()[0]
        if title.startswith("Back to FP8"):
            tune(work / "V3.2-bf16", work / "V3.2-tuned")
        output = ""
        for line in re.findall(r"^\$ (ingot .*)", job, flags=re.M):
            # Commands only for the large model have this mark.
            if "# 671B" not in line:
                output += run(line.split("  #")[0], work)
                n_commands += 1
        if not output:
            faults.append(f"{title}: no command of it was run")
        for line in re.findall(r"^serve with: .*$", job, flags=re.M):
            if DEVICES.sub("", line) not in output:
                faults.append(f"{title}: no '{line}' in what the commands printed")
        for word in ("**Prints**", "**Takes**", "**Serve**"):
            if word not in job:
                faults.append(f"{title}: does not say {word}")
    if n_commands < 14:
        faults.append(f"only {n_commands} commands were run")


def migrating(work):
    """The right columns, as plans; those that begin with options belong to a conversion."""
    shutil.copytree(example, work / "IN")
    (work / "sample.txt").write_text("Once there was a fox, and his name was Sam.\n" * 20)
    run("ingot calibrate IN --text sample.txt --out ranges.safetensors", work)
    run("ingot calibrate IN --text sample.txt --out stats", work)
    rows = re.findall(r"^\| [^|]* \| ([^|]*) \|$", (root / "docs/migrating.md").read_text(), flags=re.M)
    commands = [words for row in rows for words in re.findall(r"`([^`]*)`", row)]
    n_run = 0
    for words in commands:
        if words.startswith("ingot calibrate") or " " not in words:
            continue
        if words.startswith("--to") or words.startswith("--rule") or words.startswith("--recipe"):
            words = f"ingot convert IN OUT {words}"
        if words.startswith("ingot convert") or words.startswith("ingot inspect"):
            run(f"{words} --dry-run", work)
            n_run += 1
    if n_run < 25:
        faults.append(f"migrating.md: only {n_run} commands were run")


def shown_size(n_bytes):
    for unit, factor in (("TB", 1e12), ("GB", 1e9)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.3g} {unit}"


def gpus(work):
    """The sizes and the example are those of the large model, whose headers are enough."""
    page = (root / "docs/gpus.md").read_text()
    run("ingot synth DeepSeek-V3.2 --family deepseek_v32 --like 671b-headers", work)
    command, printed = re.search(r"```console\n\$ (.*)\n((?:.*\n)*?)```", page).groups()
    if run(command, work) != printed:
        faults.append(f"gpus.md: {command} prints something else")
    fits = json.loads(run("ingot inspect DeepSeek-V3.2 --gpu h100 --count 1 --json", work, (0, 1)))["fits"]
    for row in fits:
        size = shown_size(row["fit"]["weight_bytes"])
        if f"| `{row['to']}` | {size} |" not in page:
            faults.append(f"gpus.md: {row['to']} is not of {size}")


def readme(work):
    """The first block is for a clone: the program that it builds is here already."""
    block = re.search(r"```sh\n(.*?)```", (root / "README.md").read_text(), flags=re.S)[1]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    for line, script in zip(lines, ("scripts/deps.sh", "scripts/build.sh")):
        if line[0] != script or not os.access(root / script, os.X_OK):
            faults.append(f"README.md: its first block has {line} instead of {script}")
    preset, target = lines[1][1:3]
    if f'"name": "{preset}"' not in (root / "CMakePresets.json").read_text() or not any(
            f"add_executable({target}\n" in path.read_text() for path in root.glob("*/CMakeLists.txt")):
        faults.append(f"README.md: there is no preset {preset}, or no target {target}")
    clone = work / "clone"
    (clone / f"build/{preset}/cli").mkdir(parents=True)
    (clone / f"build/{preset}/cli/ingot").symlink_to(ingot)
    (clone / "examples").symlink_to(root / "examples")
    if lines[2][0] != f"build/{preset}/cli/ingot" or lines[2][1] != "convert":
        faults.append(f"README.md: the third command is {lines[2]}")
    run(shlex.join(lines[2]), clone)
    if not (clone / lines[2][3] / "config.json").exists():
        faults.append("README.md: its first block converts nothing")


def made(text):
    """The page with what its commands print: behind the line `<!-- made: COMMAND -->`."""
    def table(match):
        return match[1] + run(match[2], root)
    return re.sub(r"(<!-- made: (ingot .*) -->\n\n)(?:\|.*\n)*", table, text)


def made_pages():
    for path in (root / "docs").glob("*.md"):
        text = made(path.read_text())
        if path.read_text() == text:
            continue
        if "--write" in sys.argv:
            path.write_text(text)
        else:
            faults.append(f"{path.name} has something else than its commands print: tests/cli/pages.py INGOT EXAMPLE --write")


def options(work):
    """The page of the site that the program makes has each option in its command's section."""
    options_page = runpy.run_path(str(root / "scripts/site_hooks.py"))["options_page"]
    sections = re.split(r"^## ", options_page(str(ingot)), flags=re.M)[1:]
    rows = {section.splitlines()[0]: re.findall(r"^\| `([^`]*)` \|", section, flags=re.M) for section in sections}
    wanted = {}
    for row in json.loads(run("ingot list options --json", root))["options"]:
        wanted.setdefault(row["command"], []).append(row["option"])
    if rows != wanted or len(wanted) < 15 or sum(map(len, wanted.values())) < 250:
        faults.append("the page of options has not those that commands have")


made_pages()
for test in () if "--write" in sys.argv else (readme, cookbook, migrating, gpus, options):
    with tempfile.TemporaryDirectory(prefix="ingot-pages-") as folder:
        test(pathlib.Path(folder))
for fault in faults:
    print(fault, file=sys.stderr)
print("all claims hold" if not faults else f"{len(faults)} claims failed")
sys.exit(1 if faults else 0)
