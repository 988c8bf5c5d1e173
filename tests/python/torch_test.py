#!/usr/bin/env python3
"""The Python package with torch itself: modules, parameters, shards of processes, and the iterators of vLLM.

Usage: torch_test.py INGOT CHECKPOINT. Environment: INGOT_LIBRARY, PYTHONPATH with the package, and INGOT_TORCH_PYTHON, an
interpreter that has torch (default: this one). Exit status 77: there is no torch. Cases of transformers and vLLM are
skipped, by name, where these are missing. CHECKPOINT is examples/tiny-v32."""

import filecmp
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

python = os.environ.get("INGOT_TORCH_PYTHON")
if python and os.path.realpath(python) != os.path.realpath(sys.executable):
    os.environ.pop("INGOT_TORCH_PYTHON")
    os.execv(python, [python, *sys.argv])
try:
    import torch
except ImportError:
    print("skipped: python.torch: this Python has no torch (INGOT_TORCH_PYTHON names one that has)")
    sys.exit(77)

import ingot

INGOT, EXAMPLE = (os.path.abspath(path) for path in sys.argv[1:3])
ATTENTION = "model.layers.1.self_attn.q_b_proj.weight"
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024}


def differing(a, b):
    """The files that two directories do not share, but for the records, which tell of different sources and outputs."""
    names = sorted({name for folder in (a, b) for name in os.listdir(folder)} - {"ingot.json", "ingot.verify.json"})
    return [name for name in names if not (os.path.exists(f"{a}/{name}") and os.path.exists(f"{b}/{name}")
                                           and filecmp.cmp(f"{a}/{name}", f"{b}/{name}", shallow=False))]


def state_of(directory):
    return {name: torch.from_dlpack(tensor).clone() for name, tensor in ingot.open(directory).stored.items()}


class Model(torch.nn.Module):
    """A module with the parameters of a checkpoint, and its config, as one of transformers has it."""

    def __init__(self, directory):
        super().__init__()
        for name, tensor in state_of(directory).items():
            *path, last = name.split(".")
            place = self
            for step in path:
                if step not in place._modules:
                    place.add_module(step, torch.nn.Module())
                place = place._modules[step]
            place.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
        with open(f"{directory}/config.json", encoding="utf-8") as file:
            self.keys = json.load(file)

    class Config:
        def __init__(self, keys):
            self.to_dict = lambda: keys

    @property
    def config(self):
        return self.Config(self.keys)


def write_from_shards(rank, folder):
    """Both processes gather what one of them writes."""
    import torch.distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    os.chdir(folder)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = fully_shard(Model("plain"), mesh=init_device_mesh("cpu", (2,)))
    state = model.state_dict()
    assert all(hasattr(tensor, "full_tensor") for tensor in state.values())
    gathered = ((name, tensor.full_tensor()) for name, tensor in state.items())
    if rank == 0:
        ingot.convert(gathered, "gathered", like="plain", to="nvfp4")
        ingot.convert(state, "of-shards", like="plain", to="nvfp4")
    else:
        for _ in gathered:
            pass
        for tensor in state.values():
            tensor.full_tensor()
    torch.distributed.destroy_process_group()


class Torch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        os.chdir(cls.folder.name)
        os.symlink(EXAMPLE, "tiny-v32")
        subprocess.run([INGOT, "convert", "tiny-v32", "plain", "--to", "bf16", "-q"], check=True, stdout=subprocess.DEVNULL)
        os.remove("plain/ingot.json")  # a trainer's model does not remember FP8 scales
        ingot.convert("plain", "expected", to="nvfp4")

    def test_a_module_and_its_parameters_are_written(self):
        model = Model("plain")
        for name, tensors in (("module", model), ("state", model.state_dict()), ("parameters", model.named_parameters()),
                              ("compiled", torch.compile(model)), ("dict", dict(model.named_parameters()))):
            with self.subTest(name):
                ingot.convert(tensors, f"of-{name}", like="plain", to="nvfp4")
                self.assertEqual(differing(f"of-{name}", "expected"), [])
        ingot.convert(model, "by-its-config", to="nvfp4", verify="structure,weights")
        self.assertTrue(ingot.check("by-its-config")["errors"] == [])

    def test_transposed_and_half_tensors_are_taken(self):
        state = state_of("plain")
        strided = {name: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor for name, tensor in state.items()}
        self.assertFalse(strided[ATTENTION].is_contiguous())
        ingot.convert(strided, "of-strided", like="plain", to="nvfp4")
        self.assertEqual(differing("of-strided", "expected"), [])
        with self.assertRaisesRegex(ingot.Error, "come one by one are read once"):
            ingot.convert(strided, "never", like="plain", to="nvfp4", verify="weights")

    def test_a_trained_model_is_like_its_quantized_release(self):
        for tensors in (state_of("plain"), iter(state_of("plain").items())):
            output = f"like-release-{type(tensors).__name__}"
            ingot.convert(tensors, output, like="tiny-v32", to="nvfp4")
            made, expected = ingot.open(output).stored, ingot.open("expected").stored
            self.assertEqual({name: made[name].tobytes() for name in made},
                             {name: expected[name].tobytes() for name in expected})

    def test_processes_of_fsdp_write_together(self):
        torch.multiprocessing.spawn(write_from_shards, (self.folder.name,), nprocs=2)
        for name in ("gathered", "of-shards"):
            self.assertEqual(differing(name, "expected"), [])

    def test_parts_go_to_torch_and_back(self):
        weight = torch.nn.Parameter(torch.randn(256, 256, dtype=torch.bfloat16))
        for scheme, dtype in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
            parts = ingot.quantize(weight, scheme)
            given = {name: torch.from_dlpack(part) for name, part in parts.items()}
            self.assertEqual(given["weight"].dtype, dtype)
            values = ingot.dequantize(given, parts.config)
            self.assertLess((torch.from_numpy(values) - weight.detach().float()).norm() / weight.detach().float().norm(), 0.04)
        self.assertEqual(torch.from_dlpack(ingot.open("plain")["model.norm.weight"]).dtype, torch.bfloat16)

    def test_models_of_transformers_are_written_as_they_save_themselves(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("there is no transformers")
        transformers.logging.set_verbosity_error()
        models = {"tied": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, tie_word_embeddings=True)),
                  "mixture": transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_local_experts=4))}
        for name, model in models.items():
            with self.subTest(name):
                model.to(torch.bfloat16).save_pretrained(f"saved-{name}")
                ingot.convert(f"saved-{name}", f"expected-{name}", to="nvfp4", verify="structure,weights")
                ingot.convert(model, f"made-{name}", like=f"saved-{name}", to="nvfp4", verify="structure,weights")
                self.assertEqual(differing(f"made-{name}", f"expected-{name}"), [])
                ingot.convert(model.state_dict() if name == "tied" else model, f"alone-{name}", config=model.config,
                              to="fp8", threads=2)
                self.assertEqual(ingot.check(f"alone-{name}")["errors"], [])
                self.assertEqual(ingot.plan(model, "none", to="nvfp4")["config"]["architectures"], [type(model).__name__])

    def test_iterators_of_vllm_are_taken(self):
        try:
            from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
        except ImportError:
            self.skipTest("there is no vllm")
        for source in ("plain", "tiny-v32"):
            files = sorted(glob.glob(f"{source}/*.safetensors"))
            ingot.convert(safetensors_weights_iterator(files, use_tqdm_on_load=False), f"of-{source}", like=source, to="nvfp4")
            ingot.convert(source, f"expected-{source}", to="nvfp4")
            self.assertEqual(differing(f"of-{source}", f"expected-{source}"), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
