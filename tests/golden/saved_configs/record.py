#!/usr/bin/env python3
"""record.py: config.json files as they were released, and as Hugging Face transformers saves them again.

Writes into this folder FAMILY.json (in the spelling of a release) and FAMILY.saved.json; and NAME.saved.json of each
small checkpoint with a recorded forward pass, whose own config.json is in the spelling of its release. With names as
arguments only these are written. Needs transformers 5.
"""
import json
import pathlib
import sys
import tempfile

from transformers import AutoConfig

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DERIVED = {"head_dim", "qk_head_dim", "layer_types", "mlp_layer_types", "mlp_bias", "rope_interleave",
           "indexer_types", "transformers_version", "pretraining_tp", "pad_token_id"}


def released(config):
    """The config without the keys that transformers derives, and with rope as before version 5."""
    keep = {"head_dim"} if config["model_type"] == "qwen3_moe" else set()
    config = {k: v for k, v in config.items() if k not in DERIVED - keep}
    rope = config.pop("rope_parameters", None)
    if rope is not None:
        config["rope_theta"] = rope.pop("rope_theta")
        if rope["rope_type"] != "default":
            config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    return config


sources = {"deepseek_v32": ROOT / "examples/tiny-v32/config.json"}
for family in ("deepseek_v2", "deepseek_v3", "glm_moe_dsa", "qwen3_moe"):
    sources[family] = ROOT / f"tests/golden/arch/{family}/config.json"
# transformers does not read names that it calls otherwise; DSpark's layers are no part of its model.
UNREAD = {"bailing_hybrid", "kimi_k2_thinking", "deepseek_v4_dspark"}
RELEASED = {}
for golden in sorted((ROOT / "tests/golden/forward").glob("*/golden.safetensors")):
    name = golden.parent.name
    own = golden.parent / "checkpoint"
    if name not in UNREAD:
        RELEASED[name] = (own if own.is_dir() else ROOT / "tests/golden/families" / name) / "config.json"


def saved(config):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        AutoConfig.from_pretrained(path).save_pretrained(path / "saved")
        return json.loads((path / "saved/config.json").read_text())


def write(name, config):
    (HERE / f"{name}.json").write_text(json.dumps(config, indent=2) + "\n")


asked = set(sys.argv[1:])
for family, source in sources.items():
    if not asked or family in asked:
        before = released(json.loads(source.read_text()))
        write(family, before)
        write(family + ".saved", saved(before))
for name, source in RELEASED.items():
    if not asked or name in asked:
        write(name + ".saved", saved(json.loads(source.read_text())))
