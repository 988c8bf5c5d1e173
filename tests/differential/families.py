"""Families of models as rows: their tensors and config.json, of any widths, from the classes of transformers."""

from dataclasses import dataclass, field


@dataclass
class Row:
    """What tells a family from Llama."""

    type: str
    architecture: str
    is_fused: tuple = ()  # "qkv", "gate_up": weights that are stored as one matrix
    biases: tuple = ()  # modules that always have a bias
    asked_biases: dict = field(default_factory=dict)  # key of config.json: modules that have one where it is true
    norms: tuple = ("input_layernorm", "post_attention_layernorm")
    norms_of_heads: str = ""  # "head": of one head's width, "all": of all heads together
    has_gate: bool = True
    has_head_dim: bool = False
    has_norm_biases: bool = False
    equal_heads: bool = False  # as many key heads as heads
    tied: tuple = (False, True)  # what `tie_word_embeddings` may be
    more: dict = field(default_factory=dict)  # other keys of config.json
    n_experts: tuple = (0,)
    period: int = 1  # layers come in multiples of this


QKV = ("q_proj", "k_proj", "v_proj")
ATTENTION = QKV + ("o_proj",)
MLP = ("gate_proj", "up_proj", "down_proj")
AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": 16}
FACTORS = {
    "attention_multiplier": 0.1,
    "embedding_multiplier": 12.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.22,
}

