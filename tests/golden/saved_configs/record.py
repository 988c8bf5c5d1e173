#!/usr/bin/env python3
"""record.py: config.json files as they were released, and as Hugging Face transformers saves them again.

Writes, beside this file, FAMILY.json (in the spelling of a release) and FAMILY.saved.json. Needs transformers 5.
"""
import json
import pathlib
import tempfile

from transformers import AutoConfig

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DERIVED = {"head_dim", "qk_head_dim", "layer_types", "mlp_layer_types", "mlp_bias", "rope_interleave",
           "indexer_types", "transformers_version", "pretraining_tp", "pad_token_id"}


def released(config):
    """What transformers derives is taken out, and rope is spelled as it was before version 5."""
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
for family, source in sources.items():
    before = released(json.loads(source.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(before))
        AutoConfig.from_pretrained(path).save_pretrained(path / "saved")
        after = json.loads((path / "saved/config.json").read_text())
    for name, config in ((family, before), (family + ".saved", after)):
        (HERE / f"{name}.json").write_text(json.dumps(config, indent=2) + "\n")
