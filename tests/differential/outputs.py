#!/usr/bin/env python3
"""outputs.py INGOT GOLDEN [--all] [--only START]: every form of output is right, joins to the whole, and is cut again.

A row is a source, a target, a cut and another cut. Of each row:

* the unsliced output is right by its values (judge.py) and by what its JSON says (described.py), and its cast to F32
  has the values that NumPy decodes;
* each rank holds the numbers that the rules cut out of the whole (cuts.py), and no others;
* check accepts the ranks, together and the last of them in another place;
* joined they are the files of the whole; shards in DeepSeek's layout are its tensors without any file of ours, too;
* slices that are cut again are the files that the whole gives when it is cut so.

Forms are those that the program lists. The default is part of the rows; --all has every form from either source, and
every family in every scheme and every cut. START begins the names of the rows that are tried."""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace

import numpy as np

import cuts
import described
from container import read_checkpoint, read_config, write_checkpoint
from cuts import Cut
from job import RECORDS, Wrong, require_same_files, require_same_tensors
from judge import Model, judge, judge_models
from statistics_file import write_statistics
from targets import NAMES, SEARCHED, SEARCHED_ELSE, STATISTICS

TINY = "--family deepseek_v32 --like tiny "
VLLM = (
    "--like tiny --layers 2 --dense-layers 1 --experts 4 --hidden 256 --moe-intermediate 512 --intermediate 512 "
    "--vocab 500 --heads 32 --seed 1 --mtp-layers "
)
SYNTH = {
    "fp8": TINY + "--shards 2 --split-scale",
    "bf16": TINY + "--scheme bf16",
    "eight": TINY + "--scheme bf16 --experts 8 --heads 8",
    "powers": TINY + "--fp8-grid ue8m0",
    "stacked": TINY + "--stacked",
    "stacked-bf16": TINY + "--stacked --scheme bf16",
    # Widths that every scheme and group divides.
    "wide": "--family qwen3_moe --like tiny --layers 1 --experts 8 --hidden 256 --moe-intermediate 256 "
    "--intermediate 512 --heads 4 --vocab 256 --scheme bf16",
    "vllm-fp8": VLLM + "0 --family deepseek_v3",
    "vllm-bf16": VLLM + "0 --family deepseek_v3 --scheme bf16",
    "vllm-v32": VLLM + "0 --family deepseek_v32",
    "vllm-qwen3": VLLM + "0 --family qwen3_moe",
    "vllm-glm": VLLM + "1 --family glm_moe_dsa",
    "sglang-qwen3": VLLM.replace("--dense-layers 1", "--dense-layers 0") + "0 --family qwen3_moe",
}
# Outputs that are sources.
CONVERTED = {
    "mxfp4": ["bf16", "--to", "mxfp4"],
    "mxfp4-bf16": ["mxfp4", "--to", "bf16"],
    "zero-points": ["qwen3_moe_gptq_asym"],
}
for _to in ("int4", "fp8", "nvfp4", "int8", "mxfp4"):
    CONVERTED[f"wide-{_to}"] = ["wide", "--to", _to, *(["--group-size", "32"] if _to == "int4" else [])]
# Releases of packed integers.
PACKED = ["kimi_k2_thinking", "qwen3_moe_gptq_asym"]
FAMILIES = ["deepseek_v2", "deepseek_v3", "glm_moe_dsa", "qwen3_moe"]
SQUARE = ("fp8-block", "int8-block")  # blocks of 128 x 128, which a cut may split
SPARED = ("--rule", "*.self_attn.*=bf16")  # heads cannot be padded
# What vLLM decodes or casts as it loads.
LOADED = tuple("--rule role:indexer-k=bf16 --rule role:indexer-k-norm=f32 --rule role:norm=bf16".split())
INPUT_SCALE = 0.0123


