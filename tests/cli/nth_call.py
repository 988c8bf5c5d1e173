#!/usr/bin/env python3
"""nth_call.py INGOT FAULTS EXAMPLE [--all] [--only PATTERN] [--threads N] [--jobs N]: the nth call of a kind fails.

For each job of JOBS, each call of FAULTS_OF and n = 1, 2, ... until the job ends without an nth such call: the process
is killed at it, or this one call returns an error that it can return. Then

* the output is whole, or one error names the reason and a file, and nothing crashes or hangs;
* no file has its final name before all are there, a manifest has it last, and an output that is not whole is marked as
  unfinished;
* the source is as it was; of a source that is consumed, everything that is gone is in the output;
* the same command with --resume, without a fault, ends in the bytes of an undisturbed run, and leaves nothing else.

The commands of READERS suffer READERS_FAULTS; the answer is the usual one, or one error.

FAULTS is what tests/support/faults.c becomes, EXAMPLE a model with a tokenizer. Without --all a part of the points is
tried, the same in every run: of a job every second kind of call, of a reader a few.
PATTERN, which may be repeated, chooses among JOB:CALL:WHAT:N, e.g. 'slice:rename' or 'cast:pwrite:EIO:7'; then every n
is tried.
"""

import argparse
import bisect
import concurrent.futures
import fnmatch
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "differential"))
from container import write_file  # noqa: E402

KILL = "KILL"
FULL = "FULL"  # ENOSPC from the nth call on
DAMAGE = ["FLIP", "LOSE"]  # a disk that writes something else, or nothing, and says that all is well
# What each call can return. A call that is interrupted, or does a part, is made again: such a fault shows nowhere.
FAULTS_OF = {
    "open": [KILL, "EIO", "ENOSPC", "EMFILE", "EINTR"],
    "opendir": [KILL, "EIO", "EMFILE"],  # the standard library lists folders, and says so where it is interrupted
    "pread": [KILL, "EIO", "EINTR", "SHORT"],
    "pwrite": [KILL, "EIO", "ENOSPC", FULL, "EINTR", "SHORT"],
    "fsync": [KILL, "EIO", "ENOSPC", "EINTR"],
    "fsyncdir": [KILL, "EIO", "EINTR"],
    "fdatasync": [KILL, "EIO", "ENOSPC", "EINTR"],
    "syncfs": [KILL, "EIO", "ENOSPC", "EINTR"],
    "fallocate": [KILL, "EIO", "ENOSPC", "EINTR"],
    "ftruncate": [KILL, "EIO", "EINTR"],
    "rename": [KILL, "EIO", "ENOSPC"],
    "link": [KILL, "EIO", "ENOSPC"],
    "remove": [KILL, "EIO", "EPERM"],
    "mkdir": [KILL, "EIO", "ENOSPC"],
    "close": [KILL, "EIO", "EINTR"],
    "mmap": [KILL, "ENOMEM"],
    "flock": [KILL, "EINTR"],
}
UNSEEN = {"EINTR", "SHORT"}
# Of these calls the default tests kill at one n and fail at another; of most others they do one of both.
BOTH = {"pwrite", "rename"}
WITH_ALL = {"close"}
# Jobs that join what two other jobs do: only with --all, or by name.
JOBS_WITH_ALL = {"compose-slice", "delta-apply-ranks", "delta-in-place-ranks", "lora-part", "sglang-sharded"}
REASONS = {
    "EIO": "Input/output error",
    "ENOSPC": "No space left",
    FULL: "No space left",
    "EMFILE": "Too many open files",
    "EPERM": "Operation not permitted",
    # No thread starts without memory for its stack, and its creator cannot know that reason. OpenSSL has other words.
    "ENOMEM": "out of memory|cannot allocate|cannot start thread|cannot create shared object|OpenSSL( neither|: )",
    **dict.fromkeys(DAMAGE, ""),
}
# Words of libraries, which say nothing to a user.
FOREIGN = re.compile(
    r"terminate called|what\(\)|std::|bad_alloc|basic_|filesystem error|json\.exception|yaml-cpp|"
    r"fault of ingot's own|Assertion|Sanitizer"
)
TIMEOUT = 300  # ends what hangs; a busy machine takes ten times as long as an idle one
OURS = re.compile(r"\.ingot-(partial|swept|delta|probe-.*)$|\.ingot\.intoto\.json-[0-9a-f]{16}$")
CHANGING = ".ingot-partial/delta.json"  # a journal of `delta apply`, which is finished by the next call


