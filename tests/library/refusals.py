"""Each refusal of the command line, in one table, is a refusal of the C interface and of the Python package too: with the
same code and words, and nothing is changed. Usage: refusals.py INGOT REFUSED_JOB; INGOT_LIBRARY and PYTHONPATH are set."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import ingot

PROGRAM, JOB_IN_C = sys.argv[1:3]
SNAPSHOT = "cache/models--Org--Tiny/snapshots/abc"
LINKED = "cache/models--Org--Linked/snapshots/abc"

# (command, source, output, options, code, a piece of the message)
CONVERT = [
    # The hub's cache, however it is reached.
    (SNAPSHOT, "new", {"to": "bf16", "consume-source": True}, "invalid-argument", "lies in the hub's cache"),
    ("link", "new", {"to": "bf16", "consume-source": True}, "invalid-argument", "hf download ORG/NAME --local-dir DIR"),
    (LINKED, "new", {"to": "bf16", "consume-source": True}, "invalid-argument", "lies in the hub's cache"),
    ("cache/models--Org--Tiny", "new", {"to": "bf16", "consume-source": True}, "invalid-argument", "lies in the hub's"),
    ("cache/mine", "new", {"to": "bf16", "consume-source": True}, "invalid-argument", "lies in the hub's cache"),
    ("other/models--Org--Tiny/snapshots/abc", "new", {"consume-source": True}, "invalid-argument", "other/models--Org"),
    ("other/datasets--Org--Tiny/snapshots/abc", "new", {"consume-source": True}, "invalid-argument", "other/datasets"),
    ("t", SNAPSHOT, {"to": "bf16"}, "invalid-argument", "an output would change what they read"),
    ("t", SNAPSHOT, {"to": "bf16", "force": True}, "invalid-argument", "lies in the hub's cache"),
    ("t", SNAPSHOT + "/new", {"to": "bf16"}, "invalid-argument", "lies in the hub's cache"),
    ("t", "cache/models--Org--Tiny/blobs/x", {"to": "bf16"}, "invalid-argument", "lies in the hub's cache"),
    ("t", "other/models--Org--Tiny", {"to": "bf16", "force": True}, "invalid-argument", "lies in the hub's cache"),
    ("t", "other/models--Org--Tiny/refs", {"to": "bf16", "force": True}, "invalid-argument", "lies in the hub's cache"),
    ("t", "link/new", {"to": "bf16"}, "invalid-argument", "lies in the hub's cache"),
    ("t", "cache/mine", {"to": "bf16", "force": True}, "invalid-argument", "lies in the hub's cache"),
    # Places.
    ("none", "new", {"to": "bf16"}, "not-found", "no such directory"),
    ("t", "t", {"to": "bf16"}, "invalid-argument", "must not contain one another"),
    ("t", "t/sub", {"to": "bf16"}, "invalid-argument", "must not contain one another"),
    ("t", ".", {"to": "bf16", "force": True}, "invalid-argument", "must not contain one another"),
    ("t", "new", {"to": "fp8", "scales-from": "none"}, "not-found", "no such directory"),
    ("t", "full", {"to": "bf16"}, "exists", "is not empty"),
    ("t", "full", {"to": "bf16", "resume": True}, "exists", "is not empty"),
    ("t", "done", {"to": "bf16"}, "exists", "holds a finished conversion"),
    ("t", "done", {"to": "int8", "resume": True}, "mismatch", ""),
    ("t", "begun", {"to": "int8"}, "exists", "holds an unfinished conversion"),
    ("t", "begun", {"to": "int8", "resume": True}, "mismatch", "--verify"),
    ("t", "begun", {"to": "bf16", "resume": True, "no-verify": True}, "mismatch", "cannot resume"),
    ("t", "full/note", {"to": "bf16"}, "exists", ""),
    ("leaky", "new", {"to": "bf16"}, "unsupported", "is a link to"),
    # Sources that cannot be consumed.
    ("linked", "new", {"to": "bf16", "consume-source": True}, "unsupported", "is a symbolic link"),
    ("ranks", "new", {"consume-source": True}, "unsupported", "slices of several ranks"),
    ("t", "new", {"to": "bf16", "consume-source": True, "verify": "weights"}, "invalid-argument", "--consume-source"),
    ("t", "new", {"to": "bf16", "consume-source": True, "part": "0/2"}, "invalid-argument", "other parts"),
    ("t", "new", {"to": "bf16", "force": True, "part": "0/2"}, "invalid-argument", "other parts"),
    ("t", "new", {"to": "bf16", "part": "join"}, "not-found", ""),
    # Options.
    ("t", "new", {"to": "bf16", "mem-limit": "1MB"}, "limit", "--mem-limit"),
    ("t", "new", {"to": "bf16", "mem-limit": "much"}, "invalid-argument", "--mem-limit"),
    ("t", "new", {"to": "bf17"}, "invalid-argument", "bf17"),
    ("t", "new", {"to": "nvfp4", "dialect": "modelslim"}, "unsupported", ""),
    ("t", "new", {"rule": ["role:none=bf16"]}, "invalid-argument", "role:none"),
    ("t", "new", {"to": "bf16", "rule": ["nothing*=int8"]}, "invalid-argument", "nothing*"),
    ("t", "new", {"allow": ["everything=*"]}, "invalid-argument", "everything"),
    ("t", "new", {"to": "bf16", "family": "none"}, "invalid-argument", "no family"),
    ("t", "new", {"to": "bf16", "threads": 4000}, "invalid-argument", "--threads: 4000 is not from 1 to 1024"),
    ("t", "new", {"to": "bf16", "hash": "md5"}, "invalid-argument", "--hash: md5 not in {xxh3,sha256}"),
    ("t", "new", {"to": "bf16", "align": 12}, "invalid-argument", "--align"),
    ("t", "new", {"to": "bf16", "max-shard-size": "many"}, "invalid-argument", "--max-shard-size"),
    ("t", "new", {"no-verify": True}, "invalid-argument", "--no-verify requires --resume"),
    ("t", "new", {"to": "bf16", "require": ["weights.cosine>=1"]}, "invalid-argument", "--verify"),
    ("t", "new", {"to": "bf16", "verify": "weights", "require": ["weights.none>=1"]}, "invalid-argument", "none"),
    ("t", "new", {"to": "bf16", "verify": "everything"}, "invalid-argument", "everything"),
]
OTHERS = [
    ("check", "none", "", {}, "not-found", "no such directory"),
    ("check", "t", "", {"engine": "none"}, "invalid-argument", "none"),
    ("verify", "t", "none", {}, "not-found", "no such directory"),
    ("verify", "t", "done", {"levels": "all of them"}, "invalid-argument", "all of them"),
    ("verify", "t", "done", {"require": ["weights.none>=1"]}, "invalid-argument", "none"),
    ("verify", "t", "done", {"mem-limit": "much"}, "invalid-argument", "--mem-limit"),
]


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *words, "-q"], capture_output=True, text=True)
    assert done.returncode == code, (words, done.stderr)


def make_places():
    run("synth", "t", "--family", "deepseek_v3", "--like", "tiny", "--shards", "3")
    for folder in (SNAPSHOT, "cache/mine", "other/models--Org--Tiny/snapshots/abc",
                   "other/datasets--Org--Tiny/snapshots/abc", "leaky"):
        shutil.copytree("t", folder)
    for folder in ("cache/models--Org--Tiny", "other/models--Org--Tiny"):
        for name in ("blobs", "refs"):
            os.makedirs(f"{folder}/{name}")
        with open(f"{folder}/refs/main", "w") as file:
            file.write("abc")
    os.symlink(SNAPSHOT, "link")
    for folder in (LINKED, "linked"):
        os.makedirs(folder)
        for name in os.listdir("t"):
            os.symlink(os.path.abspath(f"t/{name}"), f"{folder}/{name}")
    os.symlink("/etc/passwd", "leaky/notes.txt")
    os.makedirs("full")
    with open("full/note", "w") as file:
        file.write("mine")
    run("convert", "t", "done", "--to", "bf16")
    run("convert", "t", "begun", "--to", "int8", "--verify", "weights", "--require", "weights.cosine>=1.1", code=1)
    run("convert", "t", "ranks", "--ep", "2")


def words_of(options):
    for key, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            yield from [f"--{key}"] if one is True else [f"--{key}", str(one)]


def by_command_line(command, source, output, options):
    words = [word for word in (source, output) if word]
    done = subprocess.run([PROGRAM, command, *words, *words_of(options), "--json"], capture_output=True, text=True)
    error = json.loads(done.stdout)["error"]
    return error and (error["code"], error["message"].removesuffix(f" (see ingot {command} --help)"))


def by_c(command, source, output, options):
    done = subprocess.run([JOB_IN_C, command, source, output, json.dumps(options)], capture_output=True, text=True)
    assert done.returncode == 0, done
    code, _, message = done.stdout.partition("\n")
    return (code, message.removesuffix("\n")) if code else None


def by_python(command, source, output, options):
    keywords = {key.replace("-", "_"): value for key, value in options.items()}
    try:
        getattr(ingot, command)(*[word for word in (source, output) if word], **keywords)
    except ingot.Error as error:
        return error.code, error.message
    return None


def state():
    """What every file and folder is, links not followed."""
    found = {}
    for folder, folders, files in os.walk("."):
        for name in folders + files:
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            # A claim comes and goes in a folder.
            own = () if stat.S_ISDIR(facts.st_mode) else (facts.st_size, facts.st_mtime_ns)
            found[path] = (facts.st_mode, facts.st_ino, *own)
    return found


def main():
    os.environ["HF_HUB_CACHE"] = os.path.abspath("cache")
    make_places()
    n_failed = 0
    for command, source, output, options, code, words in [("convert", *row) for row in CONVERT] + OTHERS:
        for door in (by_command_line, by_c, by_python):
            before = state()
            refusal = door(command, source, output, options)
            faults = []
            if state() != before:
                faults.append("it changed " + ", ".join(sorted({path for path, _ in state().items() ^ before.items()})[:5]))
            if refusal is None or refusal[0] != code or words not in refusal[1]:
                faults.append(f"it gives {refusal}, expected {code!r} and {words!r}")
            for fault in faults:
                print(f"{door.__name__}: {command} {source} {output} {options}: {fault}")
            n_failed += len(faults)
    return 1 if n_failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        result = main()
        os.chdir("/")
    sys.exit(result)
