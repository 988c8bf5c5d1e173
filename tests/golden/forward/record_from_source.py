#!/usr/bin/env python3
"""Makes tiny random models of classes that no transformers has, and what PyTorch computes with them as an engine does.

    record_from_source.py OUT [NAME...]    NAME: of MODELS; writes OUT/NAME/checkpoint/ and OUT/NAME/golden.safetensors

No release's header was at hand. `step5` is vLLM 0.33's class (models/step5), with scores of its indexer in FP32, and
not in FP8; `gigachat3_5` is SGLang 0.5.23's (models/gigachat35.py), whose delta net is that of Qwen3-Next."""
import json
import math
import os
import sys

import torch
from safetensors.torch import save_file

GAP = 5e-3
SILU = torch.nn.functional.silu


class Step5:
    config = {
        "architectures": ["Step5ForCausalLM"], "model_type": "step5", "dtype": "bfloat16", "vocab_size": 102,
        "hidden_size": 60, "intermediate_size": 78, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_attention_groups": 2, "head_dim": 20, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "zero_centered": True, "att_impl_type": "GQA", "norm_dtype": "bf16",
        "use_head_wise_attn_gate": True, "sliding_window": 9, "fp32_residual_connection": False,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 4,
                                    "num_attention_groups": 2, "head_dim": 20},
        "rope_theta": [500000.0, 10000.0, 500000.0, 500000.0], "partial_rotary_factors": [0.5, 1.0, 0.5, 0.5],
        "use_rope_layers": [1, 1, 1, 0], "yarn_only_types": ["full_attention"],
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 16},
        "moe_layers_enum": "1,2,3", "moe_num_experts": 6, "moe_top_k": 2, "moe_intermediate_size": 26,
        "share_expert_dim": 34, "norm_expert_weight": True, "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 2.0, "use_moe_router_bias": True, "need_fp32_gate": True,
        "swiglu_limits": [0, 0, 0.6, 0], "swiglu_limits_shared": [0, 0.4, 0, 0],
        "sparse_config": {"enabled": True, "proxy_dim": 24, "sparse_indexer_rope_dim": 8,
                          "sparse_indexer_num_heads": 8, "sparse_indexer_num_k_heads": 1, "index_tp_size": 2,
                          "topk": 3, "region_block_size": 4},
        "bos_token_id": 0, "eos_token_id": 1}

    def shapes(self):
        c, s = self.config, self.config["sparse_config"]
        hidden, experts, inner = c["hidden_size"], c["moe_num_experts"], c["moe_intermediate_size"]
        proxy, index_heads = s["proxy_dim"], s["sparse_indexer_num_heads"]
        for layer, kind in enumerate(c["layer_types"]):
            at, own = f"model.layers.{layer}.", self.heads_of(layer)
            for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
                yield at + name, (hidden,)
            at += "self_attn."
            yield from ((f"{at}{name}_proj.weight", (n * own[2], hidden)) for name, n in zip("qkv", own[:2] + own[1:2]))
            yield at + "o_proj.weight", (hidden, own[0] * own[2])
            yield at + "g_proj.weight", (own[0], hidden)
            yield from ((f"{at}{name}_norm.weight", (own[2],)) for name in "qk")
            if kind == "full_attention":
                at += "sparse_indexer_"
                yield at + "q.weight", (index_heads * proxy, hidden)
                yield from ((f"{at}{name}.weight", (proxy, hidden)) for name in "kz")
                yield at + "w.weight", (index_heads, hidden)
                yield from ((at + name, (proxy,)) for name in ("q_norm.weight", "k_norm.weight", "k_norm.bias"))
                yield f"model.layers.{layer}.self_attn.ssmax_s", (own[0],)
            at = f"model.layers.{layer}."
            if layer == 0:
                yield from mlp_shapes(at + "mlp.", c["intermediate_size"], hidden)
                continue
            yield at + "moe.gate.weight", (experts, hidden)
            yield at + "moe.router_bias", (experts,)
            for name, rows, cols in mlp_shapes("", inner, hidden, parts=True):
                yield f"{at}moe.{name}", (experts, rows, cols)
            yield from mlp_shapes(at + "share_expert.", c["share_expert_dim"], hidden)

    def adds(self, name):
        return 0 if "indexer_k_norm" in name else 1

    def is_f32(self, name):
        return name.endswith(("moe.gate.weight", "router_bias", "ssmax_s"))

    def heads_of(self, layer):
        """Heads, key heads and the width of a head."""
        c = self.config
        other = c["attention_other_setting"]
        own = other if c["layer_types"][layer] == other["attention_type"] else c
        return own["num_attention_heads"], own["num_attention_groups"], own["head_dim"]

    def frequencies(self, layer, width):
        c = self.config
        turns = c["rope_theta"][layer] ** (-torch.arange(0, width, 2).float() / width)
        if c["layer_types"][layer] not in c["yarn_only_types"]:
            return turns
        s = c["rope_scaling"]
        waves, length = 2 * math.pi / turns, s["original_max_position_embeddings"]
        kept = (length / waves - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        kept = kept.clamp(0, 1)
        return (1 - kept) * turns / s["factor"] + kept * turns

    def rotated(self, x, layer, width):
        """Rope of the first values of each head, [tokens, heads, values]."""
        angles = (torch.arange(len(x)).to(x)[:, None] * self.frequencies(layer, width).to(x))[:, None]
        u, w, rest = x.split([width // 2, width // 2, x.shape[-1] - width], -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([u * cos - w * sin, w * cos + u * sin, rest], -1)

    def seen(self, model, x, layer, at):
        """Tokens that a row's key heads read, [groups, tokens, tokens]."""
        c, s = self.config, self.config["sparse_config"]
        n, places = len(x), torch.arange(len(x))
        before = places[None] <= places[:, None]
        if c["layer_types"][layer] == "sliding_attention":
            return (before & (places[None] > places[:, None] - c["sliding_window"]))[None]
        at, proxy, block = at + "sparse_indexer_", s["proxy_dim"], s["region_block_size"]
        queries = model.norm(model.product(x, at + "q.weight").view(n, -1, proxy), at + "q_norm.weight", 1)
        keys = torch.nn.functional.layer_norm(model.product(x, at + "k.weight"), (proxy,),
                                              model[at + "k_norm.weight"], model[at + "k_norm.bias"],
                                              c["rms_norm_eps"])
        queries, keys = (self.rotated(part, layer, s["sparse_indexer_rope_dim"]) for part in (queries, keys[:, None]))
        whole = n // block * block
        shares = model.product(x, at + "z.weight")[:whole].view(-1, block, proxy).softmax(1)
        pooled = (shares * keys[:whole, 0].view(-1, block, proxy)).sum(1)
        groups = s["index_tp_size"]
        scores = torch.einsum("qhd,rd->qhr", queries, pooled).relu() * model.product(x, at + "w.weight")[..., None]
        scores = scores.view(n, groups, -1, len(pooled)).sum(2)
        seen = torch.zeros(groups, n, n, dtype=torch.bool)
        for row in range(n):
            current = row // block
            for group in range(groups):
                order = torch.sort(scores[row, group, :current], descending=True, stable=True).indices
                for region in [*order[:s["topk"]].tolist(), current]:
                    seen[group, row, region * block:(region + 1) * block] = True
        return seen & before

    def attention(self, model, x, layer):
        c, at = self.config, f"model.layers.{layer}.self_attn."
        n_heads, n_keys, width = self.heads_of(layer)
        q, k, v = (model.product(x, f"{at}{name}_proj.weight").view(len(x), -1, width) for name in "qkv")
        q, k = model.norm(q, at + "q_norm.weight", 1), model.norm(k, at + "k_norm.weight", 1)
        if c["use_rope_layers"][layer]:
            turned = int(width * c["partial_rotary_factors"][layer])
            q, k = self.rotated(q, layer, turned), self.rotated(k, layer, turned)
        seen = self.seen(model, x, layer, at)
        seen = seen.repeat_interleave(n_heads // len(seen), 0)
        out = attended(q, k.repeat_interleave(n_heads // n_keys, 1), v.repeat_interleave(n_heads // n_keys, 1),
                       width ** -0.5, seen)
        out = out * torch.sigmoid(model.product(x, at + "g_proj.weight"))[..., None]
        return model.product(out.flatten(1), at + "o_proj.weight")

    def feed_forward(self, model, x, layer):
        c, at = self.config, f"model.layers.{layer}."
        if layer == 0:
            return model.mlp(x, at + "mlp.", c["swiglu_limits_shared"][layer])
        scores = torch.sigmoid(model.product(x, at + "moe.gate.weight"))
        chosen = (scores + model[at + "moe.router_bias"]).topk(c["moe_top_k"], -1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * c["moe_router_scaling_factor"]
        out = model.mlp(x, at + "share_expert.", c["swiglu_limits_shared"][layer])
        return model.add_experts(out, x, shares, chosen,
                                 lambda expert, part: model[f"{at}moe.{part}_proj.weight"][expert],
                                 c["swiglu_limits"][layer])

    def layer(self, model, x, layer):
        at = f"model.layers.{layer}."
        x = x + self.attention(model, model.norm(x, at + "input_layernorm.weight", 1), layer)
        return x + self.feed_forward(model, model.norm(x, at + "post_attention_layernorm.weight", 1), layer)

    def last_norm(self, model, x):
        return model.norm(x, "model.norm.weight", 1)


class GigaChat35:
    config = {
        "architectures": ["GigaChat35ForCausalLM"], "model_type": "gigachat3_5", "dtype": "bfloat16",
        "vocab_size": 102, "hidden_size": 56, "intermediate_size": 78, "moe_intermediate_size": 26,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "rope_theta": 100000.0, "rope_scaling": None, "rope_interleave": True,
        "tie_word_embeddings": False, "q_lora_rank": 36, "kv_lora_rank": 28, "qk_nope_head_dim": 14,
        "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1, "routed_scaling_factor": 2.5,
        "n_group": 2, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
        "layer_types": ["linear_attention", "attention", "linear_attention", "attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 10,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_sigmoid_gate_scale": 2.0,
        "linear_gating_type": "zero_centered", "output_gate_type": "sigmoid", "norm_type": "ZeroCenteredGatedNorm",
        "layernorm_type": "pre_post", "layernorm_gating_weight": 2.0, "gated_attention": True,
        "use_mla_scaling_factor": True, "swiglu_limit": 0.7, "num_nextn_predict_layers": 0, "bos_token_id": 0,
        "eos_token_id": 1}
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]

    def norm_shapes(self, name, width):
        yield name + ".weight", (width,)
        yield name + ".gate_up_projection.weight", (16, width)
        yield name + ".gate_down_projection.weight", (width, 16)

    def shapes(self):
        c = self.config
        hidden, heads, inner = c["hidden_size"], c["num_attention_heads"], c["moe_intermediate_size"]
        yield from ((name, shape) for name, shape in self.norm_shapes("model.norm", hidden) if "gate" in name)
        for layer, kind in enumerate(c["layer_types"]):
            at = f"model.layers.{layer}."
            for name in ("input", "post_attention", "post_self_attn", "post_feedforward"):
                yield from self.norm_shapes(f"{at}{name}_layernorm", hidden)
            own = at + "self_attn."
            if kind == "attention":
                yield own + "q_a_proj.weight", (c["q_lora_rank"], hidden)
                yield from self.norm_shapes(own + "q_a_layernorm", c["q_lora_rank"])
                yield own + "q_b_proj.weight", (heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]),
                                                c["q_lora_rank"])
                yield own + "kv_a_proj_with_mqa.weight", (c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden)
                yield from self.norm_shapes(own + "kv_a_layernorm", c["kv_lora_rank"])
                yield own + "kv_b_proj.weight", (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
                yield own + "o_proj.weight", (hidden, heads * c["v_head_dim"])
                yield own + "gate_proj.weight", (heads * c["v_head_dim"], hidden)
            else:
                yield own + "in_proj_qkvz.weight", (2 * self.keys + 2 * self.values, hidden)
                yield own + "in_proj_ba.weight", (2 * c["linear_num_value_heads"], hidden)
                yield own + "conv1d.weight", (2 * self.keys + self.values, 1, c["linear_conv_kernel_dim"])
                yield from ((own + name, (c["linear_num_value_heads"],)) for name in ("A_log", "dt_bias"))
                yield own + "norm.weight", (c["linear_value_head_dim"],)
                yield own + "out_proj.weight", (hidden, self.values)
            if layer < c["first_k_dense_replace"]:
                yield from mlp_shapes(at + "mlp.", c["intermediate_size"], hidden)
                continue
            yield at + "mlp.gate.weight", (c["n_routed_experts"], hidden)
            yield at + "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
            for expert in range(c["n_routed_experts"]):
                yield from mlp_shapes(f"{at}mlp.experts.{expert}.", inner, hidden)
            yield from mlp_shapes(at + "mlp.shared_experts.", inner * c["n_shared_experts"], hidden)

    def adds(self, name):
        return 1

    def is_f32(self, name):
        return name.endswith(("correction_bias", "A_log"))

    def norm(self, model, x, name, scale=1.0):
        y = model.norm(x, name + ".weight", 1)
        inner = SILU(model.product(y, name + ".gate_up_projection.weight"))
        gates = torch.sigmoid(model.product(inner, name + ".gate_down_projection.weight"))
        return y * self.config["layernorm_gating_weight"] * gates * scale

    def rotated(self, x):
        width = x.shape[-1]
        turns = self.config["rope_theta"] ** (-torch.arange(0, width, 2).to(x) / width)
        angles = (torch.arange(len(x)).to(x)[:, None] * turns)[:, None]
        u, w, cos, sin = x[..., 0::2], x[..., 1::2], angles.cos(), angles.sin()
        return torch.stack([u * cos - w * sin, w * cos + u * sin], -1).flatten(-2)

    def latent(self, model, x, at):
        c, n = self.config, len(x)
        plain, turned, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        latent = self.norm(model, model.product(x, at + "q_a_proj.weight"), at + "q_a_layernorm",
                           (c["hidden_size"] / c["q_lora_rank"]) ** 0.5)
        q = model.product(latent, at + "q_b_proj.weight").view(n, -1, plain + turned)
        latent, rope = model.product(x, at + "kv_a_proj_with_mqa.weight").split([c["kv_lora_rank"], turned], -1)
        latent = self.norm(model, latent, at + "kv_a_layernorm", (c["hidden_size"] / c["kv_lora_rank"]) ** 0.5)
        k, v = model.product(latent, at + "kv_b_proj.weight").view(n, -1, plain + value).split([plain, value], -1)
        q = torch.cat([q[..., :plain], self.rotated(q[..., plain:])], -1)
        k = torch.cat([k, self.rotated(rope[:, None]).expand(-1, k.shape[1], -1)], -1)
        places = torch.arange(n)
        out = attended(q, k, v, (plain + turned) ** -0.5, (places[None] <= places[:, None])[None])
        out = out.flatten(1) * torch.sigmoid(model.product(x, at + "gate_proj.weight"))
        return model.product(out, at + "o_proj.weight")

    def delta_net(self, model, x, at):
        c, n = self.config, len(x)
        n_keys, n_values = c["linear_num_key_heads"], c["linear_num_value_heads"]
        key, value, each = c["linear_key_head_dim"], c["linear_value_head_dim"], n_values // n_keys
        parts = model.product(x, at + "in_proj_qkvz.weight").view(n, n_keys, -1)
        q, k, v, gate = parts.split([key, key, each * value, each * value], -1)
        beta, decay = model.product(x, at + "in_proj_ba.weight").view(n, n_keys, -1).split([each, each], -1)
        mixed = torch.cat([part.reshape(n, -1) for part in (q, k, v)], -1)
        taps = model[at + "conv1d.weight"][:, 0]
        padded = torch.cat([mixed.new_zeros(taps.shape[1] - 1, mixed.shape[1]), mixed])
        mixed = SILU(sum(padded[tap:tap + n] * taps[:, tap] for tap in range(taps.shape[1])))
        q, k, v = mixed.split([self.keys, self.keys, self.values], -1)
        q, k = (part.view(n, n_keys, key) for part in (q, k))
        q, k = (part * torch.rsqrt(part.pow(2).sum(-1, keepdim=True) + 1e-6) for part in (q, k))
        q, k = (part.repeat_interleave(each, 1) for part in (q * key ** -0.5, k))
        v, beta = v.view(n, n_values, value), torch.sigmoid(beta.reshape(n, -1))
        step = torch.nn.functional.softplus(decay.reshape(n, -1) + model[at + "dt_bias"])
        kept = torch.exp(-torch.exp(model[at + "A_log"]) * step)
        state, out = x.new_zeros(n_values, key, value), []
        for t in range(n):
            state = state * kept[t][:, None, None]
            change = (v[t] - torch.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
            state = state + k[t][..., None] * change[:, None]
            out.append(torch.einsum("hkv,hk->hv", state, q[t]))
        out = model.norm(torch.stack(out), at + "norm.weight", 1) * c["linear_sigmoid_gate_scale"]
        out = out * torch.sigmoid(gate.reshape(n, n_values, value))
        return model.product(out.flatten(1), at + "out_proj.weight")

    def feed_forward(self, model, x, at, layer):
        c = self.config
        if layer < c["first_k_dense_replace"]:
            return model.mlp(x, at)
        scores = torch.sigmoid(model.product(x, at + "gate.weight"))
        ranked = (scores + model[at + "gate.e_score_correction_bias"]).view(len(x), c["n_group"], -1)
        groups = ranked.topk(2, -1).values.sum(-1).topk(c["topk_group"], -1).indices
        kept = torch.full_like(ranked, -math.inf).scatter(1, groups[..., None].expand(-1, -1, ranked.shape[-1]), 0)
        chosen = (ranked + kept).flatten(1).topk(c["num_experts_per_tok"], -1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * c["routed_scaling_factor"]
        return model.add_experts(model.mlp(x, at + "shared_experts."), x, shares, chosen,
                                 lambda expert, part: model[f"{at}experts.{expert}.{part}_proj.weight"],
                                 c["swiglu_limit"])

    def layer(self, model, x, layer):
        at = f"model.layers.{layer}."
        y = self.norm(model, x, at + "input_layernorm")
        is_full = self.config["layer_types"][layer] == "attention"
        y = self.latent(model, y, at + "self_attn.") if is_full else self.delta_net(model, y, at + "self_attn.")
        x = x + self.norm(model, y, at + "post_self_attn_layernorm")
        y = self.feed_forward(model, self.norm(model, x, at + "post_attention_layernorm"), at + "mlp.", layer)
        return x + self.norm(model, y, at + "post_feedforward_layernorm")

    def last_norm(self, model, x):
        return self.norm(model, x, "model.norm")


MODELS = {"step5": Step5, "gigachat3_5": GigaChat35}


def mlp_shapes(at, width, hidden, parts=False):
    for name, rows, cols in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
        yield (f"{at}{name}_proj.weight", rows, cols) if parts else (f"{at}{name}_proj.weight", (rows, cols))


def attended(q, k, v, scale, seen):
    """Softmax attention, heads in the middle; `seen` is [heads or 1, tokens, tokens]."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1), v)


class Model:
    """Weights of a kind in one dtype, and its pass."""

    def __init__(self, kind, weights, dtype):
        self.kind, self.weights = kind, {name: value.to(dtype) for name, value in weights.items()}

    def __getitem__(self, name):
        return self.weights[name]

    def norm(self, x, name, adds):
        eps = self.kind.config["rms_norm_eps"]
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (self[name] + adds)

    def product(self, x, name):
        return x @ self[name].T

    def joined(self, gate, up, limit):
        gate = SILU(gate)
        return gate * up if not limit else gate.clamp(max=limit) * up.clamp(-limit, limit)

    def mlp(self, x, at, limit=0):
        inner = self.joined(self.product(x, at + "gate_proj.weight"), self.product(x, at + "up_proj.weight"), limit)
        return self.product(inner, at + "down_proj.weight")

    def add_experts(self, out, x, shares, chosen, weight, limit):
        for row in range(len(x)):
            for share, expert in zip(shares[row], chosen[row].tolist()):
                inner = self.joined(weight(expert, "gate") @ x[row], weight(expert, "up") @ x[row], limit)
                out[row] += share * (weight(expert, "down") @ inner)
        return out

    def run(self, ids):
        states = [self["model.embed_tokens.weight"][ids]]
        for layer in range(self.kind.config["num_hidden_layers"]):
            states.append(self.kind.layer(self, states[-1], layer))
        return states, self.product(self.kind.last_norm(self, states[-1]), "lm_head.weight")


def random_weights(kind, generator):
    c = kind.config
    table = (c["vocab_size"], c["hidden_size"])
    ends = [("model.embed_tokens.weight", table), ("lm_head.weight", table), ("model.norm.weight", table[1:])]
    weights = {}
    for name, shape in [*ends, *kind.shapes()]:
        noise = torch.randn(shape, generator=generator)
        if name.endswith("A_log"):
            value = torch.log(1 + 8 * torch.rand(shape, generator=generator))
        elif "conv1d" in name:
            value = 0.5 * noise
        elif len(shape) > 1:
            value = noise / shape[-1] ** 0.5
        elif name.endswith("norm.weight"):
            value = 1 - kind.adds(name) + 0.1 * noise
        else:
            value = 0.1 * noise
        weights[name] = value if kind.is_f32(name) else value.bfloat16()
    return weights


def make(name, out):
    kind = MODELS[name]()
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        weights = random_weights(kind, generator)
        model = Model(kind, weights, torch.float32)
        ids = torch.randint(3, kind.config["vocab_size"], (32,), generator=generator)
        tokens, gap = ids, math.inf
        for _ in range(20):
            logits = model.run(tokens)[1][-1]
            best = torch.topk(logits, 2).values
            gap = min(gap, float(best[0] - best[1]))
            tokens = torch.cat([tokens, logits.argmax()[None]])
        greedy = tokens[len(ids):]
        if gap >= GAP and len(set(greedy.tolist())) >= 4:
            break
    folder = os.path.join(out, name)
    os.makedirs(os.path.join(folder, "checkpoint"), exist_ok=True)
    with open(os.path.join(folder, "checkpoint", "config.json"), "w") as file:
        json.dump(kind.config, file, indent=2)
        file.write("\n")
    save_file(weights, os.path.join(folder, "checkpoint", "model.safetensors"), {"format": "pt"})
    states, logits = model.run(ids)
    exact = Model(kind, weights, torch.float64).run(ids)[1]
    golden = {f"hidden.{i}": state.contiguous() for i, state in enumerate(states)}
    save_file({**golden, "input_ids": ids, "logits": logits.contiguous(), "greedy": greedy},
              os.path.join(folder, "golden.safetensors"))
    print(name, f"seed {seed}, gap {gap:.1e}, from FP64 {float((logits - exact).norm() / exact.norm()):.1e}")


if __name__ == "__main__":
    for chosen in sys.argv[2:] or MODELS:
        make(chosen, sys.argv[1])
