#!/usr/bin/env python3
"""derivations.py INGOT GOLDEN EXAMPLE [START]: each way to make an output, made again by `ingot rederive`.

Sources of many families and forms, each with every option of `convert` that decides bytes, and the other commands that
write a manifest. Each output is equal when it is made again, and one changed byte of it is found and named. A
conversion that is refused is counted. START begins the names of the rows that are tried, e.g. `gpt_oss` or
`example: --gptq`."""

import json
import os
import shutil
import sys
import tempfile
from collections import Counter

import numpy as np

from container import write_file
from derived import Derivations
from job import Refused, Shell, Wrong

SYNTH = {
    "v32": "--family deepseek_v32 --like tiny --shards 2 --split-scale --heads 8",
    "v32-stacked": "--family deepseek_v32 --like tiny --stacked --scheme bf16",
    "glm": "--family glm_moe_dsa --like tiny --layers 2 --dense-layers 1 --experts 4 --hidden 256 "
    "--moe-intermediate 512 --intermediate 512 --vocab 500 --heads 32 --mtp-layers 1",
    "v3": "--family deepseek_v3 --like tiny --layers 2 --dense-layers 1 --experts 4 --hidden 256 "
    "--moe-intermediate 512 --intermediate 512 --vocab 500 --heads 32 --mtp-layers 0",
    "qwen3": "--family qwen3_moe --like tiny --layers 2 --experts 10 --hidden 256 --moe-intermediate 256 "
    "--intermediate 512 --heads 4 --vocab 256 --scheme bf16",
}
# Checkpoints of other programs: stacks in each orientation, integers, codes of every kind.
FIXTURES = [
    "families/gpt_oss",
    "families/gpt_oss_bf16",
    "families/kimi_k2_thinking",
    "families/kimi_k25",
    "families/llama4",
    "families/glm4_moe_fp8_block",
    "families/mixtral_awq",
    "families/qwen3_moe_gptq_asym_actorder",
    "families/deepseek_v4",
    "families/qwen3_5_moe",
    "families/mistral4_fp8",
    "forward/qwen3_next/checkpoint",
    "forward/mixtral/checkpoint",
    "forward/nemotron_h/checkpoint",
    "forward/gemma3/checkpoint",
    "forward/jamba/checkpoint",
    "forward/step3p7/checkpoint",
    "forward/minimax_m2/checkpoint",
    "other_tools/quark_int8",
]
# Options for every source. Some sources refuse some of these, by their widths and forms.
GENERAL = """
--to bf16
--to f16 --allow f16-overflow=* --allow underflow=*
--to f32
--to fp8
--to fp8 --fp8-grid ue8m0
--to fp8 --search amax --dialect compressed-tensors
--to fp8-channel
--to fp8-channel --via bf16
--to fp8-tensor
--to fp8-tensor --dialect modelopt --activations static --input-scale 0.5
--to int8
--to int8 --for vllm-ascend
--to int8-block
--to nvfp4
--to nvfp4 --search 4over6 --quantize-attention
--to nvfp4 --dialect modelopt --activations static --input-scale 0.1
--to mxfp4
--to mxfp8
--to int4 --group-size 32
--to int4 --group-size 32 --search signed
--to int4 --group-size row --zero-points
--for vllm --to fp8
--for sglang --to int8
--for trtllm --to fp8
--for transformers --to mxfp4
--dialect modelopt
--max-shard-size 300KB
--files 2 --order name
--files 3 --to bf16
--to fp8-channel --align 4096
--to fp8-channel --align 4096 --max-shard-size 300KB
--experts separate
--experts stacked
--to bf16 --experts stacked
--to fp8-channel --mtp drop
--to nvfp4 --mtp keep
--to nvfp4 --mtp convert
--layers 0
--to fp8-channel --layers 0
--to bf16 --base-model org/name
--to fp8-channel --rule layers:0=bf16 --rule role:linear=fp8
--rule role:experts=nvfp4
--recipe recipe.yaml
--recipe first-and-last-layers-bf16 --to fp8-channel
--recipe nvfp4-attention-fp8
--to fp8-channel --family generic
--to bf16 --tp 2 --tp-fit bf16
--to fp8-channel --tp 2 --tp-fit pad --links no
--to fp8 --tp 2 --ep 2 --tp-fit retile
--to nvfp4 --tp 2 --ep 2 --tp-fit bf16 --shared-experts replicated
--to bf16 --pp 2
--to bf16 --pp 2 --pp-layers 0,1- --tp 2 --tp-fit bf16
--ep 2 --expert-map map.json --redundant-experts
--to bf16 --ep 2 --etp 2 --tp 4 --tp-fit bf16
--to bf16 --tp 2 --max-shard-size 200KB --tp-fit bf16
--to bf16 --layout deepseek-mp --mp 2 --mtp drop
--layout deepseek-mp --mp 2 --mtp drop
--to bf16 --layout vllm-sharded --tp 2
--to fp8 --dialect compressed-tensors --layout vllm-sharded --tp 2 --ep 2
--to nvfp4 --layout vllm-sharded --tp 2
--to int4 --layout vllm-sharded --tp 2
--to bf16 --layout sglang-sharded --tp 2 --mtp drop
--to fp8 --layout sglang-sharded --tp 2 --mtp drop
--to int8 --layout sglang-sharded --tp 2 --mtp drop --rule role:kv-b-proj=bf16
""".strip().splitlines()
# With statistics of the example, an adapter with lengths of rows, and a release.
WITH_FILES = """
--to nvfp4 --importance stats
--to nvfp4 --importance stats --search hessian
--to nvfp4 --importance stats --search hessian --tp 2 --ep 2 --tp-fit retile
--to nvfp4 --importance stats --gptq
--to mxfp4 --importance stats --gptq
--to int4 --group-size 32 --importance stats --gptq
--to int4 --importance stats --search signed
--to int4 --group-size 64 --zero-points --importance stats
--to int4 --importance stats --gptq --layout vllm-sharded --tp 1 --mtp drop --allow engine-refuses=*
--bits 5 --importance stats
--bits 6 --importance stats --bits-from int4,fp8,bf16 --gptq
--to int8 --activations static --activation-scales stats --allow engine-refuses=*
--to int8 --dialect modelslim --activations static --activation-scales stats --allow engine-refuses=*
--to nvfp4 --dialect modelopt --activations static --activation-scales stats
--to fp8-tensor --activations static --activation-scales stats/inputs.safetensors
--kv-scales stats
--to fp8 --dialect compressed-tensors --kv-scales stats
--to nvfp4 --dialect modelopt --activations weight-only --kv-scales stats/cache.safetensors --tp 2 --tp-fit retile
--to fp8 --scales-from example
--lora adapter
--lora adapter --lora-scale 0.5 --to nvfp4
--lora adapter --to nvfp4 --importance stats --gptq
--lora adapter --keep-touched bf16
--lora adapter --keep-touched fp8 --to nvfp4
--lora adapter --tp 2 --tp-fit retile
""".strip().splitlines()
RECIPE = """
to: fp8-channel
rules:
- {match: 're:.*layers\\.0\\..*', scheme: keep}
- {match: 'layers:1 & role:linear', scheme: bf16}
allow: {engine-refuses: ['*']}
"""
COMPOSED = """
base: built
sources: {other: other}
rules:
- {match: 'role:attention', from: other}
- {match: 'layers:1 & role:experts', scheme: bf16}
"""


