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

import cuts
import described
import rows_test
import slices
from container import read_checkpoint, read_config
from job import Wrong, require_same_files
from judge import Model, judge_models
from outputs import first_of, targets_of
from weights import logical_tensors

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


def json_is_read(name, source, output, choices):
    expect(f"{name}: its JSON is right", not list(described.complaints_of(output, choices)))
    linear = "model.layers.1.mlp.experts.1.down_proj.weight"
    output.stored[linear] = source.stored[linear]
    expect(f"{name}: its JSON is not that of a plain module", list(described.complaints_of(output, choices)))


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
    ways = {
        "a cut of the whole": lambda: slices.complaints_of(ranks, read_checkpoint(whole)),
        "the rank's": lambda: cuts.complaints_of(Model(whole).stored, ranks, cuts.Cut(2, 2)),
    }
    last = os.path.join(ranks, "rank-00001-of-00002")
    cut = next(stored for name, stored in read_checkpoint(last).items() if "q_b_proj" in name)
    for words, complaints in ways.items():
        expect(f"each slice is {words}", not list(complaints()))
        with with_flipped_bit(cut, 0, 0):
            expect(f"a flipped bit of a slice is not {words}", list(complaints()))
    first = last.replace("00001", "00000", 1)
    for old, new in [(first, ranks + "-kept"), (last, first), (ranks + "-kept", last)]:
        os.rename(old, new)
    expect("ranks that changed places are seen", list(ways["the rank's"]()))


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
        for n, target in enumerate(first_of(targets_of(ingot))):
            folder, choices = os.path.join(work, f"output{n}"), target.choices({})
            run("convert", source, folder, *target.words(), "--quiet")
            judge_sees(str(target), model, folder, choices)
            json_is_read(str(target), model, Model(folder), choices)
        judge_sees_names(model, folder, choices)
        run("convert", source, os.path.join(work, "whole"), "--max-shard-size", "1GB", "--quiet")
        run("convert", source, ranks, "--tp", "2", "--ep", "2", "--quiet")
        bytes_are_compared(os.path.join(work, "output0"), os.path.join(work, "whole"))
        rows_test.forms_are_judged(run, work, expect, Changed)
        rows_test.families_are_judged(run, work, expect, Changed)
    print(*failures, f"{len(failures)} claims are false", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
