"""The folder and the files of the tests of the Python package: TEST INGOT SMALL ...

SMALL is a quarter of examples/tiny-v32. Environment: INGOT_LIBRARY, and PYTHONPATH with the package."""

import filecmp
import json
import os
import subprocess
import sys
import tempfile
import unittest

INGOT, EXAMPLE = (os.path.abspath(path) for path in sys.argv[1:3])
GATE = "model.layers.1.mlp.experts.0.gate_proj.weight"
GOLDEN = os.path.abspath(os.path.join(os.path.dirname(__file__), "../golden"))
ATTENTION = "model.layers.1.self_attn.q_b_proj.weight"


def command(*words):
    subprocess.run([INGOT, *words, "-q"], check=True, stdout=subprocess.DEVNULL)


def read_json(path):
    with open(path, "rb") as file:
        return json.load(file)


def same_bytes(a, b):
    """The names that differ between two directories."""
    names = sorted(set(os.listdir(a)) | set(os.listdir(b)))
    return [name for name in names if not (os.path.exists(f"{a}/{name}") and os.path.exists(f"{b}/{name}")
                                           and filecmp.cmp(f"{a}/{name}", f"{b}/{name}", shallow=False))]


class Converted(unittest.TestCase):
    """Tests in a folder with tiny-v32, a link to EXAMPLE, and plain, its BF16."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        os.chdir(cls.folder.name)
        os.symlink(EXAMPLE, "tiny-v32")
        command("convert", "tiny-v32", "plain", "--to", "bf16")
        # A model of a trainer has no records of an earlier conversion, whose FP8 scales would be remembered.
        os.remove("plain/ingot.json")
