#!/usr/bin/env python3
"""self_test.py INGOT GOLDEN: the judge of the differential test is right, and sees faults.

Its decoders give the hashes that other programs recorded of the fixtures. It accepts a right conversion, and complains
if in the same output one bit of a code is changed, a scale doubled, a tensor missing or two experts exchanged; of every
row of forms and families (rows_test.py) too."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import rows_test
import slices
from container import read_checkpoint, read_config
from job import Wrong, require_same_files
from judge import Model, judge_models
from targets import SEARCHED_ELSE
from weights import logical_tensors

CONVERSIONS = [
    ("fp8", {"to": "fp8-block", "dialect": "deepseek"}, []),
    ("fp8-channel", {"to": "fp8-channel", "dialect": "modelopt"}, ["--dialect", "modelopt"]),
    (
        "fp8-tensor",
        {"to": "fp8-tensor", "dialect": "compressed-tensors", "activations": "static", "input_scale": 0.5},
        ["--dialect", "compressed-tensors", "--activations", "static", "--input-scale", "0.5"],
    ),
    ("int8", {"to": "int8-channel", "dialect": "compressed-tensors"}, []),
    (
        "int8",
        {"to": "int8-channel", "dialect": "modelslim", "activations": "static", "input_scale": 0.5},
        ["--dialect", "modelslim", "--activations", "static", "--input-scale", "0.5"],
    ),
    ("int8-block", {"to": "int8-block", "dialect": "deepseek"}, []),
    ("nvfp4", {"to": "nvfp4", "dialect": "compressed-tensors"}, []),
    (
        "nvfp4",
        {"to": "nvfp4", "dialect": "modelopt", "search": "amax"},
        ["--dialect", "modelopt", "--activations", "weight-only", "--search", "amax"],
    ),
    ("mxfp4", {"to": "mxfp4", "dialect": "compressed-tensors"}, []),
    ("mxfp8", {"to": "mxfp8", "dialect": "compressed-tensors"}, []),
    ("int4", {"to": "int4-group", "dialect": "compressed-tensors", "group_size": "32"}, ["--group-size", "32"]),
]
SCALES = ["weight_scale", "weight_scale_inv", "deq_scale"]
failures = []


def expect(claim, holds):
    if not holds:
        failures.append(claim)


def decoders_agree(golden):
    """Values of the fixtures have the hashes that the programs recorded which made them."""
    n = 0
    for path in (
        sorted(golden.glob("families/*.decoded.json"))
        + sorted(golden.glob("*/decoded.json"))
        + sorted(golden.glob("int4/*/decoded.json"))
        + sorted(golden.glob("other_tools/*/decoded.json"))
    ):
        folder = path.parent if path.name == "decoded.json" else path.with_name(path.name.split(".")[0])
        if "ragged" in folder.name:
            continue
        weights = logical_tensors(read_checkpoint(folder), read_config(folder))
        for name, facts in json.loads(path.read_text()).items():
            wanted = {facts.get("f32_sha256"), facts.get("f32_sha256_out_major")} if isinstance(facts, dict) else {None}
            if wanted != {None}:
                values = np.ascontiguousarray(weights[name].values, "<f4")
                expect(
                    f"{folder.name}: {name} is decoded as recorded",
                    hashlib.sha256(values.tobytes()).hexdigest() in wanted,
                )
                n += 1
    expect("there are hundreds of recorded tensors", n > 500)


class Changed:
    """Some bytes of a stored tensor are others for a while."""

    def __init__(self, stored, data):
        self.stored, self.data = stored, data

    def _write(self, data):
        with open(self.stored.file, "r+b") as file:
            file.seek(self.stored.begin)
            file.write(data)

    def __enter__(self):
        self._write(self.data)

    def __exit__(self, *_):
        self._write(self.stored.data)


def with_flipped_bit(stored, at, bit):
    data = bytearray(stored.data)
    data[at] ^= 1 << bit
    return Changed(stored, bytes(data))


def doubled(stored):
    """The first number twice as large, whatever its dtype."""
    size, step = {"F32": (4, 1 << 23), "BF16": (2, 1 << 7), "F8_E4M3": (1, 1 << 3), "U8": (1, 1), "I64": (8, 1 << 23)}[
        stored.dtype
    ]
    first = int.from_bytes(stored.data[:size], "little") + step
    return Changed(stored, first.to_bytes(size, "little") + stored.data[size:])


def judge_sees(name, source, folder, choices):
    expect(f"{name}: a right conversion passes", not judge_models(source, Model(folder), choices))
    weight = next(weight for key, weight in sorted(Model(folder).stored.items()) if ".experts.1.down_proj" in key)
    middle = len(weight.parts["weight"].data) // 2
    with with_flipped_bit(weight.parts["weight"], middle, 1):
        expect(f"{name}: a flipped bit of a code is seen", judge_models(source, Model(folder), choices))
    scale = next(weight.parts[part] for part in SCALES if part in weight.parts)
    with doubled(scale):
        expect(f"{name}: a doubled scale is seen", judge_models(source, Model(folder), choices))


def judge_sees_names(source, folder, choices):
    """Faults that no single tensor shows."""
    output = Model(folder)
    first, second = (
        next(weight for key, weight in output.stored.items() if f".experts.{expert}.up_proj" in key)
        for expert in (0, 1)
    )
    with Changed(first.parts["weight"], second.parts["weight"].data), Changed(
        second.parts["weight"], first.parts["weight"].data
    ):
        expect("two experts exchanged are seen", judge_models(source, Model(folder), choices))
    norm = next(weight for key, weight in output.stored.items() if key.endswith("norm.weight"))
    with with_flipped_bit(norm.parts["weight"], 0, 0):
        expect("a flipped bit of a norm is seen", judge_models(source, Model(folder), choices))
    expect("a scheme that was not requested is seen", judge_models(source, output, {**choices, "to": "nvfp4"}))
    output.singles.pop(norm.name)
    expect("a missing tensor is seen", judge_models(source, output, choices))


def bytes_are_compared(folder, whole):
    other = folder + "-other"
    shutil.copytree(folder, other)
    stored = next(iter(read_checkpoint(other).values()))
    with with_flipped_bit(stored, 0, 0):
        try:
            require_same_files(folder, other, "")
            expect("a flipped bit between two folders is seen", False)
        except Wrong:
            pass
    ranks = whole + "-ranks"
    expect("slices are cuts of the whole", not list(slices.complaints_of(ranks, read_checkpoint(whole))))
    cut = next(
        stored
        for name, stored in read_checkpoint(os.path.join(ranks, "rank-00001-of-00002")).items()
        if "q_b_proj" in name
    )
    with with_flipped_bit(cut, 0, 0):
        expect("a flipped bit of a slice is seen", list(slices.complaints_of(ranks, read_checkpoint(whole))))


def main():
    ingot, golden = os.path.abspath(sys.argv[1]), Path(sys.argv[2])
    decoders_agree(golden)
    with tempfile.TemporaryDirectory(prefix="ingot-differential-") as work:

        def run(*words):
            subprocess.run([ingot, *words], check=True, stdout=subprocess.DEVNULL)

        source, ranks = os.path.join(work, "source"), os.path.join(work, "whole-ranks")
        run(
            "synth",
            source,
            "--family",
            "kimi_k2",
            "--like",
            "tiny",
            "--scheme",
            "bf16",
            "--heads",
            "4",
            "--experts",
            "4",
        )
        model = Model(source)
        for n, (to, choices, words) in enumerate(CONVERSIONS):
            folder = os.path.join(work, f"output{n}")
            search = ["--search", "amax"] if to in SEARCHED_ELSE else []
            run("convert", source, folder, "--to", to, *words, *search, "--allow", "engine-refuses=*", "--quiet")
            judge_sees(f"{to} in {choices['dialect']}", model, folder, choices)
        judge_sees_names(model, os.path.join(work, "output3"), CONVERSIONS[3][1])
        run("convert", source, os.path.join(work, "whole"), "--max-shard-size", "1GB", "--quiet")
        run("convert", source, ranks, "--tp", "2", "--ep", "2", "--quiet")
        bytes_are_compared(os.path.join(work, "output0"), os.path.join(work, "whole"))
        rows_test.forms_are_judged(run, work, expect, Changed)
        rows_test.families_are_judged(run, work, expect, Changed)
    print(*failures, f"{len(failures)} claims are false", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