class Job:
    """A command that writes `out`. `before` are commands, or pairs of one and a fault that ends it, after which it
    begins; `after` follow it when it has ended; `source` is a folder of make_models(); `damage` is found by it."""

    def __init__(self, name, words, source="model", before=(), after=(), consumes=False, resumed=None, damage=()):
        self.name, self.words, self.source, self.consumes = name, words.split(), source, consumes
        self.faults = {**FAULTS_OF, "pwrite": [*FAULTS_OF["pwrite"], *damage]}
        self.before, self.after = before, [words.split() for words in after]
        self.resumed = resumed.split() if resumed else [*self.words, "--resume"]


MODEL = (
    "--family deepseek_v3 --like tiny --layers 2 --dense-layers 1 --experts 2 --mtp-layers 0 --shards 2 "
    "--split-scale --hidden 128 --intermediate 128 --moe-intermediate 128 --vocab 32 --heads 2"
)
SYNTH = [
    f"synth model {MODEL}",
    f"synth newer {MODEL} --seed 1",
    "synth wide --family deepseek_v3 --like tiny --layers 2 --dense-layers 1 --experts 4 --mtp-layers 0",
    "synth many --family qwen3_moe --like tiny --layers 1 --experts 9 --hidden 64 --moe-intermediate 32 --vocab 32 "
    "--heads 2",
]
KEPT = '{"0": [0, 1, 2, 4, 5, 6, 7, 8]}'  # of `many`
CAST = "convert in out --to bf16 --max-shard-size 100KB"
QUANTIZE = "convert in out --to nvfp4 --search mse --max-shard-size 100KB"
SLICE = "convert in out --tp 2 --ep 2 --tp-fit retile"
REPLACE = "convert in out --to bf16 --force"
COMPOSE = "compose compose.yaml out --max-shard-size 100KB"
LORA = "convert in out --lora adapter --to nvfp4 --search amax --max-shard-size 100KB"
CONSUME = "convert in out --to bf16 --max-shard-size 100KB --consume-source"
ATTEST = "attest out --key ed25519.pem --source in"
JOBS = [
    Job("cast", CAST),
    Job("windows", "convert in out --to bf16 --mem-limit 36MiB", source="wide"),
    Job("verified", CAST + " --verify structure"),
    Job("quantize", QUANTIZE),
    Job("read-back", CAST + " --read-back --hash sha256", damage=DAMAGE),
    Job("buffered", CAST + " --read-back --buffered", damage=DAMAGE),
    Job("slice", SLICE),
    Job("vllm-sharded", "convert in out --layout vllm-sharded --to bf16 --tp 2"),
    Job("sglang-sharded", "convert in out --layout sglang-sharded --to bf16 --tp 2"),
    Job("repair", "repair in out", source="broken"),
    Job("lora", LORA),
    Job("lora-part", LORA + " --part 0/2", before=[LORA + " --part 1/2"], after=["join out"]),
    Job("compose", COMPOSE),
    Job("compose-slice", COMPOSE + " --tp 2 --tp-fit retile --resume", before=[(COMPOSE + " --tp 2 --tp-fit retile", "rename:KILL:5")]),
    Job("consume", CONSUME, consumes=True),
    Job("consume-late", CONSUME + " --read-back --tp 2 --tp-fit retile", consumes=True),
    Job("first-part", QUANTIZE + " --part 0/2", after=[QUANTIZE + " --part 1/2", "join out"]),
    Job("part", QUANTIZE + " --part 0/2", before=[QUANTIZE + " --part 1/2"], after=["join out"]),
    Job("join", "join out", before=[QUANTIZE + " --part 0/2", QUANTIZE + " --part 1/2"], resumed="join out"),
    Job("resume", QUANTIZE + " --resume", before=[(QUANTIZE, "fdatasync:KILL:5")]),
    Job("publish", SLICE + " --resume", before=[(SLICE, "rename:KILL:9")]),
    Job("consume-on", CONSUME + " --resume", before=[(CONSUME, "remove:KILL:9")], consumes=True),
    Job("merge", "merge in out", source="slices"),
    Job("delta-make", "delta make in newer --out out --encoding overwrite", resumed="delta make in newer --out out "
        "--encoding overwrite"),
    Job("delta-apply", "delta apply out stream", before=[f"synth out {MODEL}"], resumed="delta apply out stream"),
    Job("delta-in-place", "delta apply out stream --in-place", before=[f"synth out {MODEL}"],
        resumed="delta apply out stream"),
    Job("base", QUANTIZE + " --base quantized"),
    Job("base-slice", SLICE + " --base slices"),
    Job("delta-apply-ranks", "delta apply out cut-stream", before=[SLICE.replace("in out", "model out")],
        resumed="delta apply out cut-stream"),
    Job("delta-in-place-ranks", "delta apply out cut-stream --in-place", before=[SLICE.replace("in out", "model out")],
        resumed="delta apply out cut-stream"),
    Job("prune", "prune in out --keep-map kept.json --no-measure", source="many"),
    Job("attest", ATTEST, before=["convert in out --to fp8-channel"], resumed=ATTEST),
    Job("replace", REPLACE, before=["convert in out --to nvfp4"], resumed=REPLACE + " --resume"),
]
# Sources that are made of the first.
MODELS = {
    "broken": "convert model broken --to fp8-channel",
    "slices": SLICE.replace("in out", "model slices"),
    "stream": "delta make model newer --out stream",
    "quantized": "convert model quantized --to nvfp4 --search mse",
    "newer-slices": SLICE.replace("in out", "newer newer-slices"),
    "cut-stream": "delta make slices newer-slices --out cut-stream",
}

