"""Runs the commands of a case and looks at what they leave behind."""

import os
import shlex
import shutil
import signal
import subprocess

RECORDS = {"ingot.json", "ingot.tensors.jsonl.zst"}


class Wrong(Exception):
    """ingot did not keep a promise."""


class Refused(Exception):
    """ingot refused a command, as it may: exit code 2, a message, and nothing published."""


class Shell:
    """Commands in a folder of their own, remembered so that they can be repeated by hand."""

    def __init__(self, ingot, faults, folder):
        self.ingot, self.faults, self.folder, self.lines = ingot, faults, folder, [f"mkdir -p {folder}; cd {folder}"]
        self.n_killed = 0
        self.originals = {}  # folder -> the one that it is a copy of
        self.derives = None  # derived.Derivations, if every output is made again

    def path(self, name):
        return os.path.join(self.folder, name)

    def note(self, line):
        self.lines.append(line)

    def remove(self, *names):
        self.note("rm -rf " + " ".join(names))
        for name in names:
            shutil.rmtree(self.path(name), ignore_errors=True)

    def run(self, *words, kill=None):
        """Exit code and text of one command; -9 where it was killed at the call that `kill` names."""
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_", "SLURM_"))
        }
        prefix = ""
        if kill and self.faults:
            environment.update(LD_PRELOAD=self.faults, INGOT_FAULTS=kill)
            prefix = f"LD_PRELOAD={shlex.quote(self.faults)} INGOT_FAULTS={shlex.quote(kill)} "
        self.note(prefix + shlex.join([self.ingot, *words]))
        if self.derives and words[0] in ("convert", "merge"):
            self.derives.note(words)
        done = subprocess.run(
            [self.ingot, *words], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600
        )
        self.n_killed += done.returncode == -signal.SIGKILL
        self.lines[-1] += f"   # exit {done.returncode}"
        return done.returncode, done.stderr.strip() or done.stdout.strip()

    def is_published(self, name):
        return any(
            file == "ingot.json" or file.endswith(".safetensors")
            for folder, _, files in os.walk(self.path(name))
            for file in files
            if ".ingot-partial" not in folder
        )

    def make(self, output, *words, kill=None, may_refuse=False):
        """A command that makes a checkpoint. True: it is there; False: the run was killed as it was told to."""
        code, text = self.run(*words, "--quiet", kill=kill)
        if code == -signal.SIGKILL and kill:
            return False
        if code == 2 and text.startswith("error:") and len(text) > 30:
            if self.is_published(output):
                raise Wrong(f"{words[0]} refused and published all the same: {text}")
            if may_refuse:
                raise Refused(text)
            raise Wrong(f"{words[0]} refused what had been done before in another way: {text}")
        if code != 0:
            raise Wrong(f"{words[0]} ended with {code}: {text}")
        if os.path.exists(self.path(os.path.join(output, ".ingot-partial"))):
            raise Wrong(f"{words[0]} succeeded, and .ingot-partial is still there")
        if not os.path.exists(self.path(os.path.join(output, "ingot.json"))):
            raise Wrong(f"{words[0]} succeeded and published nothing")
        if self.derives:
            self.derives.require(output)
        return True

    def make_with_kills(self, output, kills, *words, again=(), may_refuse=False):
        """The same, killed at each of these points and continued; `again`: words that the last run has besides."""
        partial = self.path(os.path.join(output, ".ingot-partial"))  # a job that was begun is refused no more
        for n_killed, kill in enumerate(kills):
            more = ["--resume"] if n_killed else []
            if self.make(output, *words, *more, kill=kill, may_refuse=may_refuse and not os.path.exists(partial)):
                return n_killed
            if os.path.exists(partial):
                code, _ = self.run("inspect", output)
                if code != 2:
                    raise Wrong(f"an unfinished output was read: inspect ended with {code}")
        self.make(
            output,
            *words,
            *again,
            *(["--resume"] if kills else []),
            may_refuse=may_refuse and not os.path.exists(partial),
        )
        return len(kills)


def tree(folder, left_out=()):
    """Paths of all files below a folder."""
    return sorted(
        os.path.relpath(os.path.join(parent, file), folder)
        for parent, _, files in os.walk(folder)
        for file in files
        if file not in left_out
    )


def read(path):
    with open(path, "rb") as file:
        return file.read()


def require_same_files(one, other, words, left_out=()):
    """Both folders hold the same files with the same bytes."""
    ours, theirs = tree(one, left_out), tree(other, left_out)
    if ours != theirs:
        raise Wrong(f"{words}: other files: {sorted(set(ours) ^ set(theirs))[:5]}")
    for path in ours:
        if read(os.path.join(one, path)) != read(os.path.join(other, path)):
            raise Wrong(f"{words}: {path} has other bytes")


def require_same_tensors(ours, theirs, words):
    """Both hold the same stored tensors, in whichever files."""
    if ours.keys() != theirs.keys():
        raise Wrong(f"{words}: other tensors: {sorted(ours.keys() ^ theirs.keys())[:5]}")
    for name, stored in ours.items():
        other = theirs[name]
        if (stored.dtype, stored.shape, stored.data) != (other.dtype, other.shape, other.data):
            raise Wrong(f"{words}: {name} differs")
