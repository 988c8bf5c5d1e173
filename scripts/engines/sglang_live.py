#!/usr/bin/env python3
"""Writes what SGLang's end point /weights_checker tells of a directory, by SGLang's own code on a CPU, or on a card.

    sglang_live.py MODEL ANSWER.json [--tp N] [--ep] [--card CARD] [--quantization NAME] [--unfused] [--hash cpu|ledger]

SGLang's default loader loads and processes the weights on each rank, its WeightChecker hashes every parameter, and the
answer is put together as its scheduler and its server do. As in sglang_state.py modules of kernels are replaced, a card
is described to those that ask for one, and the branches of CUDA are taken. Parameters of a model on a card are hashed by
a kernel of Triton, so that kernel runs here too, in Triton's interpreter; `--hash cpu` takes the hash that SGLang has for
models on CPUs, and `--hash ledger` has SGLang start with --load-format presharded and takes the checksum.json that it
writes. `--deep-gemm-scales` chooses DeepGEMM for linear layers and experts, as on Blackwell, and then scales are
packed by SGLang's own copy of that function. FP8 per tensor is encoded again as kernels of a card do it (card_kernels.py).

`--card own` takes the card of this machine for all ranks. Nothing is described, and nothing replaced but modules of
kernels that are not installed.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import tempfile

# Before Triton and torch are imported: without a card nothing is to be compiled.
os.environ["TORCH_COMPILE_DISABLE"] = "1"
if not {"own", "--own-card"} & set(sys.argv):
    os.environ["TRITON_INTERPRET"] = "1"

import card_kernels
import ranks
import sglang_loads
import sglang_state


def hash_as_on_a_card():
    """Gives parameters to the kernel by which SGLang hashes those on a card."""
    import torch
    from sglang.kernels.ops.memory import gpu_tensor_hash
    from sglang.srt.utils import weight_checker

    class OnCard(torch.Tensor):
        is_cuda = True  # asserted where the interpreter needs none

    weight_checker.tensor_hash = lambda tensor: gpu_tensor_hash.gpu_tensor_hash(tensor.detach().as_subclass(OnCard))


def choose_deep_gemm():
    """Has SGLang take DeepGEMM for FP8 blocks as on Blackwell. The layout of its scales is SGLang's own copy in torch."""
    import types

    from sglang.srt.layers.quantization import fp8_utils

    align = lambda size, to: -(-size // to) * to
    utils = types.ModuleType("deep_gemm.utils")
    utils.align, utils.get_tma_aligned_size = align, lambda size, n_bytes: align(size, 16 // n_bytes)
    utils.layout = types.ModuleType("deep_gemm.utils.layout")
    utils.layout.get_mn_major_tma_aligned_packed_ue8m0_tensor = fp8_utils._get_mn_major_tma_aligned_packed_ue8m0_tensor_torch_impl
    package = types.ModuleType("deep_gemm")
    package.utils = utils
    sys.modules.update({"deep_gemm": package, "deep_gemm.utils": utils, "deep_gemm.utils.layout": utils.layout})
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang.srt.layers.deep_gemm_wrapper"):
            for name in ("ENABLE_JIT_DEEPGEMM", "DEEPGEMM_BLACKWELL", "DEEPGEMM_SCALE_UE8M0"):
                setattr(module, name, True)


def overwrite_packed():
    """Has models overwrite the weights that kernels of a card pack."""
    from sglang.srt.model_loader import loader as loaders

    initialize = loaders._initialize_model

    def initialize_to_overwrite(*args, **kwargs):
        model = initialize(*args, **kwargs)
        card_kernels.overwrite_packed(model)
        return model

    loaders._initialize_model = initialize_to_overwrite


def describe_kernels(options):
    if options.deep_gemm_scales:
        choose_deep_gemm()
        options.server = {"fp8_gemm_runner_backend": "deep_gemm", "moe_runner_backend": "deep_gemm"}
    card_kernels.replace(("sglang.",))
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang.") and hasattr(module, "cutlass_fp8_supported"):
            module.cutlass_fp8_supported = lambda: True  # of Hopper and Blackwell
    if options.packs:
        overwrite_packed()


def answer_of_rank(rank, options, meeting):
    if options.card == "own":
        prepare()  # in a process of its own
    else:
        describe_kernels(options)
    model, _ = sglang_state.load_on_rank(rank, options, meeting)
    if options.ledger:
        return None
    from sglang.srt.managers.scheduler_components.weight_updater import _merge_checksum_payloads
    from sglang.srt.utils.weight_checker import WeightChecker

    if options.hash == "card" and options.card != "own":
        hash_as_on_a_card()
    checker = WeightChecker(get_model=lambda: model)
    return _merge_checksum_payloads([("target", checker.handle("checksum", role="target"))])


def prepare():
    sglang_loads.prepare(is_own_card="TRITON_INTERPRET" not in os.environ)


def answer(options):
    """The answer of the server (managers/tokenizer_control_mixin.py, entrypoints/http_server.py)."""
    options.ledger = None
    if options.hash == "ledger":
        with tempfile.TemporaryDirectory() as options.ledger:
            ranks.on_each_rank(answer_of_rank, options, options.tp)
            return json.loads(next(pathlib.Path(options.ledger).glob("TP-*-sig-*/checksum.json")).read_text())
    of_ranks = ranks.on_each_rank(answer_of_rank, options, options.tp)
    whole = hashlib.sha256("".join(rank["per_gpu_checksum"] for rank in of_ranks).encode()).hexdigest()
    return {"success": True, "message": "Success.", "ranks": of_ranks, "per_engine_checksum": whole}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("answer", type=pathlib.Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", action="store_true")
    parser.add_argument("--card", choices=[*sglang_loads.CARDS, "own"], default="hopper")
    parser.add_argument("--quantization")
    parser.add_argument("--unfused", action="store_true", help="with --disable-shared-experts-fusion")
    parser.add_argument("--hash", choices=["card", "cpu", "ledger"], default="card")
    parser.add_argument("--deep-gemm-scales", action="store_true", help="DeepGEMM with scales of Blackwell")
    parser.add_argument("--packs", action="store_true", help="the card's kernels pack some modules")
    parser.add_argument("--timeout", type=int, default=600)
    options = parser.parse_args()
    options.sharded, options.mtp, options.own = False, False, ()
    prepare()
    options.answer.write_text(json.dumps(answer(options), indent=1) + "\n")


if __name__ == "__main__":
    main()
