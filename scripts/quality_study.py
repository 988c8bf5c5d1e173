#!/usr/bin/env python3
"""What schemes and methods cost on a small model, with error bars: the tables of docs/quality.md.

    quality_study.py INGOT SOURCE DOCUMENTS [--schemes nvfp4,mxfp4,int4] [--methods mse,importance]
                     [--draws 4] [--seeds 2] [--keep FILE] [--tables costs,claims] [--write PAGE]

Each draw calibrates on a random half of the documents and measures on the other half. Where a method searches scales
by mean squares, its seeds are the null test: mean squares are multiplied by random factors, which exchange scales at
(nearly) equal squared error. Runs one process at a time; a line per output on stderr says how far it is."""

import argparse
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../tests/differential"))
from container import read_checkpoint, read_file, write_file  # noqa: E402

# The methods. `options`: of ingot convert, where {stats} is what calibration wrote; `needs`: "" no data, "file" the
# statistics of inputs, else a directory of calibration (DIRECTORIES). `null`: the seeds have other scales.
Method = namedtuple("Method", "name options needs schemes null meaning")
METHODS = [
    Method("amax", "--search amax", "", (), False, "largest magnitude: an engine's own quantization at load"),
    Method("4over6", "--search 4over6", "", ("nvfp4",), False, "the better of two scales per group"),
    Method("mse", "", "", (), True, "least squared error (the default)"),
    Method("signed", "--search signed", "", ("int4",), False, "mse, and negative scales too"),
    Method("zero-points", "--zero-points", "", ("int4",), False, "scale and zero point searched together"),
    Method("importance", "--importance {stats}", "file", (), True, "squared errors weighted by mean squares of inputs"),
    Method("hessian", "--search hessian --importance {stats}", "stats", (), False, "local Hessian"),
    Method("unshrunk", "--search hessian --importance {stats}", "unshrunk", (), False,
           "local Hessian, `calibrate --shrinkage 0`"),
    Method("hessian-few", "--search hessian --importance {stats}", "few", (), False,
           "local Hessian of two documents"),
    Method("unshrunk-few", "--search hessian --importance {stats}", "few-unshrunk", (), False,
           "local Hessian of two documents, `calibrate --shrinkage 0`"),
    Method("gptq", "--search hessian --importance {stats} --gptq", "stats", (), False,
           "GPTQ on the scales of the local Hessian"),
]
# Directories of calibration: the documents, and options of ingot calibrate.
UNSHRUNK = ("--shrinkage", "0")
DIRECTORIES = {"stats": ("calibration.json", ()), "unshrunk": ("calibration.json", UNSHRUNK),
               "few": ("few.json", ()), "few-unshrunk": ("few.json", UNSHRUNK)}
FEW = 2  # documents
# Claims: the first method against the second.
CLAIMS = [
    ("4over6", "amax"), ("mse", "amax"), ("importance", "amax"), ("hessian", "amax"), ("gptq", "amax"),
    ("importance", "mse"), ("hessian", "importance"), ("hessian", "mse"), ("hessian", "unshrunk"),
    ("hessian-few", "unshrunk-few"), ("gptq", "hessian"), ("gptq", "mse"),
    ("signed", "mse"), ("zero-points", "mse"),
]
# 95% quantiles of Student's t by degrees of freedom: 90% intervals.
T95 = [6.313752, 2.919986, 2.353363, 2.131847, 2.015048, 1.943180, 1.894579, 1.859548, 1.833113, 1.812461]
JITTER = 0.25  # standard deviation of the logarithm of the null test's factors


def geometric(ratios):
    """The geometric mean, and its 90% interval by Student's t over the logarithms."""
    logs = np.log(ratios)
    mean = logs.mean()
    if len(logs) < 2:
        return math.exp(mean), None
    half = T95[min(len(logs) - 2, len(T95) - 1)] * logs.std(ddof=1) / math.sqrt(len(logs))
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def text_of(figure):
    mean, interval = figure
    return f"{mean:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


