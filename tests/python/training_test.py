#!/usr/bin/env python3
"""Models in the memory of a trainer become checkpoints and published tensors. Usage: training_test.py INGOT SMALL"""

import ctypes
import json
import os
import sys
import tempfile
import unittest
import zlib

import ingot
import numpy

from converted import ATTENTION, EXAMPLE, GATE, GOLDEN, Converted, command, read_json, same_bytes


class FakeTrainer:
    """A model in memory as BF16 words, which it gives away tensor by tensor, in an order of its own."""

    def __init__(self, directory):
        source = ingot.open(directory)
        self.config = read_json(f"{directory}/config.json")
        self.weights = {name: (tensor.dtype, numpy.asarray(tensor.words()).copy()) for name, tensor in source.stored.items()}

    def shapes(self):
        return {name: list(array.shape) if dtype == "BF16" else {"dtype": dtype, "shape": list(array.shape)}
                for name, (dtype, array) in self.weights.items()}

    def named_parameters(self):
        """Layer by layer; in a layer in an order that means nothing."""
        def order(name):
            words = name.split(".")
            layer = int(words[2]) if words[1:2] == ["layers"] else -1
            return layer, zlib.crc32(name.encode())
        for name in sorted(self.weights, key=order):
            yield name, self.weights[name][1]

    def publish(self, **options):
        """The tensors of the converted model, as (dtype, shape, bytes) by name."""
        plan = ingot.Plan(self.config, self.shapes(), **options)
        encoder = ingot.Encoder(plan)
        published = {}
        for name, array in self.named_parameters():
            for made, tensor in encoder.encode(name, array).items():
                assert made not in published
                published[made] = (tensor.dtype, tensor.shape, tensor.tobytes())
        encoder.finish()
        return plan, published


