"""Random cases. A case is a pure function of its seed: words of commands, and what the judge has to know of them."""

import glob
import os
import random
from dataclasses import dataclass, field

from config_files import EXPERTS
from container import read_config, text_config
from made import draw_made
from targets import PLAIN, Target, back_to_release, draw_target

SYNTH_FAMILIES = ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "qwen3_moe"]
NATIVE_FAMILIES = ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2"]
# Fixtures with experts in stacks, by a part of their names.
STACKED = ["qwen3_5_moe", "llama4", "gpt_oss", "mistral4", "inkling", "step3p7"]
# Schemes that layout vllm-sharded can hold.
VLLM = [
    ("bf16", None),
    ("fp8-block", "deepseek"),
    ("fp8-block", "compressed-tensors"),
    ("fp8-channel", "compressed-tensors"),
    ("int8-channel", "compressed-tensors"),
    ("nvfp4", "compressed-tensors"),
    ("int4-group", "compressed-tensors"),
]
SGLANG = VLLM[:5]  # those that layout sglang-sharded can hold
VARIANTS = ["limits", "kill", "parts", "slices", "consume", "native", "vllm", "sglang"]
# Calls at which runs die, each with the largest number that is drawn.
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


def _has_experts(folder):
    config = text_config(read_config(folder))
    return any(EXPERTS.search(key) for key in [*config, *config.get("ffn_config", [])])


def _source(draw, golden):
    kind = draw.choices(["synth", "widened", "fixture", "made"], [25, 15, 20, 40])[0]
    if kind == "made":
        return draw_made(draw)
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
            "has_experts": _has_experts(fixtures[name]),
        }
    if kind == "widened":
        names = [name for name in sorted(fixtures) if name.startswith(("families", "forward", "arch"))]
        folder = fixtures[draw.choice(names)]
        return {
            "kind": kind,
            "config": os.path.join(folder, "config.json"),
            "has_experts": _has_experts(folder),
            "factors": draw.choice([[4], [2, 4], [2, 3, 4, 5]]),
            "factor_seed": draw.randrange(1 << 30),
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


def _topology(draw, source):
    tp, ep, pp = draw.choice(
        [(1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 4, 1), (2, 4, 1), (4, 1, 1), (2, 2, 2), (1, 1, 2), (1, 2, 2)]
        if source.get("has_experts", True)
        else [(2, 1, 1), (2, 1, 1), (4, 1, 1), (2, 1, 2), (1, 1, 2)]
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
    """Other ways to make the last target, which have to give the same bytes."""
    kinds = ["limits", "kill", "parts", "slices", "consume"]
    weights = [2, 3, 3, 5, 1]
    form = (target.choices.get("to"), target.choices.get("dialect"))
    is_bare = "rules" not in target.choices and "--max-shard-size" not in target.words
    if source.get("synth_family") in NATIVE_FAMILIES and form in [("bf16", None), ("fp8-block", "deepseek")]:
        kinds, weights = kinds + ["native"], weights + [4]
    if source.get("synth_family") and is_bare and form in VLLM:
        kinds, weights = kinds + ["vllm"], weights + [4]
    if source.get("synth_family") and is_bare and form in SGLANG:
        kinds, weights = kinds + ["sglang"], weights + [8]
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
            variant.update(
                _topology(draw, source),
                kills=_kills(draw) if draw.random() < 0.3 else [],
                anew=draw.random() < 0.3,
                recut=_topology(draw, source)["words"],
            )
        elif kind == "native":
            variant["words"] = ["--layout", "deepseek-mp", "--mp", str(draw.choice([1, 2, 4]))]
        elif kind == "vllm":
            tp = str(draw.choice([1, 2]))
            variant["words"] = ["--layout", "vllm-sharded", "--tp", tp] + draw.choice([[], ["--ep", tp]])
        elif kind == "sglang":  # without MTP layers, and latents are expanded by plain weights, or in blocks
            family = source["synth_family"]
            has_mtp = family not in ("deepseek_v2", "qwen3_moe") and "--mtp" not in target.words
            variant["words"] = ["--layout", "sglang-sharded", "--tp", str(draw.choice([1, 2]))]
            variant["words"] += ["--mtp", "drop"] if has_mtp else []
            if family != "qwen3_moe" and "channel" in form[0]:
                variant["words"] += ["--rule", "role:kv-b-proj=bf16"]
        chosen.append(variant)
    return chosen


def make_case(seed, golden):
    """The case of a seed. `golden`: tests/golden."""
    draw = random.Random(f"ingot differential {seed}")
    source = _source(draw, golden)
    case = Case(seed, source, salt=draw.randrange(1 << 30) if draw.random() < 0.4 else None)
    case.is_finite = case.salt is None or draw.random() < 0.85
    case.targets = [draw_target(draw, source, source.get("has_codes", False))]
    if draw.random() < 0.4:
        case.targets.append(draw_target(draw, source, case.targets[0].choices.get("to", "bf16") not in PLAIN))
    released = "fp8" if "fp8" in source.get("words", []) else "int4" if "kimi_k2" in source.get("folder", "") else None
    if released and draw.random() < 0.15:
        case.targets = [Target(["--to", "bf16"], {"to": "bf16"}), back_to_release(released)]
    if not case.is_finite and draw.random() < 0.8:
        for target in case.targets:
            target.words += ["--allow", "nonfinite=*", "--allow", "nan-code=*"]
    case.variants = _variants(draw, source, case.targets[-1])
    return case
