#!/usr/bin/env python3
"""Makes a tiny random Intern-S2 Mobius, and what PyTorch computes with it as its engines' classes do.

    record_interns2_mobius.py OUT    writes OUT/checkpoint/ and OUT/golden.safetensors

No class of transformers reads it, and no release's header was at hand. Attention, delta nets, norms and rope are those
of transformers' Qwen3.5 MoE, whose layers vLLM 0.33 and SGLang 0.5.23 build too; the mixture is written here: layer l
has the router and the routed experts of block l mod `num_blocks`, and a shared expert of its own. `layer_scale`, which
vLLM's class reads, multiplies what a layer adds by the weight plus 1."""
import json
import math
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

GAP, MOST_LOST, N_BLOCKS = 5e-3, 2e-6, 2
FIRST = 5  # a seed with which BF16 keeps nearly all choices of experts
TEXT = {
    "model_type": "interns2_mobius_text", "dtype": "bfloat16", "vocab_size": 102, "hidden_size": 68,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "max_position_embeddings": 4096, "tie_word_embeddings": False, "attention_bias": False,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 28,
    "shared_expert_intermediate_size": 36, "norm_topk_prob": True, "num_blocks": N_BLOCKS, "layer_scale": True,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                        "mrope_section": [1, 1, 1], "mrope_interleaved": True},
    "bos_token_id": 0, "eos_token_id": 1}
CONFIG = {"architectures": ["InternS2MobiusForConditionalGeneration"], "model_type": "interns2_mobius",
          "dtype": "bfloat16", "tie_word_embeddings": False, "text_config": TEXT}
OF_TRANSFORMERS = {key: value for key, value in TEXT.items() if key not in ("model_type", "num_blocks", "layer_scale")}


class Mixture(torch.nn.Module):
    """The shared expert of a layer and the routed ones of a block."""

    def __init__(self, own, block, scale):
        super().__init__()
        self.own, self.block, self.scale = own, block, scale

    def forward(self, hidden):
        x = hidden.flatten(0, 1)
        out = torch.sigmoid(self.own.shared_expert_gate(x)) * self.own.shared_expert(x)
        chances = torch.softmax(x @ self.block["gate.weight"].T, -1)
        shares, chosen = chances.topk(TEXT["num_experts_per_tok"], -1)
        shares = shares / shares.sum(-1, keepdim=True)
        for row in range(len(x)):
            for share, expert in zip(shares[row], chosen[row]):
                gate, up = (self.block["experts.gate_up_proj"][expert] @ x[row]).chunk(2)
                inner = torch.nn.functional.silu(gate) * up
                out[row] += share * (self.block["experts.down_proj"][expert] @ inner)
        return (out * self.scale).view_as(hidden)


def scaled(module, scale):
    """The module's output times a scale per value."""
    before = module.forward

    def forward(*given, **named):
        out = before(*given, **named)
        return (out[0] * scale, *out[1:]) if isinstance(out, tuple) else out * scale

    module.forward = forward


def random_model(generator):
    """Weights by name, and a model that computes with them in FP32."""
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**OF_TRANSFORMERS, attn_implementation="eager")).float().eval()
    weights = {}

    def add(name, shape, kind):
        noise = torch.randn(shape, generator=generator)
        value = {"matrix": noise / shape[-1] ** 0.5, "near 0": 0.1 * noise, "near 1": 1 + 0.1 * noise,
                 "rate": torch.log(1 + 8 * torch.rand(shape, generator=generator)), "taps": 0.5 * noise}[kind]
        weights[name] = value.bfloat16()
        return weights[name].float()

    def name_of(name):
        return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name

    for name, tensor in model.named_parameters():
        if ".mlp." in name and ".shared_expert" not in name:
            continue
        kind = ("rate" if name.endswith("A_log") else "taps" if "conv1d" in name else
                "near 1" if name.endswith("linear_attn.norm.weight") else
                "near 0" if "norm" in name or name.endswith("dt_bias") else "matrix")
        tensor.data = add(name_of(name), tuple(tensor.shape), kind)
    hidden, inner, experts = TEXT["hidden_size"], TEXT["moe_intermediate_size"], TEXT["num_experts"]
    blocks = []
    for block in range(N_BLOCKS):
        at = f"model.language_model.meta_mlp.{block}."
        blocks.append({name: add(at + name, shape, "matrix") for name, shape in
                       (("gate.weight", (experts, hidden)), ("experts.gate_up_proj", (experts, 2 * inner, hidden)),
                        ("experts.down_proj", (experts, hidden, inner)))})
    for number, layer in enumerate(model.model.layers):
        at = f"model.language_model.layers.{number}."
        scales = [1 + add(at + name, (1, 1, hidden), "near 0")[0] for name in ("attn_layer_scale", "ffn_layer_scale")]
        scaled(layer.linear_attn if TEXT["layer_types"][number] == "linear_attention" else layer.self_attn, scales[0])
        layer.mlp = Mixture(layer.mlp, blocks[number % N_BLOCKS], scales[1])
    return weights, model


def run(model, ids):
    with torch.no_grad():
        out = model(ids[None], use_cache=False, output_hidden_states=True)
    return [state[0] for state in out.hidden_states], out.logits[0]


def set_dtype(model, dtype):
    model.to(dtype)
    for layer in model.model.layers:
        for name, value in layer.mlp.block.items():
            layer.mlp.block[name] = value.to(dtype)


def lost(model, ids):
    """The relative difference of logits from those in FP64."""
    found = run(model, ids)[1]
    set_dtype(model, torch.float64)
    exact = run(model, ids)[1]
    set_dtype(model, torch.float32)
    return float((found - exact).norm() / exact.norm())


def main(out):
    for seed in range(FIRST, FIRST + 100):
        generator = torch.Generator().manual_seed(seed)
        weights, model = random_model(generator)
        ids = torch.randint(3, TEXT["vocab_size"], (32,), generator=generator)
        tokens, gap = ids, math.inf
        for _ in range(20):
            best = torch.topk(run(model, tokens)[1][-1], 2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            tokens = torch.cat([tokens, best.indices[:1]])
        greedy = tokens[len(ids):]
        if gap >= GAP and len(set(greedy.tolist())) >= 4 and lost(model, ids) <= MOST_LOST:
            break
    os.makedirs(os.path.join(out, "checkpoint"), exist_ok=True)
    with open(os.path.join(out, "checkpoint", "config.json"), "w") as file:
        json.dump(CONFIG, file, indent=2)
        file.write("\n")
    save_file(weights, os.path.join(out, "checkpoint", "model.safetensors"), {"format": "pt"})
    states = []
    hooks = [layer.register_forward_hook(lambda _, __, state: states.append(state[0])) for layer in model.model.layers]
    first, logits = run(model, ids)
    for hook in hooks:
        hook.remove()
    golden = {f"hidden.{i}": state.contiguous().clone() for i, state in enumerate([first[0], *states])}
    save_file({**golden, "input_ids": ids, "logits": logits.contiguous(), "greedy": greedy},
              os.path.join(out, "golden.safetensors"))
    print(f"seed {seed}, gap {gap:.1e}")


if __name__ == "__main__":
    main(sys.argv[1])
