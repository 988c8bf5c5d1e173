# Run by `ingot family learn` as `python3 -c`, with a config.json and an empty folder: what transformers' class of this
# model is, how it cuts and calls tensors, and a tiny random model of it with what the class computes. No file of the
# checkpoint but config.json is read, and none of its code is run. Prints a JSON object; `why` says why there is no
# model.
import json
import os
import re
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
# Lengths in tokens: one that no prompt reaches would not be seen to act.
LENGTHS = ("sliding_window", "sliding_window_size", "attention_chunk_size", "index_topk", "floor_scale",
           "original_max_position_embeddings")
LEAST_LENGTH = 8
# Layers for multi-token prediction, which classes do not compute.
PREDICTED = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def without_code(value):
    if isinstance(value, dict):
        return {key: without_code(inner) for key, inner in value.items()
                if key not in ("auto_map", "quantization_config", "trust_remote_code")}
    return value


def acting(config):
    """The config with lengths that are within the prompt, and without layers for multi-token prediction."""
    if not isinstance(config, dict):
        return config
    found = {key: acting(value) for key, value in config.items()}
    for key in LENGTHS:
        if isinstance(found.get(key), int) and found[key] >= N_TOKENS:
            found[key] = LEAST_LENGTH
    for key in PREDICTED:
        if found.get(key):
            found[key] = 0
    return found


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


def layers_of(model):
    """The decoder layers of the text model."""
    from torch.nn import ModuleList
    from transformers.modeling_layers import GradientCheckpointingLayer

    part = model.get_decoder() if hasattr(model, "get_decoder") else model
    n = model.config.get_text_config().num_hidden_layers
    lists = [module for module in part.modules() if isinstance(module, ModuleList) and len(module) > 0]
    # Some classes count the parts of a layer as layers.
    found = [module for module in lists if len(module) == n] or [
        module for module in lists if isinstance(module[0], GradientCheckpointingLayer)]
    if not found:
        raise ValueError(f"its {n} layers are no list of modules")
    return list(found[0])


def recorded(model, torch, ids):
    states, hooks = [], []

    def keep(_module, _inputs, out):
        states.append((out[0] if isinstance(out, tuple) else out).detach().float())

    layers = layers_of(model)
    for module in [model.get_input_embeddings(), *layers]:
        hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    found = {"input_ids": ids, "logits": logits.contiguous().clone()}
    # Streams, and layers that a pass visits more than once, have states of other forms.
    if len(states) == len(layers) + 1:
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


def dicts_in(value):
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from dicts_in(inner)