@dataclass(frozen=True)
class Target:
    """A row of a dialect's table."""

    dialect: str
    scheme: str
    activations: str

    def __str__(self):
        return f"{self.dialect}/{self.scheme}/{self.activations}"

    @property
    def facts(self):
        return {self.dialect, self.scheme, self.activations}

    @property
    def has_ranges(self):
        """Whether inputs have an offset, each its own."""
        return (self.dialect, self.activations) == ("modelslim", "static")

    def words(self, has_choice=True):
        short = {full: word for word, full in NAMES.items()}.get(self.scheme, self.scheme)
        words = ["--to", self.scheme, "--dialect", self.dialect, "--activations", self.activations]
        words += ["--allow", "engine-refuses=*"]
        if has_choice and short in (*SEARCHED, *SEARCHED_ELSE):
            words += ["--search", "amax"]
        if has_choice and short.startswith("fp8"):
            words += ["--fp8-grid", "amax"]
        if short == "int4":
            words += ["--group-size", "32"]
        if self.has_ranges:
            words += ["--activation-scales", STATISTICS]
        elif self.activations == "static":
            words += ["--input-scale", str(INPUT_SCALE)]
        return words + (["--quantize-attention"] if short in ("nvfp4", "mxfp4", "int4") else [])

    def choices(self, modules):
        """What the judge has to know. `modules`: the ranges of inputs."""
        choices = {"to": self.scheme, "dialect": self.dialect, "activations": self.activations, "search": "amax"}
        inputs = {"modules": modules} if self.has_ranges else {"input_scale": INPUT_SCALE}
        return {**choices, **inputs, "dialect_is_asked": True, "fp8_grid": "amax"}


@dataclass(frozen=True)
class Row:
    """`words` of every conversion of the source; `joined`: more, with which the whole is what the slices join to.
    `is_exact`: weights in MXFP4 keep their values."""

    source: str
    target: Target = None
    words: tuple = ()
    cut: Cut = None
    again: Cut = None
    joined: tuple = ()
    is_exact: bool = False

    def __str__(self):
        ways = ", then ".join(" ".join(cut.words()) for cut in (self.cut, self.again) if cut)
        return " ".join([self.source, str(self.target or "as it is"), *self.words, ways])


