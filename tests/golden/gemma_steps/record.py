#!/usr/bin/env python3
"""Makes linears in the form of Google's Gemma, and what transformers 5.24 computes with them in BF16.

record.py: writes checkpoint/ and golden.safetensors next to this file.

`apply_srq` and the unpacking are those of transformers' integrations/gemma_quant.py. The product between is in F64 of
the decoded weights, rounded once to BF16: that of a BF16 kernel depends on the order of its sums."""
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers.integrations.gemma_quant import QuantizedLinear, apply_srq

HERE = pathlib.Path(__file__).parent
N_ROWS = 6
# Name: bits, rows, columns, steps of inputs and outputs (0: not calibrated).
LINEARS = {"mlp.gate_proj": (2, 24, 40, 0.031, 0.0), "mlp.up_proj": (4, 24, 40, 0.017, 0.043),
           "mlp.down_proj": (8, 40, 24, 0.0, 0.037), "self_attn.q_proj": (4, 32, 40, 0.0, 0.0),
           "self_attn.k_proj": (4, 16, 40, 0.023, 0.05)}


def main():
    generator = torch.Generator().manual_seed(63)
    weights, golden = {}, {}
    for name, (bits, rows, cols, step_in, step_out) in LINEARS.items():
        linear = QuantizedLinear(cols, rows, num_bits=bits)
        if bits == 8:
            codes = torch.randint(-128, 128, (rows, cols), generator=generator).to(torch.int8)
        else:
            codes = torch.randint(0, 256, (rows, cols * bits // 8), generator=generator).to(torch.uint8)
        scale = (torch.rand((rows, 1), generator=generator) + 0.5) / (2 ** (bits - 1) * cols ** 0.5)
        linear.weight.data, linear.weight_scale.data = codes, scale
        linear.input_activation_scale.data = torch.tensor(step_in)
        linear.output_activation_scale.data = torch.tensor(step_out)
        x = (1.5 * torch.randn((N_ROWS, cols), generator=generator)).bfloat16()
        rounded = apply_srq(x, linear.input_activation_scale)
        sums = (rounded.double() @ linear._dequantize_weights().double().T)
        out = apply_srq(sums.bfloat16(), linear.output_activation_scale) if step_out else sums
        at = f"model.layers.0.{name}."
        for part in ("weight", "weight_scale", "input_activation_scale", "output_activation_scale"):
            weights[at + part] = getattr(linear, part).data
        golden[name + ".x"], golden[name + ".y"] = x.float(), out.float()
    save_file(weights, HERE / "checkpoint/model.safetensors", {"format": "pt"})
    save_file(golden, HERE / "golden.safetensors")
    config = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "quantization_config": {
        "quant_method": "gemma", "num_bits": 4, "module_quant_configs": {
            r"mlp\.gate_proj$": {"num_bits": 2}, r"mlp\.down_proj$": {"num_bits": 8}}}}
    (HERE / "checkpoint/config.json").write_text(json.dumps(config, indent=1) + "\n")


main()
