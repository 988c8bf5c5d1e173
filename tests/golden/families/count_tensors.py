#!/usr/bin/env python3
"""Counts the weights of small checkpoints of families: by role, and their elements.

Reads nothing of ingot: headers of safetensors, and names as people read them (WORDS). A weight is counted once,
without the scales and zero points of its encoding, at the shape that it has before it.

    count_tensors.py DIRECTORY...          prints one JSON object per line and checkpoint
    count_tensors.py --headers DIRECTORY   prints the header in short: NAME DTYPE SIDES
"""
import json
import os
import re
import struct
import sys

# The first expression that matches a name gives its role. Anchored at the end; `L` is a layer's number.
WORDS = [
    ("other-modality", r"^(thinker\.)?(model\.)?(vision|embed_vision|embed_audio|visual|audio|mm_projector|multi_modal|patch_merge|pre_mm|vit[_.])"),
    ("expert-gate", r"experts\.\d+\.(gate_proj|w1)$"),
    ("expert-up", r"experts\.\d+\.(up_proj|w3)$"),
    ("expert-down", r"experts\.\d+\.(down_proj|w2)$"),
    ("experts-gate-up", r"(?<!shared_)experts\.(gate_up_proj|w13_weight)$|(block_sparse_moe|mlp)\.input_linear$"),
    ("experts-down", r"(?<!shared_)experts\.(down_proj|w2_weight)$|moe\.down_proj$|experts\.mlp\.w2$|(block_sparse_moe|mlp)\.output_linear$"),
    ("experts-gate-up-bias", r"experts\.gate_up_proj_bias$"),
    ("experts-down-bias", r"experts\.down_proj_bias$"),
    ("experts-gate", r"moe\.gate_proj$|experts\.mlp\.w1$"),
    ("experts-up", r"moe\.up_proj$|experts\.mlp\.v1$"),
    ("shared-gate", r"(shared_experts?|share_expert|shared_mlp)\.(gate_proj|w1|shared_w13_weight|input_linear)$"),
    ("shared-up", r"(shared_experts?|share_expert|shared_mlp)\.(up_proj|w3)$"),
    ("shared-down", r"(shared_experts?|share_expert|shared_mlp)\.(down_proj|w2|shared_w2_weight|output_linear)$"),
    ("router", r"(mlp|moe|ffn|feed_forward|mixer|block_sparse_moe|layers\.\d+)"
               r"\.(gate|router|gate\.wg|router\.classifier|router\.gate|router\.layer|router\.proj|gate\.router_mlp\.out_proj)$"),
    ("embedding", r"^(language_model\.|thinker\.)?(model\.)?(llm\.|language_model\.)?(embed_tokens|word_embeddings|embed)$"
                  r"|^(backbone\.embeddings|tok_embeddings|transformer\.wte)$"),
    ("head", r"^(language_model\.|thinker\.)?(lm_head|model\.llm\.unembed|output|head)$"),
]


def read_headers(directory):
    tensors = {}
    for name in sorted(os.listdir(directory)):
        if not name.startswith("model") or not name.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, name), "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        tensors.update({key: (value["dtype"], value["shape"]) for key, value in header.items()})
    return tensors


# The other parts of an encoded weight; and the number of elements in one stored element.
BESIDE = r"(weight_scale(_inv)?|activation_scale|input_scale|scale|weight_shape|scales|qzeros|g_idx|.*_scale_inv|.*_activation_scale|.*_scales)$"


def weights(tensors):
    """Name without `.weight` and the like -> elements."""
    found = {}
    for name, (dtype, shape) in tensors.items():
        last = name.rsplit(".", 1)[-1]
        count = 1
        for side in shape:
            count *= side
        stem = re.sub(r"\.(weight|weight_packed|qweight)$|_blocks$", "", name)
        is_beside = re.fullmatch(BESIDE, last) and (
            last.endswith("_scales") or last == "scale" and name[: -len("scale")] + "weight" in tensors
            or last != "scale")
        if is_beside and last not in ("global_scale",):
            continue
        if last in ("weight_packed", "qweight"):
            count *= 8
        elif name.endswith("_blocks"):
            count *= 2
        elif dtype == "I8":
            count *= 2  # FP4 of DeepSeek V4
        found[stem] = count
    return found


def role_of(name):
    for role, pattern in WORDS:
        if re.search(pattern, name):
            return role
    return "rest"


def count(directory):
    roles = {}
    total = 0
    for name, elements in weights(read_headers(directory)).items():
        role = roles.setdefault(role_of(name), [0, 0])
        role[0] += 1
        role[1] += elements
        total += elements
    name = os.path.abspath(directory).removesuffix("/checkpoint")
    return {"checkpoint": os.path.basename(name), "elements": total,
            "tensors": sum(n for n, _ in roles.values()), "roles": dict(sorted(roles.items()))}


if __name__ == "__main__":
    if sys.argv[1] == "--headers":
        for key, (dtype, shape) in read_headers(sys.argv[2]).items():
            print(key, dtype, "x".join(map(str, shape)) or "-")
    else:
        for directory in sys.argv[1:]:
            print(json.dumps(count(directory)))