READERS = {
    "inspect": "inspect model --json",
    "check": "check model --json",
    "verify": "verify model model --levels structure --json",
    "dry-run": "convert model none --to nvfp4 --dry-run --json",
    "recipe": "convert model none --recipe recipe.yaml --dry-run --json",
    "compose-recipe": "compose compose.yaml none --source base=model --dry-run --json",
    "lora-plan": "convert model none --lora adapter --dry-run --json",
    "attest": "attest quantized --key ed25519.pem --source model --bundle sealed.json --json",
    "attest-files": "attest quantized --key p256.pem --form model-signing --bundle files.sig --json",
    "attest-verify": "attest --verify quantized --key ed25519.pub.pem --bundle signed.json --source model --json",
    "files-verify": "attest --verify quantized --key p256.pub.pem --bundle model.sig --json",
    "rederive": "rederive quantized --source model --sample 5 --seed 1 --json",
    "rederive-all": "rederive slices --source model --all --bundle cut.json --key ed25519.pub.pem --json",
    "chat": "generate example --prompt fox --chat-format template --max-new-tokens 0 --json",
}
READERS_FAULTS = {"malloc": "ENOMEM", "opendir": "ENOMEM", "pread": "EIO"}
COLLECTS = ("check", "pread")  # a file that cannot be read is one of its findings
READERS_WITH_ALL = {"attest-files", "files-verify", "rederive-all"}
KEYS = ("ed25519.pem", "ed25519.pub.pem", "p256.pem", "p256.pub.pem")
FILES = ("recipe.yaml", "compose.yaml", "kept.json", "example", "signed.json", "model.sig", "cut.json")
# Statements that the readers verify.
SIGNED = [
    "attest quantized --key ed25519.pem --source model --bundle signed.json",
    "attest quantized --key p256.pem --form model-signing --bundle model.sig",
    "attest slices --key ed25519.pem --source model --bundle cut.json",
]
# Attention of another build, next to a scheme for other tensors.
COMPOSED = """
base: in
sources: {other: slices}
fused: rescale
rules:
  - match: role:attention
    from: other
  - match: role:experts
    scheme: fp8-channel
"""
RECIPE = """
to: nvfp4
rules:
  - match: role:experts & layers:last
    scheme: keep
  - match: 're:model\\.layers\\.[0-9]+\\.self_attn'
    scheme: bf16
"""
SIGNERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/oms/signers")
# Functions of dependencies that end the program where they get no memory.
ENDS_OF_OTHERS = {
    "json_value::destroy": "nlohmann's destructor takes memory for a list of what is inside",
    "onig_compile": "Oniguruma 6.9.8 frees a tree twice where it gets no memory for an alternative (prs_alts)",
    "__cxa_thread_atexit_impl": "glibc ends a program where it cannot note what ends with a thread",
}
EVERY_ALLOCATION, DRAWN_ALLOCATIONS = 2000, 500


