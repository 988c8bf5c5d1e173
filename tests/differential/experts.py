"""Routed experts one by one and in stacks: the same matrices under other names."""

import re

import numpy as np

from container import text_config

# Stacks of a family: whether plain ones are input-major, and whether gate and up rows alternate.
FORMS = {"llama4": (True, False), "gpt_oss": (True, True), "qwen3_vl_moe": (True, False), "inkling": (False, True)}
STACK = re.compile(r"^(.*\.experts)\.(gate_up_proj|down_proj|w13_weight|w2_weight)(_bias)?$")
SINGLE_STACK = re.compile(r"^(.*(?<!\.experts))\.(gate_proj|up_proj|down_proj|input_linear|output_linear)\.weight$")
# Those of DBRX, one expert behind the other in a matrix; the last is input-major.
FLAT = re.compile(r"^(.*\.experts\.mlp)\.(w1|v1|w2)$")
GATE_AND_UP = ["gate_proj", "up_proj"]
MEMBERS = {"gate_up_proj": GATE_AND_UP, "w13_weight": GATE_AND_UP, "input_linear": GATE_AND_UP}
MEMBERS.update({"w2_weight": ["down_proj"], "output_linear": ["down_proj"]})


def form_of(config):
    kinds = {config.get("model_type", ""), text_config(config).get("model_type", "")}
    for family, form in FORMS.items():
        if any(kind.startswith(family) for kind in kinds):
            return form
    return (False, False)


def members_of(name, n_dimensions):
    """For a stack: per member the names of its experts before and after their number. Else empty."""
    found = STACK.match(name)
    if found:
        kind = "bias" if found[3] else "weight"
        return [(found[1] + ".", f".{member}.{kind}") for member in MEMBERS.get(found[2], [found[2]])]
    found = SINGLE_STACK.match(name)
    if found and n_dimensions == 3:
        return [(found[1] + ".experts.", f".{member}.weight") for member in MEMBERS.get(found[2], [found[2]])]
    found = FLAT.match(name)
    return [(found[1] + ".", f".{found[2]}.weight")] if found and n_dimensions == 3 else []


def unfolded(name, values, config):
    """A flat stack as a matrix of each expert; others as they are."""
    if not FLAT.match(name):
        return values
    return values.reshape(config["ffn_config"]["moe_num_experts"], -1, values.shape[-1])


# Where groups of codes run along the inputs, a stack is output-major in every family; one of square blocks is as plain.
def _is_input_major(name, values, has_groups, form):
    return values.ndim == 3 and not has_groups and (form[0] or FLAT.match(name) and name.endswith("w2"))


def separated(name, values, has_groups, form):
    """The single experts of a stack, by name; output-major."""
    in_turn, members = form[1], members_of(name, values.ndim)
    if _is_input_major(name, values, has_groups, form):
        values = values.transpose(0, 2, 1)
    singles, n = {}, len(members)
    for m, (before, behind) in enumerate(members):
        size = values.shape[1] // n
        rows = slice(m, None, n) if in_turn else slice(m * size, (m + 1) * size)
        for expert in range(values.shape[0]):
            singles[f"{before}{expert}{behind}"] = values[expert, rows]
    return singles


def assembled(name, n_dimensions, n_experts, singles, has_groups, form):
    """The stack of these single experts, as it is stored under `name`."""
    in_turn, matrices = form[1], []
    for expert in range(n_experts):
        own = [singles[f"{before}{expert}{behind}"] for before, behind in members_of(name, n_dimensions)]
        matrices.append(np.stack(own, 1).reshape((-1,) + own[0].shape[1:]) if in_turn else np.concatenate(own))
    stack = np.stack(matrices)
    return stack.transpose(0, 2, 1) if _is_input_major(name, stack, has_groups, form) else stack
