#!/usr/bin/env python3
"""learned_families.py INGOT [CHECKPOINT...]: families that `ingot family learn` makes, against those of the program.

Each CHECKPOINT (default: those of tests/golden with a model type that the program knows) is learned with its own family
left out (`--without`). What is proven, at once or after one answer, is converted under both families: to FP8, to NVFP4,
and cut for two ranks. Stacks of experts are separated in both, which the program does by itself for its own families
only. Files of both must be the same, byte for byte.

A row per checkpoint:
  proven     at once, and every conversion is the same
  answered   the same after one answer, which is the one that the program's own family gives
  plainer    proven, and some weights are plain, or whole on each rank, that the program's family quantizes or cuts; or
             it keeps stacks of experts; or a cut is refused
  open       several questions, or a fault that no answer settles
  WRONG      proven, and a conversion differs in another way: there must be none

A row ends with `computed` where a small model of the class was computed, and tokens and states agreed.

--python PROGRAM: asks its transformers (default: none is asked). --jobs N. Exit code 1 if one is WRONG.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = {"fp8": ["--to", "fp8"], "nvfp4": ["--to", "nvfp4"], "tp": ["--to", "bf16", "--tp", "2"]}
SEPARATE = ["--experts", "separate"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot", type=pathlib.Path, metavar="INGOT")
    parser.add_argument("checkpoints", type=pathlib.Path, nargs="*", metavar="CHECKPOINT")
    parser.add_argument("--python", default="none", metavar="PROGRAM")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    return parser.parse_intermixed_args()


def opens(path):
    return list(path.glob("*.safetensors")) and (path / "config.json").exists()


def sources():
    golden = ROOT / "tests/golden"
    return sorted(filter(opens, [*golden.glob("forward/*/checkpoint"), *golden.glob("families/*")]))


def name_of(path):
    return path.parent.name if path.name == "checkpoint" else path.name


def run(program, *words):
    done = subprocess.run([str(program), *map(str, words), "--json"], capture_output=True, text=True, timeout=900)
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {}


def tensors(folder):
    """What is stored, by rank and name: dtype, sides and bytes."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, row in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + at for at in row["data_offsets"])
                found[path.relative_to(folder).parent.as_posix(), name] = row["dtype"], row["shape"], data[begin:end]
    return found


def is_plainer(ours, theirs):
    """Every tensor of ours that differs is the plain, or whole, form of theirs."""
    kinds = collections.Counter()
    for key, (dtype, shape, data) in ours.items():
        other = theirs.get(key)
        if other is None or other == (dtype, shape, data):
            continue
        wide = dtype in ("BF16", "F32", "F16")
        kinds["plain" if wide and other[0] not in ("BF16", "F32", "F16") else
              "whole" if wide and len(shape) == len(other[1]) and all(a >= b for a, b in zip(shape, other[1])) and
              shape != other[1] else "other"] += 1
    return not kinds["other"], kinds


class Trial:
    def __init__(self, program, python, work):
        self.program, self.python, self.work = program.resolve(), python, pathlib.Path(work)

    def outcome(self, path):
        """The word for a checkpoint, and what is to be said of it."""
        work = self.work / str(abs(hash(path)))
        work.mkdir()
        code, seen = run(self.program, "inspect", path)
        if code:
            return "unknown", "ingot does not open it"
        family = seen["family"]
        said, answers = [], []
        for word in ("proven", "answered"):
            code, learned = self.learn(path, family, answers, work / "family.yaml")
            if code == 0:
                is_computed = not learned["computed"].startswith("not computed")
                word, text = self.judge(path, word, work, said)
                return word, f"{text} computed" if is_computed else text
            questions = learned.get("questions", [])
            keys = [question["key"] for question in questions]
            if len(keys) > 1 and not answers and all("." in key or key == "joined" for key in keys):
                questions = [{"key": "unknown", "values": ["other"]}]
            if len(questions) != 1 or answers:
                lines = [question["key"] for question in questions] + learned.get("faults", [])
                return "open", "; ".join(lines or [(learned.get("error") or {}).get("text", "")])
            answers = self.answer(path, family, questions[0], work)
            said = [f"{questions[0]['key']}={answers[0]}"]
            answers = [f"{questions[0]['key']}={answers[0]}"]
        return "open", "; ".join(said)

    def learn(self, path, family, answers, out):
        words = [word for answer in answers for word in ("--answer", answer)]
        if self.python != "none":
            words += ["--python", self.python]
        return run(self.program, "family", "learn", path, "--without", family, "--out", out, *words)

    def answer(self, path, family, question, work):
        """The answer of which the conversions are most like those of the program's family."""
        key, ranked = question["key"], []
        for i, value in enumerate(question["values"]):
            out = work / f"answer{i}.yaml"
            if self.learn(path, family, [f"{key}={value}"], out)[0] == 0:
                different = self.same(path, out, work / f"try{i}")
                ranked.append((["plainer", "WRONG"].index(different[0]) + 1 if different else 0, i))
        return [question["values"][min(ranked, default=(0, 0))[1]]]

    def same(self, path, family, work):
        """None, or the first difference: its kind and words."""
        work.mkdir()
        worst = None
        for name, words in TARGETS.items():
            theirs, ours = work / f"{name}.theirs", work / f"{name}.ours"
            separate = words + SEPARATE if name != "tp" else words
            code, document = run(self.program, "convert", path, theirs, *separate, "--progress", "never")
            if code == 0:
                words = separate
            else:
                code, document = run(self.program, "convert", path, theirs, *words, "--progress", "never")
            if code:
                continue  # this model has no such form
            code, document = run(self.program, "convert", path, ours, *words, "--family-file", family, "--progress", "never")
            if code:
                worst = "plainer", f"{name} is refused: {(document.get('error') or {}).get('text', '')[:100]}"
                continue
            a, b = tensors(ours), tensors(theirs)
            if a == b:
                continue
            plainer, kinds = is_plainer(a, b)
            first = next((key for key in b if a.get(key) != b[key]), next((key for key in a if key not in b), None))
            if not plainer:
                return "WRONG", f"{name}: {first[1]} {a.get(first, ('-', '-'))[:2]} for {b.get(first, ('-', '-'))[:2]} {dict(kinds)}"
            worst = "plainer", f"{name}: {first[1]} and others {dict(kinds)}"
        return worst

    def judge(self, path, word, work, said):
        different = self.same(path, work / "family.yaml", work / "final")
        if different is None:
            return word, "; ".join(said)
        return different[0], "; ".join([*said, different[1]])


def main():
    asked = arguments()
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="ingot-learned-") as work:
        trial = Trial(asked.ingot, asked.python, work)
        paths = asked.checkpoints or sources()
        with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
            for path, (word, text) in zip(paths, pool.map(trial.outcome, paths)):
                print(f"{name_of(path):28} {word:9} {text}", flush=True)
                outcomes[path] = word, text
    counted = collections.Counter(word for word, _ in outcomes.values())
    n_computed = sum(text.endswith("computed") for _, text in outcomes.values())
    print(", ".join(f"{n} {word}" for word, n in counted.most_common()), f"of {len(outcomes)}; {n_computed} computed")
    sys.exit(1 if counted["WRONG"] else 0)


if __name__ == "__main__":
    main()
