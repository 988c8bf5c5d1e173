#!/usr/bin/env python3
"""tests/comments.py ROOT [LAYER...]: comments of the product that a reader cannot begin to read.

Prints each comment that begins with a word which points to something before it (Which, What, Whether, That, Those, As, Of,
The same), each comment behind a member (`///<`) that does not begin with a noun, and each "nothing" that means nullopt.
"""

import pathlib
import re
import sys

LAYERS = ["formats", "report", "engines", "synth", "delta", "quantize", "shard", "check", "inference", "convert", "verify", "library",
          "cli", "include"]
BEGINS = re.compile(r"(Which|What|Whether|That|Those|As|Of|The same)\b")
# Words that no noun phrase begins with.
NO_NOUN = set("""of as in that which those what whether behind by for from to with without where else when if also never not
may must is are it they takes has have only whose how why at on over below above between before after then so and or but
""".split())
NULLOPT = re.compile(r"\b(is|or|are) nothing\b")


def blocks(lines):
    """Yields (line, kind, text) of each comment: the lines of one together."""
    at = 0
    while at < len(lines):
        whole = re.match(r"\s*(///?)(?!<)\s?(.*)$", lines[at])
        behind = None if whole else re.search(r"(///?)(<?) (.*)$", lines[at])
        first = at
        if whole and not lines[at].lstrip().startswith("///<"):
            texts = [whole.group(2)]
            while at + 1 < len(lines) and re.match(r"\s*///?(?!<)", lines[at + 1]):
                at += 1
                texts.append(re.sub(r"^\s*///?\s?", "", lines[at]))
            yield first + 1, "above", " ".join(texts)
        elif behind and behind.group(2) == "<":
            texts = [behind.group(3)]
            while at + 1 < len(lines) and lines[at + 1].lstrip().startswith("///<"):
                at += 1
                texts.append(lines[at].lstrip()[4:].strip())
            yield first + 1, "behind", " ".join(texts)
        at += 1


def faults_of(path):
    for line, kind, text in blocks(path.read_text().split("\n")):
        text = text.strip()
        if kind == "above" and BEGINS.match(text):
            yield line, f"begins with '{BEGINS.match(text).group(1)}'", text
        if kind == "behind":
            word = re.match(r"[A-Za-z']*", text).group().lower()
            if word in NO_NOUN or text.startswith("the same"):
                yield line, "does not begin with a noun", text
        if NULLOPT.search(text):
            yield line, "calls nullopt nothing", text


def main():
    root = pathlib.Path(sys.argv[1])
    n_faults = 0
    for layer in sys.argv[2:] or LAYERS:
        for path in sorted((root / layer).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            for line, fault, text in faults_of(path):
                n_faults += 1
                print(f"{path.relative_to(root)}:{line}: a comment {fault}: {text[:100]}")
    if n_faults:
        sys.exit(f"{n_faults} comments cannot be read by themselves (CONTRIBUTING.md, \"Words\")")


if __name__ == "__main__":
    main()
