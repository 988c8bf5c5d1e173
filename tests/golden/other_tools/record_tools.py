#!/usr/bin/env python3
"""record_tools.py OUT [NAME ...]: small Llama checkpoints as AutoRound, Quark and ModelOpt export them, with their values.

OUT/NAME/ has model.safetensors and config.json as the tool wrote them and decoded.json: per quantized weight its shape
and the SHA-256 of its values as little-endian float32 and rounded to bfloat16, which NumPy decoded from the stored parts
by their definition. fbgemm_fp8 is made with torch, as transformers stores it: FBGEMM quantizes on GPUs only. Needs
torch, transformers, auto-round, amd-quark and nvidia-modelopt.
"""
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open

AUTO_ROUND = {
    "auto_round_gptq": ("W4A16G32", "auto_round:auto_gptq", {}),
    "auto_round_awq": ("W4A16G32", "auto_round:auto_awq", {"sym": False}),
    "auto_round_2bit": ("W2A16G32", "auto_round:auto_gptq", {}),
    "auto_round_2bit_zeros": ("W2A16G32", "auto_round:auto_gptq", {"sym": False}),
    "auto_round_3bit": ("W3A16G32", "auto_round:auto_gptq", {}),
    "auto_round_8bit": ("W8A16G32", "auto_round:auto_gptq", {}),
    "auto_round_mxfp4": ("MXFP4", "auto_round", {}),
    "auto_round_mxfp8": ("MXFP8", "auto_round", {}),
    "auto_round_nvfp4": ("NVFP4", "auto_round", {}),
    "auto_round_fp8": ("FP8_STATIC", "auto_round", {}),
    "llm_compressor_int8": ("INT8", "llm_compressor", {}),
}
QUARK = ["quark_fp8", "quark_fp8_channel", "quark_e5m2", "quark_int8", "quark_int8_tensor", "quark_int8_zeros",
         "quark_mxfp4"]


def tiny():
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=64, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"], dtype="bfloat16")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for p in model.parameters():
            # Rows of different size, and not centred, so that a wrong scale or zero point shows.
            x = torch.randn_like(p.float())
            p.copy_((x + 0.2) * 0.05 * (0.5 + torch.rand(p.shape[0], 1)) if p.dim() == 2 else 1 + 0.1 * x)
    return model


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = Tokenizer(models.WordLevel({**{str(i): i for i in range(63)}, "[UNK]": 63}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="0")


def auto_round(name, folder):
    from auto_round import AutoRound
    scheme, form, more = AUTO_ROUND[name]
    torch.manual_seed(9)
    data = [torch.randint(0, 63, (1, 32)) for _ in range(4)]
    AutoRound(tiny(), tokenizer(), scheme=scheme, iters=0, dataset=data, seqlen=32, nsamples=4, device_map="cpu",
              disable_opt_rtn=True, **more).quantize_and_save(str(folder), format=form)


def quark(name, folder):
    import quark.torch.quantization.config.config as c
    from quark.torch import ModelQuantizer, export_safetensors
    from torch.utils.data import DataLoader
    whole = dict(observer_method="min_max", is_dynamic=False)
    integer = dict(scale_type="float", round_method="half_even", is_dynamic=False)
    specs = {
        "quark_fp8": lambda: (c.FP8E4M3PerTensorSpec(**whole), c.FP8E4M3PerTensorSpec(**whole)),
        "quark_fp8_channel": lambda: (c.FP8E4M3PerChannelSpec(is_dynamic=False, ch_axis=0),
                                      c.FP8E4M3PerChannelSpec(is_dynamic=True, ch_axis=1)),
        "quark_e5m2": lambda: (c.FP8E5M2PerTensorSpec(**whole), None),
        "quark_int8": lambda: (c.Int8PerChannelSpec(symmetric=True, ch_axis=0, **integer), None),
        "quark_int8_tensor": lambda: (c.Int8PerTensorSpec(symmetric=True, observer_method="min_max", **integer),) * 2,
        "quark_int8_zeros": lambda: (c.Int8PerChannelSpec(symmetric=False, ch_axis=0, **integer), None),
        "quark_mxfp4": lambda: (c.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), c.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True)),
    }
    weight, inputs = (spec and spec.to_quantization_spec() for spec in specs[name]())
    config = c.QConfig(global_quant_config=c.QLayerConfig(weight=weight, input_tensors=inputs), exclude=["lm_head"])
    torch.manual_seed(9)
    data = DataLoader(torch.randint(0, 63, (4, 32)), batch_size=1)
    quantizer = ModelQuantizer(config)
    model = quantizer.freeze(quantizer.quantize_model(tiny(), data))
    export_safetensors(model=model, output_dir=str(folder), weight_format="real_quantized", pack_method="reorder")


