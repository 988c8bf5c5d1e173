#!/usr/bin/env python3
"""Makes a tiny random model of a class of transformers, and what that class computes with it.

    record_tiny.py OUT [NAME...]    NAME: of MODELS; writes OUT/NAME/checkpoint/ and OUT/NAME/golden.safetensors

Weights are BF16: matrices from N(0, 1 / inputs), norms near what they add up to 1 from, biases small. The model runs
with them in float32, with eager attention and without a cache. Greedy tokens whose first two logits are closer than
GAP would be left to rounding: then the next seed is taken. By transformers 5.24."""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

GAP, MOST_ALIKE = 5e-3, 4
N_TOKENS, N_GREEDY = 32, 20
TOPK = torch.Tensor.topk
DENSE = {"vocab_size": 118, "hidden_size": 84, "intermediate_size": 130, "num_hidden_layers": 3,
         "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 4096, "bos_token_id": 0,
         "eos_token_id": 1, "pad_token_id": 2, "dtype": "bfloat16"}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 16}
EVEN = {**DENSE, "vocab_size": 126, "hidden_size": 96, "intermediate_size": 122, "num_attention_heads": 8,
        "num_key_value_heads": 4}
PARTLY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
# Model types without another recording, and options that the small checkpoints of releases do not have.
MODELS = {
    "falcon_h1_norms": {**EVEN, "model_type": "falcon_h1", "head_dim": 20, "mamba_d_ssm": 80, "mamba_n_heads": 10,
                        "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 14, "mamba_rms_norm": True,
                        "mamba_norm_before_gate": False, "mamba_proj_bias": True, "projectors_bias": True,
                        "attention_bias": True, "mlp_bias": True, "ssm_multipliers": [0.7, 0.5, 0.35, 0.5, 0.3],
                        "mlp_multipliers": [0.8, 0.6], "key_multiplier": 0.5, "ssm_in_multiplier": 1.2,
                        "ssm_out_multiplier": 0.6, "attention_in_multiplier": 0.9, "attention_out_multiplier": 0.8,
                        "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5},
    "falcon_h1_limits": {**EVEN, "model_type": "falcon_h1", "head_dim": 20, "mamba_d_ssm": 80, "mamba_n_heads": 10,
                         "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 14, "mamba_rms_norm": True,
                         "mamba_norm_before_gate": True, "time_step_limit": [0.3, 0.6]},
    "lfm2_biases": {**EVEN, "model_type": "lfm2", "block_auto_adjust_ff_dim": False, "conv_bias": True,
                    "full_attn_idxs": [1], "block_ff_dim": 110, "tie_embedding": False},
    "olmo_hybrid_rope": {**EVEN, "model_type": "olmo_hybrid", "num_hidden_layers": 4, "linear_num_key_heads": 4,
                         "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20,
                         "linear_allow_neg_eigval": False, "attention_bias": True,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    # Sums of relu of two heads are 0 for many keys.
    "axk2_ties": {**DENSE, "model_type": "axk2", "hidden_size": 56, "intermediate_size": 70, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "num_key_value_heads": 4, "gated_norm_rank": 8, "index_head_dim": 18,
                  "index_n_heads": 2, "index_topk": 8, "kv_lora_rank": 30, "q_lora_rank": 36, "qk_nope_head_dim": 14,
                  "qk_rope_head_dim": 8, "v_head_dim": 12, "moe_intermediate_size": 24, "n_routed_experts": 6,
                  "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1,
                  "rope_parameters": YARN},
    # The class takes the scaled rope of its release where a config has none.
    "apertus_no_rope": {**DENSE, "model_type": "apertus", "hidden_size": 60, "intermediate_size": 70},
    "phi_head_norms": {**EVEN, "model_type": "phi", "hidden_size": 128, "num_key_value_heads": 8,
                       "qk_layernorm": True},
    "sarvam_moe_biases": {**EVEN, "model_type": "sarvam_moe", "num_hidden_layers": 4, "head_dim": 20,
                          "use_qkv_bias": True, "use_qk_norm": False, "num_experts": 8, "num_experts_per_tok": 3,
                          "num_shared_experts": 1, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 28,
                          "first_k_dense_replace": 2, "partial_rotary_factor": 0.5},
    "stablelm_parallel": {**EVEN, "model_type": "stablelm", "use_parallel_residual": True, "qk_layernorm": True,
                          "use_qkv_bias": False, "rope_parameters": PARTLY},
    "iquestcoder": {**DENSE, "model_type": "iquestcoder", "head_dim": 20, "rope_theta": 500000.0},
    "internlm3": {**DENSE, "model_type": "internlm3", "head_dim": 20, "attention_bias": True, "mlp_bias": True,
                  "rope_theta": 50000000.0},
    "qwen2_windows": {**DENSE, "model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": True,
                      "sliding_window": 7, "max_window_layers": 2},
    "qwen3_windows": {**DENSE, "model_type": "qwen3", "num_hidden_layers": 4, "head_dim": 20,
                      "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3_next_dense": {**EVEN, "model_type": "qwen3_next", "num_hidden_layers": 5, "head_dim": 24,
                         "mlp_only_layers": [0, 3], "num_experts": 6, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 28, "shared_expert_intermediate_size": 36,
                         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
                         "linear_value_head_dim": 10},
    "smollm3_windows": {**DENSE, "model_type": "smollm3", "num_hidden_layers": 4, "use_sliding_window": True,
                        "sliding_window": 7, "no_rope_layers": [1, 0, 1, 0]},
    "ministral": {**DENSE, "model_type": "ministral", "num_hidden_layers": 4, "head_dim": 20, "sliding_window": 13,
                  "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                  "rope_theta": 100000000.0},
    # The class loads the row of the padding token as zeros.
    "youtu": {**DENSE, "model_type": "youtu", "pad_token_id": None, "num_key_value_heads": 6,
              "q_lora_rank": 44, "kv_lora_rank": 38,
              "qk_nope_head_dim": 14, "qk_rope_head_dim": 10, "v_head_dim": 16, "rope_parameters": YARN},
    # Gemma 4 as E2B and E4B have it: layers with inputs of their own, and layers that read keys of earlier ones.
    "gemma4_layer_inputs": {**DENSE, "model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 12,
                            "global_head_dim": 20, "sliding_window": 9, "num_kv_shared_layers": 3,
                            "use_double_wide_mlp": True, "hidden_size_per_layer_input": 14,
                            "vocab_size_per_layer_input": 118, "final_logit_softcapping": 30.0,
                            "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                            "sliding_attention", "full_attention", "full_attention"]},
    "gemma4_unified_shared": {**DENSE, "model_type": "gemma4_unified_text", "num_hidden_layers": 5, "head_dim": 12,
                              "global_head_dim": 20, "sliding_window": 9, "num_kv_shared_layers": 2,
                              "use_double_wide_mlp": True, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
                              "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                              "sliding_attention", "full_attention"]},
    "ernie4_5_moe_biases": {**EVEN, "model_type": "ernie4_5_moe", "use_bias": True, "moe_num_experts": 6, "moe_k": 2,
                            "moe_num_shared_experts": 2, "moe_intermediate_size": 28, "moe_layer_start_index": 1,
                            "moe_layer_end_index": 2, "moe_layer_interval": 1, "tie_word_embeddings": False,
                            "num_hidden_layers": 4},
    "olmoe_clip": {**EVEN, "model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 2,
                   "intermediate_size": 34, "clip_qkv": 0.8},
    "qwen3_5_biases": {**EVEN, "model_type": "qwen3_5_text", "num_hidden_layers": 2, "head_dim": 24,
                       "attention_bias": True, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                       "linear_key_head_dim": 12, "linear_value_head_dim": 10, "full_attention_interval": 2},
    "gemma4_unified_text": {**DENSE, "model_type": "gemma4_unified_text", "num_hidden_layers": 4, "head_dim": 20,
                            "global_head_dim": 28, "sliding_window": 13, "attention_k_eq_v": True,
                            "num_global_key_value_heads": 1, "final_logit_softcapping": 30.0,
                            "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                            "full_attention"]},
}
# Keys that configs have in releases, and not as the class saves them; null takes one out.
RELEASED = {
    "apertus_no_rope": {"rope_parameters": None},
    "sarvam_moe_biases": {"architectures": ["SarvamMoEForCausalLM"]},
}
# Models of which equal scores are among the best; PyTorch leaves open which of them topk takes.
TIED = {"axk2_ties"}


def first_of_equals(scores, k, dim=-1, largest=True, sorted=True):
    """The best as ingot chooses them."""
    assert largest
    order = torch.sort(scores, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((order.values.narrow(dim, 0, k), order.indices.narrow(dim, 0, k)))


def random_weights(model, generator):
    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        if "inv_freq" in name or "rotary" in name or "embed_scale" in name:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() >= 2:
            values = noise / tensor.shape[-1] ** 0.5
        elif name.endswith("bias"):
            values = 0.05 * noise
        else:  # norms: 1 where nothing is added, as the class begins them
            values = tensor.detach().float() + 0.1 * noise
        tensor.data.copy_(values.to(torch.bfloat16).to(tensor.dtype))


def cut_convolutions(directory, config):
    """transformers 5.24 joins the convolutions of OLMo Hybrid, and saves three equal parts; releases have them by
    queries, keys and values."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    path = os.path.join(directory, "model.safetensors")
    tensors = load_file(path)
    for first in [name for name in tensors if name.endswith(".q_conv1d.weight")]:
        names = [first.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
        whole = torch.cat([tensors[name] for name in names])
        for name, part in zip(names, whole.split([keys, keys, values])):
            tensors[name] = part.contiguous()
    save_file(tensors, path, {"format": "pt"})


def say_as_released(directory, keys):
    path = os.path.join(directory, "config.json")
    with open(path) as file:
        config = {**json.load(file), **keys}
    with open(path, "w") as file:
        json.dump({key: value for key, value in config.items() if value is not None}, file, indent=2)
        file.write("\n")


def recording(model, ids):
    with torch.no_grad():
        out = model(input_ids=ids[None], use_cache=False, output_hidden_states=True)
        tokens, greedy, gap = ids, [], float("inf")
        for _ in range(N_GREEDY):
            logits = model(input_ids=tokens[None], use_cache=False).logits[0, -1]
            best = torch.topk(logits, 2).values
            gap = min(gap, float(best[0] - best[1]))
            greedy.append(int(logits.argmax()))
            tokens = torch.cat([tokens, torch.tensor(greedy[-1:])])
    return out, greedy, gap


def hidden_states(model, ids):
    """The embedding, and what every layer gives: the last of a model's own list is behind the final norm."""
    states, hooks = [], []
    base = model.model
    hooks.append(base.embed_tokens.register_forward_hook(lambda _m, _i, out: states.append(out)))
    for layer in base.layers:
        hooks.append(layer.register_forward_hook(
            lambda _m, _i, out: states.append(out[0] if isinstance(out, tuple) else out)))
    with torch.no_grad():
        model(input_ids=ids[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return [state[0].float().contiguous().clone() for state in states]


def make(name, keys, out):
    config = AutoConfig.for_model(**keys)
    torch.topk = torch.Tensor.topk = first_of_equals if name in TIED else TOPK
    directory = os.path.join(out, name, "checkpoint")
    for seed in range(100):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
        random_weights(model, generator)
        os.makedirs(directory, exist_ok=True)
        model.save_pretrained(directory)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                                     experts_implementation="eager").eval()
        ids = torch.randint(3, config.vocab_size, (N_TOKENS,), generator=generator)
        computed, greedy, gap = recording(model, ids)
        if gap >= GAP and len(set(greedy)) >= MOST_ALIKE:
            break
    else:
        raise SystemExit(f"{name}: no seed has answers {GAP} apart")
    golden = {"input_ids": ids, "logits": computed.logits[0].float().contiguous(), "greedy": torch.tensor(greedy)}
    golden.update({f"hidden.{i}": state for i, state in enumerate(hidden_states(model, ids))})
    save_file(golden, os.path.join(out, name, "golden.safetensors"))
    if config.model_type == "olmo_hybrid":
        cut_convolutions(directory, config)
    say_as_released(directory, RELEASED.get(name, {}))
    exact = model.double()
    with torch.no_grad():
        wide = exact(input_ids=ids[None], use_cache=False).logits[0]
    error = float((wide - golden["logits"]).norm() / wide.norm())
    for other in ("generation_config.json",):
        if os.path.exists(os.path.join(directory, other)):
            os.remove(os.path.join(directory, other))
    print(name, f"seed {seed}, gap {gap:.1e}, {len(set(greedy))} tokens, from FP64 {error:.1e}")


if __name__ == "__main__":
    for chosen in sys.argv[2:] or MODELS:
        make(chosen, MODELS[chosen], sys.argv[1])
