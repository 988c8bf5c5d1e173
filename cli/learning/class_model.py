# Run by `ingot family learn` as `python3 -c`, with a config.json and an empty folder: what transformers' class of this
# model is, and a tiny random model of it with what the class computes. No file of the checkpoint but config.json is
# read, and none of its code is run. Prints a JSON object; `why` says why there is no model.
import json
import os
import sys

sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
MOST_VALUES = 1 << 25  # of a model that is computed
N_TOKENS, N_GREEDY, GAP = 24, 8, 5e-3
WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "vocab_size",
          "moe_shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank", "dense_intermediate_size")
HEADS = ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads", "index_n_heads",
         "swa_num_attention_heads", "swa_num_key_value_heads")
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


def without_code(value):
    if isinstance(value, dict):
        return {key: without_code(inner) for key, inner in value.items()
                if key not in ("auto_map", "quantization_config", "trust_remote_code")}
    return value


def smaller(config, n_layers, part):
    """The config with so many layers at most, and widths that are parts of its own."""
    small = dict(config)
    if isinstance(small.get("text_config"), dict):
        small["text_config"] = smaller(small["text_config"], n_layers, part)
    layers = small.get("num_hidden_layers")
    if isinstance(layers, int) and layers > n_layers:
        small["num_hidden_layers"] = n_layers
        for key, value in config.items():
            if isinstance(value, list) and len(value) == layers:
                small[key] = value[:n_layers]
    for key in WIDTHS:
        if isinstance(small.get(key), int) and small[key] > 64:
            small[key] = max(64, small[key] // part // 16 * 16)
    if min((small.get(key) or 1 << 30 for key in HEADS), default=0) < 1 << 30:
        heads = [key for key in HEADS if isinstance(small.get(key), int)]
        least = min(small[key] for key in heads)
        for key in heads:
            if small[key] % least == 0:
                small[key] = small[key] // least * min(least, 2)
    for key in EXPERTS:
        if isinstance(small.get(key), int) and small[key] > 16:
            small[key] = 16
    return small


def random_weights(model, torch, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in name or "rotary" in name or "embed_scale" in name or not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() >= 2:
            values = noise / tensor.shape[-1] ** 0.5
        elif name.endswith("bias"):
            values = 0.05 * noise
        else:
            values = tensor.detach().float() + 0.1 * noise
        tensor.data.copy_(values.to(torch.bfloat16).to(tensor.dtype))


def text_part(model):
    return model.get_decoder() if hasattr(model, "get_decoder") else model.model


def recorded(model, torch, ids):
    states, hooks = [], []

    def keep(_module, _inputs, out):
        states.append((out[0] if isinstance(out, tuple) else out).detach().float())

    decoder = text_part(model)
    for module in [model.get_input_embeddings(), *decoder.layers]:
        hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    found = {"input_ids": ids, "logits": logits.contiguous().clone()}
    # Streams, and layers that a pass visits more than once, have states of other forms.
    if len(states) == len(decoder.layers) + 1:
        for i, state in enumerate(states):
            if state.dim() == 3 and state.shape[:2] == (1, len(ids)):
                found[f"hidden.{i}"] = state[0].contiguous().clone()
    tokens, greedy, gap = ids, [], float("inf")
    for _ in range(N_GREEDY):
        with torch.no_grad():
            last = model(input_ids=tokens[None], use_cache=False).logits[0, -1].float()
        best = torch.topk(last, 2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        greedy.append(int(best.indices[0]))
        tokens = torch.cat([tokens, best.indices[:1]])
    found["greedy"] = torch.tensor(greedy)
    return found, gap


def class_of(config, transformers):
    for auto in ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM"):
        kind = getattr(transformers, auto, None)
        if kind is not None and type(config) in kind._model_mapping:
            return kind
    raise ValueError(f"transformers has no model for {config.model_type}")


def kept_stacks(model, torch, folder):
    """The flags of the experts' classes, where the saved stacks are just the parameters of the class."""
    from safetensors.torch import load_file

    saved = load_file(os.path.join(folder, "model", "model.safetensors"))
    kinds = [module for module in model.modules() if isinstance(getattr(module, "is_concatenated", None), bool)]
    flags = {(kind.is_transposed, kind.is_concatenated) for kind in kinds}
    own = [value for kind in kinds for value in kind.parameters(recurse=False) if value.dim() == 3]
    stored = [value for value in saved.values() if value.dim() == 3]
    is_kept = all(any(a.shape == b.shape and torch.equal(a, b.detach()) for a in stored) for b in own)
    return dict(zip(("is_transposed", "is_concatenated"), flags.pop())) if own and is_kept and len(flags) == 1 else None


def made(config, folder, answer, torch, transformers):
    from safetensors.torch import save_file

    kind = class_of(config, transformers)
    with torch.device("meta"):
        model = kind.from_config(config, attn_implementation="eager")
    answer["class"] = type(model).__name__
    if sum(tensor.numel() for tensor in model.parameters()) > MOST_VALUES:
        raise ValueError("its parts do not get small")
    for seed in range(20):
        model = kind.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
        random_weights(model, torch, seed)
        model.save_pretrained(os.path.join(folder, "model"))
        if stacks := kept_stacks(model, torch, folder):
            answer["stacks"] = stacks
        model = kind.from_pretrained(os.path.join(folder, "model"), dtype=torch.float32, attn_implementation="eager",
                                     experts_implementation="eager", trust_remote_code=False).eval()
        top = min(config.get_text_config().vocab_size, 30000)
        ids = torch.randint(3, top, (N_TOKENS,), generator=torch.Generator().manual_seed(seed))
        found, gap = recorded(model, torch, ids)
        if gap >= GAP:
            break
    source = f"transformers {transformers.__version__} {answer['class']}"
    save_file(found, os.path.join(folder, "recorded.safetensors"), metadata={"source": source})
    answer["source"], answer["model"] = source, True


def main():
    path, folder = sys.argv[1:3]
    answer = {"model": False}
    try:
        import torch
        import transformers
    except Exception as error:
        return {**answer, "why": f"{sys.executable} has no transformers and torch ({error})"}
    transformers.logging.set_verbosity_error()
    with open(path) as file:
        config = without_code(json.load(file))
    if config.get("model_type") not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        return {**answer, "why": f"transformers {transformers.__version__} knows no {config.get('model_type')}"}
    for n_layers, part in ((1 << 30, 1), (8, 32), (4, 64)):
        try:
            small = config if part == 1 else smaller(config, n_layers, part)
            made(transformers.AutoConfig.for_model(**small), folder, answer, torch, transformers)
            answer.pop("why", None)
            return answer
        except Exception as error:
            answer.setdefault("why", f"{type(error).__name__}: {str(error)[:300]}")
    return answer


print(json.dumps(main()))
