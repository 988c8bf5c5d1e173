"""Runs the commands of docs/cookbook.md on the bundled model, and holds what the page says against what they do.

cookbook.py INGOT EXAMPLE
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ingot, example = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
root = example.parent.parent
page = (root / "docs/cookbook.md").read_text()
faults = []

# Numbers of devices are those of the large model; the small one needs one.
DEVICES = re.compile(r" --(tensor-parallel-size|tp_size|tp) \d+")


def run(command, work):
    words = command.replace("ingot ", f"{ingot} ", 1)
    result = subprocess.run(words, shell=True, cwd=work, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        faults.append(f"exit status {result.returncode}: {command}: {result.stderr[:400]}")
    return result.stdout


def tune(source, tuned):
    """Job 9's model: the BF16 weights with another attention in layer 2, of up to 5% another value."""
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


with tempfile.TemporaryDirectory(prefix="ingot-cookbook-") as folder:
    work = pathlib.Path(folder)
    shutil.copytree(example, work / "DeepSeek-V3.2")
    shutil.copytree(root / "examples/recipes", work / "examples/recipes")
    (work / "sample.txt").write_text("Once there was a fox, and his name was Sam. He had a yellow kite.\n" * 20)
    jobs = re.split(r"^## \d+\. ", page, flags=re.M)[1:]
    if len(jobs) != 10:
        faults.append(f"{len(jobs)} jobs instead of 10")
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
    if n_commands < 12:
        faults.append(f"only {n_commands} commands were run")
for fault in faults:
    print(fault, file=sys.stderr)
print("all claims hold" if not faults else f"{len(faults)} claims failed")
sys.exit(1 if faults else 0)
