"""Whether the scales and codes of a weight are those that its format asks for, given the values that were encoded.

docs/formats.md gives each scheme's scale as a formula and its code as a rounding. So no tolerance is guessed: a scale
is that of the formula, or of one of the candidates of a search; a code is the nearest one under the scale as stored,
or another that is no farther from the value."""

import numpy as np

from numbers_of_bits import (
    E4M3,
    F32,
    e4m3_codes,
    is_power_of_two,
    power_of_two_above,
    round_bf16,
    round_e2m1,
    round_e4m3,
    round_whole,
)
from weights import spread

ROUND = {
    "fp8": round_e4m3,
    "mxfp8": round_e4m3,
    "nvfp4": round_e2m1,
    "mxfp4": round_e2m1,
    "int8": lambda quotients: round_whole(quotients, -127, 127),
    "int4": lambda quotients: round_whole(quotients, -8, 7),
}
FLOORS = {"fp8-block": F32(1e-4), "fp8-channel": F32(1e-12), "fp8-tensor": F32(1e-12)}


def kind_of(scheme):
    return scheme.split("-")[0]


def blocks_of(values, block):
    """[..., N, K] as [..., blocks down, blocks across, rows x columns], shorter blocks filled up with zeros."""
    rows, columns = min(block[0], values.shape[-2]), min(block[1], values.shape[-1])
    down, across = -(-values.shape[-2] // rows), -(-values.shape[-1] // columns)
    fill = [(0, 0)] * (values.ndim - 2) + [
        (0, down * rows - values.shape[-2]),
        (0, across * columns - values.shape[-1]),
    ]
    if any(behind for _, behind in fill):
        values = np.pad(values, fill)
    split = values.reshape(values.shape[:-2] + (down, rows, across, columns))
    return np.moveaxis(split, -3, -2).reshape(split.shape[:-4] + (down, across, rows * columns))


def finite(weight, values, peers):
    """NaN as 0, infinities as the largest finite magnitude of their block: what `--allow nonfinite` promises. The block
    of one scale for a tensor is also what loaders fuse with it, so there it is one of the amax that this scale holds:
    that to which the code is nearest."""
    if np.isfinite(values).all():
        return values
    kept = np.where(np.isfinite(values), values, F32(0))
    largest = spread(np.abs(blocks_of(kept, weight.block)).max(-1), weight.block, values.shape)
    if weight.scheme == "fp8-tensor" and values.ndim == 2:
        held = [F32(amax) for amax in peers if amax >= largest.max() and F32(amax) / F32(448) <= weight.scales.max()]
        for amax in held:
            is_nearer = np.abs(np.abs(weight.values) - amax) < np.abs(np.abs(weight.values) - largest)
            largest = np.where(is_nearer, amax, largest)
    return np.where(np.isinf(values), np.copysign(largest, values), kept)


def amax_of(values, block):
    """The largest magnitude of each block."""
    return np.abs(blocks_of(values, block)).max(-1)


def errors_of(values, decoded, block, importance=None):
    """The squared error of each block, in double precision; columns may count differently."""
    squares = (values.astype(np.float64) - decoded) ** 2
    return blocks_of(squares if importance is None else squares * importance, block).sum(-1)


def encoded(kind, values, spread, zeros=None):
    """The values of the nearest codes under these scales, and zero points."""
    with np.errstate(all="ignore"):
        quotients = values / spread
        return (ROUND[kind](quotients) if zeros is None else round_whole(quotients, -zeros, 15 - zeros)) * spread


def joint_scales(formula, own, peers):
    """Scales over a whole tensor may be over those that loaders fuse with it: of any peer that has a larger amax."""
    return [formula(F32(amax)) for amax in [own, *peers] if amax >= own]


def power_of_two_of_group(amax, shift):
    """2^(e - shift): e is the exponent of amax, one more where its mantissa is at least 1.75; of zeros 1."""
    mantissa, exponent = np.frexp(amax.astype(np.float64))
    e = exponent - 1 + (mantissa * 2 >= 1.75) - shift
    return np.where(amax == 0, 1.0, np.exp2(np.clip(e, -127, 127).astype(np.float64))).astype(F32)


def fp8_scales(weight, values, choices, peers):
    """Candidates for the scales of FP8: as computed, and rounded up to powers of two."""
    floor = FLOORS[weight.scheme]
    formula = lambda amax: np.maximum(amax, floor) / F32(448)
    if weight.scheme == "fp8-tensor":
        own = np.abs(values).max((-2, -1), keepdims=True)
        plain = joint_scales(formula, own.max(), peers) if values.ndim == 2 else [formula(own)]
    else:
        plain = [formula(amax_of(values, weight.block))]
    grid = choices.get("fp8_grid")
    return ([] if grid == "ue8m0" else plain) + (
        [] if grid == "amax" else [power_of_two_above(scales) for scales in plain]
    )


def nvfp4_candidates(weight, values, choices, peers, source_scheme):
    """Block scales that a search may choose, and whether the global scale is that of the formula. MXFP4 keeps its codes
    under a global scale that is a power of two."""
    search = choices.get("search", "mse")
    reach = F32(6 * 448 if search == "amax" else 6 * 256)
    amax = amax_of(values, weight.block)
    of_all = weight.scale_of_all
    globals_ = []
    for joint in joint_scales(lambda number: number, np.abs(values).max(), peers):
        if joint == 0:
            globals_.append(F32(1))
        else:
            globals_ += [reach / joint, F32(1) / (joint / reach)] if weight.divides else [joint / reach]
    is_right = (source_scheme == "mxfp4" and bool(np.all(is_power_of_two(of_all)))) or any(
        np.all(np.abs(of_all - number) <= number * F32(2.0**-22)) for number in globals_
    )
    with np.errstate(all="ignore"):
        raw = of_all * (amax / F32(6)) if weight.divides else amax / (F32(6) * of_all)
        first = np.clip(e4m3_codes(round_e4m3(raw)), 1, 126)
        if search == "amax":
            steps = [first]
        elif search == "4over6":
            steps = [first, np.clip(e4m3_codes(round_e4m3(raw * F32(1.5))), 1, 126)]
        else:
            far = np.where(first < 16, 16, 8)
            steps = [np.clip(first + np.minimum(step, far), 1, 126) for step in range(-3, 17)]
    return [np.where(amax == 0, F32(1), E4M3[codes]) for codes in [first] + steps[(search == "amax") :]], is_right


def judge_search(weight, values, candidates, choices):
    """Blocks whose error is larger than that of the best candidate. The first has to be among them always."""
    kind = kind_of(weight.scheme)
    importance = choices.get("importance_of", {}).get(weight.name)
    best = None
    wide = values if values.size <= choices.get("searched", 1 << 15) else None
    for scales in candidates if wide is not None else candidates[:1]:
        effective = scales
        if weight.scale_of_all is not None:
            effective = scales / weight.scale_of_all if weight.divides else scales * weight.scale_of_all
        decoded = encoded(kind, values, spread(effective, weight.block, values.shape))
        error = errors_of(values, decoded, weight.block, importance)
        best = error if best is None else np.minimum(best, error)
    own = errors_of(values, weight.values, weight.block, importance)
    # Errors are differences of FP32 quotients there, each rounded twice, and summed in another order.
    quotients = np.abs(values.astype(np.float64)) * np.abs(values.astype(np.float64) - weight.values)
    slack = blocks_of(quotients if importance is None else quotients * importance, weight.block).sum(-1) * 2.0**-20
    return own > best * (1 + 1e-4) + slack + 1e-300


def product_error(weight):
    """The relative error of scales that are stored as products: Ascend's static form has those with the input scale, in
    FP32, where small ones lose digits."""
    if "deq_scale" not in weight.parts:
        return np.float64(0)
    return 2.0**-22 + 2.0**-149 / weight.products.astype(np.float64)


def judge_scales(weight, values, choices, peers, source_scheme):
    """Which blocks have a scale that the format does not give; and words about the whole."""
    scheme, stored = weight.scheme, weight.scales
    if scheme in FLOORS:
        candidates = fp8_scales(weight, values, choices, peers)
        wrong = [stored != np.broadcast_to(scales, stored.shape) for scales in candidates]
        return min(wrong, key=np.count_nonzero), ""
    if kind_of(scheme) == "int8":
        wanted = np.maximum(amax_of(values, weight.block) / F32(127), F32(2.0**-23))
        return np.abs(stored - wanted) > wanted * product_error(weight), ""
    if scheme in ("mxfp4", "mxfp8"):
        return stored != power_of_two_of_group(amax_of(values, weight.block), 2 if scheme == "mxfp4" else 8), ""
    if scheme == "nvfp4":
        candidates, is_right = nvfp4_candidates(weight, values, choices, peers, source_scheme)
        wrong = np.all([stored != scales for scales in candidates], 0) | judge_search(
            weight, values, candidates, choices
        )
        return wrong, "" if is_right else f"its global scale {weight.scale_of_all} is of no amax here"
    amax = amax_of(values, weight.block)
    first = np.where(amax == 0, F32(1), round_bf16(amax / F32(7)))
    search = choices.get("search", "mse")
    if search == "amax" and choices.get("zero_points"):
        blocks = blocks_of(values, weight.block)
        width = np.maximum(blocks.max(-1), 0) - np.minimum(blocks.min(-1), 0)
        return stored != np.where(amax == 0, F32(1), round_bf16(width / F32(15))), ""
    if search == "amax":
        return stored != first, ""
    wrong = judge_search(weight, values, [first], choices) | ((amax == 0) & (stored != 1))
    return wrong | ((stored < 0) & (search != "signed")), ""


def judge_encoding(weight, values, choices, peers, source_scheme):
    """Complaints about a weight that was encoded from `values`, which has its shape. `peers`: the amax of every matrix
    of the same module. Where the values come from codes, a scale may also be one that loses nothing."""
    complaints = []
    with np.errstate(all="ignore"):
        slack = np.abs(values) * product_error(weight).astype(F32)
        differs = ~(np.abs(weight.values - values) <= slack) & (weight.values != values)
        is_exact = ~(blocks_of(differs.astype(F32), weight.block).any(-1))
        wrong, words = judge_scales(weight, values, choices, peers, source_scheme)
        if words:
            complaints.append(words)
        if source_scheme not in ("bf16", "f16", "f32"):
            wrong = wrong & ~is_exact
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            complaints.append(
                f"{np.count_nonzero(wrong)} of {wrong.size} scales are not those of {weight.scheme}: block {at} "
                f"has {weight.scales[at]}, amax {amax_of(values, weight.block)[at]}"
            )
    return complaints + judge_codes(weight, values)


def judge_codes(weight, values):
    """Complaints about codes under the scales as stored: no other code may be nearer to a value."""
    with np.errstate(all="ignore"):
        nearest = encoded(kind_of(weight.scheme), values, weight.spread, weight.zeros)
        own = np.abs(weight.values.astype(np.float64) - values)
        best = np.abs(nearest.astype(np.float64) - values)
        slack = np.abs(values) * product_error(weight) * 4
        far = ~(own <= np.where(np.isnan(best), np.inf, best) + slack)
    if not far.any():
        return []
    at = tuple(int(i) for i in np.argwhere(far)[0])
    return [
        f"{np.count_nonzero(far)} of {far.size} values are not the nearest of {weight.scheme}: {at} is "
        f"{weight.values[at]!r} for {values[at]!r} under {weight.spread[at]!r}, where {nearest[at]!r} is nearer"
    ]
