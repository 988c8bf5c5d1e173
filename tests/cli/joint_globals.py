"""joint_globals.py BEFORE AFTER: NVFP4 weights of compressed-tensors, before and after fused ones have got one global
scale. Payloads are the same bytes; a block scale is the nearest E4M3 number to scale x own / joint, and not 0."""
import json
import struct
import sys


def tensors(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {n: data[8 + length + f["data_offsets"][0] : 8 + length + f["data_offsets"][1]] for n, f in header.items()}


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    return (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9


VALUES = [e4m3(code) for code in range(127)]


def nearest(value):
    """Ties to the even code."""
    return max(1, min(range(127), key=lambda code: (abs(VALUES[code] - value), code % 2)))


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


before, after = tensors(sys.argv[1]), tensors(sys.argv[2])
assert before.keys() == after.keys()
changed = {name for name in before if before[name] != after[name]}
modules = {name.rsplit(".", 1)[0] for name in changed}
assert len(modules) == 3, modules
for module in modules:
    own, joint = (struct.unpack("<f", side[module + ".weight_global_scale"])[0] for side in (before, after))
    partner = module.replace("gate_proj", "?").replace("up_proj", "gate_proj").replace("?", "up_proj")
    assert after[module + ".weight_global_scale"] == after[partner + ".weight_global_scale"]
    assert after[module + ".weight_global_scale"] == before[partner + ".weight_global_scale"]
    assert joint < own  # it divides
    assert before[module + ".weight_packed"] == after[module + ".weight_packed"]
    ratio = single(joint / own)
    scales = before[module + ".weight_scale"]
    rescaled = bytes(nearest(single(value * ratio)) for value in VALUES)
    wanted = bytes(rescaled[code] for code in scales)
    assert wanted == after[module + ".weight_scale"], module
    if ratio == 0.5:
        assert all(VALUES[a] * 2 == VALUES[b] for a, b in zip(wanted, scales))
