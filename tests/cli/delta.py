#!/usr/bin/env python3
"""delta.py INGOT GOLDEN [all]: versions of checkpoints as deltas.

* Chains of versions in BF16, FP8, NVFP4 and INT4 equal full conversions byte for byte, applied by ingot in one step,
  one by one and in place, and by the decoder below, which is written after docs/versions.md and shares no code with it.
* Streams of another program (GOLDEN) are applied, full versions among them, and leave no manifest of the old weights.
* A delta of another base, out of order, cut, changed, or with an index that lies is refused, and nothing changes.
* Files with other names (hard links) and links to files are never written to.
* Outputs that are cut for ranks go on from one another and have deltas as whole ones do, all ranks in one step.

With `all` chains have 20 versions."""

import contextlib
import ctypes
import ctypes.util
import fcntl
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy

ingot, golden = sys.argv[1], pathlib.Path(sys.argv[2])
N_VERSIONS = 20 if "all" in sys.argv[3:] else 3
failures = []

zstd = ctypes.CDLL(ctypes.util.find_library("zstd"))
zstd.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
for name in ("ZSTD_decompress", "ZSTD_compress", "ZSTD_compressBound"):
    getattr(zstd, name).restype = ctypes.c_size_t
zstd.ZSTD_isError.argtypes = [ctypes.c_size_t]
zstd.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
zstd.ZSTD_compress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
zstd.ZSTD_getFrameContentSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash"))
xxhash.XXH3_128bits.restype = Hash128
xxhash.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3(data):
    found = xxhash.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"


SUMS = {"xxh3-128": xxh3, "adler32": lambda data: f"{zlib.adler32(data):08x}", "blake3": None}


def compress(data, level=1):
    out = ctypes.create_string_buffer(zstd.ZSTD_compressBound(len(data)))
    n = zstd.ZSTD_compress(out, len(out), data, len(data), level)
    return out.raw[:n]


def decompress(data):
    size = zstd.ZSTD_getFrameContentSize(data, len(data))
    if size >= 2**64 - 2:
        raise ValueError("a frame without its content size")
    out = ctypes.create_string_buffer(max(size, 1))
    n = zstd.ZSTD_decompress(out, size, data, len(data))
    if zstd.ZSTD_isError(n) or n != size:
        raise ValueError("no zstd frame")
    return out.raw[:size]


def note(claim, holds, words=""):
    if not holds:
        failures.append(claim)
        print(f"FAILED: {claim} {words}", file=sys.stderr)


def run(*words, code=0):
    done = subprocess.run([ingot, *map(str, words)], capture_output=True, text=True)
    note(" ".join(map(str, words)), done.returncode == code, f"ended with {done.returncode}: {done.stderr}")
    return done.stdout + done.stderr


def document(*words):
    return json.loads(subprocess.run([ingot, *map(str, words), "--json"], capture_output=True, text=True).stdout)


def delta(*words, code=0):
    return run("delta", *words, "--progress", "never", code=code)


# Files.


def read_weights(path):
    """Header and tensors of a safetensors file: name to dtype, shape and bytes."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    metadata = header.pop("__metadata__", {}) or {}
    body = data[8 + n :]
    return metadata, {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }


def write_weights(path, metadata, tensors):
    header, body = {"__metadata__": metadata}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def tensors_in(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(read_weights(path)[1])
    return found


def tree(folder, without=()):
    """Bytes of each file, and the target of each link."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and not name.startswith(without):
            found[name] = path.read_bytes()
    return found


