#!/usr/bin/env python3
"""Shows by SGLang itself that rank files of layout sglang-sharded are what a rank loads.

    sglang_state.py compare WHOLE SHARDED [--tp N] [--ep] [--quantization NAME] [--unfused]
    sglang_state.py fixture MODEL OUT.json [--tp N] [--ep] [--quantization NAME] [--unfused]

`compare` loads the unsliced directory with SGLang's default loader, and the sliced one with its loader
of sharded_state, on every rank (one process each). It fails where a key of the state dict, a dtype, a
shape or a byte differs, or what is made of latent attention for decoding; and where the loader of
sharded_state warns. Both loaders process the weights: the default one after it has loaded them, the
other one before. `fixture` writes the state dicts of the unsliced directory in the form that the tests
of ingot read.

As in sglang_loads.py, modules of kernels are replaced, and a card is described to those that ask for
one. The processing of weights is that of CUDA (PROCESSORS).
"""

import argparse
import hashlib
import json
import pathlib
import sys

import ranks
import sglang_loads

# Facts of the processor that modules of layers and models keep from their import.
PROCESSORS = {"_is_cuda": True, "_is_cpu": False, "_is_cpu_amx_available": False, "_is_cpu_arm64": False}
PROCESSING = tuple(
    "sglang.srt.layers." + name for name in ("quantization", "linear", "moe", "attention.dsa.dsa_indexer")
)
# Attention keeps these for decoding; they are no keys of the state dict.
OF_ATTENTION = ("w_kc", "w_vc", "w_scale", "w_scale_k", "w_scale_v")


def process_as_on_a_card():
    """Has the processing of weights take the processor for a card."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(PROCESSING):
            continue
        if hasattr(module, "resolve_num_sms"):
            module.resolve_num_sms = lambda *args: 132
        for key, value in PROCESSORS.items():
            if hasattr(module, key):
                setattr(module, key, value)


def facts_of(tensor):
    data = sglang_loads.bytes_of(tensor.detach())
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
        "filled": len(data) > 0 and data.strip(b"\x7f") == b"",
    }


def fill(model):
    """A pattern in every byte, which no loaded tensor has throughout."""
    import torch

    for tensor in model.state_dict().values():
        if tensor.dim() == 0 or tensor.is_floating_point() and bool((tensor.data.float() == 1).all()):
            continue  # scales of caches and of inputs, which are judged by what they were made with
        tensor.data.view(torch.uint8).fill_(0x7F)


def load_on_rank(rank, options, meeting):
    """SGLang's model on a rank, loaded and processed as on the card, with what it warned of."""
    import torch

    torch.set_num_threads(1)
    arguments = sglang_loads.publish_arguments(options, rank)
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.model_loader import loader as loaders

    initialize_moe_config()
    sglang_loads.meet(arguments, rank, options.tp, meeting)
    config = ModelConfig(model_path=str(options.model), dtype="bfloat16", quantization=options.quantization)
    is_own = options.card == "own"
    if not is_own:
        sglang_loads.describe(options.card)
        process_as_on_a_card()
    load_config = LoadConfig(load_format="sharded_state" if options.sharded else "auto")
    if options.ledger:
        load_config = LoadConfig(load_format="presharded", model_loader_extra_config={"presharded_path": options.ledger})
    loader = loaders.get_model_loader(load_config=load_config, model_config=config)
    warnings = []
    loaders.logger.warning = lambda text, *args: warnings.append(text % args)
    initialize = loaders._initialize_model

    def initialize_and_fill(*args, **kwargs):
        model = initialize(*args, **kwargs)
        fill(model)
        return model

    loaders._initialize_model = initialize_and_fill
    return loader.load_model(model_config=config, device_config=DeviceConfig("cuda" if is_own else "cpu", 0)), warnings


def state_of_rank(rank, options, meeting):
    import torch
    from sglang.srt.model_loader import loader as loaders

    model, warnings = load_on_rank(rank, options, meeting)
    if options.sharded and warnings:
        raise RuntimeError("; ".join(warnings[:8]))
    state = {name: facts_of(tensor) for name, tensor in loaders.ShardedStateLoader._filter_subtensors(model.state_dict()).items()}
    for name, module in model.named_modules():
        for key in OF_ATTENTION:
            value = getattr(module, key, None)
            if isinstance(value, torch.Tensor) and f"{name}.{key}" not in state:
                state[f"{name}.{key} (kept)"] = facts_of(value)
    return state


def states(options):
    """The state dict of each rank: {key: facts}."""
    return ranks.on_each_rank(state_of_rank, options, options.tp)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["compare", "fixture"])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("second", type=pathlib.Path, help="rank files to compare with, or where to write")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", action="store_true")
    parser.add_argument("--card", choices=sglang_loads.CARDS, default="hopper")
    parser.add_argument("--quantization")
    parser.add_argument("--unfused", action="store_true", help="with --disable-shared-experts-fusion")
    parser.add_argument("--timeout", type=int, default=300)
    options = parser.parse_args()
    options.sharded, options.mtp, options.own, options.ledger = False, False, (), None
    sglang_loads.prepare()
    whole = states(options)
    if options.task == "fixture":
        text = lambda f: f"{f['dtype']} {f['shape']} {f['sha256'][:16]}"
        found = [{name: text(facts) for name, facts in sorted(state.items()) if "(kept)" not in name} for state in whole]
        options.second.write_text(json.dumps(found, indent=1) + "\n")
        return
    options.model, options.sharded = options.second, True
    sharded = states(options)
    faults = ranks.differences(whole, sharded)
    print("\n".join(faults[:40]))
    print(f"{sum(len(state) for state in sharded)} keys on {len(sharded)} ranks, {len(faults)} differ")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
