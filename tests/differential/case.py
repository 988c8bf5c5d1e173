"""Random cases. A case is a pure function of its seed: words of commands, and what the judge has to know of them."""

import glob
import json
import os
import random
import re
from dataclasses import dataclass, field

SYNTH_FAMILIES = ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "qwen3_moe"]
NATIVE_FAMILIES = ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2"]
# Full names of the short words for schemes.
NAMES = {"fp8": "fp8-block", "int8": "int8-channel", "int4": "int4-group"}
# The dialects that hold a scheme, the default first, each with the activations that may be asked for.
HELD = {
    "fp8": [("deepseek", ["dynamic"]), ("compressed-tensors", ["dynamic", "weight-only"])],
    "fp8-channel": [("compressed-tensors", ["dynamic", "weight-only"]), ("modelopt", ["dynamic"])],
    "fp8-tensor": [("deepseek", ["dynamic"]), ("compressed-tensors", ["dynamic", "static"]), ("modelopt", ["static"])],
    "int8": [("compressed-tensors", ["dynamic", "weight-only", "static"]), ("modelslim", ["dynamic", "static"])],
    "int8-block": [("deepseek", ["dynamic"])],
    "nvfp4": [("compressed-tensors", ["weight-only", "static"]), ("modelopt", ["weight-only", "static"])],
    "mxfp4": [("compressed-tensors", ["weight-only"])],
    "mxfp8": [("compressed-tensors", ["weight-only"])],
    "int4": [("compressed-tensors", ["weight-only"])],
}
PLAIN = ["bf16", "f16", "f32"]
TARGETS = ["bf16"] * 3 + ["f16", "f32"] + list(HELD) + ["fp8", "nvfp4", "int4", "int8"] + ["reshard"] * 2
# Selectors with what they select among routed experts, by the names that all families share.
RULES = [
    ("role:experts", r"\.experts\.\d+\."),
    ("role:expert-down", r"\.experts\.\d+\.down_proj"),
    ("layers:0", r"\.layers\.0\."),
    ("layers:1 & role:experts", r"\.layers\.1\..*\.experts\.\d+\."),
    ("role:attention", r"\.self_attn\."),
    ("role:shared-experts", r"\.shared_experts\."),
    ("re:.*layers\\.[01]\\..*down_proj", r"\.layers\.[01]\..*down_proj"),
]
# Fixtures with experts in stacks, by a part of their names.
STATISTICS = "statistics.safetensors"
STACKED = ["qwen3_5_moe", "llama4", "gpt_oss", "mistral4", "inkling", "step3p7"]
# Widths of fixtures are odd on purpose; these targets take any.
ANY_WIDTH = PLAIN + ["fp8", "fp8-channel", "fp8-tensor", "int8", "int8-block", "reshard"]
# What layout vllm-sharded holds.
VLLM = [
    ("bf16", None),
    ("fp8-block", "deepseek"),
    ("fp8-block", "compressed-tensors"),
    ("fp8-channel", "compressed-tensors"),
    ("int8-channel", "compressed-tensors"),
    ("nvfp4", "compressed-tensors"),
    ("int4-group", "compressed-tensors"),
]
EXPERTS = re.compile(r"^(n_routed_experts|num_experts|num_local_experts|moe_num_experts)$")
WIDTH = re.compile(r"(hidden_size|intermediate_size|intermediate|_dim|_rank|state_size|channels|_width|mlp_size)$")
VARIANTS = ["limits", "kill", "parts", "slices", "consume", "native", "vllm"]
FAULTS = [
    ("pwrite", 40),
    ("open", 60),
    ("fsync", 12),
    ("fdatasync", 30),
    ("link", 12),
    ("rename", 12),
    ("remove", 12),
    ("pread", 60),
]


@dataclass
class Target:
    """A conversion: words of the command behind source and output, and what the judge has to know of it."""

    words: list
    choices: dict


@dataclass
class Case:
    seed: int
    source: dict
    salt: int = None
    is_finite: bool = True  # else some values are NaN or infinite
    targets: list = field(default_factory=list)
    variants: list = field(default_factory=list)


