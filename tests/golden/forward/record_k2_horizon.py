#!/usr/bin/env python3
"""Makes a tiny random K2 Horizon, and what PyTorch computes with it as vLLM 0.33's class does (k2_horizon.py).

    record_k2_horizon.py OUT    writes OUT/checkpoint/ and OUT/golden.safetensors

No class of transformers reads it, and no release's header was at hand. Rope turns the first `rope_head_dim` values of a
head whose halves are interleaved; experts are chosen by sigmoid and bias, and weighed by sigmoid over its sum."""
import json
import math
import os
import sys

import torch
from safetensors.torch import save_file

GAP = 5e-3
CONFIG = {
    "architectures": ["K2HorizonForCausalLM"], "model_type": "k2_horizon", "dtype": "bfloat16", "vocab_size": 102,
    "hidden_size": 64, "intermediate_size": 90, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 20, "rope_head_dim": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "attention_bias": False, "num_experts": 6,
    "num_experts_per_tok": 2, "num_shared_experts": 2, "moe_intermediate_size": 28, "mlp_only_layers": [0],
    "decoder_sparse_step": 1, "mova_num_experts": 0, "mova_num_experts_per_tok": 0, "query_key_norm": False,
    "attention_gate_func": None, "layernorm_num_groups": 1, "router_score_func": "sigmoid", "moe_gate_bias": True,
    "router_scaling_factor": 2.5, "norm_topk_prob": True, "bos_token_id": 0, "eos_token_id": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
C = CONFIG
HEADS, KEYS, WIDTH = C["num_attention_heads"], C["num_key_value_heads"], C["head_dim"]


def shapes():
    hidden, experts, inner = C["hidden_size"], C["num_experts"], C["moe_intermediate_size"]
    yield "model.embed_tokens.weight", (C["vocab_size"], hidden)
    yield "lm_head.weight", (C["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(C["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        for name, rows in (("q", HEADS), ("k", KEYS), ("v", KEYS)):
            yield f"{at}self_attn.{name}_proj.weight", (rows * WIDTH, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, HEADS * WIDTH)
        blocks = [("mlp.", C["intermediate_size"])]
        if layer not in C["mlp_only_layers"]:
            yield at + "mlp.gate.weight", (experts, hidden)
            yield at + "mlp.gate.bias", (experts,)
            blocks = [(f"mlp.experts.{expert}.", inner) for expert in range(experts)]
            blocks.append(("mlp.shared_experts.", inner * C["num_shared_experts"]))
        for block, width in blocks:
            yield at + block + "gate_proj.weight", (width, hidden)
            yield at + block + "up_proj.weight", (width, hidden)
            yield at + block + "down_proj.weight", (hidden, width)


def random_weights(generator):
    weights = {}
    for name, shape in shapes():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("bias"):
            weights[name] = 0.05 * noise
        else:
            value = noise / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.1 * noise
            weights[name] = value.bfloat16()
    return weights


class Pass:
    def __init__(self, weights):
        self.weights = {name: value.float() for name, value in weights.items()}

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + C["rms_norm_eps"]) * self.weights[name]

    def product(self, x, name):
        return x @ self.weights[name].T

    def mlp(self, x, at):
        gate = torch.nn.functional.silu(self.product(x, at + "gate_proj.weight"))
        return self.product(gate * self.product(x, at + "up_proj.weight"), at + "down_proj.weight")

    def rotate(self, x):
        turned = C["rope_head_dim"]
        turns = 10000.0 ** (-torch.arange(0, turned, 2).float() / turned)
        angles = (torch.arange(len(x)).float()[:, None] * turns)[:, None]
        pairs = torch.stack([x[..., :WIDTH // 2], x[..., WIDTH // 2:]], -1)
        first, rest = pairs[..., :turned // 2, :], pairs[..., turned // 2:, :]
        u, w, cos, sin = first[..., 0], first[..., 1], angles.cos(), angles.sin()
        first = torch.stack([u * cos - w * sin, w * cos + u * sin], -1)
        pairs = torch.cat([first, rest], -2)
        return torch.cat([pairs[..., 0], pairs[..., 1]], -1)

    def attention(self, x, at):
        heads = {name: self.product(x, f"{at}{name}_proj.weight").view(len(x), -1, WIDTH) for name in "qkv"}
        keys = self.rotate(heads["k"]).repeat_interleave(HEADS // KEYS, 1)
        values = heads["v"].repeat_interleave(HEADS // KEYS, 1)
        scores = torch.einsum("qhd,khd->hqk", self.rotate(heads["q"]), keys) / WIDTH ** 0.5
        scores = scores + torch.full((len(x), len(x)), -math.inf).triu(1)
        return self.product(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1), at + "o_proj.weight")

    def mixture(self, x, at):
        scores = torch.sigmoid(self.product(x, at + "gate.weight"))
        chosen = (scores + self.weights[at + "gate.bias"]).topk(C["num_experts_per_tok"], -1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * C["router_scaling_factor"]
        out = self.mlp(x, at + "shared_experts.")
        for row in range(len(x)):
            for share, expert in zip(shares[row], chosen[row]):
                out[row] += share * self.mlp(x[row], f"{at}experts.{int(expert)}.")
        return out

    def run(self, ids):
        states = [self.weights["model.embed_tokens.weight"][ids]]
        for layer in range(C["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = states[-1]
            x = x + self.attention(self.norm(x, at + "input_layernorm.weight"), at + "self_attn.")
            y = self.norm(x, at + "post_attention_layernorm.weight")
            is_dense = layer in C["mlp_only_layers"]
            states.append(x + (self.mlp(y, at + "mlp.") if is_dense else self.mixture(y, at + "mlp.")))
        return states, self.product(self.norm(states[-1], "model.norm.weight"), "lm_head.weight")


def main(out):
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        weights = random_weights(generator)
        model = Pass(weights)
        ids = torch.randint(3, C["vocab_size"], (32,), generator=generator)
        tokens, gap = ids, math.inf
        for _ in range(20):
            logits = model.run(tokens)[1][-1]
            best = torch.topk(logits, 2).values
            gap = min(gap, float(best[0] - best[1]))
            tokens = torch.cat([tokens, logits.argmax()[None]])
        greedy = tokens[len(ids):]
        if gap >= GAP and len(set(greedy.tolist())) >= 4:
            break
    os.makedirs(os.path.join(out, "checkpoint"), exist_ok=True)
    with open(os.path.join(out, "checkpoint", "config.json"), "w") as file:
        json.dump(CONFIG, file, indent=2)
        file.write("\n")
    save_file(weights, os.path.join(out, "checkpoint", "model.safetensors"), {"format": "pt"})
    states, logits = model.run(ids)
    golden = {f"hidden.{i}": state.contiguous() for i, state in enumerate(states)}
    save_file({**golden, "input_ids": ids, "logits": logits.contiguous(), "greedy": greedy},
              os.path.join(out, "golden.safetensors"))
    print(f"seed {seed}, gap {gap:.1e}")


if __name__ == "__main__":
    main(sys.argv[1])
