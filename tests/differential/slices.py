"""Whether the files of ranks hold cuts of the unsliced checkpoint, and all of it together, only by bytes."""

import os
from collections import defaultdict

import numpy as np

from container import BYTES_OF, read_checkpoint


def rank_folders(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("rank-"))


def _lines(stored, axis):
    """The bytes at each place along an axis."""
    cells = np.frombuffer(stored.data, np.uint8).reshape(stored.shape + (BYTES_OF[stored.dtype],))
    return [line.tobytes() for line in np.moveaxis(cells, axis, 0)]


def places_of(part, whole):
    """The places of a slice along the one axis that was cut, ascending; None for another cut. Places that hold the same
    bytes are equal."""
    cut = [axis for axis, (ours, all_) in enumerate(zip(part.shape, whole.shape)) if ours != all_]
    if len(part.shape) != len(whole.shape) or len(cut) != 1 or part.dtype != whole.dtype:
        return None
    lines, at, places = _lines(whole, cut[0]), 0, []
    for line in _lines(part, cut[0]):
        while at < len(lines) and lines[at] != line:
            at += 1
        if at == len(lines):
            return None
        places.append(at)
        at += 1
    return {line for line in (lines[place] for place in places)}, set(lines)


def complaints_of(folder, whole):
    """Tensors of ranks that are no cut of the unsliced ones, and what no rank has. `whole`: the stored tensors."""
    covered, wanted = defaultdict(set), {}
    for rank in rank_folders(folder):
        for name, part in read_checkpoint(os.path.join(folder, rank)).items():
            if name not in whole:
                yield f"{rank}: {name} is not in the unsliced checkpoint"
            elif name.endswith("weight_shape"):  # of a slice the slice's own
                covered[name] = None
            elif part.shape == whole[name].shape:
                covered[name] = None
                if part.data != whole[name].data and not (name.endswith("quant_bias") and not any(part.data)):
                    yield f"{rank}: {name} is whole, and has other bytes"
            elif _is_cut_twice(part, whole[name]):
                covered[name] = None
            else:
                found = places_of(part, whole[name])
                if found is None:
                    yield f"{rank}: {name} {part.shape} is no cut of {whole[name].shape}"
                    covered[name] = None
                elif covered[name] is not None:
                    covered[name] |= found[0]
                    wanted[name] = found[1]
    for name in sorted(whole.keys() - covered.keys()):
        yield f"no rank has {name}"
    for name, lines in covered.items():
        if lines is not None and lines != wanted[name]:
            yield f"{name}: all ranks together lack {len(wanted[name] - lines)} of its lines"


def _is_cut_twice(part, whole):
    """Stacks are cut by experts and inside of them: left to what merge gives back."""
    return sum(ours != all_ for ours, all_ in zip(part.shape, whole.shape)) > 1
