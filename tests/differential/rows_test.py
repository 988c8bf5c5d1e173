"""Every row of forms and families: the judge accepts a right conversion, and sees each part that is another."""

import os
import random

import numpy as np

from families import FAMILIES, draw_config
from forms import AUTO_ROUND_PARTS, FLOAT8_SCALES, FORMS, MODELOPT, QUARK
from judge import Model, judge_models
from made import write_made

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
# Parts that no value of a weight depends on.
SILENT = {"input_scale", "input_global_scale", "input_offset", "quant_bias", "weight_offset", "weight_shape"}


def _integers(**more):
    return {"group": 32, "sym": False, "desc_act": False, "version": "gptq", "other": None, **more}


def _choices():
    """Of each form the choices that another branch of a decoder takes."""
    for bits in (2, 3, 4, 8):
        yield "gptq", _integers(bits=bits, sym=True)
        yield "gptq", _integers(bits=bits, version="gptq_v2", desc_act=True)
        yield "gptq", _integers(bits=4, version="gptq_v2", other=bits)
        yield "auto-round integers", _integers(bits=bits, packing="auto_round:auto_gptq")
    yield "gptq", _integers(bits=8, group=-1, sym=True)
    yield "auto-round integers", _integers(bits=8, sym=True, packing="auto_round", version="gptq_v2", signed=True)
    yield "auto-round integers", _integers(bits=4, packing="auto_round:auto_awq")
    yield "awq", {"group": 32}
    for dtype, qscheme, form in QUARK:
        for is_symmetric in (True, False) if dtype == "int8" else (True,):
            same = {"inputs": None, "has_zeros": not is_symmetric, "has_patterns": False}
            yield "quark", {**form, "quark": dtype, "qscheme": qscheme, "sym": is_symmetric, **same}
    yield "fbgemm", {"codes": "F8_E4M3", "scale": "row"}
    for algo, form in MODELOPT:
        yield "modelopt", {**form, "algo": algo}
    for form, said in AUTO_ROUND_PARTS:
        yield "auto-round parts", {**form, "said": said}
    for n, form in enumerate(FLOAT8_SCALES):
        yield "float8", {"codes": ["F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"][n % 3], **form}
    for bits in (4, 8):
        yield "packed integers", {**_integers(bits=bits), "dtype": "F16", "shape": "I64"}
        yield "packed integers", {**_integers(bits=bits, sym=True, desc_act=True), "dtype": "BF16", "shape": "I32"}
    for is_static in (True, False):
        yield "ascend", {"is_static": is_static}


def _source(form, config, choices, n):
    same = {"kind": "made", "plain": [], "dtype": "BF16", "seed": n, "n_files": 1, "family": []}
    return {**same, "form": form, "config": config, "choices": choices}


def _altered(stored):
    """The bytes with one number that is another, which no format forbids: the lowest bit of a code that is no sign,
    twice a scale, another group for two columns."""
    data = bytearray(stored.data)
    if stored.name.endswith("g_idx"):
        order = np.frombuffer(stored.data, "<i4").copy()
        other = int(np.argmax(order != order[0]))
        order[[0, other]] = order[[other, 0]]
        return order.tobytes()
    size, step = {"F32": (4, 1 << 23), "F16": (2, 1 << 10), "BF16": (2, 1 << 7), "F8_E8M0": (1, 1)}.get(
        stored.dtype, (1, 0)
    )
    if step:
        return (int.from_bytes(data[:size], "little") + step).to_bytes(size, "little") + data[size:]
    at = next((n for n, byte in enumerate(data) if byte & 0x7C), 0)
    data[at] ^= 1
    return bytes(data)


def forms_are_judged(run, work, expect, changed):
    seen = set()
    for n, (form, choices) in enumerate(_choices()):
        seen.add(form)
        source, output = os.path.join(work, f"form{n}"), os.path.join(work, f"form{n}-bf16")
        write_made(_source(form, LLAMA, choices, n), source)
        run("convert", source, output, "--to", "bf16", "--quiet")
        words, asked = f"{form} {choices}", {"to": "bf16", "is_dense": True}
        output = Model(output)
        expect(f"{words}: a right cast passes", not judge_models(Model(source), output, asked))
        weight = Model(source).stored["model.layers.0.mlp.down_proj.weight"]
        expect(f"{words}: it is quantized", weight.is_quantized)
        for part, stored in weight.parts.items():
            if part in SILENT or part == "g_idx" and weight.scales.shape[-1] == 1:
                continue
            with changed(stored, _altered(stored)):
                expect(f"{words}: another {part} is seen", judge_models(Model(source), output, asked))
    expect("every form has a case", seen == {form.name for form in FORMS} - {"plain"})


def families_are_judged(run, work, expect, changed):
    for n, family in enumerate(FAMILIES):
        config = {**draw_config(random.Random(n), family, 32), "num_hidden_layers": family.period}
        source, folder = os.path.join(work, family.type), os.path.join(work, family.type + "-int8")
        write_made(_source("plain", config, {}, n), source)
        run("convert", source, folder, "--to", "int8", "--search", "amax", "--allow", "engine-refuses=*", "--quiet")
        model, output = Model(source), Model(folder)
        asked = {"to": "int8-channel", "dialect": "compressed-tensors", "is_dense": "num_experts" not in config}
        expect(f"{family.type}: a right conversion passes", not judge_models(model, output, asked))
        linear = next(weight for name, weight in sorted(output.stored.items()) if name.endswith("down_proj.weight"))
        with changed(linear.parts["weight"], _altered(linear.parts["weight"])):
            expect(f"{family.type}: another code is seen", judge_models(model, Model(folder), asked))
        expect(f"{family.type}: another scheme is seen", judge_models(model, output, {**asked, "to": "fp8-channel"}))
        lost = sorted(output.singles)[-1]
        output.singles.pop(lost)
        expect(f"{family.type}: the loss of {lost} is seen", judge_models(model, output, asked))