def write_adapter(folder):
    """Pairs of rank 2 with lengths of rows, for an expert and an attention projection of the example."""
    prefix = "base_model.model.model.layers.1."
    rows = {}
    for module, n_out, n_in in [("self_attn.o_proj", 256, 256), ("mlp.experts.1.down_proj", 256, 128)]:
        rows[f"{prefix}{module}.lora_A.weight"] = (2, n_in)
        rows[f"{prefix}{module}.lora_B.weight"] = (n_out, 2)
        rows[f"{prefix}{module}.lora_magnitude_vector"] = (n_out,)
    draw = np.random.default_rng(66)
    values = {name: draw.normal(0, 0.05, shape).astype("<f4") for name, shape in rows.items()}
    tensors = {name: ("F32", array.shape, array.tobytes()) for name, array in values.items()}
    os.makedirs(folder)
    write_file(os.path.join(folder, "adapter_model.safetensors"), tensors)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": True}, file)


class Rows:
    """Tries rows, and counts."""

    def __init__(self, shell, start):
        self.shell, self.start = shell, start
        self.counts, self.failures = Counter(), []

    def is_asked(self, name):
        return name.startswith(self.start) or self.start.startswith(name)

    def attempt(self, name, make):
        if not name.startswith(self.start):
            return
        try:
            make()
            self.counts["made again"] += 1
        except Refused as refusal:
            self.counts["refused"] += 1
            if self.start:
                print(f"refused: {name}: {str(refusal)[:300]}", flush=True)
        except Wrong as wrong:
            self.failures.append(name)
            print(f"FAILED: {name}: {str(wrong)[:1500]}", flush=True)
        finally:
            self.shell.derives.words.pop("out", None)
            shutil.rmtree(self.shell.path("out"), ignore_errors=True)

    def convert(self, source, words):
        def make():
            self.shell.make("out", "convert", source, "out", *words.split(), may_refuse=True)

        self.attempt(f"{source}: {words}", make)

    def expect(self, status, *words):
        code, text = self.shell.run(*words)
        if code != status:
            raise Wrong(f"{' '.join(words)} ends with {code}: {text}")
        return text