class Wrong(Exception):
    """A claim that does not hold."""


class Point:
    def __init__(self, job, call, what, n):
        self.job, self.call, self.what, self.n = job, call, what, n

    def faults(self):
        """For INGOT_FAULTS."""
        if self.what == FULL:
            return f"{self.call}:ENOSPC:{self.n}"
        return f"{self.call}:{self.what}:{self.n}:{self.n}"

    def __str__(self):
        return f"{self.job}:{self.call}:{self.what}:{self.n}"


def tree(folder):
    """The bytes of each file, None of each folder, by name."""
    found = {}
    for at, folders, files in os.walk(folder):
        inside = os.path.relpath(at, folder)
        for name in folders:
            found[os.path.normpath(os.path.join(inside, name))] = None
        for name in files:
            with open(os.path.join(at, name), "rb") as file:
                found[os.path.normpath(os.path.join(inside, name))] = file.read()
    return found


def stamps(folder):
    """What tells that a file was written to or replaced."""
    return {entry.name: (entry.stat().st_mtime_ns, entry.inode()) for entry in os.scandir(folder)}


def copy_tree(source, target):
    """With times, and with hard links among the files."""
    shutil.rmtree(target, ignore_errors=True)
    links = {}

    def copy(old, new):
        inode = os.stat(old).st_ino
        if inode in links:
            os.link(links[inode], new)
        else:
            shutil.copy2(old, new)
            links[inode] = new

    if os.path.isdir(source):
        shutil.copytree(source, target, copy_function=copy)


