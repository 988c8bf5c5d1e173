#!/usr/bin/env python3
"""Writes what vLLM's end point /weight_checker tells of a directory, by vLLM's own code on a CPU, or on a card.

    vllm_live.py MODEL ANSWER.json [--tp N] [--pp P] [--ep] [--card CARD] [--no-deep-gemm] [--mxfp8 KERNEL]

vLLM's own loader loads the weights on each rank, its own process_weights_after_loading processes them, its worker's
method hashes each parameter, and the answer is put together as its server does. Model, quantization methods, and choice
of kernels are vLLM's as for a card, which is described where they ask (describe): a compute capability; DeepGEMM, which
its wheel has; and kernels of its libraries, which answer that they are there. FlashInfer is taken for missing. Replaced
is what only a card can run: sparse attention (sharded_state.py); kernels of experts, which are made of processed
weights; the product that decodes kv_b_proj for latent attention; DeepGEMM's layout of scales, which is written here; the
rounding of FP8 per tensor (card_kernels.py). Where the kernel that vLLM chooses packs weights, which needs a card, the
parameters of its module are overwritten: `ingot check` has to say that they are packed, and compare all others.

`--card own` takes the card of this machine for all ranks, and replaces nothing but the way in which ranks talk to each
other, since NCCL does not let two of them share a card.
"""

import argparse
import functools
import json
import os
import pathlib
import sys
import types

import card_kernels
import sharded_state

CAPABILITIES = {"ampere": (8, 0), "hopper": (9, 0), "blackwell": (10, 0)}


