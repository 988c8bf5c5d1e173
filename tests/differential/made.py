"""Sources that no program made: a family's tensors with random values, matrices of its layers in the form of a tool."""

import json
import os
import random

import numpy as np

from container import write_checkpoint
from families import FAMILIES, draw_config, shapes_of
from forms import BY_NAME, FORMS, draw_plain, is_plain, settled
from numbers_of_bits import to_bf16, to_f16

PLAIN = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def draw_made(draw):
    """A source as choices, from which `write_made` makes the same files each time."""
    form = draw.choice(FORMS if draw.random() < 0.75 else FORMS[:1])
    row = draw.choice(FAMILIES)
    config = draw_config(draw, row, 32 if draw.random() < 0.6 else form.step)
    shapes, linears = shapes_of(config)
    dtype = draw.choice(["BF16", "BF16", "BF16", "F16", "F32", "F32"])
    return {
        "kind": "made",
        "form": form.name,
        "config": config,
        "choices": settled(form.draw(draw), linears),
        "plain": draw_plain(draw, form),
        "dtype": dtype,
        "is_wide": dtype == "F32" and draw.random() < 0.5,  # under dtype bfloat16, as training programs save
        "seed": draw.randrange(1 << 30),
        "n_files": draw.randint(1, 3),
        "family": [],
        "has_codes": form.parts is not None,
        "is_dense": "num_experts" not in config,
        "has_experts": "num_experts" in config,
    }


def _stored(numbers, dtype, name, shape):
    """Random values of a plain tensor; norms are about one."""
    values = numbers.normal(1.0 if "norm" in name else 0.0, 0.05, shape).astype("<f4")
    if dtype == "F32":
        return dtype, shape, values.tobytes()
    return dtype, shape, (to_bf16(values) if dtype == "BF16" else to_f16(values)).tobytes()


def tensors_of(source):
    """Every stored tensor of such a source, and its config.json."""
    form, config = BY_NAME[source["form"]], dict(source["config"])
    numbers = np.random.default_rng(source["seed"])
    shapes, linears = shapes_of(config)
    for key in ("dtype", "torch_dtype"):
        if key in config and not source.get("is_wide"):
            config[key] = PLAIN[source["dtype"]]
    tensors = {}
    for name, shape in shapes.items():
        module = name[: -len(".weight")]
        if form.parts is None or module not in linears or is_plain(module, source["plain"]):
            tensors[name] = _stored(numbers, source["dtype"], name, shape)
        else:
            for part, stored in form.parts(numbers, source["choices"], module, *shape).items():
                tensors[f"{module}.{part}"] = stored
    if form.block is not None:
        config["quantization_config"] = form.block(source["choices"], linears, source["plain"])
    return tensors, config


def write_made(source, folder):
    """Tensors are dealt to files at random: parts of one weight may be apart."""
    tensors, config = tensors_of(source)
    names, n = list(tensors), source["n_files"]
    random.Random(source["seed"]).shuffle(names)
    files = [{name: tensors[name] for name in sorted(names[at::n])} for at in range(n)]
    write_checkpoint(folder, files, config)
    form = BY_NAME[source["form"]]
    if form.described_as is not None:
        write_description(folder, tensors, form.described_as(source["choices"]))


def write_description(folder, tensors, word):
    """Ascend's description has a line for every stored tensor."""
    modules = {name.rsplit(".", 1)[0] for name in tensors if name.endswith((".deq_scale", ".weight_scale"))}
    lines = {name: word if name.rsplit(".", 1)[0] in modules else "FLOAT" for name in sorted(tensors)}
    with open(os.path.join(folder, "quant_model_description.json"), "w") as file:
        json.dump({"model_quant_type": word, **lines}, file, indent=2)
