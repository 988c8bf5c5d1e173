"""What kernels of cards make of weights, on a CPU: FP8 per tensor that is decoded and encoded again, and packed weights.

The scale is a tensor of one number on the card: PyTorch's product of FP16 and such a number casts it to FP16
(aten/src/ATen/native/cuda, opmath_symmetric_gpu_kernel_with_scalars); on a CPU it stays in FP32. The kernels of vLLM
(csrc, static_scaled_fp8_quant) and of SGLang (gemm/per_tensor_quant_fp8.cuh) multiply by 1 / the new scale in FP32, clamp, and
round to the nearest even code; vLLM's for CPUs divides.
"""

import sys


def decode(codes, scale):
    import torch

    return codes.to(torch.float16) * scale.to(torch.float16)


def encode(values, scale):
    import torch

    scaled = (values.float() * (1.0 / scale.float())).clamp(-448.0, 448.0)
    return scaled.to(torch.float8_e4m3fn)


def replace(prefixes):
    """Puts these in the place of functions of an engine, in its modules that were imported."""
    def quantize(values, scale=None, **kwargs):
        scale = values.abs().amax().float().reshape(1) / 448 if scale is None else scale
        return encode(values, scale), scale

    replaced = {"per_tensor_dequantize": decode, "scaled_fp8_quant": quantize}
    for module in [module for name, module in sys.modules.items() if name.startswith(prefixes)]:
        for name, function in replaced.items():
            if hasattr(module, name):
                setattr(module, name, function)


def overwrite_packed(model):
    """Has modules whose kernel packs weights by functions of a card overwrite their own parameters instead."""
    import torch

    def overwrite(module):
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach().to(torch.uint8).fill_(0x5A), requires_grad=False))

    def packed(method, usual):
        def process(layer):
            try:
                usual(layer)
            except (AttributeError, ImportError, NotImplementedError, RuntimeError) as error:
                print(f"packed by a kernel: {type(layer).__name__}: {str(error)[:200]}", flush=True)
                overwrite(layer)
        method.process_weights_after_loading = process

    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if hasattr(method, "process_weights_after_loading"):
            packed(method, method.process_weights_after_loading)
