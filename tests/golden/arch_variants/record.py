#!/usr/bin/env python3
"""Makes the small random checkpoints of this folder and records the results of Hugging Face transformers.

usage: OUT=DIRECTORY record.py        (torch and transformers 5.17)
Weights are BF16 values; the recorded pass runs in float32 with eager attention.
"""
import os

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = dict(vocab_size=256, hidden_size=64, num_hidden_layers=3, intermediate_size=128, moe_intermediate_size=32, num_attention_heads=4,
              max_position_embeddings=512, initializer_range=0.1, bos_token_id=0, eos_token_id=1, num_experts_per_tok=3)
MLA = dict(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, num_key_value_heads=4, q_lora_rank=32, n_shared_experts=1)
CASES = {
    "deepseek_v2_grouped": dict(model_type="deepseek_v2", **COMMON, **MLA, n_routed_experts=16, first_k_dense_replace=1, topk_method="group_limited_greedy",
                                n_group=4, topk_group=2, routed_scaling_factor=2.0, norm_topk_prob=False),
    "qwen3_moe_tied": dict(model_type="qwen3_moe", **COMMON, num_key_value_heads=2, head_dim=16, num_experts=8, norm_topk_prob=True, tie_word_embeddings=True,
                           mlp_only_layers=[1], decoder_sparse_step=1,
                           rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)),
    "kimi_like": dict(model_type="deepseek_v3", **COMMON, **MLA, n_routed_experts=12, first_k_dense_replace=1, n_group=1, topk_group=1,
                      routed_scaling_factor=2.827, norm_topk_prob=True,
                      rope_parameters=dict(rope_type="yarn", rope_theta=50000.0, factor=32.0, original_max_position_embeddings=32, beta_fast=1.0, beta_slow=1.0,
                                           mscale=1.0, mscale_all_dim=1.0)),
    "glm_shared_indexer": dict(model_type="glm_moe_dsa", **{**COMMON, "num_hidden_layers": 4}, **MLA, n_routed_experts=8, n_group=1, topk_group=1, index_n_heads=8,
                               index_head_dim=32, index_topk=12, indexer_types=["full", "shared", "shared", "full"],
                               mlp_layer_types=["dense", "sparse", "sparse", "sparse"], routed_scaling_factor=2.5, norm_topk_prob=True),
}


def make_model(settings):
    settings = dict(settings)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            parameter.copy_(parameter.to(torch.bfloat16).float())
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_((0.1 * torch.randn_like(buffer)).to(torch.bfloat16).float())
    return config, model.eval()


@torch.no_grad()
def record(model, n_tokens=40, n_greedy=20):
    ids = torch.randint(2, 256, (1, n_tokens), generator=torch.Generator().manual_seed(11))
    hidden = {}

    def hook(index):
        def keep(_module, _inputs, output):
            hidden[index] = (output[0] if isinstance(output, tuple) else output)[0].clone()
        return keep

    modules = [model.model.embed_tokens, *model.model.layers]
    hooks = [module.register_forward_hook(hook(i)) for i, module in enumerate(modules)]
    logits = model(ids, use_cache=False).logits[0]
    for one in hooks:
        one.remove()
    tensors = {"input_ids": ids[0].contiguous(), "logits": logits.contiguous()}
    tensors |= {f"hidden.{i}": values.contiguous() for i, values in hidden.items()}
    for _ in range(n_greedy):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[0, -1].argmax().view(1, 1)], 1)
    return tensors | {"greedy": ids[0, n_tokens:].contiguous()}


def main():
    torch.manual_seed(5)
    for name, settings in CASES.items():
        config, model = make_model(settings)
        directory = os.path.join(os.environ["OUT"], name)
        os.makedirs(os.path.join(directory, "checkpoint"))
        stored = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        stored.load_state_dict(model.state_dict())
        stored.to(torch.bfloat16).save_pretrained(os.path.join(directory, "checkpoint"))
        save_file(record(model), os.path.join(directory, "golden.safetensors"),
                  metadata={"source": f"transformers {transformers.__version__} float32 eager"})


if __name__ == "__main__":
    main()
