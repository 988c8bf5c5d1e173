"""Products with dequantized weights in place of the kernels that vLLM lacks on a CPU.

install() replaces linear kernels and the arithmetic of experts, and nothing else: config, choice of
scheme, parameters, names and loaders stay vLLM's own. Weights are decoded once, after vLLM loaded
them; activations are not quantized. REPLACED counts what was replaced, by kind.
"""

import collections
from importlib import import_module

REPLACED = collections.Counter()

QUANTIZATION = "vllm.model_executor.layers.quantization."
SCHEMES = QUANTIZATION + "compressed_tensors.schemes.compressed_tensors_"
EXPERTS = QUANTIZATION + "compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_"


def spread(scales, columns, block_rows, block_columns):
    """Scales of blocks, one per element of a weight with so many columns."""
    return scales.float().repeat_interleave(block_rows, -2).repeat_interleave(block_columns, -1)[..., :columns]


def from_blocks(codes, scales, block):
    factors = spread(scales, codes.shape[-1], *block)
    return codes.float() * factors[..., : codes.shape[-2], :]


def from_nibbles(packed):
    """E2M1 values, the low nibble first."""
    import torch

    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    codes = packed.view(torch.uint8)
    return torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], -1).flatten(-2)


def from_powers(exponents):
    """E8M0: 2^(code - 127)."""
    import torch

    return torch.exp2(exponents.view(torch.uint8).float() - 127)


def from_nvfp4(packed, scales, factor):
    """`factor` multiplies, and has the dimensions of the result or 1."""
    values = from_nibbles(packed)
    return values * spread(scales, values.shape[-1], 1, 16) * factor


def from_mxfp4(packed, exponents):
    values = from_nibbles(packed)
    return values * spread(from_powers(exponents), values.shape[-1], 1, 32)


def from_mxfp8(codes, exponents):
    return codes.float() * spread(from_powers(exponents), codes.shape[-1], 1, 32)


