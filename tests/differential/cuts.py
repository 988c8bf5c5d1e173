"""Which numbers of a model a rank holds, by the names of its tensors: the rules of Megatron, written down once more."""

import math
import os
import re
from dataclasses import dataclass

import numpy as np

from container import read_checkpoint, read_config, text_config
from weights import logical_tensors, whole_numbers

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
VOCABULARY = re.compile(r"(?:embed_tokens|lm_head|shared_head\.head)\.")
HEADS = re.compile(r"\.(?:q_proj|q_b_proj|kv_b_proj)\.")
KV_HEADS = re.compile(r"\.[kv]_proj\.")
OUT_OF_HEADS = re.compile(r"\.o_proj\.weight")
MLP = re.compile(r"\.(?:(experts|shared_experts)\.)?(?:(\d+)\.)?(gate|up|gate_up|down)_proj(?:\.|$)")


@dataclass(frozen=True)
class Cut:
    """A cut as a user asks for it. Without `etp` the whole of --tp cuts experts where nothing else deals them."""

    tp: int = 1
    ep: int = 1
    etp: int = 0
    pp: int = 1
    fit: str = "refuse"
    layout: str = "ranks"

    def words(self):
        if self.layout == "deepseek-mp":
            words = ["--layout", self.layout, "--mp", str(self.tp)]
        else:
            words = ["--layout", self.layout] if self.layout != "ranks" else []
            for key in ("tp", "ep", "etp", "pp"):
                words += ["--" + key, str(getattr(self, key))] if getattr(self, key) else []
        return words + (["--tp-fit", self.fit] if self.fit != "refuse" else [])

    @property
    def of_experts(self):
        return self.etp or (self.tp if self.ep == 1 else 1)

    @property
    def n_ranks(self):
        return self.pp * math.lcm(self.tp, self.ep * self.of_experts)


def _side(name, cut, rank, config):
    """The side of a matrix that is cut (0 rows, 1 columns, None), in how many slices, which is the rank's, and the
    width to which the side is padded."""
    n, index = cut.tp, rank % cut.tp
    if VOCABULARY.search(name):
        return 0, n, index, config["vocab_size"]
    if HEADS.search(name):
        return 0, n, index, 0
    if KV_HEADS.search(name):  # fewer heads than ranks: neighbours share one
        heads = min(n, config["num_key_value_heads"])
        return 0, heads, index // (n // heads), 0
    if OUT_OF_HEADS.search(name):
        return 1, n, index, 0
    mlp = MLP.search(name)
    if not mlp:
        return None, 1, 0, 0
    width = config["intermediate_size"]
    if mlp[1]:
        width = config["moe_intermediate_size"]
    if mlp[1] == "shared_experts":  # in one tensor
        width *= config.get("n_shared_experts") or 1
    if mlp[1] == "experts":
        n, index = cut.of_experts, rank % cut.of_experts
    return int(mlp[3] == "down"), n, index, width


def _experts(cut, rank, config):
    """The experts of a rank, from and to."""
    n = next((config[key] for key in EXPERTS if key in config), 0) // cut.ep
    first = rank // cut.of_experts % cut.ep * n
    return first, first + n


def part_of(name, values, cut, rank, config):
    """What a rank holds of a tensor of the whole, with zeros for padding; None where it is not the rank's. `config` is
    the rank's own."""
    mlp = MLP.search(name)
    if mlp and mlp[1] == "experts":
        first, end = _experts(cut, rank, config)
        if mlp[2] is None:
            values = values[first:end]
        elif not first <= int(mlp[2]) < end:
            return None
    side, n, index, width = _side(name, cut, rank, config)
    if side is None or values.ndim == 1 and side == 1:
        return values
    axis = 0 if values.ndim == 1 else values.ndim - 2 + side
    parts = []
    for section in np.split(values, 2 if mlp and mlp[3] == "gate_up" else 1, axis):
        short = max(width - section.shape[axis], 0)
        if short:
            section = np.pad(section, [(0, short if dimension == axis else 0) for dimension in range(section.ndim)])
        parts.append(np.split(section, n, axis)[index])
    return np.concatenate(parts, axis)


def _bias_complaints(name, part, whole, cut, rank, config):
    """A correction that is added to a sum over ranks counts once; another goes with the rows of its matrix."""
    side, _, index, _ = _side(name, cut, rank, config)
    own, all_ = whole_numbers(part), whole_numbers(whole)
    wanted = all_ * (index == 0) if side == 1 else part_of(name, all_, cut, rank, config)
    if not np.array_equal(own, wanted):
        yield name, "has not the quant_bias of its rows, once over all ranks"


def complaints_of(whole, folder, cut):
    """Complaints about the folder of all ranks, as (name, words): a rank lacks numbers that it is to hold, or holds
    others. Where there are stages, ranks of the same place in each hold a model together. `whole`: the weights of the
    unsliced checkpoint."""
    names = sorted(name for name in os.listdir(folder) if name.startswith("rank-"))
    if names != [f"rank-{rank:05}-of-{cut.n_ranks:05}" for rank in range(cut.n_ranks)]:
        yield folder, f"has the ranks {names}"
        return
    n_places = cut.n_ranks // cut.pp
    for place in range(n_places):
        held = {}
        for name in names[place::n_places]:
            config = read_config(os.path.join(folder, name))
            held.update(logical_tensors(read_checkpoint(os.path.join(folder, name)), config))
        for name, words in _complaints_of_place(whole, held, cut, place, text_config(config)):
            yield f"rank {place}: {name}", words


def _complaints_of_place(whole, held, cut, rank, config):
    for name, weight in whole.items():
        wanted = part_of(name, weight.values, cut, rank, config)
        if wanted is None or name not in held:
            if (wanted is None) != (name not in held):
                yield name, "is not the rank's" if wanted is None else "is missing"
            continue
        own = held[name].values
        if own.shape != wanted.shape or not np.array_equal(own, wanted):
            yield name, f"{own.shape} is not what the rank holds of the whole, {wanted.shape}"
        if "quant_bias" in weight.parts:
            parts = held[name].parts["quant_bias"], weight.parts["quant_bias"]
            yield from _bias_complaints(name, *parts, cut, rank, config)
    for name in held.keys() - whole.keys():
        yield name, "is not in the whole"
