#!/usr/bin/env python3
"""The same recipes on two processors give one digest each, and each derives the other's outputs again.

    one_digest.py SOURCE ONE [WORD...] -- OTHER [WORD...]

ONE and OTHER are output_digests, with the emulator in front where it is for another processor."""
import os
import subprocess
import sys
import tempfile

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


with tempfile.TemporaryDirectory(prefix="ingot-digests-") as work:
    def at(name):
        os.mkdir(os.path.join(work, name))
        return os.path.join(work, name)

    folders = [at("one"), at("other")]
    one = outcome(programs[0], folders[0])
    other = outcome(programs[1], folders[1], folders[0])
    for mine, theirs in zip(one, other, strict=True):
        if mine != theirs:
            sys.exit(f"FAILED: two digests:\n{mine}\n{theirs}")
        print(mine)
    # The other way round; and a changed bit is seen, so that equal means something.
    outcome(programs[0], at("again"), folders[1])
    weights = [name for name in sorted(os.listdir(os.path.join(folders[1], "3"))) if name.endswith(".safetensors")]
    with open(os.path.join(folders[1], "3", weights[0]), "r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    done = subprocess.run([*programs[0], source, at("changed"), folders[1]], capture_output=True, text=True)
    if done.returncode != 1 or "{to: int8}: differs in" not in done.stderr:
        sys.exit(f"FAILED: a changed bit is not seen: {done}")
print(f"{len(one)} recipes: one digest each, and equal when each program makes the other's again")
