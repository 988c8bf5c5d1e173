#!/usr/bin/env python3
"""Moments of the inputs of linears, by forward hooks in transformers.

    record.py FORWARD OUT           FORWARD: tests/golden/forward; writes OUT/NAME.safetensors

One document: the `input_ids` of NAME's golden. Float32, eager attention, no cache; sums in float64, rounded once. Of
each nn.Linear `MODULE.input_mean_square` [K], and of those named in MOMENTS `MODULE.input_moments` [K, K]. By torch
2.13.0 and transformers 5.24.0."""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

# Checkpoints whose hidden states have a multiple of 16 values: linear attention, and a state space.
MOMENTS = {"qwen3_next_dense": ["model.layers.1.linear_attn.in_proj_qkvz", "model.layers.1.linear_attn.out_proj"],
           "falcon_h1_limits": ["model.layers.1.mamba.in_proj", "model.layers.1.mamba.out_proj"]}


def record(folder, wanted):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(folder, "checkpoint"), dtype=torch.float32,
                                                 attn_implementation="eager")
    sums, counts = {}, {}

    def hook(name):
        def see(_module, args):
            x = args[0].detach().reshape(-1, args[0].shape[-1]).double()
            sums[name] = sums.get(name, 0) + x.T @ x
            counts[name] = counts.get(name, 0) + x.shape[0]
        return see

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(hook(name))
    ids = load_file(os.path.join(folder, "golden.safetensors"))["input_ids"].reshape(1, -1)
    with torch.no_grad():
        model.eval()(ids, use_cache=False)
    tensors = {"input_ids": ids.reshape(-1)}
    for name, total in sums.items():
        moments = total / counts[name]
        tensors[f"{name}.input_mean_square"] = moments.diagonal().float().contiguous()
        if name in wanted:
            tensors[f"{name}.input_moments"] = moments.float()
    return tensors


def main(forward, out):
    torch.manual_seed(0)
    for name, wanted in MOMENTS.items():
        save_file(record(os.path.join(forward, name), wanted), os.path.join(out, f"{name}.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