@contextlib.contextmanager
def open_folder(path):
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def copy(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    target.chmod(0o755)
    return target


def changed(source, target, share, seed):
    """A checkpoint in which a share of the values of each second tensor has another lowest bit."""
    copy(source, target)
    draw = numpy.random.default_rng(seed)
    for path in target.glob("*.safetensors"):
        metadata, tensors = read_weights(path)
        for i, (name, (dtype, shape, data)) in enumerate(sorted(tensors.items())):
            if dtype != "BF16" or (i + seed) % 2:
                continue
            values = numpy.frombuffer(data, numpy.uint16).copy()
            values ^= (draw.random(values.size) < share).astype(numpy.uint16)
            tensors[name] = (dtype, shape, values.tobytes())
        write_weights(path, metadata, tensors)
    return target


# The decoder: from the bytes of a base to those of a version.


def decoded(version, base):
    index = json.loads((version / "model.safetensors.index.json").read_text())
    metadata = index["metadata"]
    if metadata["compression_format"] != "zstd":
        raise ValueError(metadata)
    now, seen = dict(base), set()
    for path in sorted(version.glob("*.safetensors")):
        sums, payloads = read_weights(path)
        for name, (dtype, shape, payload) in payloads.items():
            if dtype != "U8" or shape != [len(payload)] or index["weight_map"][name] != path.name:
                raise ValueError(name)
            kind, form, before = base[name]
            content = decompress(payload)
            if metadata["delta_encoding"] == "xor":
                after = (numpy.frombuffer(before, numpy.uint8) ^ numpy.frombuffer(content, numpy.uint8)).tobytes()
            else:
                (n,) = struct.unpack("<I", content[:4])
                at = numpy.frombuffer(content[4 : 4 + 4 * n], "<u4")
                if len(content) != 4 + 5 * n or numpy.any(numpy.diff(at.astype(numpy.int64)) <= 0):
                    raise ValueError(name)
                values = numpy.frombuffer(before, numpy.uint8).copy()
                values[at] = numpy.frombuffer(content[4 + 4 * n :], numpy.uint8)
                after = values.tobytes()
            sum_of = SUMS[metadata["checksum_format"]]
            if sum_of and sum_of(after) != sums[name]:
                raise ValueError(f"{name} has another checksum")
            now[name] = (kind, form, after)
            seen.add(name)
    if seen != index["weight_map"].keys():
        raise ValueError("index and files differ")
    return now


# Claims.


def chain(work, scheme, flags, options):
    """Full conversions of n + 1 versions, a stream of their differences, and who follows it."""
    work.mkdir()
    run("synth", work / "source0", "--family", "qwen3_moe", "--scheme", "bf16", "--like", "tiny", "--shards", 2)
    full = []
    for i in range(N_VERSIONS + 1):
        if i:
            changed(work / f"source{i - 1}", work / f"source{i}", [0.01, 0.3, 0.001][i % 3], i)
        full.append(work / f"full{i}")
        run("convert", work / f"source{i}", full[-1], *flags, "--progress", "never", "--max-shard-size", "100KB")
    stream = work / "stream"
    for i in range(1, N_VERSIONS + 1):
        delta("make", full[i - 1], full[i], "-o", stream, *options)
    now = tensors_in(full[0])
    for i in range(1, N_VERSIONS + 1):
        now = decoded(stream / f"weight_v{i:06}", now)
        note(f"{scheme}: version {i} by the decoder", now == tensors_in(full[i]))
    base = copy(full[0], work / "base")
    for i in range(1, N_VERSIONS + 1):
        delta("apply", base, stream / f"weight_v{i:06}", *(["--in-place"] if i % 2 else []))
        note(f"{scheme}: version {i} step by step", tree(base, ".weight_sync") == tree(full[i]))
    state = (base / ".weight_sync/state.json").read_text()
    note(f"{scheme}: the state", state == f'{{"version": "{N_VERSIONS:06}"}}', state)
    run("check", base)
    whole = copy(full[0], work / "whole")
    text = delta("check", whole, stream)
    note(f"{scheme}: says how far", "tensors of the base have the digests" in text, text)
    delta("apply", whole, stream)
    note(f"{scheme}: all at once", tree(whole) == tree(base))
    note(f"{scheme}: nothing is left next to it", not list(work.glob(".*")), list(work.glob(".*")))
    before = tree(whole)
    note(f"{scheme}: again", "the last of these" in delta("apply", whole, stream) and tree(whole) == before)
    again = work / "again"
    delta("make", full[0], full[1], "-o", again, *options, "--threads", 1)
    name = "weight_v000001"
    note(f"{scheme}: the bytes of a delta", tree(again / name) == tree(stream / name))
    shutil.rmtree(work)


def theirs(work):
    work.mkdir()
    for model, name, in_place in [
        ("bf16", "xor-xxh3", False),
        ("bf16", "xor-blake3", True),
        ("bf16", "overwrite-adler32", False),
        ("bf16", "full-at-2", False),
        ("bf16", "full-at-2", True),
        ("fp8", "overwrite-xxh3", True),
    ]:
        flags = ["--in-place"] if in_place else []
        expected = json.loads((golden / model / "v4.sha256.json").read_text())
        base = copy(golden / model / "v0", work / "base")
        (base / "ingot.json").write_text("{}")
        text = delta("check", base, golden / model / name)
        is_full = "full" in name
        note(f"{model} {name}: says how far", "compared with nothing" in text, text)
        note(f"{model} {name}: says what is full", is_full == ("is a full one" in text), text)
        delta("apply", base, golden / model / name, *flags)
        found = {name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in tensors_in(base).items()}
        note(f"{model} {name} {flags}: version 4", found == expected)
        note(f"{model} {name} {flags}: no stale manifest", not (base / "ingot.json").exists())
        note(f"{model} {name} {flags}: files", (base / "model.safetensors").exists() == is_full)
        run("inspect", base)
        one = copy(golden / model / "v0", work / "one")
        for i in range(1, 5):
            delta("apply", one, golden / model / name / f"weight_v{i:06}", *flags)
        note(f"{model} {name} {flags}: one by one", tensors_in(one) == tensors_in(base))
    shutil.rmtree(work)


def edit_index(version, change):
    path = version / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def edit_weights(version, change):
    path = sorted(version.glob("*.safetensors"))[0]
    metadata, tensors = read_weights(path)
    change(metadata, tensors)
    write_weights(path, metadata, tensors)


def set_payload(content, raw=False):
    """Gives the first tensor another payload."""

    def change(metadata, tensors):
        name = sorted(tensors)[0]
        payload = content if raw else compress(content(name) if callable(content) else content)
        tensors[name] = ("U8", [len(payload)], payload)

    return lambda version: edit_weights(version, change)


def set_first(place, value):
    def change(metadata, tensors):
        (metadata if place == "sum" else tensors)[sorted(tensors)[0]] = value

    return lambda version: edit_weights(version, change)


def flip(name, at):
    def change(version):
        data = bytearray((version / name).read_bytes())
        data[at] ^= 1
        (version / name).write_bytes(data)

    return change


def in_map(change):
    return lambda version: edit_index(version, lambda index: change(index["weight_map"]))


def in_metadata(**keys):
    return lambda version: edit_index(version, lambda index: index["metadata"].update(keys))


def add_state(version):
    (version / "extra/.weight_sync").mkdir()
    (version / "extra/.weight_sync/state.json").write_text("{}")


def cut(version):
    path = sorted(version.glob("*.safetensors"))[0]
    os.truncate(path, path.stat().st_size - 7)


def second_file(version):
    path = sorted(version.glob("*.safetensors"))[0]
    shutil.copy(path, version / "more.safetensors")
    edit_index(version, lambda index: index["weight_map"].update({"x": "more.safetensors"}))


def words(n, positions, values):
    return struct.pack(f"<{1 + len(positions)}I", n, *positions) + values


def refusals(work):
    work.mkdir()
    source = work / "source0"
    run("synth", source, "--family", "qwen3_moe", "--scheme", "bf16", "--like", "tiny")
    full = []
    for i in range(3):
        if i:
            changed(work / f"source{i - 1}", work / f"source{i}", 0.05, i)
        full.append(work / f"full{i}")
        run("convert", work / f"source{i}", full[-1], "--to", "bf16", "--progress", "never")
    (full[1] / "extra.json").write_text("{}")
    for encoding in ("xor", "overwrite"):
        for i in (1, 2):
            delta("make", full[i - 1], full[i], "-o", work / encoding, "--encoding", encoding)
    sizes = {name: len(data) for name, (_, _, data) in tensors_in(full[0]).items()}
    base = copy(full[0], work / "base")
    record = "ingot.delta.jsonl.zst"
    before = tree(work)

    applies = [[], ["--in-place"]]

    def refused(claim, *paths, base=base, says=""):
        seen = tree(work)
        applies.reverse()
        for words in (["check", base, *paths], ["apply", base, *paths, *applies[0]]):
            text = delta(*words, code=2)
            note(f"{claim}: says why", says in text, text)
        note(f"{claim}: nothing changes", tree(work) == seen and not list(work.glob(".*")))

    refused("out of order", work / "xor/weight_v000002", says="the base holds version 0")
    refused("in a wrong order", work / "xor/weight_v000002", work / "xor/weight_v000001", says="out of order")
    refused("another base", work / "xor", base=copy(full[1], work / "other"), says="is no base of it")
    refused("no versions", full[2], says="neither a stream")
    refused("twice", work / "xor", work / "overwrite", says="is version 1, and so is")
    spoiled = copy(full[0], work / "spoiled")
    data = bytearray((spoiled / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (spoiled / "model.safetensors").write_bytes(data)
    refused("one other byte", work / "xor", base=spoiled, says="is no base of it")
    shutil.rmtree(work / "spoiled"), shutil.rmtree(work / "other")
    for claim, encoding, damage, says in [
        ("cut", "xor", cut, "fetch it again"),
        ("another payload", "xor", set_payload(lambda name: bytes(sizes[name])), "promises"),
        ("another checksum", "xor", set_first("sum", "0" * 32), "promises"),
        ("a short checksum", "xor", set_first("sum", "0" * 8), "has no checksum of 32 digits"),
        ("a payload of F32", "xor", set_first("tensor", ("F32", [1], b"abcd")), "a payload is one row of U8"),
        ("no zstd", "xor", set_payload(b"abcdefgh", raw=True), "zstd frame"),
        ("a cut frame", "xor", set_payload(compress(bytes(5000))[:-3], raw=True), "zstd frame"),
        ("a short content", "xor", set_payload(b"abc"), "less content"),
        ("a long content", "xor", set_payload(lambda name: bytes(sizes[name] + 1)), "more content"),
        ("a bomb", "xor", set_payload(lambda name: bytes(1 << 24)), "more content"),
        ("an empty payload", "xor", set_payload(b"", raw=True), "zstd frame"),
        ("positions behind the end", "overwrite", set_payload(lambda name: words(1, [sizes[name]], b"a")), "behind"),
        ("positions twice", "overwrite", set_payload(words(2, [5, 5], b"ab")), "ascend"),
        ("positions that descend", "overwrite", set_payload(words(2, [5, 4], b"ab")), "ascend"),
        ("a wrong count", "overwrite", set_payload(words(3, [4, 5], b"ab")), "less content"),
        ("a huge count", "overwrite", set_payload(words(0xFFFFFFFF, [4, 5], b"ab")), "more bytes than"),
        ("bytes behind", "overwrite", set_payload(words(1, [4], b"ab")), "more content"),
        ("a name that is not there", "xor", in_map(lambda m: m.update(x=min(m.values()))), "where the index has it"),
        ("a name too few", "xor", in_map(lambda m: m.popitem()), "not named by the index"),
        ("a file that is not there", "xor", in_map(lambda m: m.update(x="x.safetensors")), "not here"),
        ("a file too many", "xor", second_file, "two files"),
        ("a file out of the folder", "xor", in_map(lambda m: m.update(x="../full0/model.safetensors")), ""),
        ("another number", "xor", in_metadata(version="000007"), "was it renamed"),
        ("another base's number", "xor", in_metadata(base_version="000005"), ""),
        ("no number", "xor", in_metadata(version=[]), "number"),
        ("the last number", "xor", in_metadata(version="18446744073709551615"), "number"),
        ("another encoding", "xor", in_metadata(delta_encoding="add"), "are read"),
        ("another compression", "xor", in_metadata(compression_format="lz4"), "are read"),
        ("no encoding", "xor", in_metadata(delta_encoding=None), "is a delta without"),
        ("no record", "xor", lambda v: (v / record).unlink(), record),
        ("a cut record", "xor", lambda v: os.truncate(v / record, 40), record),
        ("another record", "xor", lambda v: shutil.copy(v.parent / "weight_v000002" / record, v), "not the record"),
        ("another extra file", "xor", flip("extra/ingot.json", 5), "is not the file"),
        ("an extra file too many", "xor", lambda v: (v / "extra/more.json").write_text("{}"), "holds other files"),
        ("an extra file too few", "xor", lambda v: (v / "extra/extra.json").unlink(), "holds other files"),
        ("a link in extra", "xor", lambda v: os.symlink("/etc/passwd", v / "extra/passwd"), "no file that a delta may"),
        ("weights in extra", "xor", lambda v: (v / "extra/x.safetensors").write_text("{}"), "no file that a delta may"),
        ("a state in extra", "xor", add_state, "no file that a delta may"),
    ]:
        kept = copy(work / encoding, work / "kept")
        damage(work / encoding / "weight_v000001")
        refused(claim, work / encoding, says=says)
        copy(kept, work / encoding)
        shutil.rmtree(kept)
    note("all is as it was", tree(work) == before)

    # One tensor in several frames is as good as in one.
    frames = copy(work / "xor", work / "frames")

    def split(metadata, tensors):
        for name, (dtype, _, payload) in tensors.items():
            content = decompress(payload)
            payload = compress(content[:100]) + compress(content[100:])
            tensors[name] = (dtype, [len(payload)], payload)

    edit_weights(frames / "weight_v000001", split)
    delta("check", base, frames)
    run("delta", "make", full[0], full[2], "-o", work / "xor", code=2)
    run("delta", "make", full[2], source, "-o", full[1], code=2)
    text = run("delta", "make", full[1], golden / "bf16/v0", "-o", work / "none", code=2)
    note("other tensors", "publish the new version whole" in text and not (work / "none").exists(), text)
    (base / ".ingot-partial").mkdir()
    (base / ".ingot-partial/delta.json").write_text("{}")
    note("readers refuse a journal", "half changed" in run("inspect", base, code=2))
    run("delta", "check", base, work / "xor", code=2)
    shutil.rmtree(work)


def links(work):
    """Other names of a base's files keep their bytes, however it is changed."""
    work.mkdir()
    run("synth", work / "v0", "--family", "qwen3_moe", "--scheme", "bf16", "--like", "tiny", "--shards", 2)
    changed(work / "v0", work / "v1", 0.05, 2)
    delta("make", work / "v0", work / "v1", "-o", work / "stream", "--encoding", "overwrite", "--checksum", "blake3")
    weights = sorted((work / "v0").glob("*.safetensors"))
    for form in ("hard", "soft"):
        for flags in ([], ["--in-place"]):
            base = copy(work / "v0", work / "base")
            (base / "sub").mkdir()
            (base / "sub/notes.txt").write_text("notes")
            os.symlink("sub/notes.txt", base / "link.txt")
            kept = work / "kept.safetensors"
            os.rename(base / weights[0].name, kept)
            (os.link if form == "hard" else os.symlink)(kept, base / weights[0].name)
            data, stamp = kept.read_bytes(), kept.stat().st_mtime_ns
            delta("apply", base, work / "stream", *flags)
            claim = f"{form} links {flags}"
            note(f"{claim}: untouched", kept.read_bytes() == data and kept.stat().st_mtime_ns == stamp)
            note(f"{claim}: applied", tensors_in(base) == tensors_in(work / "v1"))
            note(f"{claim}: notes stay", (base / "sub/notes.txt").read_text() == "notes")
            note(f"{claim}: links stay", os.readlink(base / "link.txt") == "sub/notes.txt")
            shutil.rmtree(base), kept.unlink()
    # A file in the place of a folder, and the other way round.
    for path, files in (("v0", {"a": "1", "b/c": "2"}), ("v1", {"a/d": "3", "b": "4"})):
        for name, text in files.items():
            (work / path / name).parent.mkdir(exist_ok=True)
            (work / path / name).write_text(text)
    delta("make", work / "v0", work / "v1", "-o", work / "turned")
    for flags in ([], ["--in-place"]):
        base = copy(work / "v0", work / "base")
        delta("apply", base, work / "turned", *flags)
        now, then = ({k: v for k, v in tree(f, ".weight_sync").items() if "tensors" not in k} for f in (base, work / "v1"))
        note(f"files and folders {flags}", now == then and tensors_in(base) == tensors_in(work / "v1"), now.keys())
        base = copy(work / "v0", work / "base")
        (base / "b/kept").write_text("5")
        before = tree(base)
        delta("apply", base, work / "turned", *flags, code=2)
        note(f"a folder that holds more {flags}", tree(base) == before and not list(work.glob(".base*")))
        with open_folder(base) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            words = delta("apply", base, work / "turned", *flags, code=2)
        note(f"two at a time {flags}", "from another process" in words and tree(base) == before, words)
    # Sharded differently: tensors are changed where the base has them.
    run("convert", work / "v0", work / "c0", "--to", "nvfp4", "--progress", "never")
    run("convert", work / "v1", work / "c1", "--to", "nvfp4", "--progress", "never", "--max-shard-size", "60KB")
    delta("make", work / "c0", work / "c1", "-o", work / "other")
    files = {path.name for path in (work / "c0").glob("*.safetensors*")}
    delta("apply", work / "c0", work / "other")
    note("other shards: tensors", tensors_in(work / "c0") == tensors_in(work / "c1"))
    note("other shards: files", {path.name for path in (work / "c0").glob("*.safetensors*")} == files)
    note("other shards: no manifest", not (work / "c0/ingot.json").exists())
    run("check", work / "c0")
    shutil.rmtree(work)


def bases(work):
    """A conversion with a base is the conversion without one, to the byte, and writes what changed."""
    work.mkdir()
    source = [work / "source0", work / "source1"]
    run("synth", source[0], "--family", "qwen3_moe", "--scheme", "bf16", "--like", "tiny", "--shards", 2)
    changed(source[0], source[1], 0.05, 1)
    for scheme, *flags in (["nvfp4"], ["fp8", "--max-shard-size", "60KB"], ["bf16"]):
        flags = ["--to", scheme, *flags]
        old, full, based, same = (work / f"{scheme}-{name}" for name in ("old", "full", "based", "same"))
        for where, out in ((source[0], old), (source[1], full)):
            run("convert", where, out, *flags, "--progress", "never")
        stream = work / f"{scheme}-stream"
        report = document("convert", source[1], based, *flags, "--base", old, "--delta", stream, "--threads", 2)
        note(f"{scheme}: the output of a base", tree(based) == tree(full))
        is_less = report["bytes_written"] < report["bytes_out"]
        note(f"{scheme}: what is taken over", report["taken"] > 0 and is_less, report)
        delta("make", old, full, "-o", work / f"{scheme}-made")
        note(f"{scheme}: the delta of a conversion", tree(stream) == tree(work / f"{scheme}-made"))
        again = ["convert", source[1], based, *flags, "--base", old, "--delta", stream, "--resume", "--progress", "never"]
        words = run(*again)
        is_same = tree(stream) == tree(work / f"{scheme}-made")
        note(f"{scheme}: a conversion that is done", is_same and "by an earlier run" in words, words)
        shutil.rmtree(stream)
        run(*again)
        note(f"{scheme}: a delta that a kill prevented", tree(stream) == tree(work / f"{scheme}-made"))
        report = document("convert", source[0], same, *flags, "--base", old, "--base-source", source[0])
        files = sorted(old.glob("*.safetensors"))
        note(f"{scheme}: the same source", tree(same) == tree(old) and report["files_taken"] == len(files), report)
        note(f"{scheme}: links", all(os.path.samefile(path, same / path.name) for path in files))
    old, full = work / "nvfp4-old", work / "nvfp4-full"
    shards = ["--to", "nvfp4", "--max-shard-size", "60KB"]
    run("convert", source[1], work / "shards", *shards, "--progress", "never")
    report = document("convert", source[1], work / "based-shards", *shards, "--base", old)
    note("a base in other files", tree(work / "based-shards") == tree(work / "shards") and report["taken"] > 0, report)
    ordered = ["--to", "nvfp4", "--order", "name"]
    run("convert", source[0], work / "ordered", *ordered, "--progress", "never")
    report = document("convert", source[0], work / "based-order", *ordered, "--base", old, "--links", "no")
    note("a base in another order", tree(work / "based-order") == tree(work / "ordered") and report["taken"] > 0, report)
    run("convert", source[0], work / "copies", "--to", "nvfp4", "--base", old, "--links", "no", "--progress", "never")
    n_links = [path.stat().st_nlink for path in (work / "copies").glob("*.safetensors")]
    note("a base without links", tree(work / "copies") == tree(old) and set(n_links) == {1}, n_links)
    report = document("convert", source[1], work / "other", "--to", "nvfp4", "--search", "amax", "--base", old)
    words = " ".join(fault["message"] for fault in report["warnings"])
    note("a base of another recipe", report["taken"] == 0 and "another recipe" in words, report)
    spoiled = copy(old, work / "spoiled")
    for path in spoiled.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
    report = document("convert", source[1], work / "again", "--to", "nvfp4", "--base", spoiled)
    note("a spoiled base", tree(work / "again") == tree(full), report)
    none = [source[1], work / "none", "--to", "nvfp4"]
    words = run("convert", *none, "--base", old, "--base-source", source[1], code=2)
    note("another source of the base", "is not the tensor from which" in words, words)
    words = run("convert", source[1], work / "absent", "--to", "nvfp4", "--base", source[0], code=2)
    note("a base without records", "only an output of ingot" in words and not (work / "absent").exists(), words)
    run("convert", source[1], old / "sub", "--to", "nvfp4", "--base", old, code=2)
    shutil.rmtree(work)


CUTS = [
    ["ranks", "qwen3_moe", "--to", "nvfp4", "--tp", "2", "--ep", "2"],
    ["vllm-sharded", "qwen3_moe", "--to", "fp8", "--layout", "vllm-sharded", "--tp", "2", "--ep", "2"],
    ["deepseek-mp", "deepseek_v3", "--to", "bf16", "--layout", "deepseek-mp", "--mp", "2", "--mtp", "drop"],
    ["sglang-sharded", "qwen3_moe", "--to", "int8", "--layout", "sglang-sharded", "--tp", "2"],
]


def ranks(work, name, family, *flags):
    """Outputs for ranks: a conversion with a base, its delta, and who follows it."""
    work.mkdir()
    source = [work / "source0", work / "source1"]
    run("synth", source[0], "--family", family, "--scheme", "bf16", "--like", "tiny", "--shards", 2)
    changed(source[0], source[1], 0.05, 1)
    old, full, based, same, stream = (work / f"out-{word}" for word in ("old", "full", "based", "same", "stream"))
    for where, out in ((source[0], old), (source[1], full)):
        run("convert", where, out, *flags, "--progress", "never")
    report = document("convert", source[1], based, *flags, "--base", old, "--delta", stream, "--threads", 2)
    note(f"{name}: the output of a base", tree(based) == tree(full), report)
    note(f"{name}: what is taken over", report["taken"] > 0 and report["bytes_written"] < report["bytes_out"], report)
    delta("make", old, full, "-o", work / "made")
    note(f"{name}: the delta of a conversion", tree(stream) == tree(work / "made"))
    report = document("convert", source[0], same, *flags, "--base", old)
    for part in ("0/2", "1/2", "join"):
        words = ["--base", old, "--part", part, *(["--delta", work / "parts"] if part == "join" else [])]
        run("convert", source[1], work / "joined", *flags, *words, "--progress", "never")
    note(f"{name}: parts with a base", tree(work / "joined") == tree(full))
    note(f"{name}: the delta of parts", tree(work / "parts") == tree(stream))
    if name == "ranks":
        others = ["--max-shard-size", "100KB", "--links", "no"]
        report_other = document("convert", source[0], work / "other", *flags, *others, "--base", old)
        weights = [
            {(path.parent.name, tensor): data for path in out.rglob("*.safetensors") for tensor, data in read_weights(path)[1].items()}
            for out in (work / "other", old)
        ]
        note(f"{name}: a base in other files", report_other["taken"] > 0 and weights[0] == weights[1], report_other)
    files = sorted(path for path in old.rglob("*.safetensors"))
    is_linked = all(os.path.samefile(path, same / path.relative_to(old)) for path in files)
    note(f"{name}: files of the same source", tree(same) == tree(old) and is_linked, report)
    records = "ingot.tensors.jsonl.zst"
    bare = copy(old, work / "bare")
    (bare / records).unlink()
    words = run("convert", source[1], work / "none", *flags, "--base", bare, code=2)
    note(f"{name}: a base without records", "--base-source" in words, words)
    report = document("convert", source[1], work / "made-up", *flags, "--base", bare, "--base-source", source[0])
    weights = [tree(out, ("ingot.", "rank")) for out in (work / "made-up", full)]
    files = [{k: v for k, v in tree(out).items() if k.endswith(".safetensors")} for out in (work / "made-up", full)]
    note(f"{name}: records made up", report["taken"] > 0 and weights[0] == weights[1] and files[0] == files[1], report)
    for in_place in ([], ["--in-place"]):
        base = work / "base"
        shutil.rmtree(base, ignore_errors=True)
        subprocess.run(["cp", "-a", old, base], check=True)  # with its hard links
        text = delta("check", base, stream)
        note(f"{name}: says how far", "tensors of the base have the digests" in text, text)
        before = tree(old)
        delta("apply", base, stream, *in_place)
        now = {path: data for path, data in tree(base).items() if ".weight_sync/" not in path}
        note(f"{name}: applied {in_place}", now == tree(full), sorted(now.keys() ^ tree(full).keys()))
        note(f"{name}: the old one stays", tree(old) == before)
        links = [[path.stat().st_nlink for path in sorted(out.rglob("*.safetensors"))] for out in (base, full)]
        note(f"{name}: links between ranks", links[0] == links[1], links)
        run("check", base)
    loose = copy(old, work / "loose")  # ranks without links to one another
    delta("apply", loose, stream)
    now = {path: data for path, data in tree(loose).items() if ".weight_sync/" not in path}
    note(f"{name}: ranks that share no files", now == tree(full))
    for rank in old.glob("rank-*"):
        own = copy(rank, work / rank.name)
        delta("apply", own, stream)
        note(f"{name}: {rank.name} by itself", tree(own, ".weight_sync") == tree(full / rank.name))
        state = json.loads((own / ".weight_sync/state.json").read_text())
        note(f"{name}: the state of {rank.name}", state == {"version": "000001"}, state)
    for rank in list(old.glob("rank-*"))[:1]:
        with open_folder(base / rank.name) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            for path in list(base.rglob(".weight_sync")):
                shutil.rmtree(path)
            words = delta("apply", base, stream, code=2)
        note(f"{name}: a rank that another changes", "from another process" in words, words)
        mixed = copy(old, work / "mixed")
        shutil.copytree(work / rank.name, mixed / rank.name, dirs_exist_ok=True)
        words = delta("apply", mixed, stream, code=2)
        note(f"{name}: a rank of another version", "holds version 1" in words, words)
        run("convert", source[1], work / "none", *flags, "--base", old / rank.name, code=2)
        half = copy(old, work / "half")
        (half / ".ingot-partial").mkdir()
        (half / ".ingot-partial/delta.json").write_text("{}")
        words = run("check", half / rank.name, code=2)
        note(f"{name}: a rank while all change", "half changed" in words, words)
    spoiled = copy(old, work / "spoiled")
    for path in spoiled.rglob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
    report = document("convert", source[1], work / "again", *flags, "--base", spoiled)
    note(f"{name}: a spoiled base", tree(work / "again") == tree(full) and report["taken"] > 0, report)
    delta("apply", spoiled, stream, code=2)
    shutil.rmtree(work)


def main():
    with tempfile.TemporaryDirectory(prefix="ingot-delta-") as folder:
        work = pathlib.Path(folder)
        chain(work / "bf16", "bf16", ["--to", "bf16"], ["--encoding", "overwrite"])
        chain(work / "fp8", "fp8", ["--to", "fp8"], [])
        chain(work / "nvfp4", "nvfp4", ["--to", "nvfp4"], ["--checksum", "adler32"])
        chain(work / "int4", "int4", ["--to", "int4", "--group-size", "32"], ["--encoding", "overwrite", "--checksum", "blake3"])
        theirs(work / "theirs")
        refusals(work / "refusals")
        links(work / "links")
        bases(work / "bases")
        for words in CUTS if "all" in sys.argv[3:] else CUTS[:2]:
            ranks(work / words[0], *words)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