class Bench:
    """A folder with sources and unsliced outputs, each made once."""

    def __init__(self, ingot, golden, folder):
        self.ingot, self.golden, self.folder = ingot, golden, folder
        self.wholes, self.models, self.numbers = {}, {}, itertools.count()
        self.modules = write_statistics(Model(self.source("bf16")), 0, self.path(STATISTICS))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words):
        """Exit status and the text of stderr."""
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        done = subprocess.run([self.ingot, *words], cwd=self.folder, stdout=null, stderr=pipe, text=True)
        return done.returncode, done.stderr

    def make(self, *words):
        code, text = self.run(*words, "--quiet")
        if code:
            raise Wrong(f"{' '.join(words)} ends with {code}: {text[:400]}")

    def clear(self, *names):
        for name in names:
            shutil.rmtree(self.path(name), ignore_errors=True)

    def source(self, name):
        if name in FAMILIES:
            return os.path.join(self.golden, "arch", name, "checkpoint")
        if name in PACKED:
            return os.path.join(self.golden, "families", name)
        if not os.path.exists(self.path(name)):
            if name in EDITED:
                write_edited(self.source(EDITED[name][0]), self.path(name), EDITED[name][1])
            elif name in CONVERTED:
                source, *words = CONVERTED[name]
                self.make("convert", self.source(source), name, *words)
            else:
                self.make("synth", name, *SYNTH[name].split())
        return self.path(name)

    def model(self, row):
        if row.source not in self.models:
            self.models[row.source] = Model(self.source(row.source))
        return self.models[row.source]

    def convert(self, row, output, *more):
        """The words of a conversion of the row."""
        # Blocks of FP8 are kept, and no search chooses their scales.
        has_choice = not (row.target and (row.source, row.target.scheme) == ("fp8", "fp8-block"))
        words = row.target.words(has_choice) if row.target else []
        return "convert", self.source(row.source), output, *words, *row.words, *more

    def is_taken(self, row, cut):
        return self.run(*self.convert(row, "none", *cut.words()), "--dry-run")[0] == 0

    def fitted(self, row, cut):
        """The cut itself, or, where it splits blocks, the ways that lose nothing."""
        ways = [replace(cut, fit=fit) for fit in ("retile", "pad")]
        return [cut] if self.is_taken(row, cut) else [way for way in ways if self.is_taken(row, way)]

    def whole(self, row):
        """The unsliced output of a row, and its model."""
        key = (row.source, row.target, row.words, row.joined)
        if key not in self.wholes:
            name = f"whole{next(self.numbers)}"
            self.make(*self.convert(row, name, *row.joined))
            output = Model(self.path(name))
            if not row.target and (not row.words or "--max-shard-size" in row.words) and not row.joined:
                source = read_checkpoint(self.source(row.source))
                require_same_tensors(source, read_checkpoint(self.path(name)), "a copy")
            if row.target:
                self.require_right(row, output)
            if row.is_exact:
                require_none("the whole", loss_complaints(self.model(row), output))
            self.wholes[key] = self.path(name), output
        return self.wholes[key]

    def require_right(self, row, output):
        source = self.model(row)
        choices = {**row.target.choices(self.modules), "may_be_plain": bool(row.words)}
        require_none("the whole", judge_models(source, output, choices))
        require_none("its JSON", described.complaints_of(output, choices))
        require_none("the whole", plain_complaints(source, output))
        if row.cut and row.source == "fp8":
            return  # its form is cast from another source
        self.make("convert", output.folder, "decoded", "--to", "f32")
        require_none("its cast to F32", judge_models(output, Model(self.path("decoded")), {"to": "f32"}))
        self.clear("decoded")

    def require_cut(self, folder, whole, cut):
        if cut.layout == "ranks":
            require_none(folder, cuts.complaints_of(whole.stored, self.path(folder), cut))

    def require_accepted(self, folder, may_be_alone):
        last = sorted(name for name in os.listdir(self.path(folder)) if name.startswith("rank-"))[-1:]
        for name in last if may_be_alone else []:
            self.clear(name)
            shutil.copytree(os.path.join(self.path(folder), name), self.path(name))
            self.require_accepted(name, False)
        code, text = self.run("check", folder)
        if code:
            raise Wrong(f"check of {folder} ends with {code}: {text[:400]}")

    def require_joined(self, row, whole, folder):
        self.make("merge", folder, "joined")
        if row.cut.fit == "bf16":
            require_none("joined", judge(whole, self.path("joined"), {"narrows": True, "may_be_plain": True}))
            return
        # The rules with which the whole was made are in its card.
        require_same_files(whole, self.path("joined"), "joined", RECORDS | ({"README.md"} if row.joined else set()))
        if row.cut.layout == "deepseek-mp":
            for name in os.listdir(self.path(folder)):
                if not name.endswith(".safetensors"):
                    os.remove(os.path.join(self.path(folder), name))
            self.make("merge", folder, "foreign", "--config", os.path.join(self.source(row.source), "config.json"))
            foreign = read_checkpoint(self.path("foreign"))
            require_same_tensors(read_checkpoint(whole), foreign, "joined without files of ours")

    def try_row(self, row):
        self.clear("cut", "joined", "again", "direct", "foreign")
        whole, model = self.whole(row)
        if not row.cut:
            return
        self.make(*self.convert(row, "cut", *row.cut.words()))
        self.require_cut("cut", model, row.cut)
        self.require_accepted("cut", may_be_alone=row.target or row.cut.pp > 1 or row.cut.fit != "refuse")
        if row.again:
            self.make("convert", "cut", "again", *row.again.words())
            self.make("convert", whole, "direct", *row.again.words())
            self.require_cut("direct", model, row.again)
            require_same_files(self.path("direct"), self.path("again"), "cut again", RECORDS)
        self.require_joined(row, whole, "cut")


