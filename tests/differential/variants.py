"""Other ways to make a conversion: each has to give the bytes of the straight run."""

import os
import shutil

from config_files import write_expert_map
from container import read_checkpoint, read_config, text_config, weights_files
from job import RECORDS, Wrong, require_same_files, require_same_tensors
from judge import judge
from slices import complaints_of


class Runner:
    """Runs the variants of one target. `source` and `straight` are folders in the shell's."""

    def __init__(self, shell, source, straight, target):
        self.shell, self.source, self.straight, self.target = shell, source, straight, target

    def convert(self, output, *more, source=None, kills=(), again=(), may_refuse=False):
        words = ["convert", source or self.source, output, *self.target.words, *more]
        return self.shell.make_with_kills(output, kills, *words, again=again, may_refuse=may_refuse)

    def limits(self, variant):
        self.convert("limits", *variant["limits"])
        self.require_same("limits", "with " + " ".join(variant["limits"]))

    def kill(self, variant):
        killed = self.convert("killed", kills=variant["kills"], again=variant["limits"])
        self.require_same("killed", f"killed {killed} times and resumed")

    def consume(self, variant):
        shutil.copytree(self.shell.path(self.source), self.shell.path("eaten"))
        self.shell.note(f"cp -r {self.source} eaten")
        self.shell.originals["eaten"] = self.source
        # Not every source can be consumed; once it was begun, it has to end.
        words = {"source": "eaten", "kills": variant["kills"], "again": variant["limits"], "may_refuse": True}
        self.convert("fed", "--consume-source", **words)
        self.require_same("fed", "with --consume-source")
        left = [name for name in os.listdir(self.shell.path("eaten")) if name.endswith(".safetensors")]
        if left:
            raise Wrong(f"--consume-source left {left}")

    def parts(self, variant):
        # There cannot be more parts than files.
        n = min(variant["n"], len(weights_files(self.shell.path(self.straight))))
        order = [part for part in variant["order"] if part < n]
        for part in order:
            self.part(f"{part}/{n}", variant["kills"] if part == order[0] else [])
        self.shell.make("parts", "join", "parts")
        self.require_same("parts", f"joined of {n} parts")

    def part(self, which, kills):
        """Publishes nothing, so its folder is judged by the join."""
        words = ["convert", self.source, "parts", *self.target.words, "--part", which, "--quiet"]
        for n_killed, kill in enumerate([*kills, None]):
            code, text = self.shell.run(*words, *(["--resume"] if n_killed else []), kill=kill)
            if code != 0 and (code != -9 or not kill):
                raise Wrong(f"part {which} ended with {code}: {text}")
            if self.shell.is_published("parts"):
                raise Wrong(f"part {which} published something")
            if code == 0:
                return

    def slices(self, variant):
        words = list(variant["words"])
        if variant["map"]:
            config = text_config(read_config(self.shell.path(self.source)))
            words += write_expert_map(config, variant["ep"], variant["map_seed"], self.shell.path("map.json"))
            self.shell.note("# map.json: " + open(self.shell.path("map.json")).read())
        self.convert("ranks", *words, kills=variant["kills"], may_refuse=True)
        whole = read_checkpoint(self.shell.path(self.straight))
        if variant["fit"] == "refuse":
            for complaint in complaints_of(self.shell.path("ranks"), whole):
                raise Wrong(complaint)
        self.shell.make("merged", "merge", "ranks", "merged")
        if variant["fit"] == "bf16":  # of F32, too
            self.judge_again("merged", {"narrows": True})
        else:
            self.require_same_model("merged", "merged of slices")
        if variant["anew"]:
            self.cut_anew(variant["recut"])

    def cut_anew(self, words):
        """Slices as a source: of another conversion, and of slices cut otherwise."""
        # Refused where every weight is plain already.
        self.shell.make("plain", "convert", "merged", "plain", "--to", "bf16", may_refuse=True)
        self.shell.make("plain2", "convert", "ranks", "plain2", "--to", "bf16")
        require_same_files(self.shell.path("plain"), self.shell.path("plain2"), "slices as a source", RECORDS)
        self.shell.make("anew", "convert", "ranks", "anew", *words, may_refuse=True)
        self.shell.make("whole", "merge", "anew", "whole")
        merged, whole = (read_checkpoint(self.shell.path(name)) for name in ["merged", "whole"])
        if "bf16" not in words:
            require_same_tensors(merged, whole, "merged of slices of slices")

    def native(self, variant):
        self.convert("native", *variant["words"], may_refuse=True)
        self.shell.make("merged", "merge", "native", "merged")
        self.require_same_model("merged", "merged of deepseek-mp")

    def vllm(self, variant):
        self.convert("vllm", *variant["words"], may_refuse=True)
        self.shell.make("merged", "merge", "vllm", "merged")
        self.judge_again("merged", {"narrows": True})

    def sglang(self, variant):
        self.convert("sglang", *variant["words"], may_refuse=True)
        self.shell.make("merged", "merge", "sglang", "merged")
        self.judge_again("merged", {"narrows": True, "mtp": "drop"})

    def judge_again(self, output, more):
        """Where some tensors may be plain that are not in the straight run, values are judged against the source."""
        complaints = judge(
            self.shell.path(self.source), self.shell.path(output), {**self.target.choices, **more, "may_be_plain": True}
        )
        if complaints:
            raise Wrong(f"{output}: " + "; ".join(f"{name} {words}" for name, words in complaints[:3]))

    def require_same(self, output, words):
        require_same_files(self.shell.path(self.straight), self.shell.path(output), words)

    def require_same_model(self, output, words):
        """A merge has other records. `--max-shard-size` bounds the files of ranks, so the merge may have others."""
        straight, merged = self.shell.path(self.straight), self.shell.path(output)
        if "--max-shard-size" in self.target.words:
            require_same_tensors(read_checkpoint(straight), read_checkpoint(merged), words)
        else:
            require_same_files(straight, merged, words, RECORDS)

    def run(self, variant):
        getattr(self, variant["kind"])(variant)


def cleanup(shell):
    shell.remove(
        "limits",
        "killed",
        "eaten",
        "fed",
        "parts",
        "ranks",
        "merged",
        "native",
        "vllm",
        "sglang",
        "plain",
        "plain2",
        "anew",
        "whole",
    )
