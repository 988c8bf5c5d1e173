"""Claims about scripts/engines/read.py, on small packages that are made up here. read_test.py REPOSITORY"""

import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

SCRIPT = pathlib.Path(sys.argv.pop(1)) / "scripts/engines/read.py"

QUANT = '''
"""Words of a docstring: weight_block_size, strategy."""
from enum import Enum

METHODS: dict[str, type] = {"fp8": object, "awq": object}


class Strategy(Enum):
    TENSOR = "tensor"
    BLOCK = "block"


class Fp8Config:
    """Reads weight_block_size."""

    @classmethod
    def from_config(cls, config):
        # a comment about other_key
        block = config.get("weight_block_size", None)
        if (
            block is not None
            and len(block) != 2
        ):
            raise ValueError(
                "blocks have "
                "two sizes",
            )
        return cls(block, ignore=config["ignore"])

    def create_weights(self, layer, rows, cols):
        layer.register("weight_scale_inv", empty(rows, cols, dtype=torch.float32))


if True:
    LIMIT = 16
else:
    LIMIT = 32
'''
MODEL = '''
class LlamaForCausalLM:
    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def load_weights(self, weights):
        for name, weight in weights:
            if name not in self.params:
                continue
            self.params[name].load(weight)

    def forward(self, x):
        return x
'''
REGISTRY = '_MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}\n'
FILES = {"toy/__init__.py": "", "toy/quant.py": QUANT, "toy/models/llama.py": MODEL, "toy/registry.py": REGISTRY}
ABOUT = "Metadata-Version: 2.1\nName: toy-cpu\nVersion: {}\nRequires-Dist: compressed-tensors=={}\n"
PROBES = {
    "engine": "toy", "top": "toy", "packages": ["toy", "toy-cpu"], "folders": {"m": "toy/models/"},
    "classes": {"kind": "", "files": ["toy/registry.py"], "modules": "toy/models/"}, "loaders": ["load_weights"],
    "lists": [
        {"id": "methods", "kind": "keys", "files": ["toy/quant.py"], "names": ["METHODS"]},
        {"id": "keys", "kind": "config keys", "files": ["toy/*.py"]},
        {"id": "files", "kind": "files", "files": ["m:*.py"]},
        {"id": "architectures", "kind": "classes"},
        {"id": "pins", "kind": "pins", "names": ["compressed-tensors"]},
    ],
    "probes": [
        {"id": "load.key", "checks": [{"at": "toy/quant.py Fp8Config.from_config",
                                       "has": ['config.get("weight_block_size", None)', "len(block) != 2: raise ValueError("],
                                       "lacks": ["other_key"]}]},
        {"id": "load.argument", "checks": [{"at": "toy/quant.py Fp8Config.create_weights",
                                            "has": ["'weight_scale_inv', empty(rows, ..., dtype=torch.float32)"]}]},
        {"id": ["load.enum", "limit.enum"], "checks": [{"at": "toy/quant.py Strategy.BLOCK", "has": ["'block'"]}]},
        {"id": "limit.mapping", "checks": [{"at": ["toy/old.py LIMIT", "toy/quant.py LIMIT"], "has": ["16", "32"]}]},
        {"id": "limit.nowhere", "checks": [{"nowhere": "blockwise_int8", "under": "toy/"}]},
        {"id": "family.llama", "checks": [{"class": "LlamaForCausalLM"}]},
        {"id": "pin.compressed-tensors", "checks": [{"requires": "compressed-tensors==0.17.0"}]},
        {"id": "load.dtype", "unprobed": "no place lists them"},
    ],
}


class ReadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "probes").mkdir()
        self.write_probes(PROBES)

    def write_probes(self, probes):
        (self.root / "probes/toy.json").write_text(json.dumps(probes))

    def package(self, version="1.0", pin="0.17.0", **edits):
        """A wheel of the files; an edit is a file by its last word, and what is in the place of what."""
        files = dict(FILES)
        for word, pairs in edits.items():
            name = next(name for name in files if name.endswith(f"{word}.py"))
            for old, new in pairs:
                self.assertIn(old, files[name])
                files[name] = files[name].replace(old, new)
        path = self.root / f"toy_cpu-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)
            wheel.writestr(f"toy_cpu-{version}.dist-info/METADATA", ABOUT.format(version, pin))
        return path

    def run_it(self, *words):
        out = self.root / "out.json"
        done = subprocess.run([sys.executable, SCRIPT, *map(str, words), "--probes", self.root / "probes", "--json", out],
                              capture_output=True, text=True)
        document = json.loads(out.read_text()) if done.returncode < 2 else None
        return done, document, {row["id"]: row for row in document["rows"]} if document else {}

    def answers(self, **edits):
        done, document, rows = self.run_it(self.package("2.0", **edits), "--against", self.package("1.0"))
        self.assertEqual(done.returncode, int(any(row["answer"] not in ("still so", "cannot be probed") for row in rows.values())))
        return {name: row["answer"] for name, row in rows.items() if row["answer"] not in ("still so", "cannot be probed")}, rows

    def test_sound_package_is_still_so(self):
        done, document, rows = self.run_it(self.package())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(document["version"], "1.0")
        self.assertEqual({row["answer"] for row in rows.values()}, {"still so", "cannot be probed"})
        self.assertEqual(rows["load.dtype"]["note"], "no place lists them")
        self.assertEqual(rows["load.enum"]["code"], rows["limit.enum"]["code"])
        self.assertEqual(rows["load.argument"]["at"], "toy/quant.py:31")
        self.assertEqual(document["lists"], {
            "methods": ["awq", "fp8"], "keys": ["ignore", "weight_block_size"], "files": ["toy/models/llama.py"],
            "architectures": ["LlamaForCausalLM"], "pins": ["compressed-tensors==0.17.0"]})

    def test_renamed_key_is_noticed(self):
        changed, rows = self.answers(quant=[('"weight_block_size", None', '"block_size", None')])
        self.assertEqual(changed, {"load.key": "changed"})
        self.assertIn("weight_block_size", rows["load.key"]["note"])

    def test_renamed_argument_is_noticed(self):
        self.assertEqual(self.answers(quant=[("dtype=torch", "scale_dtype=torch")])[0], {"load.argument": "changed"})

    def test_changed_enum_is_noticed(self):
        self.assertEqual(self.answers(quant=[('BLOCK = "block"', 'BLOCK = "blocks"')])[0],
                         {"load.enum": "changed", "limit.enum": "changed"})
        self.assertEqual(self.answers(quant=[('    BLOCK = "block"\n', "")])[0], {"load.enum": "gone", "limit.enum": "gone"})

    def test_removed_class_is_gone(self):
        self.assertEqual(self.answers(registry=[("Llama", "Other")])[0], {"family.llama": "gone"})

    def test_removed_mapping_is_gone(self):
        self.assertEqual(self.answers(quant=[("LIMIT", "BOUND")])[0], {"limit.mapping": "gone"})

    def test_way_round_is_noticed(self):
        self.assertEqual(self.answers(quant=[("other_key", "x"), ('["ignore"]', '["ignore"] or other_key')])[0],
                         {"load.key": "changed"})
        self.assertEqual(self.answers(llama=[("return x", "return blockwise_int8(x)")])[0], {"limit.nowhere": "changed"})

    def test_other_pin_is_noticed(self):
        self.assertEqual(self.answers(pin="0.18.0")[0], {"pin.compressed-tensors": "changed"})

    def test_added_method_is_listed(self):
        done, document, _ = self.run_it(self.package("2.0", quant=[('"awq": object', '"awq": object, "quark": object')]),
                                        "--against", self.package("1.0"))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(document["differences"]["methods"], {"added": ["quark"], "removed": []})
        self.assertIn("  + quark", done.stdout)

    def test_added_key_and_architecture_are_listed(self):
        _, document, _ = self.run_it(
            self.package("2.0", quant=[('config["ignore"]', 'config["ignore"] + config.pop("exclude")')],
                         registry=[("}", ', "NewForCausalLM": ("new", "New")}')]), "--against", self.package("1.0"))
        self.assertEqual(document["differences"]["keys"]["added"], ["exclude"])
        self.assertEqual(document["differences"]["architectures"]["added"], ["NewForCausalLM"])

    def test_format_and_comments_do_not_count(self):
        changed, rows = self.answers(quant=[
            ("# a comment about other_key", "# another\n        # comment"), ('"weight_block_size", None', "'weight_block_size' , None"),
            ('"blocks have "\n                "two sizes",', '"blocks have two sizes"'), ('"""Reads weight_block_size."""', ""),
            ("rows, cols, dtype=torch.float32", "rows,\n            cols,\n            dtype=torch.float32")])
        self.assertEqual(changed, {})
        self.assertEqual({name for name, row in rows.items() if row["same_code"] is False}, set())

    def test_other_code_is_told_from_the_same(self):
        changed, rows = self.answers(llama=[("self.params[name].load(weight)", "self.params[name].load(weight.t())")],
                                     quant=[("return cls(block,", "return cls(list(block),")])
        self.assertEqual(changed, {})
        self.assertEqual({name for name, row in rows.items() if row["same_code"] is False}, {"load.key", "family.llama"})
        self.assertEqual(self.answers(llama=[("return x", "return x + 0")])[1]["family.llama"]["same_code"], True)

    def test_row_that_was_never_so_is_told(self):
        probes = json.loads(json.dumps(PROBES))
        probes["probes"][0]["checks"][0]["has"] = ["config.get('group_size')"]
        self.write_probes(probes)
        self.assertEqual(self.answers()[0], {"load.key": "never so"})

    def test_new_fact_names_the_version_without_it(self):
        probes = json.loads(json.dumps(PROBES))
        probes["probes"][0]["checks"][0] = {"at": "toy/quant.py Fp8Config.from_config", "has": ["config.get('new')"]}
        self.write_probes(probes)
        changed, rows = self.answers(quant=[('config.get("weight_block_size", None)', 'config.get("new")')])
        self.assertEqual(changed, {})
        self.assertEqual(rows["load.key"]["note"], "not so in 1.0")

    def test_an_earlier_answer_takes_the_place_of_a_package(self):
        self.run_it(self.package("1.0"))
        (self.root / "out.json").rename(self.root / "old.json")
        done, document, rows = self.run_it(self.package("2.0"), "--against", self.root / "old.json")
        self.assertEqual((done.returncode, document["against"]), (0, "1.0"))
        self.assertTrue(all(row["same_code"] for row in rows.values() if row["code"] and row["id"] != "limit.nowhere"))

    def test_folders_and_source_archives_are_packages(self):
        with zipfile.ZipFile(self.package()) as wheel:
            wheel.extractall(self.root / "site")
        (self.root / "checkout/python").mkdir(parents=True)
        (self.root / "site/toy").rename(self.root / "checkout/python/toy")
        done, document, _ = self.run_it(self.root / "checkout")
        self.assertEqual((done.returncode, document["version"]), (1, "unknown"), "pins are unknown there")
        with tarfile.open(self.root / "toy-3.0.tar.gz", "w:gz") as archive:
            archive.add(self.root / "checkout/python/toy", "toy-3.0/toy")
            (self.root / "PKG-INFO").write_text(ABOUT.format("3.0", "0.17.0"))
            archive.add(self.root / "PKG-INFO", "toy-3.0/PKG-INFO")
        done, document, _ = self.run_it(self.root / "toy-3.0.tar.gz")
        self.assertEqual((done.returncode, document["version"]), (0, "3.0"), done.stdout + done.stderr)

    def test_nothing_of_the_package_runs(self):
        mark = self.root / "ran"
        done, _, _ = self.run_it(self.package(quant=[("from enum import Enum", f"open({str(mark)!r}, 'w')")]))
        self.assertEqual(done.returncode, 0)
        self.assertFalse(mark.exists())

    def test_newer_grammar_is_searched_as_text(self):
        changed, rows = self.answers(quant=[("from enum import Enum", "a grammar that comes = 1")])
        self.assertEqual(changed, {"load.key": "changed"}, "format counts there, comments do not")
        self.assertIn("len(block) != 2: raise", rows["load.key"]["note"])
        self.assertFalse(rows["load.argument"]["same_code"])

    def test_only_takes_a_prefix(self):
        _, document, rows = self.run_it(self.package(), "--only", "limit.")
        self.assertEqual(sorted(rows), ["limit.enum", "limit.mapping", "limit.nowhere"])

    def test_unusable_input_is_exit_code_two(self):
        (self.root / "empty").mkdir()
        (self.root / "broken.whl").write_text("no archive")
        for words in [(self.root / "empty",), (self.root / "none.whl",), (self.root / "broken.whl",),
                      (self.package(), "--against", self.root / "empty"), (self.package(), "--engine", "other")]:
            self.assertEqual(self.run_it(*words)[0].returncode, 2, words)
        probes = json.loads(json.dumps(PROBES))
        probes["probes"][0]["checks"][0] = {"at": "x:quant.py", "has": ["a"]}
        self.write_probes(probes)
        self.assertEqual(self.run_it(self.package())[0].returncode, 2, "a folder without a name")


unittest.main()