def without_numbers(name):
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def stacks_of(model):
    """The flags of the experts' classes, and the names of stacks that are loaded as they are stored."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    kinds = {name: module for name, module in model.named_modules()
             if isinstance(getattr(module, "is_concatenated", None), bool)}
    flags = {(kind.is_transposed, kind.is_concatenated) for kind in kinds.values()}
    converters = [one for one in get_model_conversion_mapping(model) if isinstance(one, WeightConverter)]
    names = [f"{name}.{own}" for name, kind in kinds.items()
             for own, value in kind.named_parameters(recurse=False) if value.dim() == 3]
    names = {without_numbers(name): name for name in names
             if all(one.rename_source_key(name)[1] is None for one in converters)}
    if not names or len(flags) != 1:
        return None
    return dict(zip(("is_transposed", "is_concatenated"), flags.pop()), names=sorted(names.values()))


JOINED = (["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"])


def tensors_of(model, torch):
    """Facts about tensors of the text model, by the stored name of one of each kind: the words of `tp_plan` for the
    parameters of which it is made (`plan`), the name of the parameter that it is (`names`), and in which order several
    are joined in it (`joined`)."""
    from transformers.core_model_loading import revert_weight_conversion

    plan, words = model.tp_plan or {}, {}
    heads = [model.get_output_embeddings()] if hasattr(model, "get_output_embeddings") else []
    parts = [model.get_decoder() if hasattr(model, "get_decoder") else model, *filter(None, heads)]
    of_text = {id(value) for part in parts for value in part.parameters()}
    # Each parameter is filled with a number of its own, by which it is found in what would be saved.
    names, marked = [], {}
    for name, value in model.named_parameters():
        own = without_numbers(name)
        if id(value) in of_text:
            words[name] = plan.get(own) or plan.get(own.rpartition(".")[0])
        names.append(name)
        marked[name] = torch.full(value.shape, float(len(names)))
    found, answer = {}, {"plan": {}, "names": {}, "joined": {}}
    for stored, value in revert_weight_conversion(model, marked).items():
        rows = value.reshape(value.shape[0], -1)[:, 0] if value.dim() else value.reshape(1)
        runs = [names[int(mark) - 1] for mark in torch.unique_consecutive(rows).tolist()]
        is_whole = len(runs) == 1 and value.shape == marked[runs[0]].shape
        seen = found.setdefault(without_numbers(stored), (stored, value.dim(), runs, is_whole, set()))
        seen[-1].update(map(words.get, runs))
    for kind, (stored, sides, runs, is_whole, made_of) in found.items():
        if runs[0] not in words:
            continue
        if made_of != {None} and len(made_of) == 1:
            answer["plan"][stored] = made_of.pop()
        last = [name.removesuffix(".weight").rpartition(".")[2] for name in runs]
        if is_whole and without_numbers(runs[0]) != kind:
            answer["names"][stored] = runs[0]
        elif last in JOINED and sides == 2:
            answer["joined"][stored] = "parts"
        elif sides == 2 and len(runs) > len(set(runs)) and any(set(last) == set(one) for one in JOINED):
            answer["joined"][stored] = "turns"
    return answer


def made(config, given, folder, answer, torch, transformers):
    from safetensors.torch import save_file

    kind = class_of(config, transformers)
    with torch.device("meta"):
        model = kind.from_config(config, attn_implementation="eager")
    answer.setdefault("class", type(model).__name__)
    if sum(tensor.numel() for tensor in model.parameters()) > MOST_VALUES:
        raise ValueError("its parts do not get small")
    place = os.path.join(folder, "model")
    for seed in range(20):
        model = kind.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
        if seed == 0:
            if stacks := stacks_of(model):
                answer["stacks"] = stacks
            answer.update(tensors_of(model, torch))
        random_weights(model, torch, seed)
        model.save_pretrained(place)
        model = kind.from_pretrained(place, dtype=torch.float32, attn_implementation="eager",
                                     experts_implementation="eager", trust_remote_code=False).eval()
        top = min(config.get_text_config().vocab_size, 30000)
        ids = torch.randint(3, top, (N_TOKENS,), generator=torch.Generator().manual_seed(seed))
        found, gap = recorded(model, torch, ids)
        if gap >= GAP:
            break
    source = f"transformers {transformers.__version__} {type(model).__name__}"
    save_file(found, os.path.join(folder, "recorded.safetensors"), metadata={"source": source})
    # In the words of the release: what it leaves out is to mean the same in both programs.
    with open(os.path.join(place, "config.json"), "w") as file:
        json.dump(given, file)
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
        # A class of another model, as the release has it.
        named = getattr(transformers, str((config.get("architectures") or [None])[0]), None)
        if not hasattr(named, "config_class"):
            return {**answer, "why": f"transformers {transformers.__version__} knows no {config.get('model_type')}"}
        config["model_type"] = named.config_class.model_type
    for n_layers, part in ((1 << 30, 1), (8, 32), (4, 64)):
        small = acting(config if part == 1 else smaller(config, n_layers, part))
        # The whole model, or its text model where the others do not get small, or need more than is installed.
        for is_text in (False, True):
            try:
                whole = transformers.AutoConfig.for_model(**transformers.PreTrainedConfig._decode_special_floats(small))
                text = whole.get_text_config()
                if is_text and text is whole:
                    continue
                given = small if not is_text else next(
                    {**value, "model_type": text.model_type} for value in dicts_in(small)
                    if value is not small and value.get("hidden_size") == text.hidden_size)
                made(text if is_text else whole, given, folder, answer, torch, transformers)
                answer.pop("why", None)
                return answer
            except Exception as error:
                answer.setdefault("why", f"{type(error).__name__}: {str(error)[:300]}")
    return answer


print(json.dumps(main()))