def require_none(words, complaints):
    found = list(complaints)
    if found:
        raise Wrong(f"{words}, {len(found)} complaints: " + "; ".join(f"{name} {text}" for name, text in found[:4]))


def plain_complaints(source, output):
    """Tensors that were plain in a source with codes stay as they are."""
    if any(weight.is_quantized for weight in source.stored.values()):
        for name, weight in output.stored.items():
            if weight.is_quantized and source.stored[name].is_plain:
                yield name, f"was {source.stored[name].scheme}, and became {weight.scheme}"


def loss_complaints(source, output):
    """In NVFP4 the codes are the same, too."""
    for name, weight in output.stored.items():
        before = source.stored[name]
        if "mxfp4" in (before.scheme, weight.scheme) and not np.array_equal(weight.values, before.values):
            yield name, f"has other values in {weight.scheme} than in {before.scheme}"
        if (before.scheme, weight.scheme) == ("mxfp4", "nvfp4") and not np.array_equal(weight.codes, before.codes):
            yield name, "has other codes"


def write_edited(model, folder, edit):
    tensors = {name: (stored.dtype, stored.shape, stored.data) for name, stored in read_checkpoint(model).items()}
    config = read_config(model)
    edit(tensors, config)
    write_checkpoint(folder, [tensors], config)


def odd_vocabulary(tensors, config):
    """510 tokens, which 4 ranks do not divide."""
    config["vocab_size"] = 510
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        dtype, (_, width), data = tensors[name]
        tensors[name] = dtype, (510, width), data[: 510 * width * 2]