def _fixtures(golden):
    """Folders of small checkpoints made by other programs, by a name of each."""
    found = {}
    for pattern in ["families/*/", "forward/*/checkpoint/", "arch/*/checkpoint/", "fp8_blocks/", "int4/*/"]:
        for folder in sorted(glob.glob(os.path.join(golden, pattern))):
            if os.path.exists(os.path.join(folder, "config.json")) and "ragged" not in folder:
                found[os.path.relpath(folder, golden)] = folder.rstrip("/")
    return found


def _source(draw, golden):
    kind = draw.choices(["synth", "widened", "fixture"], [45, 25, 30])[0]
    fixtures = _fixtures(golden)
    if kind == "fixture":
        name = draw.choice(sorted(fixtures))
        generic = ["--family", "generic"] if name.startswith(("fp8_blocks", "int4")) else []
        return {
            "kind": kind,
            "folder": fixtures[name],
            "family": generic,
            "has_codes": "fp8" in name or "kimi_k2" in name,
            "is_stacked": any(word in name for word in STACKED),
        }
    if kind == "widened":
        names = [name for name in sorted(fixtures) if name.startswith(("families", "forward", "arch"))]
        return {
            "kind": kind,
            "config": os.path.join(fixtures[draw.choice(names)], "config.json"),
            "factor": draw.choice([2, 4, 4]),
            "words": ["--seed", str(draw.randrange(1000)), "--shards", str(draw.randint(1, 4))],
            "family": [],
        }
    family = draw.choice(SYNTH_FAMILIES)
    words = [
        "--family",
        family,
        "--like",
        "tiny",
        "--seed",
        str(draw.randrange(1000)),
        "--shards",
        str(draw.randint(1, 5)),
    ]
    scheme = draw.choice(["fp8", "bf16"])
    words += ["--scheme", scheme]
    if scheme == "fp8":
        words += draw.choice([[], ["--fp8-grid", "ue8m0"]])
        words += [flag for flag in ["--zero-block", "--subnormal-scales", "--split-scale"] if draw.random() < 0.2]
    words += ["--experts", str(draw.choice([4, 4, 8, 6])), "--heads", str(draw.choice([4, 4, 8, 6]))]
    if draw.random() < 0.3:
        words += ["--layers", str(draw.randint(2, 3))]
    if draw.random() < 0.3:
        words += ["--moe-intermediate", str(draw.choice([64, 128, 192, 256]))]
    is_stacked = draw.random() < 0.15
    words += ["--stacked"] if is_stacked else []
    return {
        "kind": kind,
        "words": words,
        "synth_family": family,
        "family": [],
        "has_codes": scheme == "fp8",
        "is_stacked": is_stacked,
    }


def _rules(draw, to):
    """Rules in front of the target, with the scheme that the judge demands of routed experts."""
    words, known = [], []
    for selector, names in draw.sample(RULES, draw.choice([1, 1, 2])):
        held = ["keep", "bf16", "bf16"]
        if to in HELD and HELD[to][0][0] == "compressed-tensors":
            held += ["int8", "fp8", "fp8-channel"]
        scheme = draw.choice(held)
        words += ["--rule", f"{selector}={scheme}"]
        known.append({"selector": selector, "names": names, "scheme": NAMES.get(scheme, scheme)})
    return words, known


def _form(draw, to, choices):
    """Dialect and activations."""
    dialect, kinds = draw.choice(HELD[to] + HELD[to][:1])
    activations, words = draw.choice(kinds), []
    choices.update(dialect=dialect, activations=activations)
    if dialect != HELD[to][0][0] or draw.random() < 0.2:
        words += ["--dialect", dialect]
    if activations != kinds[0] or dialect == "modelopt" or draw.random() < 0.1:
        words += ["--activations", activations]
    if activations == "static" and draw.random() < 0.5:
        choices["input_scale"] = draw.choice([1.0, 0.5, 0.03125])
        words += ["--input-scale", str(choices["input_scale"])]
    elif activations == "static":
        words += ["--activation-scales", STATISTICS]
    return words


