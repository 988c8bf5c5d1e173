#!/usr/bin/env python3
"""Adapters of other shapes than their base, and of transposed layers, with PEFT's own merge in FP32.
record_peft.py [FOLDER]: writes conv1d/base, and conv1d/* and dense/* next to this file, or below FOLDER.

Needs torch, transformers, peft, attrs and safetensors. All numbers are random with fixed seeds and multiples of powers
of two, as those of the other adapters here: B A is exact in FP32; those of `from-*`, which start at parts of the base,
are not. `merged.safetensors` has the tensors that differ from the base after merge_and_unload(), under the names of the
base's file; of `from-*` they are those of the model that was trained, not of the files, which PEFT converted where the
start took a part out of the base."""
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from peft import EvaConfig, LoraConfig, PeftModel, get_peft_model, initialize_lora_eva_weights
from peft.tuners.lora.config import CordaConfig, LoraGAConfig
from peft.tuners.lora.corda import preprocess_corda
from peft.tuners.lora.loraga import preprocess_loraga
from safetensors.torch import load_file, save_file

here = pathlib.Path(__file__).resolve().parent
out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
torch.set_num_threads(1)
random = torch.Generator()


def grid(tensor, steps):
    """Multiples of 1/steps."""
    return torch.randint(-64, 65, tensor.shape, generator=random).to(torch.float32) / steps


def fill(model, wanted):
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            steps = wanted(name)
            if steps:
                parameter.copy_(grid(parameter, steps))


def of_adapter(name):
    if "lora_magnitude_vector" in name:
        return None
    if "modules_to_save" in name or "trainable_tokens" in name:
        return 256
    return 64 if "lora_A" in name or "embedding_A" in name else 1024 if "lora_" in name else None


def open_base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def conv1d():
    random.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=4,
                                     tie_word_embeddings=True)
    model = transformers.GPT2LMHeadModel(config)
    fill(model, lambda name: None if "ln_" in name else 256)
    folder = out / "conv1d" / "base"
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def record(base, name, resize=None, **options):
    random.manual_seed(len(name))
    model = open_base(base)
    if resize:
        model.resize_token_embeddings(resize, mean_resizing=False)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, **options))
    fill(model, of_adapter)
    if options.get("use_dora"):
        with torch.no_grad():
            for name_of, parameter in sorted(model.named_parameters()):
                if "lora_magnitude_vector" in name_of:
                    parameter.mul_(1 + grid(parameter, 256))
    folder = out / base.parent.name / name
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    name_base(folder, base)
    # From the files, as a reader has them.
    model = open_base(base)
    if resize:
        model.resize_token_embeddings(resize, mean_resizing=False)
    save_merged(PeftModel.from_pretrained(model, folder).merge_and_unload().state_dict(), base, folder)


def name_base(folder, base):
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = f"ingot-vectors/{base.parent.name}"
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def save_merged(merged, base, folder):
    before = load_file(base / "model.safetensors")
    prefix = "transformer." if base.parent.name == "conv1d" else ""
    changed = {}
    for own, values in before.items():
        of = own if own in merged else prefix + own
        after = merged[of].to(torch.float32).contiguous()
        if after.shape != values.shape or not torch.equal(after, values.to(torch.float32)):
            changed[own] = after.clone()
    assert changed, folder
    save_file(changed, folder / "merged.safetensors")
    print(folder.name, {own: tuple(values.shape) for own, values in changed.items()})


def record_start(base, start, **options):
    """An adapter that starts at parts of the base, or at its activations or gradients, and is trained a little."""
    torch.manual_seed(len(start))
    random.manual_seed(len(start))
    model = open_base(base)
    rows = [torch.randint(0, 96, (1, 12), generator=random) for _ in range(3)]
    own = {"corda": ("corda_config", CordaConfig), "eva": ("eva_config", EvaConfig), "lora_ga": ("lora_ga_config", LoraGAConfig)}
    if start in own:
        options[own[start][0]] = own[start][1]()
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj"], layers_to_transform=[1], init_lora_weights=start, **options)
    if start == "corda":
        preprocess_corda(model, config, run_model=lambda: [model(row) for row in rows])
    if start == "lora_ga":
        preprocess_loraga(model, config, lambda: [model(row, labels=row).loss.backward() for row in rows])
    model = get_peft_model(model, config)
    if start == "eva":
        initialize_lora_eva_weights(model, [{"input_ids": row} for row in rows])
    folder = out / base.parent.name / f"from-{start}"
    with tempfile.TemporaryDirectory() as first:
        model.peft_config["default"].init_lora_weights = True  # or loading would take the part out of the base again
        model.save_pretrained(first)
        model.peft_config["default"].init_lora_weights = start
        with torch.no_grad():
            for name, parameter in sorted(model.named_parameters()):
                if "lora_" in name:
                    parameter.add_(grid(parameter, 1024))
        converted = {"path_initial_model_for_weight_conversion": first} if start in ("corda", "lora_ga", "olora", "pissa") else {}
        model.save_pretrained(folder, **converted)
    (folder / "README.md").unlink()
    name_base(folder, base)
    save_merged(model.merge_and_unload().state_dict(), base, folder)


base = conv1d()
record(base, "plain", target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
record(base, "dora", target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, use_dora=True)
dense = here / "dense" / "base"
record(dense, "tokens", target_modules=["q_proj"], trainable_token_indices=[3, 95, 7])
record(dense, "tokens-of-both", target_modules=["q_proj"],
       trainable_token_indices={"lm_head": [1], "embed_tokens": [2, 90]})
record(dense, "more-tokens", resize=101, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
record(dense, "fewer-tokens", resize=90, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
record(dense, "more-tokens-adapted", resize=97, target_modules=["embed_tokens", "lm_head"])
for start in ("corda", "eva", "lora_ga", "mica", "orthogonal", "pissa"):
    record_start(dense, start)
record_start(dense, "olora", use_rslora=True)