def write_map(shell, source):
    """A map of experts to two ranks, both of which have the first."""
    config = json.load(open(os.path.join(shell.path(source), "config.json")))
    config = config.get("text_config", config)
    n = next((config[key] for key in ("n_routed_experts", "num_experts", "num_local_experts") if key in config), 0)
    n_layers = config.get("num_hidden_layers", 2)
    first = config.get("first_k_dense_replace", 0)
    layers = {str(layer): [[*range(n // 2), 0], [*range(n // 2, n), 0]] for layer in range(first, n_layers)}
    with open(shell.path("map.json"), "w") as file:
        json.dump(layers, file)


def with_files(rows, golden):
    """Conversions of the example by files."""
    shell = rows.shell
    if not rows.is_asked("example: "):
        return
    text = os.path.join(golden, "PROVENANCE.md")
    rows.expect(0, "calibrate", "example", "--text", text, "--max-tokens", "600", "--out", "stats")
    write_adapter(shell.path("adapter"))
    for words in WITH_FILES:
        rows.convert("example", words)


def of_jobs(rows):
    """Outputs that several runs make, or that begin with another output."""
    shell = rows.shell
    if not rows.is_asked("job: "):
        return

    def part(fused):
        words = ["--to", "nvfp4", *fused]
        for which in ("1/2", "0/2"):
            rows.expect(0, "convert", "v32", "out", *words, "--max-shard-size", "300KB", "--part", which, "--quiet")
        rows.expect(0, "join", "out", "--quiet")
        shell.derives.require("out")

    def consume():
        shutil.copytree(shell.path("v32"), shell.path("eaten"))
        shell.originals["eaten"] = "v32"
        try:
            shell.make("out", "convert", "eaten", "out", "--to", "bf16", "--consume-source")
        finally:
            shutil.rmtree(shell.path("eaten"))

    def base(words, source):
        shell.derives, derives = None, shell.derives
        shell.make("before", "convert", source, "before", *words)
        shell.derives = derives
        try:
            shell.make("out", "convert", source, "out", *words, "--base", "before")
        finally:
            shell.remove("before")

    rows.attempt("job: parts", lambda: part([]))
    rows.attempt("job: parts of ranks", lambda: part(["--tp", "2", "--tp-fit", "retile"]))
    rows.attempt("job: consumed", consume)
    rows.attempt("job: base", lambda: base(["--to", "fp8-channel"], "qwen3"))
    rows.attempt("job: base of ranks", lambda: base(["--to", "bf16", "--tp", "2"], "qwen3"))


def of_commands(rows):
    """Outputs of other commands."""
    shell = rows.shell
    if not rows.is_asked("command: "):
        return

    def again(name, given, *words):
        def make():
            code, text = shell.run(*words, "--progress", "never")
            if code != 0:
                raise Wrong(f"{' '.join(words)} ends with {code}: {text}")
            shell.derives.require_of("out", given)

        rows.attempt(f"command: {name}", make)

    rows.expect(0, "convert", "v32", "cut", "--tp", "2", "--ep", "2", "--tp-fit", "retile", "--quiet")
    rows.expect(0, "convert", "v3", "native", "--to", "bf16", "--layout", "deepseek-mp", "--mp", "2", "--quiet")
    rows.expect(0, "convert", "v3", "sharded", "--to", "bf16", "--layout", "vllm-sharded", "--tp", "2", "--quiet")
    rows.expect(0, "convert", "qwen3", "built", "--to", "nvfp4", "--quiet")
    rows.expect(0, "convert", "qwen3", "other", "--to", "fp8-channel", "--quiet")
    for folder in ("cut", "native", "sharded"):
        again(f"merge {folder}", ["--source", folder], "merge", folder, "out")
        rows.convert(folder, "--to fp8-channel")
        rows.convert(folder, "--to nvfp4 --tp 2 --tp-fit retile")
    with open(shell.path("compose.yaml"), "w") as file:
        file.write(COMPOSED)
    given = ["--source", "built", "--with", "other=other"]
    for words in ("", "--tp 2 --tp-fit retile", "--max-shard-size 300KB", "--files 2 --order name"):
        again(f"compose {words}".strip(), given, "compose", "compose.yaml", "out", *words.split())
    with open(shell.path("kept.json"), "w") as file:
        json.dump({str(layer): [0, 2, 3, 5, 6, 7, 8, 9] for layer in range(2)}, file)
    for source in ("qwen3", "built"):
        prune = ["prune", source, "out", "--keep-map", "kept.json", "--no-measure"]
        for words in ("", "--to int8", "--to bf16 --ep 2", "--max-shard-size 200KB"):
            again(f"prune {source} {words}".strip(), ["--source", source], *prune, *words.split())
    shutil.copytree(shell.path("other"), shell.path("broken"))
    for name in ("ingot.json", "ingot.tensors.jsonl.zst"):
        os.remove(shell.path(f"broken/{name}"))
    config = json.load(open(shell.path("broken/config.json")))
    config["quantization_config"]["ignore"] = ["lm_head"]
    with open(shell.path("broken/config.json"), "w") as file:
        json.dump(config, file)
    again("repair", ["--source", "broken"], "repair", "broken", "out")
    again("repair copies", ["--source", "broken"], "repair", "broken", "out", "--links", "no")

    def unrecorded():
        shutil.copytree(shell.path("qwen3"), shell.path("out"))
        text = rows.expect(2, "rederive", "out", "--source", "qwen3")
        if "has no ingot.json that says how it was made" not in text:
            raise Wrong(text)

    rows.attempt("command: none", unrecorded)


def main():
    ingot, golden, example = map(os.path.abspath, sys.argv[1:4])
    start = sys.argv[4] if len(sys.argv) > 4 else ""
    folder = tempfile.mkdtemp(prefix="ingot-derivations-")
    try:
        shell = Shell(ingot, None, folder)
        shell.derives = Derivations(shell, 66)
        rows = Rows(shell, start)
        with open(shell.path("recipe.yaml"), "w") as file:
            file.write(RECIPE)
        os.symlink(example, shell.path("example"))
        for name, words in SYNTH.items():
            rows.expect(0, "synth", name, *words.split())
        for path in FIXTURES:
            os.symlink(os.path.join(golden, path), shell.path(path.split("/")[1]))
        for name in [*SYNTH, *(path.split("/")[1] for path in FIXTURES)]:
            if rows.is_asked(f"{name}: "):
                write_map(shell, name)
                for words in GENERAL:
                    rows.convert(name, words)
        with_files(rows, golden)
        of_jobs(rows)
        of_commands(rows)
        for failure in rows.failures:
            print(f"FAILED: {failure}")
        print(f"{', '.join(f'{n} {word}' for word, n in sorted(rows.counts.items()))}, {len(rows.failures)} failures")
        return 1 if rows.failures or not rows.counts["made again"] else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
