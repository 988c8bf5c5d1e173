#!/usr/bin/env python3
"""Records golden.safetensors of a checkpoint of minimax_m3_vl in FP32 with Hugging Face transformers.

    record.py CHECKPOINT IDS OUT    IDS: a safetensors file with `input_ids`; OUT: the file to write

The class reads the rotated part of a head only from `partial_rotary_factor`; here it gets the value of `rotary_dim`."""
import json
import os
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

source, ids_file, out = sys.argv[1:]
ids = load_file(ids_file)["input_ids"]
with tempfile.TemporaryDirectory() as directory:
    config = json.load(open(os.path.join(source, "config.json")))
    text = config["text_config"]
    text["partial_rotary_factor"] = text["rotary_dim"] / text["head_dim"]
    json.dump(config, open(os.path.join(directory, "config.json"), "w"))
    tensors = {}
    for name in sorted(os.listdir(source)):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(source, name)))
    save_file({name: tensor.float() for name, tensor in tensors.items()},
              os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    torch.set_num_threads(1)
    model, loaded = AutoModelForImageTextToText.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
assert not loaded["missing_keys"] and not loaded["unexpected_keys"], loaded
model.eval()

hidden = {}
for index, layer in enumerate(model.model.language_model.layers):
    def keep(module, inputs, result, index=index):
        first = result[0] if isinstance(result, tuple) else result
        hidden.setdefault(f"hidden.{index + 1}", first[0].clone() if first.dim() == 3 else first.clone())
    layer.register_forward_hook(keep)
with torch.no_grad():
    golden = {"input_ids": ids, "logits": model(input_ids=ids[None], use_cache=False).logits[0],
              "hidden.0": model.get_input_embeddings()(ids)}
    golden.update(hidden)
    tokens = ids
    for _ in range(20):
        next_token = model(input_ids=tokens[None], use_cache=False).logits[0, -1].argmax()
        tokens = torch.cat([tokens, next_token[None]])
golden["greedy"] = tokens[len(ids):]
save_file({name: tensor.contiguous() for name, tensor in golden.items()}, out)
