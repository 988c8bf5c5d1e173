#!/usr/bin/env python3
"""Shows by vLLM itself that rank files of layout vllm-sharded are what a rank loads.

    sharded_state.py state MODEL OUT.json [--tp N] [--pp P] [--ep] [--mtp] [--sharded]
    sharded_state.py compare WHOLE SHARDED [--tp N] [--pp P] [--ep] [--mtp]
    sharded_state.py fixture MODEL OUT.json [--tp N] [--pp P] [--ep] [--mtp]

`state` builds vLLM's model on every rank (one process each), fills each parameter with a pattern,
loads MODEL, and writes dtype, shape and hash of each key of the state dict that the loader of
sharded_state asks for, before vLLM processes the weights. With `--sharded` MODEL is loaded by that
loader; each of its warnings is an error here. `compare` does this for the unsliced directory and
for the sliced one, and fails where a key, a dtype, a shape or a byte differs, or a parameter was
not filled. `fixture` writes the state dicts in the form that the tests of ingot read.

Only the choice of kernels is not vLLM's own: if the CPU has no kernel for a scheme, that of a GPU is
chosen (KERNELS). Only loading is done, so no kernel runs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import sys

import ranks

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}

# Keys that checkpoints do not fill: scales and zero points of caches that the engine creates.
CONSTANTS = ("_q_scale", "_k_scale", "_v_scale", "_prob_scale", "q_scale", "k_scale", "v_scale", "prob_scale", "_zero_point")


class NoKernel:
    """Stands where a linear layer asks for a kernel that this CPU lacks."""

    def __init__(self, *args, **kwargs):
        self.config = None

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def hide_tiles():
    """Has vLLM take this processor for one without AMX, whose kernels know no FP32."""
    import torch

    torch.cpu._is_amx_tile_supported = lambda: False


def replace_kernels():
    """Puts the choice of a GPU in place of each choice that a CPU cannot make."""
    from importlib import import_module

    hide_tiles()

    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
    from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
    from vllm.model_executor.layers.fused_moe.oracle.int8 import Int8MoeBackend
    from vllm.model_executor.layers.fused_moe.oracle.int_wna16 import WNA16MoEBackend
    from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import Mxfp4MoeBackend
    from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import NvFp4MoeBackend

    quantization = "vllm.model_executor.layers.quantization."
    schemes = quantization + "compressed_tensors.schemes.compressed_tensors_"
    experts = quantization + "compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_"
    no_kernel = lambda *args, **kwargs: NoKernel()
    kernels = {
        "init_fp8_linear_kernel": (no_kernel, [quantization + "fp8", quantization + "modelopt", schemes + "w8a8_fp8"]),
        "init_wfp8_a16_linear_kernel": (no_kernel, [schemes + "w8a16_fp8"]),
        "init_nvfp4_linear_kernel": (no_kernel, [quantization + "modelopt", schemes + "w4a4_nvfp4"]),
        "init_mxfp4_linear_kernel": (no_kernel, [schemes + "w4a4_mxfp4"]),
        "init_mxfp8_linear_kernel": (no_kernel, [schemes + "w8a8_mxfp8"]),
        "select_wna16_moe_backend": (lambda *args, **kwargs: (WNA16MoEBackend.MARLIN, TritonExperts), [experts + "wna16"]),
        "select_mxfp8_moe_backend": (lambda *args, **kwargs: (Fp8MoeBackend.TRITON, TritonExperts), [experts + "w8a8_mxfp8"]),
        "select_mxfp4_moe_backend": (lambda *args, **kwargs: (Mxfp4MoeBackend.MARLIN, TritonExperts), [experts + "w4a4_mxfp4"]),
        "select_fp8_moe_backend": (
            lambda **kwargs: (Fp8MoeBackend.TRITON, TritonExperts),
            [quantization + "fp8", quantization + "modelopt", experts + "w8a8_fp8"],
        ),
        "select_int8_moe_backend": (lambda **kwargs: (Int8MoeBackend.TRITON, TritonExperts), [experts + "w8a8_int8"]),
        "select_nvfp4_moe_backend": (
            lambda **kwargs: (NvFp4MoeBackend.MARLIN, TritonExperts),
            [quantization + "modelopt", experts + "w4a4_nvfp4"],
        ),
    }
    for name, (choice, modules) in kernels.items():
        for module in modules:
            assert hasattr(import_module(module), name), f"{module} has no {name}"
            setattr(import_module(module), name, choice)
    replace_sparse_attention()


def replace_sparse_attention():
    """Builds models with sparse attention from the classes for CUDA; the CPU has no such attention."""
    import vllm.models.deepseek_v32 as platform
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.models.deepseek_v32.nvidia import model, mtp
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl

    platform.DeepseekV32ForCausalLM = platform.GlmMoeDsaForCausalLM = model.DeepseekV32ForCausalLM
    platform.DeepseekV32MTP = mtp.DeepseekV32MTP

    class SparseImpl(CPUMLAImpl):
        def __init__(self, *args, topk_indices_buffer=None, index_group_builder=None, **kwargs):
            super().__init__(*args, **kwargs)

    class SparseBackend(CPUMLABackend):
        @staticmethod
        def get_impl_cls():
            return SparseImpl

    usual = mla_attention.get_attn_backend
    mla_attention.get_attn_backend = lambda *args, use_sparse=False, **kwargs: (
        SparseBackend if use_sparse else usual(*args, use_sparse=use_sparse, **kwargs)
    )


def fill(state):
    """A pattern in every byte, which no loaded tensor has throughout."""
    import torch

    for tensor in state.values():
        if tensor.is_floating_point() and bool((tensor.data.float() == 1).all()):
            continue  # loaders of input scales compare with what they were made with
        tensor.data.view(torch.uint8).fill_(0x7F) if tensor.dim() else tensor.data.fill_(float("nan") if tensor.is_floating_point() else 127)


def facts_of(tensor):
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
        "filled": data != bytes(len(data)) and data.strip(b"\x7f") == b"",
    }


@contextlib.contextmanager
def loaded_on_rank(rank, options, meeting, choose_kernels=replace_kernels, device="cpu"):
    """vLLM's model on a rank, filled by its loader, and its config; before vLLM processes the weights."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader, sharded_state_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    torch.set_num_threads(1)
    choose_kernels()
    speculative = {"method": "mtp", "model": options.model, "num_speculative_tokens": 1} if options.mtp else None
    config = EngineArgs(
        model=options.model,
        dtype=options.dtype,
        enforce_eager=True,
        max_model_len=256,
        tensor_parallel_size=options.tp,
        pipeline_parallel_size=options.pp,
        enable_expert_parallel=options.ep,
        load_format="sharded_state" if options.sharded else "auto",
        speculative_config=speculative,
        skip_tokenizer_init=True,
        distributed_executor_backend="mp" if options.tp * options.pp > 1 else None,
        **json.loads(options.engine),
    ).create_engine_config()
    config.parallel_config.rank = rank
    warnings = []
    with set_current_vllm_config(config):
        init_distributed_environment(options.tp * options.pp, rank, f"file://{meeting}", rank, "gloo")
        initialize_model_parallel(options.tp, options.pp)
        loader = get_model_loader(config.load_config)
        model_config = config.speculative_config.draft_model_config if options.mtp else config.model_config
        with set_default_torch_dtype(model_config.dtype), torch.device(device):
            model = initialize_model(vllm_config=config, model_config=model_config)
        fill({name: tensor for name, tensor in state_of(model).items() if not name.endswith(CONSTANTS)})
        if options.sharded:
            sharded_state_loader.logger.warning = lambda text, *args: warnings.append(text % args)
        loader.load_weights(model, model_config)
        if warnings:
            raise RuntimeError("; ".join(warnings[:8]))
        yield model, config