def _grid(draw, to, choices):
    """How scales are chosen."""
    words = []
    if to.startswith("fp8") and draw.random() < 0.3:
        choices["fp8_grid"] = draw.choice(["amax", "ue8m0"])
        words += ["--fp8-grid", choices["fp8_grid"]]
    if to in ("nvfp4", "int4") and draw.random() < 0.5:
        choices["search"] = draw.choice(["amax", "mse", "4over6" if to == "nvfp4" else "signed"])
        words += ["--search", choices["search"]]
    if to in ("nvfp4", "int4") and choices.get("search") != "amax" and draw.random() < 0.3:
        choices["importance"] = True
        words += ["--importance", STATISTICS]
    if to == "int4":
        choices["group_size"] = draw.choice(["32", "32", "64", "row"])
        words += ["--group-size", choices["group_size"]]
    return words


def _target(draw, source, has_codes):
    to = draw.choice(ANY_WIDTH if source["kind"] == "fixture" and draw.random() < 0.7 else TARGETS)
    words, choices = list(source["family"]), {"is_generic": bool(source["family"])}
    if to == "reshard":
        words += ["--max-shard-size", draw.choice(["300KB", "1MB", "3MB"])]
        if draw.random() < 0.4 and has_codes:
            choices["dialect"] = draw.choice(["compressed-tensors", "modelopt", "deepseek"])
            words += ["--dialect", choices["dialect"]]
        return Target(words, choices)
    words += ["--to", to]
    choices["to"] = NAMES.get(to, to)
    if to in HELD:
        words += _form(draw, to, choices)
        words += _grid(draw, to, choices)
    if to in ("nvfp4", "mxfp4", "int4") and draw.random() < 0.3:
        words += ["--quantize-attention"]
    if to in HELD and draw.random() < 0.1:
        choices["via"] = "bf16"
        words += ["--via", "bf16"]
    if draw.random() < 0.25:
        choices["mtp"] = draw.choice(["convert", "bf16", "keep", "drop"])
        words += ["--mtp", choices["mtp"]]
    if draw.random() < 0.1 and not source["family"]:
        words += ["--experts", draw.choice(["separate" if source.get("is_stacked") else "stacked", "stacked"])]
    if draw.random() < 0.3 and not source["family"]:
        rules, choices["rules"] = _rules(draw, to)
        words += rules
    if draw.random() < 0.2:
        words += ["--max-shard-size", draw.choice(["500KB", "2MB"])]
    if to not in PLAIN and draw.random() < 0.8:
        words += ["--allow", "engine-refuses=*"]
    return Target(words, choices)


def _back(to):
    """From the cast of a release back to its own scales."""
    choices = {"to": NAMES[to], "dialect": HELD[to][0][0], "activations": HELD[to][0][1][0], "released": "source"}
    return Target(["--to", to, "--scales-from", "source"], choices)


def _kills(draw):
    """Where runs die: the n-th call of a kind, small numbers as often as large ones."""
    kills = []
    for _ in range(draw.randint(1, 3)):
        call, most = draw.choice(FAULTS)
        kills.append(f"{call}:KILL:{int(most ** draw.random())}")
    return kills


def _limits(draw):
    words = ["--threads", str(draw.randint(1, 5))]
    words += draw.choice([[], ["--mem-limit", draw.choice(["128MiB", "300MB", "1GiB"])]])
    return words + [flag for flag in ["--buffered", "--read-back"] if draw.random() < 0.25]


def _topology(draw):
    tp, ep, pp = draw.choice(
        [(1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 4, 1), (2, 4, 1), (4, 1, 1), (2, 2, 2), (1, 1, 2), (1, 2, 2)]
    )
    words = ["--tp", str(tp), "--ep", str(ep)] + (["--pp", str(pp)] if pp > 1 else [])
    if ep > 1 and draw.random() < 0.2:
        words += ["--etp", "2"]
    fit = draw.choice(["retile", "retile", "pad", "bf16", "refuse"])
    words += ["--tp-fit", fit]
    if draw.random() < 0.2:
        words += ["--shared-experts", "replicated"]
    if draw.random() < 0.2:
        words += ["--links", "no"]
    return {
        "words": words,
        "fit": fit,
        "ep": ep,
        "map": draw.random() < 0.25 and ep > 1,
        "map_seed": draw.randrange(1 << 30),
    }