def whole_mtp(tensors, config):
    """An MTP layer with an embedding and a head of its own, as vLLM's draft model has them."""
    layer = f"model.layers.{config['num_hidden_layers']}."
    tensors[layer + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors[layer + "shared_head.head.weight"] = tensors["lm_head.weight"]


EDITED = {"odd": ("qwen3_moe", odd_vocabulary), "vllm-mtp": ("vllm-glm", whole_mtp)}


def targets_of(ingot):
    """Every row of every dialect; stacks of experts have a dialect of their own."""
    done = subprocess.run([ingot, "list", "dialects", "--json"], capture_output=True, text=True, check=True)
    return [
        Target(row["name"], row["scheme"], activations)
        for row in json.loads(done.stdout)["dialects"]
        for activations in row["activations"]
        if row["name"] != "mxfp4"
    ]


def first_of(targets):
    """Few of them that together have each dialect, scheme and kind of activations."""
    seen, first = set(), []
    while True:
        best = max(targets, key=lambda target: len(target.facts - seen))
        if not best.facts - seen:
            return first
        first.append(best)
        seen |= best.facts


def form_row(target):
    """Cut once in the pass that quantizes, and once from the whole."""
    if (target.dialect, target.scheme) == ("modelopt", "fp8-block"):  # its scales are cut with whole blocks only
        return Row("bf16", target, SPARED, Cut(ep=4), Cut(ep=2, pp=2))
    fit, words = ("pad", SPARED) if target.scheme in SQUARE else ("refuse", ())
    return Row("bf16", target, words, Cut(2, 2, 2, fit=fit), Cut(4, fit=fit))


def kept(source, cut, again=None, words=(), joined=()):
    return Row(source, None, tuple(words), cut, again, joined)


def exact(source, words, cut=None):
    return Row(source, None, tuple(words.split()), cut, is_exact=True)


SHORT = ("fp8", "fp8-channel", "fp8-tensor", "int8", "mxfp4", "mxfp8")


def packed(groups, targets, sources):
    for group in groups:
        words = ["--to", "int4", "--group-size", group, "--quantize-attention"]
        yield kept("wide", Cut(2), words=words)
    for to in targets:
        yield kept("wide-int4", Cut(2, 2), words=["--to", to, *(["--group-size", "row"] if to == "int4" else [])])
    for source in sources:
        yield kept(f"wide-{source}", Cut(2, 2), words=["--to", "int4", "--group-size", "64"])


def native(n):
    return Cut(n, layout="deepseek-mp")


def vllm(tp=1, ep=1, pp=1):
    return Cut(tp, ep, pp=pp, layout="vllm-sharded")


def sglang(tp=1, ep=1):
    return Cut(tp, ep, layout="sglang-sharded")


FIXED = [
    kept("fp8", Cut(2, fit="retile"), Cut(2, 2, 2, fit="retile")),
    kept("fp8", Cut(ep=4), Cut(2, 4, fit="retile")),
    kept("fp8", Cut(2, 4, fit="retile"), words=["--max-shard-size", "300KB"]),
    kept("bf16", Cut(2, fit="retile"), Cut(ep=2), ["--to", "fp8", "--dialect", "compressed-tensors"]),
    Row("bf16", Target("modelslim", "int8-channel", "static"), (), Cut(4, 2, 2)),
    kept("powers", Cut(2, fit="bf16")),  # BF16 holds codes under scales that are powers of two
    kept("qwen3_moe", Cut(4, 2), Cut(8)),  # two KV heads
    kept("odd", Cut(4, fit="pad"), Cut(ep=2)),
    # Two shared experts are in one tensor of twice the width.
    kept("deepseek_v2", Cut(4, 2, fit="pad"), Cut(ep=2), ["--to", "fp8", *SPARED]),
    kept("deepseek_v2", Cut(4), Cut(2, 2, 2, 3)),
    kept("deepseek_v3", Cut(4, pp=2), Cut(2, 4)),
    # Experts in one tensor: gate and up are cut each by itself, and a rank has the matrices of its experts.
    kept("stacked-bf16", Cut(4), Cut(2, 4, 2)),
    kept("stacked", Cut(2, fit="retile"), Cut(ep=4)),
    kept("stacked", Cut(1, 2, 2, fit="pad"), Cut(2, 2, fit="retile")),
    kept("stacked-bf16", Cut(1, 1, 2, fit="retile"), Cut(ep=2), ["--to", "fp8", *SPARED]),
    # MXFP4 fits NVFP4 and blocks of FP8; a group without a large code comes back from BF16 under a smaller scale.
    exact("mxfp4", "--to nvfp4 --dialect modelopt --activations weight-only"),
    exact("mxfp4", "--to nvfp4", Cut(ep=2)),
    exact("mxfp4", "--to fp8"),
    exact("mxfp4-bf16", "--to mxfp4"),
    # Groups of packed integers, into which and out of which every scheme goes.
    kept("kimi_k2_thinking", Cut(2), Cut(2, 5)),
    kept("zero-points", Cut(2, 2)),
    kept("wide", Cut(2, 2), Cut(2), ["--to", "int4", "--group-size", "32", "--zero-points"]),
    *packed(("32", "row"), ("bf16", "nvfp4", "int4"), ("fp8", "nvfp4")),
    kept("bf16", native(2), native(4)),
    kept("bf16", native(2), Cut(2, 4), ["--mtp", "drop"]),
    kept("fp8", native(1), Cut(2, fit="retile")),
    kept("vllm-fp8", vllm(2), vllm(4)),
    kept("vllm-v32", vllm(2), joined=LOADED),
    kept("vllm-qwen3", vllm(2, pp=2)),
    kept("vllm-qwen3", vllm(2), words=["--to", "int8", "--search", "amax"]),
    kept("vllm-mtp", vllm(2), joined=LOADED),
    kept("vllm-fp8", sglang(2), sglang(4)),
    kept("sglang-qwen3", sglang(2), words=["--to", "int8", "--search", "amax"]),
]
MORE = [
    kept("stacked", Cut(1, 1, 2, fit="pad"), Cut(2, 2, 2, 2, fit="retile")),
    kept("stacked", Cut(4, 2, fit="pad"), Cut(1, 2, 4, fit="pad"), SPARED),
    kept("kimi_k2_thinking", Cut(4, fit="pad"), Cut(2)),
    kept("vllm-fp8", vllm(2, 2), vllm(pp=2)),
    kept("vllm-fp8", vllm(2), words=["--to", "int4"]),
    kept("glm_moe_dsa", Cut(2, 8), Cut(ep=2, pp=2)),
    *packed(("64", "128"), ("f32", *SHORT, "int8-block"), ("int8", "mxfp4")),
    kept("eight", native(8), native(4)),
    kept("eight", native(1), native(8)),
    kept("vllm-fp8", vllm(1), vllm(2)),
    kept("vllm-fp8", vllm(4), vllm(1)),
    kept("vllm-bf16", vllm(2)),
    kept("vllm-fp8", sglang(2, 2), sglang(1)),
    kept("vllm-bf16", sglang(2)),
    kept("sglang-qwen3", sglang(2, 2), sglang(1)),
]
SOME = [Cut(2, 4), Cut(4), Cut(2, 2, 2, 3), Cut(ep=2, pp=2), Cut(8, pp=2), Cut(ep=8), Cut(ep=4)]


def every_cut():
    """The cuts that these numbers give, one side or two at a time."""
    for n in (1, 2, 3, 4, 8, 16):
        yield from (Cut(n), Cut(ep=n), Cut(pp=n), Cut(n, etp=1), Cut(2, n), Cut(n, 4), Cut(2, n, 2))
        yield from (Cut(2, pp=n), Cut(ep=2, pp=n))


def chain(bench, row):
    """A row in every cut that the program takes, cut again in the next one."""
    ways = [way for cut in every_cut() for way in bench.fitted(row, cut)]
    return [replace(row, cut=cut, again=again) for cut, again in zip(ways, ways[1:] + ways[:1])]


def rows_of(bench, is_all, only):
    targets = targets_of(bench.ingot)
    schemes = list({target.scheme: target for target in reversed(targets)}.values())
    yield from map(form_row, targets if is_all else first_of(targets))
    yield from FIXED
    if not is_all:
        for n, target in enumerate(schemes):
            ways = (replace(cut, fit=fit) for cut in SOME[n % 7 :] + SOME for fit in ("refuse", "retile", "pad"))
            row = Row("fp8", target)
            yield replace(row, cut=next((cut for cut in ways if bench.is_taken(row, cut)), Cut()))
        return
    yield from MORE
    yield from (Row("fp8", target) for target in targets)
    for source, target in itertools.product(["fp8", *FAMILIES], [None, *schemes]):
        row = Row(source, target)
        # The shapes of some families do not take some schemes.
        if (str(row).startswith(only) or only.startswith(str(row))) and bench.is_taken(row, Cut()):
            yield from chain(bench, row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ingot", type=os.path.abspath)
    parser.add_argument("golden", type=os.path.abspath)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="", metavar="START")
    arguments = parser.parse_args()
    n, n_wrong = 0, 0
    with tempfile.TemporaryDirectory(prefix="ingot-outputs-") as folder:
        bench = Bench(arguments.ingot, arguments.golden, folder)
        for row in rows_of(bench, arguments.all, arguments.only):
            if not str(row).startswith(arguments.only):
                continue
            n += 1
            try:
                bench.try_row(row)
            except Exception as fault:  # an unreadable output is a fault, too
                n_wrong += 1
                print(f"{row}: {type(fault).__name__} {fault}", flush=True)
    print(f"{n} rows, {n_wrong} are wrong")
    return 1 if n_wrong or not n else 0


if __name__ == "__main__":
    sys.exit(main())