class Study:
    def __init__(self, arguments, work, has_text):
        self.ingot, self.source, self.work, self.has_text = arguments.ingot, arguments.source, work, has_text
        self.kl, self.errors = {}, {}  # by (scheme, method, draw, seed); errors: squared error of the weights
        self.expert_errors = {}  # by (scheme, method, draw): error of the outputs by class of experts
        self.documents = json.load(open(arguments.documents))["docs"]
        self.n_outputs = 0
        self.kept = arguments.keep
        for row in json.load(open(self.kept)) if self.kept and os.path.exists(self.kept) else []:
            self.take(row)

    def path(self, *names):
        return os.path.join(self.work, *names)

    def run(self, *words):
        done = subprocess.run([self.ingot, *words, "--progress", "never"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"ingot {' '.join(words)}: {done.stderr[-1000:]}")
        return done.stdout

    def calibrate(self, text, out, *options):
        self.run("calibrate", self.source, "--text", self.path(text), "--out", self.path(out), *options)

    def begin_draw(self, draw):
        """The halves of the documents, and the statistics of each."""
        order = list(range(len(self.documents)))
        random.Random(draw).shuffle(order)
        half = len(order) // 2
        for name, part in ("calibration", order[:half]), ("few", order[:FEW]), ("measured", order[half:]):
            with open(self.path(name + ".json"), "w") as file:
                json.dump({"docs": [self.documents[i] for i in sorted(part)]}, file)
        for name in ("judge", *DIRECTORIES):
            shutil.rmtree(self.path(name), ignore_errors=True)
        if os.path.exists(self.path("file.safetensors")):
            os.remove(self.path("file.safetensors"))
        self.calibrate("calibration.json", "file.safetensors")
        self.calibrate("measured.json", "judge", *UNSHRUNK)
        self.judge = Judge(self.path("judge"))

    def statistics(self, needs, draw, seed, jitters):
        """The path of the statistics that a method takes, jittered for the null test."""
        if needs in DIRECTORIES:
            if not os.path.exists(self.path(needs)):
                text, options = DIRECTORIES[needs]
                self.calibrate(text, needs, *options)
            return self.path(needs)
        if not jitters:
            return self.path("file.safetensors")
        factors = np.random.default_rng([draw, seed])
        tensors = {}
        for stored in read_file(self.path("file.safetensors")):
            data = stored.data
            if stored.name.endswith(".input_mean_square"):
                # One sequence of factors, whichever method they are for.
                values = np.exp(factors.normal(0, JITTER, stored.shape)).astype("<f4")
                data = (values * (np.frombuffer(data, "<f4") if needs == "file" else 1)).astype("<f4").tobytes()
            tensors[stored.name] = (stored.dtype, stored.shape, data)
        facts = {"ingot_calibration": "1", "documents": "1", "tokens": "1"}
        write_file(self.path("jittered.safetensors"), tensors, facts)
        return self.path("jittered.safetensors")

    def measure(self, scheme, method, draw, seed):
        """Converts, and measures on the other half. Seed 0 is the method as it is."""
        stats = self.statistics(method.needs, draw, seed, method.null and seed > 0) if method.needs or seed > 0 else ""
        options = method.options.format(stats=stats).split()
        if not method.needs and seed > 0:
            options += ["--importance", stats]
        out = self.path("out")
        shutil.rmtree(out, ignore_errors=True)
        self.run("convert", self.source, out, "--to", scheme, *options)
        levels = "structure,weights" if method.null else "structure"
        report = json.loads(self.run_verify(out, levels)) if self.has_text else None
        key = (scheme, method.name, draw, seed)
        self.take({"key": key, "kl": report["text"]["kl"]["mean"] if report else None,
                   "error": squared_error(report) if report and method.null else None,
                   "experts": self.errors_of_experts(out) if seed == 0 else None})
        self.n_outputs += 1
        if self.kept:
            with open(self.kept, "w") as file:
                rows = [{"key": key, "kl": self.kl[key], "error": self.errors[key],
                         "experts": self.expert_errors.get(key[:3])} for key in self.kl]
                json.dump(rows, file)
        said = f"{self.n_outputs}: {scheme} {method.name} draw {draw} seed {seed}"
        print(said + (f": KL {self.kl[key]:.3e}" if report else ""), file=sys.stderr, flush=True)

    def take(self, row):
        key = tuple(row["key"])
        self.kl[key], self.errors[key] = row["kl"], row["error"]
        if key[3] == 0:
            self.expert_errors[key[:3]] = row["experts"]

    def run_verify(self, out, levels):
        words = ["verify", self.source, out, "--levels", levels, "--text", self.path("measured.json"), "--json",
                 "--progress", "never"]
        done = subprocess.run([self.ingot, *words], capture_output=True, text=True, check=False)
        if done.returncode == 2:
            sys.exit(f"ingot {' '.join(words)}: {done.stderr[-1000:]}")
        return done.stdout

    def values(self, checkpoint):
        plain = self.path("plain")
        shutil.rmtree(plain, ignore_errors=True)
        self.run("convert", checkpoint, plain, "--to", "f32")
        return {name: np.frombuffer(t.data, "<f4").reshape(t.shape)
                for name, t in read_checkpoint(plain).items() if ".experts." in name and t.dtype == "F32"}

    def errors_of_experts(self, out):
        """The squared error of the outputs of rare and common experts' linears, over that of the outputs themselves, on
        the documents that are measured."""
        if not hasattr(self, "plain_source"):
            self.plain_source = self.values(self.source)
        is_of = self.values(out)
        tokens = {t.name[: -len(".expert_tokens")]: np.frombuffer(t.data, "<i8")
                  for t in read_file(self.path("file.safetensors")) if t.name.endswith(".expert_tokens")}
        sums = {group: np.zeros(2) for group in GROUPS}
        for name, wanted in self.plain_source.items():
            layer, expert = re.match(r"(.*?)\.mlp\.experts\.(\d+)\.", name).groups()
            if name not in is_of or layer not in tokens:
                continue
            rank = int(np.argsort(np.argsort(tokens[layer], kind="stable"))[int(expert)])
            n = len(tokens[layer])
            group = "rare" if rank < n // 4 else "common" if rank >= n - n // 4 else None
            if group is None:
                continue
            error = is_of[name].astype("f8") - wanted
            for matrices, power in self.judge.powers_of(name[: -len(".weight")]):
                sums[group, matrices] += power(error), power(wanted.astype("f8"))
        return {" ".join(group): error / whole for group, (error, whole) in sums.items() if whole > 0}


# Experts by their tokens, and their matrices: gates and ups by the blocks of their own tokens, and by all moments.
BLOCKS, WHOLE, DOWN = "gate/up", "gate/up, all tokens", "down"
GROUPS = [(tokens, matrices) for matrices in (BLOCKS, WHOLE, DOWN) for tokens in ("rare", "common")]


class Judge:
    """Second moments of inputs, in a directory of calibration: of each down projection of an expert all of them, of
    gates and ups those of 16 inputs next to each other, and of all tokens of the layer all of them."""

    def __init__(self, directory):
        self.blocks, self.wholes = {}, {}
        for name in sorted(os.listdir(os.path.join(directory, "moments"))):
            for tensor in read_file(os.path.join(directory, "moments", name)):
                if tensor.name.endswith((".down_proj.input_moments", ".mlp.experts.input_moments")):
                    self.wholes[tensor.name[: -len(".input_moments")]] = self.matrix(tensor)
        for tensor in read_file(os.path.join(directory, "blocks.safetensors")):
            self.blocks[tensor.name[: -len(".input_block_moments")]] = self.matrix(tensor)
        for first, *others in json.load(open(os.path.join(directory, "calibration.json")))["shared"]["blocks"]:
            self.blocks.update({other: self.blocks[first] for other in others})

    @staticmethod
    def matrix(tensor):
        return np.frombuffer(tensor.data, "<f4").astype("f8").reshape(tensor.shape)

    def powers_of(self, module):
        """By kind, what a matrix [N, K] in the place of a module's weight gives: its mean squared output. Nothing for a
        down projection without tokens."""
        def whole(moments):
            return lambda w: ((w @ moments) * w).sum()

        def in_blocks(blocks):
            def power(w):
                inputs = w.reshape(len(w), *blocks.shape[:2])
                return np.einsum("nbi,bij,nbj->", inputs, blocks, inputs, optimize=True)
            return power
        if module.endswith(".down_proj"):
            return [(DOWN, whole(self.wholes[module]))] if module in self.wholes else []
        of_layer = self.wholes[module.rsplit(".", 2)[0]]
        return [(BLOCKS, in_blocks(self.blocks[module])), (WHOLE, whole(of_layer))]


def squared_error(report):
    """Relative squared error of the weights that were encoded, each element alike."""
    groups = [g for g in report["weights"]["by_scheme_and_role"] if g["from"] != g["to"]]
    return sum(g["relative_error"] ** 2 * g["elements"] for g in groups)


def ratios(values, scheme, one, other, draws, seeds):
    """A ratio per draw, the geometric mean over its seeds: pairs of one draw share their documents, so that draws are
    the samples. A method without a null test has its only value in all seeds."""
    of_seeds = range(seeds + 1 if one.null or other.null else 1)
    return [geometric([values[scheme, one.name, draw, seed if one.null else 0] /
                       values[scheme, other.name, draw, seed if other.null else 0] for seed in of_seeds])[0]
            for draw in range(draws)]


def table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


class Tables:
    """Markdown, by the names of the marks of the page."""

    def __init__(self, study, schemes, methods, draws, seeds):
        self.study, self.schemes, self.draws, self.seeds = study, schemes, draws, seeds
        self.of_scheme = {scheme: [m for m in methods if not m.schemes or scheme in m.schemes] for scheme in schemes}
        self.by_name = {m.name: m for m in methods}

    def ratios(self, scheme, one, other):
        return ratios(self.study.kl, scheme, self.by_name[one], self.by_name[other], self.draws, self.seeds)

    def claimed(self):
        """The claims about methods that were measured, with each scheme that has both."""
        return [(one, other, scheme) for one, other in CLAIMS for scheme in self.schemes
                if {one, other} <= {m.name for m in self.of_scheme[scheme]}]

    def costs(self):
        rows = []
        for scheme in self.schemes:
            for m in self.of_scheme[scheme]:
                of = [self.study.kl[scheme, m.name, draw, 0] for draw in range(self.draws)]
                options = f"`{m.options.format(stats='STATS')}`" if m.options else ""
                over = "1" if m.name == "amax" else text_of(geometric(self.ratios(scheme, m.name, "amax")))
                rows.append([f"`{scheme}`", m.meaning, options, f"{geometric(of)[0]:.2e}", over])
        return table(["scheme", "scales", "options", "KL, nats", "KL over that of the largest magnitude"], rows)

    def claims(self):
        rows = []
        for one, other, scheme in self.claimed():
            has_seeds = self.by_name[one].null or self.by_name[other].null
            if other != "amax":
                rows.append([f"{one} / {other}", f"`{scheme}`", text_of(geometric(self.ratios(scheme, one, other))),
                             str(self.draws * (self.seeds + 1 if has_seeds else 1))])
        return table(["methods", "scheme", "KL of the first over the second", "pairs"], rows)

    def null(self):
        rows = []
        for scheme in self.schemes:
            for m in self.of_scheme[scheme]:
                if not m.null:
                    continue
                each = [(draw, seed) for draw in range(self.draws) for seed in range(1, self.seeds + 1)]
                moved, errors = ([values[scheme, m.name, d, s] / values[scheme, m.name, d, 0] for d, s in each]
                                 for values in (self.study.kl, self.study.errors))
                spread = f"{math.exp(np.log(moved).std(ddof=1)):.2f}" if len(moved) > 1 else ""
                rows.append([f"`{scheme}`", m.name, text_of(geometric(moved)), spread, f"{geometric(errors)[0]:.4f}"])
        return table(["scheme", "method", "KL of the null test over the method's",
                      "one standard deviation: a factor of", "squared error of weights, likewise"], rows)

    def experts(self):
        rows = []
        for one, other, scheme in self.claimed():
            errors = [[self.study.expert_errors[scheme, method, draw] for method in (one, other)]
                      for draw in range(self.draws)]
            # Blocks of 16 inputs do not show errors of columns that others, farther away, make up for.
            rows.append([f"{one} / {other}", f"`{scheme}`",
                         *("" if one == "gptq" and group[1] == BLOCKS
                           else text_of(geometric([of[" ".join(group)] / than[" ".join(group)] for of, than in errors]))
                           for group in GROUPS)])
        return table(["methods", "scheme", *(f"{tokens}, {matrices}" for tokens, matrices in GROUPS)], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot")
    parser.add_argument("source")
    parser.add_argument("documents", help='JSON: {"docs": [...]}')
    parser.add_argument("--schemes", default="nvfp4,mxfp4,int4")
    parser.add_argument("--methods", help="names, separated by commas (default: all that this ingot has)")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--keep", metavar="FILE", help="results so far: what is in it is not measured again")
    parser.add_argument("--tables", default="costs,claims,null,experts",
                        help="names of marks of the page; for only experts no text is run")
    parser.add_argument("--write", metavar="PAGE", help="put the tables between the marks of this page")
    arguments = parser.parse_args()
    names = arguments.tables.split(",")
    has_text = names != ["experts"]
    arguments.seeds = arguments.seeds if has_text else 0
    known = subprocess.run([arguments.ingot, "help", "convert"], capture_output=True, text=True, check=True).stdout
    wanted = arguments.methods.split(",") if arguments.methods else [m.name for m in METHODS]
    methods = [m for m in METHODS if m.name in {"amax", *wanted}]
    lacking = [m.name for m in methods
               if any(word.strip("-") not in known for word in m.options.replace("{stats}", "").split())]
    methods = [m for m in methods if m.name not in lacking]
    if lacking:
        print(f"left out, since this ingot has none: {', '.join(lacking)}", file=sys.stderr)
    schemes, begin = arguments.schemes.split(","), time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        study = Study(arguments, work, has_text)
        for draw in range(arguments.draws):
            wanted = [(scheme, m, draw, seed) for scheme in schemes for m in methods
                      if not m.schemes or scheme in m.schemes for seed in range(arguments.seeds + 1 if m.null else 1)]
            missing = [key for key in wanted if (key[0], key[1].name, *key[2:]) not in study.kl]
            if missing:
                study.begin_draw(draw)
            for key in missing:
                study.measure(*key)
    tables = Tables(study, schemes, methods, arguments.draws, arguments.seeds)
    parts = [(name, getattr(tables, name)()) for name in names]
    minutes = (time.monotonic() - begin) / 60
    print(f"{study.n_outputs} outputs in {minutes:.0f} minutes", file=sys.stderr)
    if not arguments.write:
        return print("\n".join(part for _, part in parts))
    page = open(arguments.write).read()
    for name, part in parts:
        begin, end = f"<!-- quality: {name} -->\n", "<!-- end -->\n"
        at = page.index(begin) + len(begin)
        page = page[:at] + "\n" + part + "\n" + page[page.index(end, at):]
    with open(arguments.write, "w") as file:
        file.write(page)


main()