def state_of(model):
    """The tensors that the loader of sharded_state asks for."""
    from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

    return ShardedStateLoader._filter_subtensors(model.state_dict())


def state_of_rank(rank, options, meeting):
    with loaded_on_rank(rank, options, meeting) as (model, _):
        return {name: facts_of(tensor) for name, tensor in state_of(model).items()}


def states(options):
    """The state dict of each rank: {key: facts}."""
    return on_each_rank(state_of_rank, options)


def on_each_rank(work, options):
    """The results of work(rank, options, meeting) in a process for each rank."""
    identity = f"ranks{os.getpid()}{'s' if options.sharded else 'w'}"
    os.environ.update(ENVIRONMENT, VLLM_DIST_IDENT=identity)
    import vllm.engine.arg_utils  # noqa: F401 - once, before the ranks are forked
    import vllm.model_executor.models.deepseek_v2  # noqa: F401

    try:
        return ranks.on_each_rank(work, options, options.tp * options.pp)
    finally:
        for memory in pathlib.Path("/dev/shm").glob(identity + "-*"):  # vLLM leaves it there
            memory.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["state", "compare", "fixture"])
    parser.add_argument("model")
    parser.add_argument("second", help="where to write, or the rank files to compare with")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--ep", action="store_true")
    parser.add_argument("--mtp", action="store_true", help="the draft model of multi-token prediction instead")
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--engine", default="{}", help="further arguments of the engine, as JSON")
    parser.add_argument("--timeout", type=int, default=300)
    options = parser.parse_args()
    if options.task == "compare":
        whole = states(options)
        options.model, options.sharded = options.second, True
        sharded = states(options)
        faults = ranks.differences(whole, sharded, may_be_unset=True)
        print("\n".join(faults[:40]))
        unfilled = sorted({name for state in whole for name, facts in state.items() if facts["filled"]})
        if unfilled:
            print(f"not filled from the unsliced directory either: {', '.join(unfilled[:8])}")
        print(f"{sum(len(state) for state in sharded)} keys on {len(sharded)} ranks, {len(faults)} differ")
        sys.exit(1 if faults else 0)
    found = states(options)
    with open(options.second, "w") as file:
        if options.task == "fixture":
            text = lambda f: f"{f['dtype']} {f['shape']} {f['sha256'][:16]}"
            found = [{name: text(facts) for name, facts in sorted(state.items())} for state in found]
        json.dump(found, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
