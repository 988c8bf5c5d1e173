#!/usr/bin/env python3
"""Loads a directory with SGLang itself: its config parsing, model class, parameters and loaders.

    sglang_loads.py MODEL [--card hopper|blackwell] [--quantization NAME] [--mtp] [--unfused]

Nothing is computed. SGLang has no build without kernels of a GPU, so the modules that hold them are
replaced by ones that raise when called, and a card is described to those that ask for one (CARDS).
Every parameter is filled with a pattern beforehand; one that still has it was not loaded. Then the
bytes of each tensor of the files are looked for in the parameters. What the classes of models decide
by the kind of processor, they decide as for CUDA: whether shared experts are loaded as routed ones, and
what post_load_weights, which is SGLang's own, makes of latent attention.
"""

import argparse
import importlib.abc
import importlib.machinery
import os
import pathlib
import re
import sys
import tempfile
import types

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_DISABLE_TQDM": "1"}
KERNELS = ("sgl_kernel", "vllm")  # SGLang falls back to vLLM's kernels where it finds them
CARDS = {"hopper": (9, 0), "blackwell": (10, 0)}
# SGLang fills these without a checkpoint: scales of caches, orders of groups, scales in the order of a kernel.
DEFAULTS = ("k_scale", "v_scale", "_g_idx", "_g_idx_sort_indices", "_blockscale_swizzled")
# A draft model takes these from the model for which it drafts.
SHARED = re.compile(r"(^|\.)(embed_tokens|lm_head|shared_head\.head)\.")


class NoKernel:
    """Stands for anything in a module of kernels."""

    def __init__(self, name):
        self.__dict__["name"] = self.__dict__["__name__"] = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return NoKernel(f"{self.name}.{name}")

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self.name} is a kernel, and was called")


class NoKernels(types.ModuleType):
    __version__, __path__ = "9.9.9", []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return NoKernel(f"{self.__name__}.{name}")


class FinderOfKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of kernels before anybody else does."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in KERNELS else None

    def create_module(self, spec):
        return NoKernels(spec.name)

    def exec_module(self, module):
        pass


def prepare(is_own_card=False):
    """Imports SGLang without its kernels (on a card: those that are not installed); vLLM cannot be imported in this
    process behind it."""
    os.environ.update(ENVIRONMENT)
    import torch

    sys.meta_path.insert(len(sys.meta_path) if is_own_card else 0, FinderOfKernels())
    if is_own_card:
        import sglang.srt.model_loader.loader  # noqa: F401
        import sglang.srt.models.registry  # noqa: F401
        return
    torch.ops.__dict__["npu"] = NoKernel("npu")
    import sglang.srt.model_loader.loader  # noqa: F401
    import sglang.srt.models.registry  # noqa: F401
    from sglang.srt.layers.rotary_embedding import factory

    # The one of CPUs must have scaling.
    of_cpu = factory.get_rope_cpu
    factory.get_rope_cpu = lambda *args: of_cpu(*args) if args[5] is not None else factory.get_rope(*args[:-1])
    fuse_as_on_a_card()


def describe(card):
    """Gives what is imported by now this card, where it asks for the platform."""
    from sglang.srt import runtime_context

    platform = runtime_context.get_platform()
    if card != "blackwell" or platform.is_blackwell:
        return

    class Blackwell:
        is_blackwell = is_sm100 = True

        def __getattr__(self, name):
            return getattr(platform, name)

    described = Blackwell()
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang") and hasattr(module, "get_platform"):
            module.get_platform = lambda: described


def meet(arguments, rank=0, n_ranks=1, meeting=None):
    """The groups of a rank, once in a process; ranks meet in a file."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    if parallel_state.model_parallel_is_initialized():
        return
    group = parallel_state.GroupCoordinator.__init__
    of_cards = {"use_pynccl": False, "use_custom_allreduce": False, "use_mscclpp": False}
    parallel_state.GroupCoordinator.__init__ = lambda *args, **named: group(*args, **{**named, **of_cards})
    with tempfile.TemporaryDirectory() as folder:
        parallel_state.init_distributed_environment(
            world_size=n_ranks, rank=rank, local_rank=0 if arguments.device == "cuda" else rank, backend="gloo",
            distributed_init_method=f"file://{meeting or folder + '/meeting'}",
        )
        parallel_state.initialize_model_parallel(backend="gloo")
    initialize_dp_attention(arguments)


def fuse_as_on_a_card():
    """Lets SGLang's classes decide about shared experts, and prepare latent attention, as for CUDA."""
    from sglang.srt.model_loader import loader as loaders

    resolve = loaders.resolve_shared_experts_config

    def resolve_as_for_cuda(model_class, *arguments):
        modules = [module for c in model_class.__mro__ if hasattr(module := sys.modules[c.__module__], "_is_cuda")]
        before = [module._is_cuda for module in modules]
        for module in modules:
            module._is_cuda = True
        try:
            return resolve(model_class, *arguments)
        finally:
            for module, was in zip(modules, before):
                module._is_cuda = was

    loaders.resolve_shared_experts_config = resolve_as_for_cuda
    from sglang.srt.models.deepseek_common import deepseek_weight_loader

    deepseek_weight_loader._is_cuda = True