class Bench:
    """A folder in which one thing is tried after the other: models, and `out`."""

    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.environment = {
            **os.environ,
            "INGOT_DISK": "1",
            "LD_PRELOAD": options.faults,
            "INGOT_CALLS": str(self.folder / "calls"),
            # No caches of freed memory, in which what is freed twice is not always seen.
            "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
        }
        self.started, self.seen = set(), {}

    def run(self, words, faults=None):
        """Exit status, text of stdout and of stderr."""
        environment = {**self.environment, **({"INGOT_FAULTS": faults} if faults else {})}
        (self.folder / "calls").unlink(missing_ok=True)
        limits = ["--threads", str(self.options.threads)] if words[0] != "inspect" else []
        if words[0] in ("convert", "compose", "prune", "repair", "merge", "join", "delta") and "--json" not in words:
            limits += ["--progress", "never"]
        try:
            done = subprocess.run(
                [self.options.ingot, *words, *limits],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise Wrong(f"{' '.join(words)} does not end") from None
        if any(secret in done.stdout + done.stderr for secret in self.options.secrets):
            raise Wrong(f"{' '.join(words)} prints a key: {done.stdout[:300]} {done.stderr[:300]}")
        return done.returncode, done.stdout, done.stderr

    def require(self, words):
        code, _, errors = self.run(words)
        if code != 0:
            raise Wrong(f"{' '.join(words)} without a fault ends with {code}: {errors[:600]}")

    def counts(self):
        """Calls of the last run, by kind."""
        data = (self.folder / "calls").read_bytes()
        return {name.rstrip(b"\0").decode(): n for name, n in struct.iter_unpack("<16sq", data)}

    def path(self, name):
        return str(self.folder / name)

    # Jobs.

    def begin(self, job):
        """Makes what the job finds."""
        if job.name not in self.started:
            copy_tree(self.path(job.source), self.path("in"))
            shutil.rmtree(self.path("out"), ignore_errors=True)
            for step in job.before:
                words, fault = step if isinstance(step, tuple) else (step, None)
                if not fault:
                    self.require(words.split())
                elif self.run(words.split(), fault)[0] != -9:
                    raise Wrong(f"{words} does not meet {fault}")
            copy_tree(self.path("in"), self.path(job.name + ".in"))
            copy_tree(self.path("out"), self.path(job.name + ".out"))
            self.started = {job.name}
        elif job.consumes or self.changed_source:
            copy_tree(self.path(job.name + ".in"), self.path("in"))
        copy_tree(self.path(job.name + ".out"), self.path("out"))
        self.changed_source = False
        self.source, self.source_stamps = tree(self.path("in")), stamps(self.path("in"))
        self.found = tree(self.path("out"))

    def undisturbed(self, job):
        """Calls of the job, and its output."""
        self.begin(job)
        self.require(job.words)
        counts = self.counts()
        for words in job.after:
            self.require(words)
        return counts, tree(self.path("out"))

    def try_point(self, job, point, expected):
        """True if the call was met. Throws Wrong."""
        self.begin(job)
        code, _, errors = self.run(job.words, point.faults())
        is_met = self.counts().get(point.call, 0) >= point.n
        if not is_met or point.what in UNSEEN:
            if code != 0:
                raise Wrong(f"ends with {code}: {errors[:600]}")
        elif point.what == KILL:
            if code != -9:
                raise Wrong(f"was not killed, and ends with {code}: {errors[:600]}")
        elif code != 0:
            require_one_error(code, errors, point.what)
        now = tree(self.path("out"))
        self.require_source(job)
        self.require_unpublished(now, expected)
        if CHANGING in now and "half changed" not in self.run(["inspect", "out"])[2]:
            raise Wrong("a half changed directory is read")
        if code == 0 and not job.after and now != expected:
            raise Wrong(f"ends well, but {difference(now, expected)}")
        is_as_it_was = now == self.found and tree(self.path("in")) == self.source
        if now != expected and not is_as_it_was or code == 0 and job.after:
            if code != 0:
                self.note(job, now, point)
                self.require(job.resumed)
            for words in job.after:
                self.require(words)
            now = tree(self.path("out"))
            if now != expected:
                raise Wrong(f"after --resume {difference(now, expected)}")
            self.require_source(job)
        return is_met

    def note(self, job, now, point):
        """What the resumed run finds."""
        journals = [now[name] for name in now if fnmatch.fnmatch(name, ".ingot-partial/*.jsonl")]
        facts = {
            "finished tensors": any(b'{"item"' in data for data in journals),
            "a begun publication": any(b'{"publishing"' in data for data in journals),
            "no source file": job.consumes and not list((self.folder / "in").glob("*.safetensors")),
            "damage": point.what in DAMAGE,
            "a journal of a delta": CHANGING in now,
        }
        for fact in [fact for fact, holds in facts.items() if holds]:
            self.seen[fact] = self.seen.get(fact, 0) + 1

    def require_source(self, job):
        now = tree(self.path("in"))
        if not job.consumes:
            if now != self.source or stamps(self.path("in")) != self.source_stamps:
                self.changed_source = True
                raise Wrong("the source has changed")
        elif any(self.source[name] != data for name, data in now.items()):
            raise Wrong("a file of the consumed source has changed")

    def require_unpublished(self, now, expected):
        """No final name before all are there, and the mark of an unfinished output until they are."""
        tops = {name.split("/")[0] for name in now}
        finals = {name for name in tops if not OURS.match(name)}
        partial = ".ingot-partial" in tops
        begun = {name.split("/")[0] for name in self.found}
        journal = now.get(".ingot-partial/journal.jsonl") or b""
        if partial and CHANGING not in now and b'"publishing"' not in journal and finals - begun:
            raise Wrong(f"{sorted(finals - begun)[:3]} have final names before anything is published")
        for manifest in now.keys() & expected.keys() - self.found.keys():
            if not manifest.endswith("ingot.json"):
                continue
            folder = os.path.dirname(manifest)
            late = [name for name in expected if name.startswith(folder) and now.get(name, b"") != expected[name]]
            if late:
                raise Wrong(f"{manifest} is there before {late[:3]}")
        whole = {name: data for name, data in now.items() if not OURS.match(name.split("/")[0])}
        if finals and not partial and whole != expected and whole != self.found:
            raise Wrong(f"the output is not marked as unfinished, but {difference(whole, expected)}")

    # Readers.

    def places(self, errors):
        """Functions that were at work when the program ended itself, the last first."""
        found = re.findall(r"^abort: (.*)\+(\w+) (.*)$", errors, re.M)
        known = functions(self.options.ingot) if found else []
        return [
            known[bisect.bisect(known, (int(at, 16),)) - 1][1].replace("(anonymous namespace)::", "").split("(")[0]
            if known and file == self.options.ingot
            else name
            for file, at, name in found
        ]

    def try_reader(self, point, expected):
        code, output, errors = self.run(READERS[point.job].split(), point.faults())
        is_met = self.counts()[point.call] >= point.n
        places = self.places(errors)
        for end in ENDS_OF_OTHERS:
            if any(end in place for place in places):
                self.seen[end] = self.seen.get(end, 0) + 1
                return is_met
        if code not in (0, 2) or not is_met and code != 0:
            raise Wrong(f"ends with {code} in {', '.join(filter(None, places)) or errors[:600]}")
        if code == 0 and without_space(output) != without_space(expected):
            raise Wrong("gives another answer")
        if code == 2:
            # Before the words are read it is not known that JSON is asked for.
            if output:
                try:
                    errors = "error: " + json.loads(output)["error"]["text"] + "\n"
                except (ValueError, KeyError, TypeError):
                    raise Wrong(f"does not answer in JSON: {output[:200]} {errors[:200]}") from None
            require_one_error(code, errors, point.what)
        return is_met


def without_space(text):
    """Without the space that is free, which others take meanwhile, and the memory that was used."""
    return re.sub(r'"(disk_bytes_free|peak_memory_bytes)": \d+', "", text)


def functions(program):
    """Offset and name of each function of a program, in their order."""
    text = subprocess.run(["nm", "-C", "--defined-only", program], capture_output=True, text=True).stdout
    rows = [line.split(" ", 2) for line in text.splitlines()]
    return sorted((int(row[0], 16), row[2]) for row in rows if row[1] in "tTwWuV")


def require_one_error(code, errors, what):
    if code != 2:
        raise Wrong(f"ends with {code}: {errors[:600]}")
    messages = [line for line in errors.splitlines() if line.startswith("error: ")]
    if len(messages) != 1:
        raise Wrong(f"{len(messages)} errors: {errors[:600]}")
    message = errors[errors.index("error: "):]
    if FOREIGN.search(message):
        raise Wrong(f"speaks as a library does: {message[:600]}")
    if not re.search(REASONS[what], message):
        raise Wrong(f"does not say why: {message[:600]}")
    named = message.replace(REASONS[what], "")
    if what != "ENOMEM" and not re.search(r"/|\b(in|out|newer)\b|\.safetensors|\.json|\.yaml|\.pem|\.sig", named):
        raise Wrong(f"names no file: {message[:600]}")


def difference(now, expected):
    others = {name for name in now.keys() & expected.keys() if now[name] != expected[name]}
    for kind, names in [
        ("has more", now.keys() - expected.keys()),
        ("lacks", expected.keys() - now.keys()),
        ("has other bytes in", others),
    ]:
        if names:
            return f"the output {kind} {sorted(names)[:3]}"
    return "nothing differs"


def make_models(bench):
    for name in KEYS:
        shutil.copy(os.path.join(SIGNERS, name), bench.folder)
        os.chmod(bench.folder / name, 0o600)
    for words in [*SYNTH, *MODELS.values(), *SIGNED]:
        bench.require(words.split())
    broken = bench.folder / "broken"
    for name in ("ingot.json", "ingot.tensors.jsonl.zst"):
        (broken / name).unlink()
    config = json.loads((broken / "config.json").read_text())
    config["quantization_config"]["ignore"] = ["lm_head"]
    (broken / "config.json").write_text(json.dumps(config, indent=2))
    (bench.folder / "recipe.yaml").write_text(RECIPE)
    (bench.folder / "compose.yaml").write_text(COMPOSED)
    (bench.folder / "kept.json").write_text(KEPT)
    make_adapter(bench.folder / "adapter")
    os.symlink(bench.options.example, bench.folder / "example")


def make_adapter(folder):
    """A pair of rank 2 for an expert of `model`, with lengths of rows, and a norm that is replaced."""
    module = "base_model.model.model.layers.1.mlp.experts.1.down_proj"
    tensors = {f"{module}.lora_A.weight": (2, 128), f"{module}.lora_B.weight": (128, 2),
               f"{module}.lora_magnitude_vector": (128,), "base_model.model.model.norm.weight": (128,)}
    os.mkdir(folder)
    write_file(folder / "adapter_model.safetensors", {
        name: ("F32", shape, struct.pack(f"<{math.prod(shape)}f", *((i % 17 + 1) / 64 for i in range(math.prod(shape)))))
        for name, shape in tensors.items()})
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": true}')


class Loop:
    """All points, on several benches."""

    def __init__(self, options, root):
        self.options, self.root = options, root
        self.only = [(text.split(":") + ["*"] * 4)[:4] for text in options.only]
        self.here = threading.local()
        self.lock = threading.Lock()
        self.tried, self.failures = {}, []
        self.seen = {}  # of what resumed runs found, how often
        first = Bench(options, self.folder("first"))
        make_models(first)
        self.first = first
        self.n_benches = 0

    def folder(self, name):
        path = os.path.join(self.root, name)
        os.mkdir(path)
        return path

    def bench(self):
        if not hasattr(self.here, "bench"):
            with self.lock:
                self.n_benches += 1
                path = self.folder(f"bench{self.n_benches}")
            for name in ("model", "wide", "many", "newer", "adapter", *MODELS):
                copy_tree(self.first.path(name), os.path.join(path, name))
            for name in (*FILES, *KEYS):
                shutil.copy(self.first.path(name), path, follow_symlinks=False)
            self.here.bench = Bench(self.options, path)
            self.here.bench.seen = self.seen
        return self.here.bench

    def note(self, point, failure):
        with self.lock:
            key = (point.job, point.call)
            self.tried[key] = self.tried.get(key, 0) + 1
            if failure:
                self.failures.append(f"{point}: {failure}")
                print(f"FAILED: {point}: {failure}", file=sys.stderr, flush=True)

    def try_all(self, points, attempt):
        """The points in their order, until one is not met, or too many fail."""
        n_failed = 0
        for point in points:
            try:
                if not attempt(point):
                    print(f"{point} is not met", flush=True)
                    return
                self.note(point, None)
            except Wrong as wrong:
                self.note(point, str(wrong))
                n_failed += 1
                if n_failed == 20:
                    return

    def chain_of(self, job, call, what, counts, expected):
        chosen = self.chosen(job, call, what, counts.get(call, 0))
        self.try_all((Point(job.name, call, what, n) for n in chosen),
                     lambda point: self.bench().try_point(job, point, expected))

    def asked(self, *names):
        """The numbers that the patterns ask for."""
        return {pattern[3] for pattern in self.only if all(map(fnmatch.fnmatch, names, pattern))}

    def is_asked(self, name):
        return not self.only or any(fnmatch.fnmatch(name, pattern[0]) for pattern in self.only)

    def chosen(self, job, call, what, n):
        """Every number without an end, or some of those that an undisturbed run has."""
        numbers = self.asked(job.name, call, what)
        if self.only and "*" not in numbers:
            return sorted(map(int, numbers))
        if self.options.all or self.only:
            return range(1, sys.maxsize)
        # Neighbouring jobs take turns with the other calls.
        turn = (JOBS.index(job) + list(FAULTS_OF).index(call)) % 2
        if n == 0 or call in WITH_ALL or turn and call not in BOTH:
            return []
        draw = random.Random(f"{job.name} {call}")
        picked = {KILL: draw.randint(1, n), draw.choice(job.faults[call][1:]): draw.randint(1, n)}
        if call not in BOTH:
            picked.pop(draw.choice(sorted(picked)))
        return [picked[what]] if what in picked else []

    def reader(self, name):
        bench = self.bench()
        code, expected, errors = bench.run(READERS[name].split())
        if code != 0:
            raise Wrong(f"{READERS[name]} without a fault ends with {code}: {errors[:600]}")
        counts = bench.counts()
        for call, what in READERS_FAULTS.items():
            if (name, call) == COLLECTS:
                continue
            n = counts[call]
            draw = random.Random(name)
            numbers = self.asked(name, call, what)
            if self.only and "*" not in numbers:
                chosen = sorted(map(int, numbers))
            elif self.options.all or self.only:
                every = min(EVERY_ALLOCATION, n)
                later = range(every + 1, n + 1)
                chosen = [*range(1, every + 1), *sorted(draw.sample(later, min(DRAWN_ALLOCATIONS, len(later))))]
            else:
                chosen = sorted(draw.sample(range(1, n + 1), min(4, n)))
            self.try_all((Point(name, call, what, n) for n in chosen),
                         lambda point: bench.try_reader(point, expected))

    def run(self):
        tasks = []
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for job in JOBS:
                is_usual = self.options.all or self.only or job.name not in JOBS_WITH_ALL
                if not self.is_asked(job.name) or not is_usual:
                    continue
                counts, expected = self.first.undisturbed(job)
                for call, kinds in job.faults.items():
                    for what in kinds:
                        tasks.append(pool.submit(self.chain_of, job, call, what, counts, expected))
            for name in READERS:
                is_usual = self.options.all or self.only or name not in READERS_WITH_ALL
                if is_usual and self.is_asked(name):
                    tasks.append(pool.submit(self.reader, name))
            for task in tasks:
                task.result()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ingot", type=os.path.abspath)
    parser.add_argument("faults", type=os.path.abspath)
    parser.add_argument("example", type=os.path.abspath)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", metavar="PATTERN", action="append", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    options.secrets = [
        line
        for name in KEYS
        if ".pub" not in name
        for line in pathlib.Path(SIGNERS, name).read_text().splitlines()
        if not line.startswith("-----")
    ]
    with tempfile.TemporaryDirectory(prefix="ingot-nth-") as root:
        loop = Loop(options, root)
        loop.run()
    if options.all and not options.only:
        for fact in ("finished tensors", "a begun publication", "no source file", "damage", "a journal of a delta"):
            if loop.seen.get(fact, 0) < 10:
                loop.failures.append(fact)
                print(f"FAILED: {loop.seen.get(fact, 0)} resumed runs have met {fact}", file=sys.stderr)
    print("resumed runs have met " + ", ".join(f"{fact} {n} times" for fact, n in sorted(loop.seen.items())))
    for job in {key[0]: None for key in loop.tried}:
        print(f"{job}: " + ", ".join(f"{call} {n}" for (name, call), n in loop.tried.items() if name == job))
    print(f"{sum(loop.tried.values())} points, {len(loop.failures)} failures")
    return 1 if loop.failures else 0


if __name__ == "__main__":
    sys.exit(main())