def layout_of_scales(major):
    """DeepGEMM's transform_sf_into_required_layout (csrc/apis/layout.hpp) for scales of blocks of weights."""
    import torch

    def transform(sf, mn, k, recipe, num_groups=None, is_sfa=False, **kwargs):
        assert sf.dtype == torch.float32 and tuple(recipe[1:]) == (128, 128) and not is_sfa
        if major == 9:
            return sf
        # A row of exponents for each row of codes, four columns in an integer; rows behind each other in memory.
        rows = sf.index_select(-2, torch.arange(mn) // 128)
        exponents = (rows.contiguous().view(torch.int32) >> 23).to(torch.uint8)
        exponents = torch.nn.functional.pad(exponents, (0, -exponents.shape[-1] % 4))
        return exponents.contiguous().view(torch.int32).transpose(-1, -2).contiguous().transpose(-1, -2)

    return transform


class Absent:
    """Takes the place of a kernel of experts, which is made of processed weights."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()

    def __call__(self, *args, **kwargs):
        return Absent()


def describe(options):
    """Gives vLLM's layers a card of CUDA where they ask for the platform."""
    import torch
    import vllm.utils.deep_gemm as deep_gemm
    from vllm import platforms
    from vllm.platforms.interface import DeviceCapability, PlatformEnum

    sharded_state.hide_tiles()
    sharded_state.replace_sparse_attention()
    usual = platforms.current_platform
    capability = CAPABILITIES[options.card]

    class Card(type(usual)):
        _enum = PlatformEnum.CUDA

        @classmethod
        def get_device_capability(cls, device_id=0):
            return DeviceCapability(*capability)

        @classmethod
        def supports_fp8(cls):
            return cls.has_device_capability(89)

        @classmethod
        def support_deep_gemm(cls):
            return capability[0] in (9, 10)

        @classmethod
        def is_arch_support_pdl(cls):
            return False

    level = capability[0] * 10 + capability[1]
    answers = {
        "cutlass_scaled_mm_supports_fp8": level >= 89,
        "cutlass_scaled_mm_supports_block_fp8": level >= 90,
        "cutlass_scaled_mm_supports_fp4": level >= 100,
        "cutlass_group_gemm_supported": level in (90, 100),
        "has_deep_gemm": options.deep_gemm,
    }
    everywhere = {name: lambda *args, value=value: value for name, value in answers.items()}
    everywhere |= {"CUTLASS_BLOCK_FP8_SUPPORTED": level >= 90, "current_platform": Card()}
    everywhere["get_and_maybe_dequant_weights"] = lambda layer, out_dtype=torch.float32: torch.zeros(
        layer.output_size_per_partition, layer.input_size_per_partition, dtype=out_dtype
    )
    if options.mxfp8:
        from vllm.model_executor.kernels.linear.mxfp8 import flashinfer

        flashinfer.has_flashinfer = lambda: True
        flashinfer.has_flashinfer_cutedsl = lambda: options.mxfp8 == "cutedsl"
    of_layers = ("vllm.model_executor.", "vllm.models.", "vllm.utils.", "vllm._custom_ops")
    card_kernels.replace(of_layers)
    for module in [module for name, module in sys.modules.items() if name.startswith(of_layers)]:
        for name, value in everywhere.items():
            if hasattr(module, name):
                setattr(module, name, value)
        for name in [name for name in vars(module) if name.startswith("make_") and name.endswith("_moe_kernel")]:
            setattr(module, name, Absent)
    deep_gemm._lazy_init = lambda: None
    deep_gemm._fp8_gemm_nt_impl = Absent()
    deep_gemm._transform_sf_into_required_layout_impl = layout_of_scales(capability[0])
    torch.accelerator.empty_cache = lambda: None
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor


def talk_by_gloo():
    from vllm.platforms import current_platform

    plain = "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
    type(current_platform).get_device_communicator_cls = classmethod(lambda cls: plain)


def answer_of_rank(rank, options, meeting):
    is_own = options.card == "own"
    if is_own:
        if not options.deep_gemm:
            os.environ["VLLM_USE_DEEP_GEMM"] = "0"
        prepare()  # in a process of its own
    import torch

    choose, device = (talk_by_gloo, "cuda:0") if is_own else (functools.partial(describe, options), "cpu")
    with sharded_state.loaded_on_rank(rank, options, meeting, choose, device) as (model, config):
        from vllm.model_executor.model_loader.utils import process_weights_after_loading
        from vllm.v1.worker.gpu_worker import Worker

        if options.packs and not is_own:
            card_kernels.overwrite_packed(model)
        process_weights_after_loading(model, config.model_config, torch.device(device))
        worker = types.SimpleNamespace(parallel_config=config.parallel_config, model_runner=types.SimpleNamespace(get_model=lambda: model))
        worker._weight_checksum_prefix = functools.partial(Worker._weight_checksum_prefix, worker)
        return Worker.compute_weight_checksums(worker)


def prepare():
    """Imports what asks for the platform, before a card is described in the ranks."""
    os.environ.update(sharded_state.ENVIRONMENT)
    from importlib import import_module

    import vllm.engine.arg_utils  # noqa: F401

    layers = "vllm.model_executor.layers."
    names = ["quantization.fp8", "quantization.modelopt", "quantization.compressed_tensors.compressed_tensors",
             "fused_moe.layer",
             *(f"fused_moe.oracle.{name}" for name in ("fp8", "int8", "int_wna16", "mxfp4", "nvfp4", "unquantized"))]
    for name in ["vllm.model_executor.kernels.linear", *(layers + name for name in names),
                 *(f"vllm.model_executor.models.{name}" for name in ("deepseek_v2", "qwen3_moe"))]:
        import_module(name)


def answer(options):
    """The answer of the server (entrypoints/rl/online/api_router.py)."""
    checksums = {}
    for of_rank in sharded_state.on_each_rank(answer_of_rank, options):
        assert not checksums.keys() & of_rank.keys()
        checksums |= of_rank
    return {"checksums": checksums}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("answer", type=pathlib.Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--ep", action="store_true")
    parser.add_argument("--card", choices=[*CAPABILITIES, "own"], default="hopper")
    parser.add_argument("--no-deep-gemm", dest="deep_gemm", action="store_false", help="as VLLM_USE_DEEP_GEMM=0")
    parser.add_argument("--mxfp8", choices=["cutedsl", "cutlass"], help="FlashInfer's kernel for linear layers in MXFP8")
    parser.add_argument("--packs", action="store_true", help="the card's kernels pack some modules")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--engine", default="{}", help="further arguments of the engine, as JSON")
    parser.add_argument("--timeout", type=int, default=600)
    options = parser.parse_args()
    options.sharded, options.mtp = False, False
    prepare()
    options.answer.write_text(json.dumps(answer(options), indent=1) + "\n")


if __name__ == "__main__":
    main()