def _variants(draw, source, target):
    """What else is done with the last target, and has to give the same bytes."""
    kinds = ["limits", "kill", "parts", "slices", "consume"]
    weights = [2, 3, 3, 5, 1]
    form = (target.choices.get("to"), target.choices.get("dialect"))
    is_bare = "rules" not in target.choices and "--max-shard-size" not in target.words
    if source.get("synth_family") in NATIVE_FAMILIES and form in [("bf16", None), ("fp8-block", "deepseek")]:
        kinds, weights = kinds + ["native"], weights + [4]
    if source.get("synth_family") and is_bare and form in VLLM:
        kinds, weights = kinds + ["vllm"], weights + [4]
    chosen = []
    for kind in draw.choices(kinds, weights, k=draw.choice([1, 2, 2])):
        variant = {"kind": kind, "limits": _limits(draw)}
        if kind in ("kill", "consume"):
            variant["kills"] = _kills(draw)
        elif kind == "parts":
            variant["n"] = draw.choice([2, 2, 3, 4])
            variant["order"] = draw.sample(range(variant["n"]), variant["n"])
            variant["kills"] = _kills(draw) if draw.random() < 0.5 else []
        elif kind == "slices":
            variant.update(_topology(draw), kills=_kills(draw) if draw.random() < 0.3 else [], anew=draw.random() < 0.3)
        elif kind == "native":
            variant["words"] = ["--layout", "deepseek-mp", "--mp", str(draw.choice([1, 2, 4]))]
        elif kind == "vllm":
            tp = str(draw.choice([1, 2]))
            variant["words"] = ["--layout", "vllm-sharded", "--tp", tp] + draw.choice([[], ["--ep", tp]])
        chosen.append(variant)
    return chosen


def make_case(seed, golden):
    """The case of a seed. `golden`: tests/golden."""
    draw = random.Random(f"ingot differential {seed}")
    source = _source(draw, golden)
    case = Case(seed, source, salt=draw.randrange(1 << 30) if draw.random() < 0.4 else None)
    case.is_finite = case.salt is None or draw.random() < 0.85
    case.targets = [_target(draw, source, source.get("has_codes", False))]
    if draw.random() < 0.4:
        case.targets.append(_target(draw, source, case.targets[0].choices.get("to", "bf16") not in PLAIN))
    released = "fp8" if "fp8" in source.get("words", []) else "int4" if "kimi_k2" in source.get("folder", "") else None
    if released and draw.random() < 0.15:
        case.targets = [Target(["--to", "bf16"], {"to": "bf16"}), _back(released)]
    if not case.is_finite and draw.random() < 0.8:
        for target in case.targets:
            target.words += ["--allow", "nonfinite=*", "--allow", "nan-code=*"]
    case.variants = _variants(draw, source, case.targets[-1])
    return case


def widened(value, factor, key=""):
    """A config with every width times `factor`, and four experts."""
    if isinstance(value, dict):
        return {name: widened(entry, factor, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [widened(entry, factor, key) for entry in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return 4 if EXPERTS.search(key) else value * factor if WIDTH.search(key) else value


def write_widened(config, factor, path):
    with open(config) as source, open(path, "w") as file:
        json.dump(widened(json.load(source), factor), file)


def write_expert_map(config, slots_of, seed, path):
    """A random map of experts to slots, and the words that it needs. `slots_of`: expert-parallel ranks."""
    draw, text = random.Random(seed), config
    n = next(
        (
            text[key]
            for key in ["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"]
            if key in text
        ),
        0,
    )
    slots = draw.sample(range(n), n)
    words = []
    if draw.random() < 0.4 and n:
        slots += [draw.randrange(n) for _ in range(slots_of)]
        words = ["--redundant-experts"]
    with open(path, "w") as file:
        json.dump({"slots": slots}, file)
    return ["--expert-map", path] + words
