"""Configs and maps of experts that sources and slices are made with."""

import json
import random
import re

EXPERTS = re.compile(r"^(n_routed_experts|num_experts|num_local_experts|moe_num_experts)$")
WIDTH = re.compile(r"(hidden_size|intermediate_size|intermediate|_dim|_rank|state_size|channels|_width|mlp_size)$")


def _widened(value, factor_of, key=""):
    """A config with every width times a factor of its key, and four experts."""
    if isinstance(value, dict):
        is_latent = "qk_nope_head_dim" in value
        kept = [
            name for name in value if not (is_latent and name in ("qk_head_dim", "head_dim"))
        ]  # they follow from others
        return {name: _widened(value[name], factor_of, name) for name in kept}
    if isinstance(value, list):
        return [_widened(entry, factor_of, key) for entry in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return 4 if EXPERTS.search(key) else value * factor_of(key) if WIDTH.search(key) else value


def write_widened(source, path):
    """The config of such a source: all widths times one number, or each times its own."""
    draw, factors = random.Random(source["factor_seed"]), {}
    with open(source["config"]) as config, open(path, "w") as file:
        json.dump(
            _widened(json.load(config), lambda key: factors.setdefault(key, draw.choice(source["factors"]))), file
        )


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
