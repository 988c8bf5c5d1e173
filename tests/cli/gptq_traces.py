"""gptq_traces.py SOURCE PLAIN CARRIED STATS: three checkpoints in F32, and the directory of a calibration. Prints the
trace of error x moments x error' of CARRIED over that of PLAIN, by every fourth row, each of which carries its own
errors: the geometric mean over weights, the largest, and how many weights differ; for weights whose input moments STATS has, with those of modules with the same input under the
first one's name. Others that all have in F32 must be the same."""
import json
import pathlib
import sys

import numpy as np

from container import read_file


def tensors(directory):
    return {stored.name: np.frombuffer(stored.data, "<f4").reshape(stored.shape)
            for path in sorted(pathlib.Path(directory).rglob("*.safetensors"))
            for stored in read_file(str(path)) if stored.dtype == "F32"}


source, plain, carried = (tensors(folder) for folder in sys.argv[1:4])
stats = pathlib.Path(sys.argv[4])
ending = ".input_moments"
moments = {name.removesuffix(ending): values for name, values in tensors(stats / "moments").items()}
for first, *others in json.loads((stats / "calibration.json").read_text())["shared"]["moments"]:
    moments.update({other: moments[first] for other in others if first in moments})


def trace(error, name):
    return float(np.sum((error @ moments[name]) * error, dtype=np.float64))


ratios = {}
for name in sorted(source.keys() & plain.keys() & carried.keys()):
    values = source[name]
    if np.array_equal(plain[name], carried[name]):
        continue
    module = name.removesuffix(".weight")
    assert module in moments, f"{name} differs, and nothing is known of its inputs"
    before, after = plain[name][::4] - values[::4], carried[name][::4] - values[::4]
    ratios[name] = trace(after, module) / trace(before, module)
worst = max(ratios, key=ratios.get)
print(f"{np.exp(np.mean(np.log(list(ratios.values())))):.4f} {ratios[worst]:.4f} {len(ratios)} {worst}")