def publish_arguments(options, rank=0):
    """SGLang's arguments, as its modules ask for them, and the card."""
    import torch

    is_own = options.card == "own"
    if not is_own:
        torch.cuda.get_device_capability = lambda *args, **kwargs: CARDS[options.card]
        torch.cuda.is_available = lambda: False
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    n_ranks = getattr(options, "tp", 1)
    arguments = ServerArgs(
        model_path=str(options.model), device="cuda" if is_own else "cpu", dtype="bfloat16", attention_backend="torch_native", disable_cuda_graph=True,
        skip_tokenizer_init=True, quantization=options.quantization, tp_size=n_ranks,
        ep_size=n_ranks if getattr(options, "ep", False) else 1, disable_shared_experts_fusion=options.unfused,
        **getattr(options, "server", {}),
    )
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=rank, gpu_id=rank))
    return arguments


def build(options):
    """SGLang's model with its parameters, the loader and the config of the model."""
    import torch

    arguments = publish_arguments(options)
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.model_loader import loader as loaders

    initialize_moe_config()
    meet(arguments)
    config = ModelConfig(
        model_path=str(options.model), dtype="bfloat16", quantization=options.quantization, is_draft_model=options.mtp
    )
    describe(options.card)
    load_config = LoadConfig(load_format="auto")
    loader = loaders.get_model_loader(load_config=load_config, model_config=config)
    quantization = loaders._get_quantization_config(config, load_config)
    with loaders.set_default_torch_dtype(config.dtype), torch.device("cpu"):
        model = loaders._initialize_model(config, load_config, quantization)
    return model, loader, config


def read_in_blocks(model):
    """Gives the loaders of joined scales of FP8 blocks what they expect, then ends as a loading does: both ask the config."""
    import torch
    from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
    from sglang.srt.layers.parameter import BlockQuantScaleParameter

    for module in model.modules():
        parts = ("q", "k", "v") if isinstance(module, QKVParallelLinear) else (0, 1)
        if not isinstance(module, (QKVParallelLinear, MergedColumnParallelLinear)):
            continue
        for parameter in module.parameters(recurse=False):
            if not isinstance(parameter, BlockQuantScaleParameter):
                continue
            for part in parts:
                rows = module._get_shard_size_mapping(part) if isinstance(part, str) else module.output_sizes[part]
                parameter.weight_loader(parameter, torch.ones(-(-rows // 128), parameter.shape[1]), part)
    for parameter in model.parameters():
        parameter.data.view(torch.uint8).zero_() if parameter.dim() else parameter.data.zero_()
    if hasattr(model, "post_load_weights"):
        model.post_load_weights()


def unloaded(parameter):
    """Whether a row of the parameter has the pattern throughout."""
    import torch

    data = parameter.data
    rows = data.reshape(-1, data.shape[-1]) if data.dim() > 1 else data.reshape(-1, 1)
    return bool((rows.contiguous().view(torch.uint8) == 0x7F).all(-1).any())


def bytes_of(tensor):
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def not_found(tensors, parameters):
    """Names of tensors that no parameter holds byte for byte: as they are, cast or turned over."""
    import torch

    held = []
    for parameter in parameters:
        held.append(bytes_of(parameter.data))
        if parameter.dim() > 1:
            held.append(bytes_of(parameter.data.transpose(-1, -2)))
    missing = []
    for name, tensor in tensors.items():
        plain = (torch.float32, torch.bfloat16, torch.float16)
        casts = [tensor.to(dtype) for dtype in plain] if tensor.dtype in plain else [tensor]
        forms = [bytes_of(cast) for cast in casts]
        if not any(form in bytes_held for form in forms for bytes_held in held):
            missing.append(name)
    return missing


def loads(options):
    """The result of loading: the numbers of parameters and of tensors that they hold, or the faults."""
    import torch

    torch.set_num_threads(1)
    model, loader, config = build(options)
    for parameter in model.parameters():
        if parameter.is_floating_point() and bool((parameter.data.float() == 1).all()):
            continue  # loaders of input scales compare with what they were made with
        parameter.data.view(torch.uint8).fill_(0x7F) if parameter.dim() else parameter.data.fill_(float("nan"))
    read = {}

    def tensors():
        for name, tensor in loader._get_all_weights(config, model):
            read[name] = tensor.clone()
            yield name, tensor

    model.load_weights(tensors())
    parameters = dict(model.named_parameters())
    is_shared = lambda name: options.mtp and SHARED.search(name)
    is_own = lambda name: name.endswith(DEFAULTS + options.own) or is_shared(name)
    left = [name for name, parameter in parameters.items() if not is_own(name) and unloaded(parameter)]
    if left:
        return f"not filled: {left[0]} (of {len(left)})"
    n_layers = config.hf_config.num_hidden_layers
    of_mtp = lambda name: any(int(number) >= n_layers for number in re.findall(r"layers\.(\d+)\.", name))
    wanted = {name: tensor for name, tensor in read.items() if of_mtp(name) == options.mtp and not is_shared(name)}
    missing = not_found(wanted, parameters.values())
    text = f"loads, {len(parameters)} parameters hold {len(wanted) - len(missing)} of {len(wanted)} tensors"
    return text + (f", not {missing[0]}" if missing else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--card", choices=CARDS, default="hopper")
    parser.add_argument("--quantization")
    parser.add_argument("--own", default=(), type=lambda text: tuple(text.split(",")), help="ends of parameters that need no file")
    parser.add_argument("--mtp", action="store_true", help="the draft model of multi-token prediction instead")
    parser.add_argument("--unfused", action="store_true", help="with --disable-shared-experts-fusion")
    options = parser.parse_args()
    prepare()
    print(loads(options))
    sys.stdout.flush()
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