def from_int4(packed, scales):
    """Eight codes in an I32, the lowest bits first, [outputs, inputs / 8]; a code is 8 above its value."""
    import torch

    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    values = ((packed.unsqueeze(-1) >> shifts) & 15).flatten(-2).float() - 8
    return values * spread(scales, values.shape[-1], 1, values.shape[-1] // scales.shape[-1])


class Linear:
    """Takes the place of a kernel of linear layers; `decode` gives the weight [outputs, inputs] of a layer."""

    config = None

    def __init__(self, kind, decode):
        self.kind, self.decode = kind, decode

    def input_quant_key(self):
        return None

    def process_weights_after_loading(self, layer):
        import torch

        REPLACED[self.kind] += 1
        layer.dequantized = self.decode(layer).to(torch.get_default_dtype())

    def apply_weights(self, layer, x, bias=None, **options):
        import torch

        return torch.nn.functional.linear(x, layer.dequantized.to(x.dtype), bias)


def linear_fp8(layer):
    weight = layer.weight.data
    if getattr(layer, "weight_block_size", None):
        scales = getattr(layer, "weight_scale_inv", None)
        return from_blocks(weight, (layer.weight_scale if scales is None else scales).data, layer.weight_block_size)
    # vLLM has turned it to [inputs, outputs] by now, as a view.
    weight = weight if weight.is_contiguous() else weight.t()
    return weight.float() * layer.weight_scale.data.float().reshape(-1, 1)


def linear_nvfp4(layer):
    return from_nvfp4(layer.weight.data, layer.weight_scale.data, layer.weight_global_scale.data.float().max())


def experts_of(kind, layer):
    """Weights [experts, outputs, inputs] of gate and up, and of down, decoded."""
    own = dict(layer.named_parameters())
    found = []
    for name in ("w13", "w2"):
        part = lambda suffix: own[f"{name}_{suffix}"].data
        matrices = 2 if name == "w13" else 1  # with a scale each

        def each(scales):
            """A scale per expert, or per expert and matrix, as a factor of the weight."""
            scales = scales.float().reshape(scales.shape[0], -1)
            rows = part("weight" if f"{name}_weight" in own else "weight_packed").shape[1]
            return scales.repeat_interleave(rows // scales.shape[1], 1)[..., None]

        if kind == "int8":
            weight = part("weight").float() * part("weight_scale").float()
        elif kind == "fp8":
            scales = part("weight_scale_inv" if f"{name}_weight_scale_inv" in own else "weight_scale")
            block = getattr(layer, "weight_block_size", None)
            if block:
                weight = from_blocks(part("weight"), scales, block)
            else:
                weight = part("weight").float() * (scales.float() if scales.dim() == 3 else each(scales))
        elif kind == "nvfp4":
            weight = from_nvfp4(part("weight_packed"), part("weight_scale"), each(1 / part("weight_global_scale")))
        elif kind == "nvfp4 of modelopt":
            weight = from_nvfp4(part("weight"), part("weight_scale"), each(part("weight_scale_2")))
        elif kind == "mxfp4":
            weight = from_mxfp4(part("weight_packed"), part("weight_scale"))
        elif kind == "mxfp8":
            weight = from_mxfp8(part("weight"), part("weight_scale"))
        elif kind == "int4":
            weight = from_int4(part("weight_packed"), part("weight_scale"))
        found.append(weight)
    return found


def apply_experts(self, layer, x, topk_weights, topk_ids, *others, **options):
    import torch
    from torch.nn.functional import linear, silu

    both, down = layer.dequantized
    out = torch.zeros_like(x, dtype=torch.float32)
    for expert in topk_ids.unique().tolist():
        place = expert if layer.expert_map is None else int(layer.expert_map[expert])
        if place < 0:
            continue
        tokens, choice = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = linear(x[tokens], both[place].to(x.dtype)).chunk(2, -1)
        inner = (silu(gate.float()) * up.float()).to(x.dtype)
        outputs = linear(inner, down[place].to(x.dtype)).float()
        out.index_add_(0, tokens, outputs * topk_weights[tokens, choice].float()[:, None])
    return out.to(x.dtype)


def replace_experts(method, kind):
    def decode(self, layer):
        import torch

        REPLACED[kind + " experts"] += 1
        layer.dequantized = [weight.to(torch.get_default_dtype()) for weight in experts_of(kind, layer)]

    method.process_weights_after_loading = decode
    method.apply = apply_experts
    method.is_monolithic = False
    method.get_fused_moe_quant_config = lambda self, layer: None


def replace(name, choice, modules):
    for module in modules:
        assert hasattr(import_module(module), name), f"{module} has no {name}"
        setattr(import_module(module), name, choice)


def allow_float32():
    """Allows single precision, in which faults differ from rounding, for configs that demand half precision."""
    import torch

    names = {"fp8": ["Fp8Config"], "modelopt": ["ModelOptFp8Config", "ModelOptNvFp4Config"]}
    for module, classes in names.items():
        for name in classes:
            config = getattr(import_module(QUANTIZATION + module), name)
            config.get_supported_act_dtypes = classmethod(lambda own: [torch.bfloat16, torch.float16, torch.float32])


def allow_static_fp8():
    """The CPU build cannot bring the parts of a fused weight under one scale per tensor."""
    import torch
    import vllm._custom_ops as operations

    usual = operations.scaled_fp8_quant

    def quantize(values, scale=None, *others, **options):
        if scale is None:
            return usual(values, scale, *others, **options)
        codes = (values.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        return codes, scale

    operations.scaled_fp8_quant = quantize


def install():
    allow_float32()
    allow_static_fp8()
    linear = lambda kind, decode: lambda *args, **options: Linear(kind, decode)
    fp8 = [QUANTIZATION + "fp8", QUANTIZATION + "modelopt", SCHEMES + "w8a8_fp8"]
    replace("init_fp8_linear_kernel", linear("fp8 linears", linear_fp8), fp8)
    nvfp4 = [QUANTIZATION + "modelopt", SCHEMES + "w4a4_nvfp4"]
    replace("init_nvfp4_linear_kernel", linear("nvfp4 linears", linear_nvfp4), nvfp4)
    mxfp4 = lambda layer: from_mxfp4(layer.weight.data, layer.weight_scale.data)
    replace("init_mxfp4_linear_kernel", linear("mxfp4 linears", mxfp4), [SCHEMES + "w4a4_mxfp4"])
    mxfp8 = lambda layer: from_mxfp8(layer.weight.data, layer.weight_scale.data)
    replace("init_mxfp8_linear_kernel", linear("mxfp8 linears", mxfp8), [SCHEMES + "w8a8_mxfp8"])
    # Of this one vLLM is told the class, and makes the kernel itself.
    int4 = lambda layer: from_int4(layer.weight_packed.data, layer.weight_scale.data)
    replace("choose_mp_linear_kernel", lambda config: linear("int4 linears", int4), [SCHEMES + "wNa16"])
    methods = {
        (EXPERTS + "w8a8_int8", "CompressedTensorsW8A8Int8MoEMethod"): "int8",
        (EXPERTS + "w8a8_fp8", "CompressedTensorsW8A8Fp8MoEMethod"): "fp8",
        (EXPERTS + "w4a4_nvfp4", "CompressedTensorsW4A4Nvfp4MoEMethod"): "nvfp4",
        (EXPERTS + "w4a4_mxfp4", "CompressedTensorsW4A4Mxfp4MoEMethod"): "mxfp4",
        (EXPERTS + "w8a8_mxfp8", "CompressedTensorsW8A8Mxfp8MoEMethod"): "mxfp8",
        (EXPERTS + "wna16", "CompressedTensorsWNA16MoEMethod"): "int4",
        (QUANTIZATION + "fp8", "Fp8MoEMethod"): "fp8",
        (QUANTIZATION + "modelopt", "ModelOptFp8MoEMethod"): "fp8",
        (QUANTIZATION + "modelopt", "ModelOptNvFp4FusedMoE"): "nvfp4 of modelopt",
    }
    for (module, name), kind in methods.items():
        replace_experts(getattr(import_module(module), name), kind)
