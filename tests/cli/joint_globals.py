"""joint_globals.py BEFORE AFTER: NVFP4 weights of compressed-tensors, before and after fused ones have got one global
scale. Payloads are the same bytes; a block scale is the nearest E4M3 number to scale x own / joint, and not 0."""
import sys

import numpy as np

from container import read_file
from numbers_of_bits import E4M3, F32, e4m3_codes, round_e4m3

before, after = ({stored.name: stored.data for stored in read_file(path)} for path in sys.argv[1:3])
assert before.keys() == after.keys()
changed = {name for name in before if before[name] != after[name]}
modules = {name.rsplit(".", 1)[0] for name in changed}
assert len(modules) == 3, modules
for module in modules:
    own, joint = (np.frombuffer(side[module + ".weight_global_scale"], "<f4")[0] for side in (before, after))
    partner = module.replace("gate_proj", "?").replace("up_proj", "gate_proj").replace("?", "up_proj")
    assert after[module + ".weight_global_scale"] == after[partner + ".weight_global_scale"]
    assert after[module + ".weight_global_scale"] == before[partner + ".weight_global_scale"]
    assert joint < own  # it divides
    assert before[module + ".weight_packed"] == after[module + ".weight_packed"]
    scales, rescaled = (np.frombuffer(side[module + ".weight_scale"], np.uint8) for side in (before, after))
    wanted = np.maximum(e4m3_codes(round_e4m3(E4M3[scales] * F32(joint / own))), 1)
    assert np.array_equal(wanted, rescaled), module
    if F32(joint / own) == 0.5:
        assert np.array_equal(E4M3[rescaled] * 2, E4M3[scales]), module
