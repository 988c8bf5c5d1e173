#!/usr/bin/env python3
"""The same recipes on two processors give one digest each, and each derives the other's outputs again.

    one_digest.py SOURCE ONE [WORD...] -- OTHER [WORD...]

ONE and OTHER are output_digests, with the emulator in front where it is for another processor."""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../differential"))
from container import read_file, write_file  # noqa: E402

source, *words = sys.argv[1:]
cut = words.index("--")
programs = [words[:cut], words[cut + 1:]]
for program in programs:
    if not os.path.exists(program[-1]):
        print(f"skipped: {program[-1]} is not there (scripts/test.sh --aarch64 builds it)")
        sys.exit(77)


def outcome(program, *arguments):
    done = subprocess.run([*program, source, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(program)}: exit code {done.returncode}: {done.stderr[:2000]}")
    return done.stdout.splitlines()


def write_inputs(folder):
    """Statistics of all kinds about the inputs of each matrix, and an adapter with lengths of rows."""
    draw = np.random.default_rng(66)
    ranges, cache, blocks, moments, adapter = {}, {}, {}, {}, {}

    def values(array):
        array = np.asarray(array, "<f4")
        return "F32", array.shape, array.tobytes()

    for name in sorted(name for name in os.listdir(source) if name.endswith(".safetensors")):
        for tensor in read_file(os.path.join(source, name)):
            module, _, part = tensor.name.rpartition(".")
            if part != "weight" or len(tensor.shape) != 2 or "_proj" not in module:
                continue
            n_out, n_in = tensor.shape
            inputs = draw.normal(0, 1, (n_in + 8, n_in)) * np.exp(draw.normal(0, 1, n_in))
            square = inputs.T @ inputs / len(inputs)
            layer = moments.setdefault(".".join(module.split(".")[:3]), {})
            layer[module + ".input_moments"] = values(square)
            blocks[module + ".input_block_moments"] = values([square[i:i + 16, i:i + 16] for i in range(0, n_in, 16)])
            ranges[module + ".input_mean_square"] = values(np.diag(square))
            least, most = np.sort(draw.normal(0, 3, 2)).astype("<f4")
            least, most = min(least, 0), max(most, 0)
            for ending, value in [("min", least), ("max", most), ("amax", max(-least, most))]:
                ranges[f"{module}.input_{ending}"] = values([value])
            attention, _, projection = module.rpartition(".")
            if projection == "o_proj":
                cache[attention + ".latent_amax"] = values([300 * draw.random()])
                cache[attention + ".rope_key_amax"] = values([7 * draw.random()])
            if projection in ("o_proj", "down_proj"):
                prefix = "base_model.model." + module
                adapter[prefix + ".lora_A.weight"] = values(draw.normal(0, 0.1, (3, n_in)))
                adapter[prefix + ".lora_B.weight"] = values(draw.normal(0, 0.1, (n_out, 3)))
                adapter[prefix + ".lora_magnitude_vector"] = values(1 + draw.random(n_out))
    files = {"adapter/adapter_model": adapter, "statistics/inputs": ranges, "statistics/cache": cache}
    files["statistics/blocks"] = blocks
    files.update({f"statistics/moments/{layer}": tensors for layer, tensors in moments.items()})
    for name, tensors in files.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        write_file(os.path.join(folder, name + ".safetensors"), dict(sorted(tensors.items())))
    with open(os.path.join(folder, "adapter/adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": 3, "lora_alpha": 4, "use_dora": True}, file)


with tempfile.TemporaryDirectory(prefix="ingot-digests-") as work:
    def at(name):
        os.mkdir(os.path.join(work, name))
        return os.path.join(work, name)

    inputs = at("inputs")
    write_inputs(inputs)
    folders = [at("one"), at("other")]
    one = outcome(programs[0], inputs, folders[0])
    other = outcome(programs[1], inputs, folders[1], folders[0])
    for mine, theirs in zip(one, other, strict=True):
        if mine != theirs:
            sys.exit(f"FAILED: two digests:\n{mine}\n{theirs}")
        print(mine)
    # The other way round; and a changed bit is seen, so that equal means something.
    outcome(programs[0], inputs, at("again"), folders[1])
    weights = [name for name in sorted(os.listdir(os.path.join(folders[1], "3"))) if name.endswith(".safetensors")]
    with open(os.path.join(folders[1], "3", weights[0]), "r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    done = subprocess.run([*programs[0], source, inputs, at("changed"), folders[1]], capture_output=True, text=True)
    if done.returncode != 1 or "{to: int8}: differs in" not in done.stderr:
        sys.exit(f"FAILED: a changed bit is not seen: {done}")
print(f"{len(one)} recipes: one digest each, and equal when each program makes the other's again")
