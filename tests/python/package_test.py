#!/usr/bin/env python3
"""The Python package against the command line. Usage: package_test.py INGOT SMALL CHECKPOINT DOCUMENT

CHECKPOINT is examples/tiny-v32, with which the examples of DOCUMENT are run."""

import base64
import ctypes
import doctest
import hashlib
import json
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import ingot
import numpy

from converted import ATTENTION, EXAMPLE, GATE, GOLDEN, INGOT, Converted, command, read_json, same_bytes

WHOLE, DOCUMENT = (os.path.abspath(path) for path in sys.argv[3:5])


class Package(Converted):
    def test_import_is_quick_and_without_numpy(self):
        code = ("import time; t = time.process_time(); import ingot, sys; "
                "print(time.process_time() - t, 'numpy' in sys.modules)")
        seconds = []
        for _ in range(3):
            took, has_numpy = subprocess.run([sys.executable, "-c", code], check=True, text=True,
                                             capture_output=True).stdout.split()
            self.assertEqual(has_numpy, "False")
            seconds.append(float(took))
        self.assertLess(min(seconds), 0.05)

    def test_plain_tensors_are_the_pages_of_the_file(self):
        tensor = ingot.open("plain")["model.norm.weight"]
        words = numpy.asarray(tensor.words())
        self.assertTrue(numpy.shares_memory(words, numpy.asarray(tensor.words())))
        self.assertEqual(memoryview(tensor.words()).format.lstrip("<"), "H")
        scale = ingot.open("tiny-v32")[ATTENTION].parts["scale"]
        self.assertEqual(numpy.asarray(scale).ctypes.data, ctypes.addressof(scale))
        self.assertEqual((tensor.dtype, tensor.shape, tensor.role), ("BF16", (256,), "final-norm"))
        with open("plain/model-00002-of-00002.safetensors", "rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(n_header))["model.norm.weight"]["data_offsets"]
            file.seek(8 + n_header + begin)
            self.assertEqual(tensor.tobytes(), file.read(end - begin))

    def test_quantized_weights_decode(self):
        weight = ingot.open("tiny-v32")[ATTENTION]
        codes, scales = weight.parts["weight"].tobytes(), weight.parts["scale"].numpy()
        code = numpy.frombuffer(codes, "uint8").reshape(weight.shape).astype(int)
        exponent, mantissa = code >> 3 & 15, code & 7
        value = numpy.where(exponent == 0, mantissa * 2.0 ** -9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
        value = numpy.where(code & 128, -value, value)
        blocks = scales.repeat(128, 0).repeat(128, 1)[:weight.shape[0], :weight.shape[1]]
        numpy.testing.assert_array_equal(weight.numpy(), (value * blocks).astype("float32"))

    def test_integers_are_asked_for(self):
        tensor = ingot.open("plain")["model.norm.weight"]
        codes = ingot.open("tiny-v32")[ATTENTION].parts["weight"]
        words = numpy.asarray(tensor.words()).astype("uint32") << 16
        numpy.testing.assert_array_equal(tensor.float32(), words.view("float32"))
        numpy.testing.assert_array_equal(numpy.asarray(tensor, dtype="float32"), words.view("float32"))
        self.assertIs(tensor.float32(out=words.view("float32")).dtype, numpy.dtype("float32"))
        self.assertEqual(numpy.unique(codes.float32()[codes.float32() > 0])[0] % 2 ** -9, 0)
        code = "import sys; sys.modules['ml_dtypes'] = None; import ingot, numpy; t = ingot.open('plain'); " \
               "t = t['model.norm.weight']; %s"
        for reads in ("t.numpy()", "numpy.asarray(t)", "numpy.array(t[:2])", "t.numpy().astype('float32')"):
            done = subprocess.run([sys.executable, "-c", code % reads], capture_output=True, text=True)
            self.assertIn("pip install ingot-convert[arrays], or take .float32()", done.stderr, reads)
        half = ingot.Encoder(ingot.Plan({"model_type": "none"}, {"a.weight": {"dtype": "F16", "shape": [2]}},
                                        family="generic")).encode("a.weight", numpy.array([1, 2], "float16"))["a.weight"]
        self.assertEqual((numpy.asarray(half).dtype, numpy.asarray(half).tolist()), ("float16", [1, 2]))
        try:
            import ml_dtypes
        except ImportError:
            return
        self.assertEqual(numpy.asarray(tensor).dtype, ml_dtypes.bfloat16)
        self.assertEqual(codes.numpy().dtype, ml_dtypes.float8_e4m3fn)
        numpy.testing.assert_array_equal(codes.numpy().astype("float32"), codes.float32())
        for dtype, kind in (("F8_E4M3FNUZ", "float8_e4m3fnuz"), ("F8_E5M2", "float8_e5m2"),
                            ("F8_E5M2FNUZ", "float8_e5m2fnuz"), ("F8_E8M0", "float8_e8m0fnu")):
            from ingot import _arrays
            expected = numpy.arange(256, dtype="uint8").view(getattr(ml_dtypes, kind)).astype("float32")
            numpy.testing.assert_array_equal(_arrays._values(dtype), expected)
        try:
            from safetensors.numpy import load_file, save_file
        except ImportError:
            return
        save_file({"t": tensor.numpy()}, "saved.safetensors")
        self.assertEqual(ingot.open("saved.safetensors").stored["t"].dtype, "BF16")

    def test_rows_are_read_by_themselves(self):
        with ingot.open("tiny-v32") as checkpoint:
            weight, whole = checkpoint[ATTENTION], checkpoint[ATTENTION].numpy()
            numpy.testing.assert_array_equal(weight[100:300].numpy(), whole[100:300])
            numpy.testing.assert_array_equal(weight[100:300][7:-3].numpy(threads=1), whole[107:297])
            numpy.testing.assert_array_equal(weight[-1], whole[-1])
            self.assertEqual(weight[5:5].numpy().shape, (0, 128))
            given = numpy.empty((2, 128), "float32")
            self.assertIs(weight[3:5].numpy(out=given), given)
            numpy.testing.assert_array_equal(given, whole[3:5])
            self.assertRaises(ValueError, weight.numpy, given)
            self.assertRaises(ValueError, weight.__getitem__, slice(0, 9, 2))
            self.assertRaises(IndexError, weight.__getitem__, 384)
            embedding = checkpoint["model.embed_tokens.weight"]
            self.assertEqual(embedding[2:4].tobytes(), embedding.tobytes()[2 * embedding.nbytes // len(embedding):
                                                                           4 * embedding.nbytes // len(embedding)])
            self.assertEqual(embedding[2:4][1].shape, embedding.shape[1:])
            self.assertEqual([len(ingot.open("tiny-v32")), repr(checkpoint)[:18]], [112, "<ingot.Checkpoint "])
            names = os.listdir("tiny-v32")
        self.assertRaisesRegex(ingot.Error, "closed", checkpoint.__getitem__, ATTENTION)
        # A hole in place of all other rows is not seen.
        shutil.copytree("tiny-v32", "holes", copy_function=shutil.copy)
        info = ingot.open("holes")._part_info(ingot.open("holes")._index[ATTENTION], 0)
        with open(info.path, "r+b") as file:
            file.seek(info.offset + 128 * 128)
            file.write(b"\x7f" * 256 * 128)
        numpy.testing.assert_array_equal(ingot.open("holes")[ATTENTION][:128].numpy(), whole[:128])
        self.assertIn("config.json", names)

    def test_tensors_go_to_other_processes(self):
        checkpoint = ingot.open("tiny-v32")
        for tensor in (checkpoint["model.norm.weight"], checkpoint[ATTENTION].parts["scale"], checkpoint[ATTENTION][2:9],
                       checkpoint[ATTENTION], checkpoint["model.norm.weight"][1:3]):
            again = pickle.loads(pickle.dumps(tensor))
            self.assertEqual((again.name, again.shape, again.scheme, type(again).__name__),
                             (tensor.name, tensor.shape, tensor.scheme, type(tensor).__name__))
            numpy.testing.assert_array_equal(again.float32(), tensor.float32())
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        # A process that cannot start is an error here; Pool would start the next one forever.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            self.assertEqual(list(pool.map(len, [checkpoint[ATTENTION], checkpoint["model.norm.weight"]])), [384, 256])

    def test_dlpack_lends_memory_and_takes_it_back(self):
        from ingot import _arrays
        scale = ingot.open("tiny-v32")[ATTENTION].parts["scale"]
        taken = numpy.from_dlpack(scale)
        self.assertEqual(taken.ctypes.data, scale.numpy().ctypes.data)
        numpy.testing.assert_array_equal(taken, scale.numpy())
        unused = scale.__dlpack__()
        self.assertEqual(len(_arrays._lent), 2)
        del taken, unused
        self.assertEqual(len(_arrays._lent), 0)

    def test_convert_writes_what_the_command_line_writes(self):
        calls = []
        ingot.convert("tiny-v32", "by-python", to="int4", group_size=32, rule=["role:attention=bf16"], mtp="drop",
                      progress=lambda *told: calls.append(told))
        command("convert", "tiny-v32", "by-words", "--to", "int4", "--group-size", "32", "--rule",
                "role:attention=bf16", "--mtp", "drop")
        self.assertEqual(same_bytes("by-python", "by-words"), [])
        self.assertTrue(calls and all(done <= total or total == 0 for _, done, total in calls))

    def test_a_statement_names_the_library(self):
        ingot.convert("tiny-v32", "stated", layers="0")
        shutil.copy(f"{GOLDEN}/oms/signers/p256.pem", "key.pem")
        os.chmod("key.pem", 0o600)
        ingot.attest("stated", "key.pem", source="tiny-v32")
        signed = read_json("stated/ingot.intoto.json")["dsseEnvelope"]["payload"]
        tool, = json.loads(base64.b64decode(signed))["predicate"]["runDetails"]["builder"]["builderDependencies"]
        with open(os.environ["INGOT_LIBRARY"], "rb") as file:
            self.assertEqual(tool["digest"]["sha256"], hashlib.sha256(file.read()).hexdigest())

    def test_reports_are_those_of_the_command_line(self):
        def printed(*words):
            return json.loads(subprocess.run([INGOT, *words, "--json"], stdout=subprocess.PIPE).stdout)
        for report, words in ((ingot.inspect("tiny-v32"), ["inspect", "tiny-v32"]),
                              (ingot.inspect("tiny-v32", "role:router", tensors=True),
                               ["inspect", "tiny-v32", "role:router", "--tensors"]),
                              (ingot.check("tiny-v32", tp=2), ["check", "tiny-v32", "--tp", "2"]),
                              (ingot.check("tiny-v32", engine="vllm"), ["check", "tiny-v32", "--engine", "vllm"]),
                              (ingot.verify("tiny-v32", "plain", sample=0.5),
                               ["verify", "tiny-v32", "plain", "--sample", "0.5"])):
            self.assertEqual(report, printed(*words), words)
        self.assertFalse(ingot.verify("tiny-v32", "plain", require=["weights.relative_error<=-1"])["passed"])
        with self.assertRaisesRegex(ingot.Error, "no effect"):
            ingot.verify("tiny-v32", "plain", tokens=3)

    def test_jobs_give_the_documents_of_their_commands(self):
        def printed(name, *words):
            return json.loads(subprocess.run([INGOT, name, *words, "--json"], stdout=subprocess.PIPE).stdout)

        def untimed(document):
            times = ("elapsed_seconds", "seconds", "peak_rss_bytes", "peak_memory_bytes", "stages", "limits", "prefill",
                     "decode", "seconds_to_first_token", "steps", "disk_bytes_free")
            return {key: value for key, value in document.items() if key not in times}
        prompt = "What is the capital of Norway?"
        with open("text.txt", "w") as file:
            file.write("One two three. " * 50)
        command("convert", "tiny-v32", "cut", "--ep", "2")
        for made, words in (
                (ingot.inspect("tiny-v32", gpu="h100"), ["inspect", "tiny-v32", "--gpu", "h100"]),
                (ingot.compare("plain", "tiny-v32"), ["compare", "plain", "tiny-v32"]),
                (ingot.generate("tiny-v32", prompt, greedy=True, max_new_tokens=4),
                 ["generate", "tiny-v32", "--prompt", prompt, "--greedy", "--max-new-tokens", "4"]),
                (ingot.convert("tiny-v32", "as-python", to="int8"), ["convert", "tiny-v32", "as-words", "--to", "int8"]),
                (ingot.repair("tiny-v32", "repaired", dry_run=True), ["repair", "tiny-v32", "repaired", "--dry-run"]),
                (ingot.merge("cut", "merged", dry_run=True), ["merge", "cut", "merged", "--dry-run"]),
                (ingot.calibrate("tiny-v32", "text.txt", "a.safetensors", max_tokens=20),
                 ["calibrate", "tiny-v32", "--text", "text.txt", "--out", "b.safetensors", "--max-tokens", "20"]),
                (ingot.synth("made-a", family="deepseek_v32", like="tiny"),
                 ["synth", "made-b", "--family", "deepseek_v32", "--like", "tiny"])):
            expected = json.loads(json.dumps(printed(*words)).replace("as-words", "as-python").replace("made-b", "made-a")
                                  .replace("b.safetensors", "a.safetensors"))
            for keys in (made, expected):  # the plan of a dry run in Python has these, too
                keys.pop("config", None), keys.pop("tensors", None) if "dry_run" in keys else None
            self.assertEqual(untimed(made), untimed(expected), words)
        self.assertEqual(ingot.list("rules"), printed("list", "rules")["rules"])
        self.assertEqual(ingot.list("engines", "vllm", "nvfp4"), printed("list", "engines", "vllm", "nvfp4")["engines"])
        plan, dry = ingot.plan("tiny-v32", "new", to="fp8"), printed("convert", "tiny-v32", "new", "--to", "fp8", "--dry-run")
        self.assertEqual(len(plan.pop("tensors")), 112)
        self.assertEqual(plan.pop("config")["quantization_config"]["quant_method"], "fp8")
        self.assertEqual(untimed(plan), untimed(dry))
        for part in range(2):
            ingot.convert("tiny-v32", "joined", to="int8", part=f"{part}/2")
        self.assertTrue(ingot.join("joined")["published"])
        self.assertEqual(same_bytes("joined", "as-words"), [])
        ingot.verify("tiny-v32", "plain", html="page.html")
        self.assertGreater(os.path.getsize("page.html"), 1000)

    def test_a_failed_gate_is_one_sentence_and_has_its_report(self):
        with self.assertRaises(ingot.Error) as caught:
            ingot.convert("tiny-v32", "gated", to="nvfp4", verify="weights", require=["weights.cosine>=1.1"])
        self.assertEqual((caught.exception.code, caught.exception.file), ("mismatch", "gated"))
        self.assertIn("weights.cosine >= 1.1 does not hold", str(caught.exception))
        self.assertLess(len(str(caught.exception)), 300)
        self.assertFalse(caught.exception.report["published"])
        self.assertIn("gates", caught.exception.report["verification"])
        with self.assertRaisesRegex(ingot.Error, "would lose values") as caught:
            ingot.convert("tiny-v32", "lost", to="nvfp4", lossless_only=True)
        self.assertEqual(caught.exception.report["error"]["tensor"], caught.exception.tensor)
        with self.assertRaises(ingot.Error) as caught:
            ingot.plan("nowhere", "new", to="nvfp4")
        self.assertEqual(caught.exception.report["error"]["code"], "not-found")

    def test_a_command_of_the_library_leaves_terminal_and_launcher_alone(self):
        code = ("import ingot, json; ingot.convert('tiny-v32', 'silent', to='int8', allow=[]); "
                "ingot.generate('tiny-v32', 'Hi', max_new_tokens=1)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        for option in ("mpi", "progress", "quiet", "json"):
            with self.assertRaisesRegex(ingot.Error, option):
                ingot.plan("tiny-v32", "new", **{option: "never"})

    def test_errors_have_code_and_context(self):
        with self.assertRaises(ingot.Error) as caught:
            ingot.open("nowhere")
        self.assertEqual((caught.exception.code, caught.exception.file), ("not-found", "nowhere"))
        self.assertIsInstance(caught.exception, FileNotFoundError)
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertIsInstance(again, FileNotFoundError)
        self.assertEqual((again.code, str(again)), (caught.exception.code, str(caught.exception)))
        with self.assertRaisesRegex(ingot.Error, "did you mean max-shard-size?"):
            ingot.plan("tiny-v32", "none", max_shard_sise="5GB")
        with self.assertRaisesRegex(ingot.Error, "--hash"):
            ingot.plan("tiny-v32", "none", hash="md5")
        self.assertRaises(KeyError, ingot.open("tiny-v32").__getitem__, "nothing")

    def test_control_c_stops_a_job_that_can_go_on(self):
        sent, heard = [], threading.Event()

        def hear(*_):
            heard.set()
            raise KeyboardInterrupt

        def interrupt(*_):
            if not sent:
                sent.append(os.kill(os.getpid(), signal.SIGINT))
                heard.wait()
                time.sleep(0.2)  # until the main thread, which has heard it, has let go of it
        before = signal.signal(signal.SIGINT, hear)
        try:
            self.assertRaises(KeyboardInterrupt, ingot.convert, "tiny-v32", "stopped", to="int8", progress=interrupt)
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertFalse(os.path.exists("stopped/ingot.json"))
        ingot.convert("tiny-v32", "stopped", to="int8", resume=True)
        command("convert", "tiny-v32", "unstopped", "--to", "int8")
        self.assertEqual(same_bytes("stopped", "unstopped"), [])

    def test_failures_of_the_callback_are_raised(self):
        def fail(*_):
            raise ZeroDivisionError
        self.assertRaises(ZeroDivisionError, ingot.convert, "tiny-v32", "failed", to="int8", progress=fail)

    def test_what_is_closed_is_refused_while_threads_use_it(self):
        def close_while_used(opened, use):
            faults, begun = [], threading.Event()

            def work():
                try:
                    for _ in range(10 ** 6):
                        use(opened)
                        begun.set()
                except Exception as error:
                    faults.append(str(error))
                    begun.set()
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            begun.wait()
            opened.close()
            for thread in threads:
                thread.join()
            return faults
        kept = list(ingot.open(EXAMPLE).stored.items())
        with ingot.open(EXAMPLE) as checkpoint:
            self.assertEqual(close_while_used(checkpoint, lambda it: it[GATE].numpy()), ["the checkpoint is closed"] * 4)
            with self.assertRaisesRegex(ValueError, "the checkpoint is closed"):
                checkpoint.shapes()
        plan = ingot.Plan(f"{EXAMPLE}/config.json", ingot.open(EXAMPLE).shapes(), to="nvfp4")
        encoder, given, lock = ingot.Encoder(plan), iter(kept), threading.Lock()

        def encode(it):
            with lock:
                name, tensor = next(given, kept[0])
            it.encode(name, tensor)
        plan.close()  # its encoder goes on
        name, tensor = next(given)
        encoder.encode(name, tensor)
        faults = close_while_used(encoder, encode)
        self.assertTrue(set(faults) <= {"the encoder is closed", f"tensor '{kept[0][0]}': has been given before"}, faults)
        with self.assertRaisesRegex(ValueError, "the encoder is closed"):
            encoder.finish()

    def test_memory_that_is_not_to_be_written_is_refused(self):
        weight = ingot.open(EXAMPLE)[ATTENTION]
        out = numpy.zeros(weight.shape, "float32")
        out.flags.writeable = False
        with self.assertRaisesRegex(ValueError, f"{ATTENTION}: out is no contiguous, writable array"):
            weight.numpy(out=out)
        self.assertFalse(out.any())

    def test_a_list_of_prompts_is_answered(self):
        norway, sum_ = "What is the capital of Norway?", "What is 2 + 2?"
        answers = ingot.generate(WHOLE, [norway, [{"role": "user", "content": sum_}], {"prompt": norway}], greedy=True,
                                 max_new_tokens=8)["sequences"]
        single = ingot.generate(WHOLE, norway, greedy=True, max_new_tokens=8)["sequences"][0]
        self.assertEqual([answers[0]["text"], answers[2]["text"], len(answers)], [single["text"], single["text"], 3])
        self.assertNotEqual(answers[1]["text"], single["text"])
        self.assertRaises(ValueError, ingot.generate, WHOLE, [])

    def test_one_weight_is_quantized_as_the_command_line_does(self):
        os.mkdir("alone")
        with open("alone/model.safetensors", "wb") as file:
            gate = ingot.open("plain")[GATE]
            header = json.dumps({GATE: {"dtype": "BF16", "shape": gate.shape, "data_offsets": [0, gate.nbytes]}}).encode()
            file.write(len(header).to_bytes(8, "little") + header + gate.tobytes())
        with open("alone/config.json", "w") as file:
            json.dump({"model_type": "none"}, file)
        weight = ingot.open("plain")[GATE]
        for scheme, options in (("nvfp4", {}), ("nvfp4", {"dialect": "modelopt", "activations": "weight-only"}), ("int8", {}), ("fp8", {}), ("mxfp4", {}),
                                ("int4", {"group_size": 32}), ("fp8-channel", {}), ("mxfp8", {})):
            with self.subTest(scheme=scheme, **options):
                out = "one-" + scheme + "-".join(map(str, options.values()))
                words = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]
                # By itself, without the weights whose scale it would share.
                command("convert", "alone", out, "--rule", f"{GATE}={scheme}", "--family", "generic", *words)
                parts = ingot.quantize(weight, scheme, **options)
                expected = ingot.open(out, family="generic").stored
                self.assertEqual({name: tensor.tobytes() for name, tensor in parts.items()},
                                 {name.rpartition(".")[2]: expected[name].tobytes() for name in expected})
                self.assertEqual((parts.scheme, parts.shape), (scheme, weight.shape))
                decoded = ingot.open(out, family="generic")[GATE].float32()
                numpy.testing.assert_array_equal(ingot.dequantize(parts), decoded)
                numpy.testing.assert_array_equal(ingot.dequantize(dict(parts), read_json(f"{out}/config.json")), decoded)
        values = numpy.linspace(-3, 3, 128 * 128, dtype="float32").reshape(128, 128)
        self.assertLess(abs(ingot.dequantize(ingot.quantize(values, "int8")) - values).max(), 0.02)
        numpy.testing.assert_array_equal(ingot.dequantize(ingot.quantize(values, "f32")), values)
        self.assertRaises(ValueError, ingot.dequantize, dict(ingot.quantize(values, "int8")))
        self.assertRaises(ValueError, ingot.quantize, values, "int9")

    def test_names_of_the_hub_are_those_of_the_command_line(self):
        snapshot = "cache/models--Org--Tiny/snapshots/abc"
        shutil.copytree("plain", snapshot)
        os.makedirs("cache/models--Org--Tiny/refs")
        with open("cache/models--Org--Tiny/refs/main", "w") as file:
            file.write("abc")
        code = ("import ingot; c = ingot.open('Org/Tiny'); ingot.convert('Org/Tiny', 'of-hub', to='int8'); "
                "ingot.convert(dict(c.stored), 'like-hub', like='Org/Tiny', to='int8'); "
                "print(len(c), ingot.inspect('Org/Tiny')['tensors'])\ntry:\n  ingot.open('Org/None')\n"
                "except FileNotFoundError as error: print(error)")
        done = subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True,
                              env={**os.environ, "HF_HUB_CACHE": os.path.abspath("cache")})
        self.assertEqual(done.stdout.split("\n")[0], "112 112")
        self.assertIn("hf download Org/None", done.stdout)
        self.assertEqual(same_bytes("of-hub", "like-hub"), ["ingot.json"])

    def test_options_are_those_of_the_tables(self):
        script = os.path.join(os.path.dirname(DOCUMENT), "../scripts/python_options.py")
        subprocess.run([sys.executable, script, "made_options.py"], check=True)
        def types_of(kind):
            return {name: value.__forward_arg__ for name, value in kind.__annotations__.items()}
        for name, kind in runpy.run_path("made_options.py").items():
            if name.endswith("Options"):
                self.assertEqual(types_of(getattr(ingot._options, name)), types_of(kind), "run scripts/python_options.py")
        for line in ("max_shard_size: re-shard into files", "to: "):
            self.assertIn(line, ingot.convert.__doc__)
        self.assertIn("gpu: ", ingot.inspect.__doc__)
        self.assertNotIn("progress: ", ingot.convert.__doc__.split("Options:")[1])
        self.assertEqual(ingot.__version__, ingot.version())
        with open(os.path.join(os.path.dirname(ingot.__file__), "../../pyproject.toml")) as file:
            self.assertIn(f'version = "{ingot.__version__}"', file.read())
        sizes = [ingot.plan("tiny-v32", "new", to="int8", max_shard_size=size)["files"] for size in (10 ** 6, "1MB")]
        self.assertEqual(*sizes)

    def test_types_know_the_options(self):
        if subprocess.run([sys.executable, "-c", "import mypy"], capture_output=True).returncode != 0:
            self.skipTest("there is no mypy")
        lines = ["import ingot", "ingot.convert('a', 'b', to='nvfp4', mem_limit=10**9, rule=['x=keep'], hash='sha256')",
                 "with ingot.Writer('b', {'x': [1]}, to='nvfp4') as writer: writer.write('x', [1])",
                 "rows = ingot.open('a')['x'][0:4]", "plan: dict[str, object] = ingot.plan('a', 'b', tp=2)"]
        wrong = ["ingot.convert('a', 'b', tto='nvfp4')", "ingot.convert('a', 'b', hash='md5')", "ingot.check('a', deep='yes')",
                 "ingot.Plan({}, {}, tto='nvfp4')", "ingot.verify('a', 'b', tp=2.5)"]
        with open("typed.py", "w") as file:
            file.write("\n".join(lines + wrong) + "\n")
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "typed.py"], capture_output=True, text=True)
        found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if "typed.py:" in line and "error" in line}
        self.assertEqual(found, set(range(len(lines) + 1, len(lines) + len(wrong) + 1)), done.stdout)

    def test_the_package_is_a_command(self):
        main = "import os, sys, runpy; os.execv = lambda path, words: sys.exit(repr(words)); os.path.exists = lambda path: True; " \
               "sys.argv = ['ingot', 'list', 'schemes']; runpy.run_module('ingot', run_name='__main__')"
        done = subprocess.run([sys.executable, "-c", main], capture_output=True, text=True)
        self.assertIn("['ingot', 'list', 'schemes']", done.stderr)

    def test_files_that_changed_are_not_read(self):
        """Replaced, written (also with the time put back), shortened and removed after open(); whole files, slices and one file by itself; before and
        after another tensor was read. A right value is that of the file that was opened, or none."""
        def zeros_behind_header(path, into):
            with open(path, "rb") as file:
                n_header = 8 + int.from_bytes(file.read(8), "little")
            with open(into, "r+b") as file:
                file.seek(n_header)
                file.write(bytes(os.path.getsize(path) - n_header))

        def replaced(path):
            shutil.copy2(path, path + ".new")
            zeros_behind_header(path, path + ".new")
            stamp = os.stat(path)
            os.utime(path + ".new", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            os.rename(path + ".new", path)

        def written(path):
            zeros_behind_header(path, path)
            os.utime(path, ns=(0, 0))

        def put_back(path):
            stamp = os.stat(path)
            zeros_behind_header(path, path)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

        def shortened(path):
            os.truncate(path, os.path.getsize(path) // 2)

        command("convert", "tiny-v32", "ranks", "--ep", "2")
        command("convert", "tiny-v32", "whole", "--max-shard-size", "5GB")
        reads = [lambda c: c["model.norm.weight"].tobytes(), lambda c: c.stored["model.norm.weight"].tobytes(),
                 lambda c: c[ATTENTION].numpy().tobytes(), lambda c: c[ATTENTION].parts["scale"].tobytes()]
        for source, path in (("tiny-v32", "changed"), ("ranks", "changed"), ("whole", "changed/model.safetensors")):
            right = [read(ingot.open(path.replace("changed", source))) for read in reads]
            for change in (replaced, written, shortened, os.remove, put_back):
                for is_open in (False, True):
                    shutil.rmtree("changed", ignore_errors=True)
                    shutil.copytree(source, "changed")
                    checkpoint = ingot.open(path)
                    weight = checkpoint[ATTENTION]
                    if is_open:
                        checkpoint["model.layers.0.input_layernorm.weight"].tobytes()
                        weight.numpy()
                    for folder, _, files in os.walk("changed"):
                        for name in files:
                            if name.endswith(".safetensors"):
                                change(os.path.join(folder, name))
                    for read, value in zip(reads + [lambda _: weight.numpy().tobytes()], right + right[2:3]):
                        with self.subTest(change.__name__, source=source, is_open=is_open):
                            try:
                                self.assertEqual(read(checkpoint), value)
                            except ingot.Error as error:
                                self.assertIn(error.code, ("mismatch", "not-found"))

    def test_a_forked_child_gets_an_error(self):
        checkpoint = ingot.open("tiny-v32")
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                checkpoint[ATTENTION].numpy()
            except ingot.Error as error:
                os._exit(0 if error.code == "unsupported" else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_the_examples_of_the_document_run(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(WHOLE, f"{folder}/tiny-v32")
            os.chdir(folder)
            self.addCleanup(os.chdir, self.folder.name)
            failed, tried = doctest.testfile(DOCUMENT, module_relative=False)
        self.assertEqual(failed, 0)
        self.assertGreater(tried, 20)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
