"""The bundled model as one of deepseek_v3 whose heads have the released widths.

vLLM's latent attention on CPUs has only these widths, and no indexer. Rows and columns of zeros
make the heads wider, and powers of two keep the function the same: scores are divided by the root of
192 instead of 48, and the latent's norm is over 512 values instead of 128.
"""

import json
import shutil

WIDTHS = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}


def widen(source, target):
    """Writes the model of `source`, a directory of BF16 weights, into the new directory `target`."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text())
    heads = config["num_attention_heads"]
    nope, rope, value, latent = (config[key] for key in WIDTHS)
    wide_nope, wide_rope, wide_value, wide_latent = WIDTHS.values()
    # A pair of columns turns by theta^(-pair / pairs): pair 1 of 8 is pair 4 of 32.
    step = wide_rope // rope
    turned = [step * (i - i % 2) + i % 2 for i in range(rope)]

    def in_zeros(shape, *places):
        """Zeros, and tensors at indices of the dimension before the last."""
        wide = torch.zeros(shape, dtype=torch.bfloat16)
        for indices, tensor in places:
            wide[..., indices, : tensor.shape[-1]] = tensor
        return wide

    def widened(name, tensor):
        if name.endswith("q_b_proj.weight"):
            rows = tensor.view(heads, nope + rope, -1) * 2
            places = (range(nope), rows[:, :nope]), ([wide_nope + i for i in turned], rows[:, nope:])
            return in_zeros((heads, wide_nope + wide_rope, rows.shape[-1]), *places).flatten(0, 1)
        if name.endswith("kv_a_proj_with_mqa.weight"):
            places = (range(latent), tensor[:latent]), ([wide_latent + i for i in turned], tensor[latent:])
            return in_zeros((wide_latent + wide_rope, tensor.shape[-1]), *places)
        if name.endswith("kv_a_layernorm.weight"):
            return torch.cat([tensor / 2, tensor.new_ones(wide_latent - latent)])
        if name.endswith("kv_b_proj.weight"):
            rows = tensor.view(heads, nope + value, latent)
            places = (range(nope), rows[:, :nope]), (range(wide_nope, wide_nope + value), rows[:, nope:])
            return in_zeros((heads, wide_nope + wide_value, wide_latent), *places).flatten(0, 1)
        if name.endswith("o_proj.weight"):
            columns = tensor.view(-1, heads, value)
            return in_zeros((columns.shape[0], heads, wide_value), (range(heads), columns)).flatten(1)
        return tensor

    target.mkdir()
    weights = {}
    for file in sorted(source.glob("*.safetensors")):
        weights |= {name: widened(name, t).contiguous() for name, t in load_file(file).items() if ".indexer." not in name}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = {key: found for key, found in config.items() if not key.startswith("index_")} | WIDTHS
    config |= {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
    # The range that YaRN interpolates ends at pair 16 of 32, as it did at 4 of 8.
    config["rope_scaling"]["beta_slow"] = 0.45
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
