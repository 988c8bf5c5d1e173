"""decoded.py CLAIMS: whether the claims of a file hold, one a line, words between tabs; prints what is not so.
hashes DIR JSON: the tensors of a checkpoint have the recorded hashes of their values, in F32, F16 or BF16.
same DIR DIR: the tensors of two checkpoints are the same bytes."""
import hashlib
import json
import pathlib
import sys

from container import read_file

HASH_OF = {"F32": "f32_sha256", "F16": "f16_sha256", "BF16": "bf16_sha256"}


def tensors(directory):
    files = sorted(pathlib.Path(directory).rglob("*.safetensors"))
    return {own.name: (own.dtype, list(own.shape), own.data) for path in files for own in read_file(path)}


def wrong_hashes(directory, golden):
    found = tensors(directory)
    for name, facts in json.loads(pathlib.Path(golden).read_text()).items():
        if isinstance(facts, dict) and "f32_sha256" in facts:
            dtype, shape, data = found.get(name, ("", [], b""))
            wanted = facts.get(HASH_OF.get(dtype))
            if shape != facts["shape"] or wanted != hashlib.sha256(data).hexdigest():
                yield name


def different(one, other):
    a, b = tensors(one), tensors(other)
    return (name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name))


n_false = 0
for claim in pathlib.Path(sys.argv[1]).read_text().splitlines():
    kind, one, other = claim.split("\t")
    wrong = list({"hashes": wrong_hashes, "same": different}[kind](one, other))
    n_false += bool(wrong)
    for name in wrong[:5]:
        print(f"{kind} {one} {other}: {name} differs ({len(wrong)} do)")
sys.exit(1 if n_false else 0)