def modelopt(_, folder):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    fp8 = {"num_bits": (4, 3), "axis": None}
    nvfp4 = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}, "axis": None}
    mxfp8 = {"num_bits": (4, 3), "block_sizes": {-1: 32, "type": "dynamic", "scale_bits": (8, 0)}, "axis": None}
    rules = {"default": {"enable": False}}
    for part in "weight_quantizer", "input_quantizer":
        for layer, numbers in [("*[qkv]_proj*", fp8), ("*o_proj*", mxfp8), ("*gate_proj*", nvfp4), ("*up_proj*", nvfp4)]:
            rules[layer + part] = numbers
    rules["*down_proj*weight_quantizer"] = nvfp4  # W4A16
    torch.manual_seed(9)
    data = [torch.randint(0, 63, (1, 32)) for _ in range(4)]
    model = mtq.quantize(tiny(), {"quant_cfg": rules, "algorithm": "max"}, lambda m: [m(x) for x in data])
    export_hf_checkpoint(model, export_dir=str(folder))


def fbgemm(_, folder):
    from safetensors.torch import save_file
    model, plain, tensors = tiny(), ["lm_head", "model.layers.0.self_attn.o_proj"], {}
    for name, tensor in model.state_dict().items():
        if tensor.dim() != 2 or "embed" in name or any(name.startswith(module + ".") for module in plain):
            tensors[name] = tensor.clone()
            continue
        scale = tensor.float().abs().amax(1, keepdim=True) / 448
        tensors[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        tensors[name + "_scale"] = scale
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"quantization_config": {
        "activation_scale_ub": 1200.0, "modules_to_not_convert": plain, "quant_method": "fbgemm_fp8"}}
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")


def unpacked(words, bits, axis):
    """The codes of int32 words, a stream of bits along `axis`."""
    words = np.moveaxis(words.view(np.uint32).astype(np.uint64), axis, -1)
    stream = (words[..., None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1)
    stream = stream.reshape(*words.shape[:-1], -1, bits)
    codes = (stream << np.arange(bits, dtype=np.uint64)).sum(-1)
    return np.moveaxis(codes.astype(np.int64), -1, axis)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def decode(parts, block):
    """The values of one weight in double, each rounded to float32 once, [out, in]."""
    def wide(scale, shape):
        scale = np.asarray(scale, np.float64)
        if scale.ndim == 0 or scale.size == 1:
            return scale.reshape(1, 1)
        if scale.ndim == 1:
            scale = scale[:, None]
        return np.repeat(scale, shape[1] // scale.shape[1], 1)
    number = {k: v.float().numpy() if v.is_floating_point() else v.numpy() for k, v in parts.items()}
    if "qweight" in number:
        bits, is_awq = block["bits"], "awq" in block["packing_format"]
        scales = number["scales"].astype(np.float64)
        if is_awq:
            order = [0, 4, 1, 5, 2, 6, 3, 7]  # the place of each of eight rows
            def rows(words):
                codes = unpacked(words, 4, 1)
                return codes.reshape(len(codes), -1, 8)[:, :, order].reshape(len(codes), -1)
            codes, zeros = rows(number["qweight"]), rows(number["qzeros"])
        else:
            codes, zeros = unpacked(number["qweight"], bits, 0), unpacked(number["qzeros"], bits, 1) + 1
        group = np.arange(len(codes)) // (len(codes) // len(scales))
        return ((codes - zeros[group]) * scales[group]).T
    codes = number.get("weight_packed", number.get("weight"))
    if codes.dtype == np.uint8:
        pairs = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
        values = E2M1[pairs]
        scale = number["weight_scale"]
        if scale.dtype == np.uint8:
            return values * wide(2.0 ** (scale.astype(np.float64) - 127), values.shape)
        effective = (scale * number["weight_scale_2"] if "weight_scale_2" in number
                     else scale / number["weight_global_scale"]).astype(np.float32)
        return values * wide(effective, values.shape)
    values = codes.astype(np.float64)
    if "weight_zero_point" in number:
        values = values - wide(number["weight_zero_point"], values.shape)
    scale = number["weight_scale"]
    if scale.dtype == np.uint8:
        scale = 2.0 ** (scale.astype(np.float64) - 127)
    return values * wide(scale, values.shape)


def record(folder):
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    parts = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():
            module, _, part = name.rpartition(".")
            parts.setdefault(module, {})[part] = file.get_tensor(name)
    decoded = {}
    for module, own in sorted(parts.items()):
        if "weight_scale" not in own and "scales" not in own:
            continue
        value = torch.from_numpy(np.ascontiguousarray(decode(own, block), np.float64).astype(np.float32))
        decoded[f"{module}.weight"] = {
            "shape": list(value.shape), "f32_sha256": hashlib.sha256(value.numpy().tobytes()).hexdigest(),
            "bf16_sha256": hashlib.sha256(value.to(torch.bfloat16).view(torch.uint8).numpy().tobytes()).hexdigest()}
    (folder / "decoded.json").write_text(json.dumps(decoded, indent=1) + "\n")


def main(out, names):
    others = {"modelopt_mixed": modelopt, "fbgemm_fp8": fbgemm}
    for name in names or [*AUTO_ROUND, *QUARK, *others]:
        with tempfile.TemporaryDirectory() as scratch:
            make = others.get(name) or (auto_round if name in AUTO_ROUND else quark)
            make(name, Path(scratch) / "made")
            config = next(Path(scratch).rglob("config.json"))
            folder = out / name
            folder.mkdir(parents=True, exist_ok=True)
            for file in ("config.json", "model.safetensors", "hf_quant_config.json"):
                if config.with_name(file).exists():
                    shutil.copy(config.with_name(file), folder / file)
        record(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