FAMILIES = [
    Row("llama", "LlamaForCausalLM", asked_biases={"attention_bias": ATTENTION, "mlp_bias": MLP}),
    Row("mistral", "MistralForCausalLM", has_head_dim=True, more={"sliding_window": None}),
    Row("qwen2", "Qwen2ForCausalLM", biases=QKV, more={"use_sliding_window": False}),
    Row(
        "qwen3",
        "Qwen3ForCausalLM",
        norms_of_heads="head",
        has_head_dim=True,
        asked_biases={"attention_bias": ATTENTION},
    ),
    Row("gemma2", "Gemma2ForCausalLM", norms=AROUND, has_head_dim=True, tied=(None,), period=2, more=GEMMA),
    Row(
        "gemma3_text",
        "Gemma3ForCausalLM",
        norms=AROUND,
        norms_of_heads="head",
        has_head_dim=True,
        tied=(None,),
        period=2,
        more={**GEMMA, "sliding_window_pattern": 2},
    ),
    Row(
        "phi3",
        "Phi3ForCausalLM",
        is_fused=("qkv", "gate_up"),
        tied=(False,),
        more={"original_max_position_embeddings": 4096, "sliding_window": None, "pad_token_id": 2},
    ),
    Row("granite", "GraniteForCausalLM", asked_biases={"attention_bias": ATTENTION, "mlp_bias": MLP}, more=FACTORS),
    Row("olmo2", "Olmo2ForCausalLM", norms=BEHIND, norms_of_heads="all", equal_heads=True, tied=(False,)),
    Row(
        "olmo3",
        "Olmo3ForCausalLM",
        norms=BEHIND,
        norms_of_heads="all",
        equal_heads=True,
        tied=(False,),
        period=2,
        more={"sliding_window": 16},
    ),
    Row(
        "cohere2",
        "Cohere2ForCausalLM",
        norms=("input_layernorm",),
        tied=(None,),
        period=2,
        more={"logit_scale": 0.25, "sliding_window": 16, "sliding_window_pattern": 2},
    ),
    Row(
        "exaone4",
        "Exaone4ForCausalLM",
        norms=BEHIND,
        norms_of_heads="head",
        has_head_dim=True,
        period=2,
        more={"sliding_window": 16, "sliding_window_pattern": "LG"},
    ),
    Row(
        "glm4",
        "Glm4ForCausalLM",
        is_fused=("gate_up",),
        asked_biases={"attention_bias": QKV},
        has_head_dim=True,
        norms=("input_layernorm", "post_attention_layernorm", "post_mlp_layernorm", "post_self_attn_layernorm"),
        tied=(False,),
        more={"partial_rotary_factor": 0.5},
    ),
    Row(
        "nemotron",
        "NemotronForCausalLM",
        has_gate=False,
        has_norm_biases=True,
        has_head_dim=True,
        tied=(False,),
        asked_biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
        more={"partial_rotary_factor": 0.5, "hidden_act": "relu2"},
    ),
    Row(
        "seed_oss",
        "SeedOssForCausalLM",
        asked_biases={"attention_bias": QKV},
        has_head_dim=True,
        tied=(False,),
        more={"attention_out_bias": False},
    ),
    Row(
        "smollm3",
        "SmolLM3ForCausalLM",
        tied=(True,),
        more={"no_rope_layer_interval": 2, "no_rope_layers": [1, 0]},
        period=2,
    ),
    Row(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        norms_of_heads="head",
        has_head_dim=True,
        n_experts=(2, 4, 8),
        more={"norm_topk_prob": True, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
]
BY_TYPE = {row.type: row for row in FAMILIES}


def draw_config(draw, row, step):
    """A random config.json of a family. Widths are multiples of `step`."""
    head_dim = draw.choice([16, 32]) if step % 16 == 0 else draw.choice([12, 20, 32])
    n_heads = draw.choice([2, 4, 4, 8])
    while (n_heads * head_dim) % step:
        n_heads *= 2
    widths = [n * step for n in range(max(1, 64 // step), max(2, 257 // step))]
    hidden = draw.choice(widths) if row.has_head_dim else n_heads * head_dim
    n_layers = draw.choice([1, 2, 2, 3]) * row.period
    n_key_heads = n_heads if row.equal_heads else draw.choice([n for n in (1, 2, 4, 8) if n <= n_heads])
    while not row.equal_heads and step > 1 and (n_key_heads * head_dim) % 32:
        n_key_heads *= 2
    config = {
        "architectures": [row.architecture],
        "model_type": row.type,
        draw.choice(["torch_dtype", "dtype"]): "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": draw.choice(widths),
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_key_heads,
        "vocab_size": draw.choice([64, 96, 118]),
        "max_position_embeddings": 4096,
        "norm_eps" if row.has_norm_biases else "layer_norm_eps" if row.type == "cohere2" else "rms_norm_eps": 1e-05,
        **row.more,
    }
    if draw.random() < 0.5:
        config["rope_theta"] = 10000.0
    else:
        config["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "default"}
    if row.type == "gemma3_text":  # one rope of each kind of layers, which only the older keys say in few words
        config.pop("rope_parameters", None)
        config.update(rope_theta=1000000.0, rope_local_base_freq=10000.0)
    if row.has_head_dim:
        config["head_dim"] = head_dim
    if "no_rope_layers" in config:
        config["no_rope_layers"] = [1, 0] * (n_layers // 2)
    if row.period > 1 and row.type in ("olmo3", "exaone4"):
        config["layer_types"] = ["sliding_attention", "full_attention"] * (n_layers // 2)
    is_tied = draw.choice(row.tied)
    if is_tied is not None:
        config["tie_word_embeddings"] = is_tied
    for key in row.asked_biases:
        config[key] = draw.random() < 0.5
    n_experts = draw.choice(row.n_experts)
    if n_experts:
        config.update(num_experts=n_experts, moe_intermediate_size=draw.choice(widths))
    return config


def _linear(shapes, row, config, module, rows, columns):
    """A matrix, and its bias if the family or the config gives it one."""
    shapes[module + ".weight"] = (rows, columns)
    last = module.rsplit(".", 1)[1]
    asked = [modules for key, modules in row.asked_biases.items() if config.get(key)]
    if last in row.biases or any(last in modules for modules in asked):
        shapes[module + ".bias"] = (rows,)


def _mlp(shapes, row, config, before, width):
    hidden = config["hidden_size"]
    if "gate_up" in row.is_fused:
        _linear(shapes, row, config, before + "gate_up_proj", 2 * width, hidden)
    else:
        for name in ["gate_proj", "up_proj"][not row.has_gate :]:
            _linear(shapes, row, config, before + name, width, hidden)
    _linear(shapes, row, config, before + "down_proj", hidden, width)


def shapes_of(config):
    """Every tensor of the model by name, and the modules of its layers that tools quantize."""
    row, hidden = BY_TYPE[config["model_type"]], config["hidden_size"]
    n_heads, n_key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // n_heads)
    heads, key_heads = n_heads * head_dim, n_key_heads * head_dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings", None in row.tied):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        for norm in row.norms:
            shapes[f"{before}{norm}.weight"] = (hidden,)
        attention = before + "self_attn."
        if "qkv" in row.is_fused:
            _linear(shapes, row, config, attention + "qkv_proj", heads + 2 * key_heads, hidden)
        else:
            for name, rows in zip(QKV, [heads, key_heads, key_heads]):
                _linear(shapes, row, config, attention + name, rows, hidden)
        _linear(shapes, row, config, attention + "o_proj", hidden, heads)
        if row.norms_of_heads:
            of_all = row.norms_of_heads == "all"
            shapes[attention + "q_norm.weight"] = (heads if of_all else head_dim,)
            shapes[attention + "k_norm.weight"] = (key_heads if of_all else head_dim,)
        if "num_experts" in config:
            shapes[before + "mlp.gate.weight"] = (config["num_experts"], hidden)
            for expert in range(config["num_experts"]):
                _mlp(shapes, row, config, f"{before}mlp.experts.{expert}.", config["moe_intermediate_size"])
        else:
            _mlp(shapes, row, config, before + "mlp.", config["intermediate_size"])
    if row.has_norm_biases:
        shapes.update(
            {name[: -len("weight")] + "bias": shape for name, shape in shapes.items() if "norm.weight" in name}
        )
    linears = {
        name[: -len(".weight")]: shape
        for name, shape in shapes.items()
        if len(shape) == 2 and ".layers." in name and not name.endswith("mlp.gate.weight")
    }
    return shapes, linears