class Training(Converted):
    def test_a_trainer_gets_the_bytes_of_the_command_line(self):
        for options in ({"to": "nvfp4"}, {"to": "nvfp4", "experts": "stacked"}, {"to": "fp8", "mtp": "drop"},
                        {"to": "int4", "group_size": 32}):
            with self.subTest(**options):
                out = "trained-" + "-".join(map(str, options.values()))
                words = [word for name, value in options.items()
                         for word in ("--" + name.replace("_", "-"), str(value))]
                command("convert", "plain", out, *words)
                plan, published = FakeTrainer("plain").publish(**options)
                expected = {name: (tensor.dtype, tensor.shape, tensor.tobytes())
                            for name, tensor in ingot.open(out).stored.items()}
                self.assertEqual(published.keys(), expected.keys())
                self.assertEqual([name for name in expected if published[name] != expected[name]], [])
                self.assertEqual(plan.config, read_json(f"{out}/config.json"))

    def test_a_model_in_memory_becomes_the_checkpoint_of_its_files(self):
        model = dict(ingot.open("plain").stored)
        for options in ({"to": "nvfp4"}, {"to": "int4", "group_size": 32, "max_shard_size": 10 ** 6},
                        {"to": "nvfp4", "experts": "stacked", "mtp": "drop"}, {}):
            with self.subTest(**options):
                out = "given-" + "-".join(map(str, options.values()))
                words = [word for name, value in options.items()
                         for word in ("--" + name.replace("_", "-"), str(value) + "B" * (name == "max_shard_size"))]
                command("convert", "plain", "filed" + out, *words)
                report = ingot.convert(model, out, like="plain", **options)
                self.assertTrue(report["published"] and report["bytes_out"])
                self.assertEqual(same_bytes(out, "filed" + out), ["ingot.json"])
                given, filed = read_json(f"{out}/ingot.json"), read_json(f"filed{out}/ingot.json")
                for file in filed["source"]["files"]:
                    del file["samples"]  # of bytes that no file has
                self.assertEqual(given, filed)
                self.assertEqual(ingot.check(out, deep=True)["errors"], [])
                self.assertTrue(ingot.verify("plain", out)["passed"])

    def test_tensors_come_in_any_order_and_from_any_iterator(self):
        trainer = FakeTrainer("plain")
        told = []
        os.mkdir("temporary")
        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        tempfile.tempdir = os.path.abspath("temporary")
        ingot.convert(trainer.named_parameters(), "iterated", shapes=trainer.shapes(), config=trainer.config, to="nvfp4",
                      max_shard_size="4MB", mem_limit="100MB", threads=2, progress=lambda *told_now: told.append(told_now))
        self.assertTrue(told)
        command("convert", "plain", "in-files", "--to", "nvfp4", "--max-shard-size", "4MB")
        made, expected = ingot.open("iterated").stored, ingot.open("in-files").stored
        self.assertEqual({name: made[name].tobytes() for name in made}, {name: expected[name].tobytes() for name in expected})
        self.assertTrue(os.path.exists("iterated/model.safetensors.index.json"))
        self.assertEqual(ingot.check("iterated", deep=True)["errors"], [])
        self.assertEqual(os.listdir("temporary"), [])

    def test_a_writer_refuses_before_it_publishes(self):
        trainer = FakeTrainer("plain")
        name, array = next(trainer.named_parameters())

        def writer(out, **options):
            return ingot.Writer(out, trainer.shapes(), config=trainer.config, to="nvfp4", **options)
        with self.assertRaises(ingot.Error) as caught, writer("w-missing") as one:
            one.write(name, array)
        self.assertEqual(caught.exception.code, "missing-tensor")
        with self.assertRaises(ingot.Error) as caught, writer("w-form") as one:
            one.write(name, array.view("uint8"))
        self.assertEqual((caught.exception.code, caught.exception.tensor), ("dtype-mismatch", name))
        with self.assertRaises(ingot.Error) as caught, writer("w-nan") as one:
            for weight, words in trainer.named_parameters():
                one.write(weight, numpy.full_like(words, 0x7FC0) if words.dtype == "uint16" else words)
        self.assertEqual(caught.exception.code, "non-finite")
        with self.assertRaises(ZeroDivisionError), writer("w-left") as one:
            one.write(name, array)
            raise ZeroDivisionError
        for out in ("w-missing", "w-form", "w-nan", "w-left"):
            self.assertFalse(os.path.exists(f"{out}/ingot.json"))
            self.assertEqual(os.listdir(out) if os.path.exists(out) else [], [])
        for option in ({"verify": "weights"}, {"dry_run": True}, {"lossless_only": True}):
            with self.assertRaisesRegex(ingot.Error, "reads the source again"):
                writer("w-again", **option)
        for option in ({"resume": True}, {"part": "0/2"}, {"consume_source": True}):
            with self.assertRaisesRegex(ingot.Error, "is for a source on a disk"):
                writer("w-again", **option)
        with self.assertRaises(FileExistsError):
            writer("plain")
        self.assertRaises(ValueError, ingot.convert, iter([]), "w-none", config={})
        self.assertRaises(ValueError, ingot.convert, {}, "w-none")
        self.assertRaises(TypeError, ingot.convert, "plain", "w-none", config={})
        with self.assertRaises(ZeroDivisionError):
            ingot.convert(trainer.named_parameters(), "w-told", shapes=trainer.shapes(), config=trainer.config,
                          progress=lambda *_: 1 // 0)

    def test_a_model_in_memory_is_verified_and_planned(self):
        model = dict(ingot.open("plain").stored)
        options = {"like": "plain", "to": "nvfp4"}
        report = ingot.convert(model, "m-verified", verify="structure,weights,layers", **options)
        self.assertTrue(report["published"] and report["verification"]["passed"])
        command("convert", "plain", "m-files", "--to", "nvfp4", "--verify", "structure,weights,layers")
        self.assertEqual(same_bytes("m-verified", "m-files"), ["ingot.json", "ingot.verify.json"])
        made, filed = (json.dumps(read_json(f"{out}/ingot.verify.json")).replace(f'"{out}"', "") for out in ("m-verified", "m-files"))
        self.assertEqual(made, filed)
        for out, gates in (("m-gated", {"verify": "weights", "require": ["weights.cosine>=1.1"]}),
                           ("m-lossless", {"lossless_only": True})):
            with self.assertRaises(ingot.Error) as caught:
                ingot.convert(model, out, **options, **gates)
            self.assertEqual(caught.exception.code, "mismatch")
            self.assertEqual(os.listdir(out) if os.path.exists(out) else [], [])
        made, expected = ingot.plan(model, "m-none", **options), ingot.plan("plain", "m-none", to="nvfp4")
        for key in ("tensors", "config", "bytes_out", "files"):
            self.assertEqual(made[key], expected[key])
        with self.assertRaisesRegex(ingot.Error, "is for a source on a disk"):
            ingot.convert(model, "m-none", resume=True, **options)
        self.assertRaises(FileExistsError, ingot.convert, model, "m-files", **options)
        self.assertEqual(ingot.check("m-files", deep=True)["errors"], [])
        shapes = {**ingot.open("plain").shapes(), "model.layers.0.other.weight": [2, 2]}
        with self.assertRaises(ingot.Error) as caught:
            ingot.convert(model, "m-none", shapes=shapes, allow=["unknown-tensor=*"], **options)
        self.assertEqual((caught.exception.code, caught.exception.tensor), ("missing-tensor", "model.layers.0.other.weight"))
        words = numpy.zeros(model[GATE].shape, "int16")
        with self.assertRaises(ingot.Error) as caught:
            ingot.convert({**model, GATE: words}, "m-none", shapes=ingot.open("plain").shapes(), **options)
        self.assertEqual((caught.exception.code, caught.exception.tensor), ("dtype-mismatch", GATE))

    def test_a_trained_model_is_like_its_quantized_release(self):
        trainer = FakeTrainer("plain")
        state = dict(ingot.open("plain").stored)
        command("convert", "plain", "of-plain", "--to", "nvfp4")
        expected = ingot.open("of-plain").stored
        for name, tensors in (("mapping", state), ("iterator", iter(state.items()))):
            ingot.convert(tensors, f"like-{name}", like="tiny-v32", to="nvfp4")
            made = ingot.open(f"like-{name}").stored
            self.assertEqual({name: made[name].tobytes() for name in made},
                             {name: expected[name].tobytes() for name in expected})
            self.assertEqual(read_json(f"like-{name}/config.json"), read_json("of-plain/config.json"))
            self.assertTrue(ingot.verify("plain", f"like-{name}")["passed"])
        # MXFP4 has a stack's matrices the other way round.
        oss = f"{GOLDEN}/families/gpt_oss"
        command("convert", oss, "oss", "--to", "bf16")
        os.remove("oss/ingot.json")
        command("convert", "oss", "of-oss", "--to", "int8")
        for order in (sorted, lambda items: sorted(items, reverse=True)):
            ingot.convert(iter(order(ingot.open("oss").stored.items())), "like-oss", like=oss, to="int8", force=True)
            self.assertEqual(same_bytes("like-oss", "of-oss"), ["README.md", "ingot.json"])
        given = ingot.open(oss).stored
        ingot.convert(((name, given[name]) for name in given), "as-oss", like=oss)
        self.assertEqual({name: tensor.tobytes() for name, tensor in ingot.open("as-oss").stored.items()},
                         {name: tensor.tobytes() for name, tensor in given.items()})
        release = ingot.open("tiny-v32")
        ingot.convert(iter(release.stored.items()), "of-release", like="tiny-v32", to="nvfp4")
        command("convert", "tiny-v32", "of-release-files", "--to", "nvfp4")
        self.assertEqual(same_bytes("of-release", "of-release-files"), ["ingot.json"])
        self.assertEqual(release.shapes("BF16")[GATE], {"dtype": "BF16", "shape": list(release[GATE].shape)})
        self.assertEqual(set(release.shapes("BF16")), set(trainer.weights))

    def test_configs_and_shapes_are_taken_as_trainers_have_them(self):
        trainer, state = FakeTrainer("plain"), dict(ingot.open("plain").stored)

        class Config:
            def to_dict(self):
                return trainer.config

        class Module:
            config = Config()

            def state_dict(self):
                return state

        class Wrapper:  # of torch.compile()
            _orig_mod = Module()

            def state_dict(self):
                return {"_orig_mod." + name: tensor for name, tensor in state.items()}
        expected = ingot.Plan(trainer.config, trainer.shapes(), to="nvfp4").config
        for config in (Config(), json.dumps(trainer.config), "plain/config.json"):
            for shapes in (state, iter(state.items()), {name: tuple(tensor.shape) if tensor.dtype == "BF16" else tensor
                                                        for name, tensor in state.items()}):
                self.assertEqual(ingot.Plan(config, shapes, to="nvfp4").config, expected)
        for module in (Module(), Wrapper()):
            made = ingot.plan(module, "none", to="nvfp4")
            self.assertEqual(made["config"]["architectures"], trainer.config["architectures"])
            self.assertEqual(len(made["tensors"]), len(state))

    def test_a_tied_head_is_not_stored_twice(self):
        class Pointed(numpy.ndarray):
            dtype = "torch.bfloat16"

            def data_ptr(self):
                return self.ctypes.data
        config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
                  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
                  "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
                  "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False}
        with open("tied.json", "w") as file:
            json.dump(config, file)
        command("synth", "tied", "--config", "tied.json")
        state = {name: numpy.asarray(tensor.words()).copy().view(Pointed) for name, tensor in ingot.open("tied").stored.items()}
        self.assertNotIn("lm_head.weight", state)
        head = {"lm_head.weight": state["model.embed_tokens.weight"]}
        for name, keys in (("tied", {}), ("untied", {"tie_word_embeddings": False})):
            ingot.convert({**state, **head}, f"made-{name}", config={**config, **keys}, to="int8")
            self.assertEqual("lm_head.weight" in ingot.open(f"made-{name}"), name == "untied")

    def test_several_threads_encode_at_once(self):
        from concurrent.futures import ThreadPoolExecutor
        trainer = FakeTrainer("plain")
        expected = trainer.publish(to="nvfp4")[1]
        encoder = ingot.Encoder(ingot.Plan(trainer.config, trainer.shapes(), to="nvfp4"))
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda given: encoder.encode(*given), trainer.named_parameters()))
        encoder.finish()
        self.assertEqual(sum(map(len, made)), len(expected))
        self.assertEqual({name: tensor.tobytes() for tensors in made for name, tensor in tensors.items()},
                         {name: content for name, (_, _, content) in expected.items()})

    def test_a_module_may_have_settings_that_are_no_config(self):
        class Module:
            config = object()

            def state_dict(self):
                return dict(ingot.open(EXAMPLE).stored)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(ValueError, "needs its config.json"):
                ingot.convert(Module(), f"{folder}/none", to="nvfp4")
            self.assertTrue(ingot.convert(Module(), f"{folder}/out", like=EXAMPLE, to="nvfp4")["published"])
            router = "model.layers.1.mlp.gate.weight"
            turned = {**Module().state_dict(), router: numpy.zeros((256, 8), "float32").T}
            with self.assertRaisesRegex(TypeError, f"{router}: the array is not contiguous"):
                ingot.convert(turned, f"{folder}/turned", like=EXAMPLE)

    def test_parameters_of_torch_are_taken_as_they_are(self):
        class Parameter:
            """What torch.nn.Parameter does: no DLPack while it needs gradients, and strides of its own."""

            def __init__(self, array, needs_grad=True):
                self.array, self.needs_grad, self.shape, self.dtype = array, needs_grad, array.shape, "torch.bfloat16"

            def detach(self):
                return Parameter(self.array, False)

            def cpu(self):
                return self

            def contiguous(self):
                return Parameter(numpy.ascontiguousarray(self.array), False)

            def __dlpack__(self, **_):
                if self.needs_grad:
                    raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
                return ingot._arrays._capsule(self.words())

            def words(self):
                tensor = ingot._arrays.new_tensor(ingot.Tensor, "BF16", self.shape, self.array.nbytes)
                ctypes.memmove(tensor.words(), self.array.ctypes.data, self.array.nbytes)
                return tensor
        trainer = FakeTrainer("plain")
        state = {name: Parameter(numpy.asfortranarray(array)) if trainer.weights[name][0] == "BF16" else array
                 for name, array in trainer.named_parameters()}
        ingot.convert(state, "of-torch", config=trainer.config, to="nvfp4")
        expected = trainer.publish(to="nvfp4")[1]
        self.assertEqual({name: tensor.tobytes() for name, tensor in ingot.open("of-torch").stored.items()},
                         {name: content for name, (_, _, content) in expected.items()})

    def test_an_encoder_holds_a_set_until_it_is_complete(self):
        trainer = FakeTrainer("plain")
        gate, up = GATE, GATE.replace("gate", "up")
        plan = ingot.Plan(trainer.config, trainer.shapes(), to="nvfp4")
        self.assertIn([gate, up], [sorted(names) for names in plan.sets])
        encoder = ingot.Encoder(plan)
        self.assertEqual(encoder.encode(up, trainer.weights[up][1]), {})
        with self.assertRaises(ingot.Error) as caught:
            encoder.finish()
        self.assertEqual(caught.exception.code, "missing-tensor")
        self.assertIn(gate, caught.exception.message)
        for name, array, code in ((up, trainer.weights[up][1], "duplicate"), ("other", b"", "not-found"),
                                  (gate, b"1234", "dtype-mismatch")):
            with self.assertRaises(ingot.Error) as caught:
                encoder.encode(name, array)
            self.assertEqual((caught.exception.code, caught.exception.tensor), (code, name))
        nans = numpy.full(trainer.weights[gate][1].shape, 0x7FC0, "uint16")
        with self.assertRaises(ingot.Error) as caught:
            encoder.encode(gate, nans)
        self.assertEqual((caught.exception.code, caught.exception.tensor), ("non-finite", gate))
        self.assertEqual(encoder.encode(up, trainer.weights[up][1]), {})  # the set comes again
        made = encoder.encode(gate, trainer.weights[gate][1])
        self.assertEqual(len(made), 6)
        with self.assertRaisesRegex(ingot.Error, "another plan"):
            ingot.Encoder(plan)

    def test_an_encoder_takes_only_what_was_planned(self):
        rows, columns = ingot.open("plain")[GATE].shape
        plan = ingot.Plan(read_json("plain/config.json"), ingot.open("plain").shapes(), to="int8")
        encoder = ingot.Encoder(plan)
        words = numpy.full((rows, columns), 0x3F00, "uint16")
        dtypes = {"values of F16": words.view("float16"), "signed numbers": words.view("int16"),
                  "wider values": numpy.ones((rows, columns // 4), "float64"), "bytes": words.tobytes(),
                  "a view of bytes": words.view("uint8"), "wider words": words.view("uint32"),
                  "values of F32": numpy.ones((rows, columns), "float32")}
        shapes = {"a transposed matrix": words.reshape(columns, rows),
                  "a vector": words.reshape(-1), "another batch": words.reshape(1, rows, columns),
                  "half of it": words[:rows // 2]}
        for code, arrays in (("dtype-mismatch", dtypes), ("shape-mismatch", shapes)):
            for what, array in arrays.items():
                for lent in (array, memoryview(array)):
                    with self.subTest(what, lent=type(lent)), self.assertRaises(ingot.Error) as caught:
                        encoder.encode(GATE, lent)
                    self.assertEqual((caught.exception.code, caught.exception.tensor), (code, GATE))
        for what, array in (("other order of bytes", words.astype(">u2")), ("columns apart", words[:, ::2]),
                            ("complex numbers", numpy.ones((rows, columns // 4), "complex64"))):
            with self.subTest(what), self.assertRaises((TypeError, ingot.Error)):
                encoder.encode(GATE, array)
        stored = ingot.open("tiny-v32").stored[ATTENTION]
        with self.assertRaisesRegex(ingot.Error, "F8_E4M3 .* BF16"):
            encoder.encode(ATTENTION, stored)
        self.assertEqual(len(encoder.encode(GATE, words)), 2)  # words are right

    def test_an_encoder_takes_dtypes_that_buffers_lack(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("there is no ml_dtypes")
        plan = ingot.Plan(read_json("plain/config.json"), ingot.open("plain").shapes(), to="int8")
        encoder, shape = ingot.Encoder(plan), ingot.open("plain")[GATE].shape
        with self.assertRaisesRegex(ingot.Error, "F8_E4M3"):
            encoder.encode(GATE, numpy.ones(shape, ml_dtypes.float8_e4m3fn))
        self.assertEqual(len(encoder.encode(GATE, numpy.ones(shape, ml_dtypes.bfloat16))), 2)

    def test_open_sets_are_within_the_limit(self):
        trainer = FakeTrainer("plain")
        encoder = ingot.Encoder(ingot.Plan(trainer.config, trainer.shapes(), to="nvfp4", mem_limit="100KB"))
        with self.assertRaisesRegex(ingot.Error, "one after another"):
            for name, array in trainer.named_parameters():
                if "gate_proj" in name:
                    encoder.encode(name, array)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
