"""Made-up statistics of activations, as `ingot calibrate` would write them, and what they demand of an output."""

import random

import numpy as np

from container import write_file
from numbers_of_bits import F32, round_whole


def module_of(name):
    return name[: -len(".weight")]


def write_statistics(model, seed, path):
    """Ranges and mean squares of the input of every matrix of a model. Returns them by module."""
    draw = np.random.default_rng(random.Random(seed).randrange(1 << 32))
    modules, parts = {}, {}
    for name, values in sorted(model.singles.items()):
        if values is None or values.ndim != 2 or not name.endswith(".weight"):
            continue
        module = module_of(name)
        least, largest = np.sort(draw.normal(0, 4, 2)).astype(F32)
        mean_square = np.exp(draw.normal(0, 2, values.shape[1])).astype(F32)
        mean_square[draw.random(values.shape[1]) < 0.05] = 0
        # Zero is within every range.
        modules[module] = (min(least, F32(0)), max(largest, F32(0)), mean_square)
        parts[module + ".input_min"], parts[module + ".input_max"] = modules[module][:2]
        parts[module + ".input_mean_square"] = mean_square
    tensors = {}
    for name, values in parts.items():
        content = np.atleast_1d(np.asarray(values, "<f4"))
        tensors[name] = ("F32", content.shape, content.tobytes())
    write_file(path, tensors, {"ingot_calibration": "1", "documents": "1", "tokens": "1"})
    return modules


def _joints(modules, module):
    """Ranges that a module may have: its own, and joint ones with its neighbours, with which loaders may fuse it."""
    least, largest, _ = modules[module]
    neighbours = [
        (low, high) for other, (low, high, _) in modules.items() if other.rsplit(".", 1)[0] == module.rsplit(".", 1)[0]
    ]
    lows = {least} | {low for low, _ in neighbours if low < least}
    highs = {largest} | {high for _, high in neighbours if high > largest}
    return [(low, high) for low in lows for high in highs]


def judge_input_scale(weight, modules):
    """Complaints about the input scale of a weight with static activations."""
    part = "input_global_scale" if "input_global_scale" in weight.parts else "input_scale"
    stored = np.frombuffer(weight.parts[part].data, "<f4")
    reach = {"nvfp4": 2688, "int8": 127}.get(weight.scheme.split("-")[0], 448)
    wanted = []
    for low, high in _joints(modules, module_of(weight.name)):
        if "input_offset" in weight.parts:
            scale = max((high - low) / F32(255), F32(2.0**-23))
            offset = round_whole(-low / scale, -(2**31), 2**31) - F32(128)
            if not np.all(np.frombuffer(weight.parts["input_offset"].data, "<f4") == offset):
                continue
        else:
            scale = max(-low, high) / F32(reach)
        wanted.append(F32(1) / scale if part == "input_global_scale" else scale)
    if any(np.all(np.abs(stored - scale) <= scale * F32(2.0**-22)) for scale in wanted):
        return []
    return [f"its {part} {stored} is that of no range in the statistics: {wanted[:4]}"]
