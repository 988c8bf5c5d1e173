"""Jobs over directories: commands of the command line, whose documents are the results."""

import builtins
import json
import os
import tempfile

from ingot import _options
from ingot._calls import run_command
from ingot._writer import write


def convert(source, output, *, progress=None, shapes=None, config=None, like=None, **options):
    """Converts a checkpoint into a directory, as `ingot convert` does. `source` is a folder or a name on the
    hub, or a model in memory: a module of torch, a mapping of names to arrays, or an iterable of (name,
    array), with config=, like= and shapes= as Writer takes them.

    progress(phase, done, total) is called now and then, from another thread. Ctrl-C stops the job,
    which resume=True continues."""
    if not isinstance(source, (str, bytes, os.PathLike)):
        return write(source, output, shapes=shapes, config=config, like=like, progress=progress, **options)
    if (shapes, config, like) != (None, None, None):
        raise TypeError("a checkpoint on a disk has its own config and shapes")
    return run_command("convert", {"input": source, "output": output}, options, progress)


def plan(source, output, **options):
    """What convert() would do, of the same arguments: the document of a dry run, and in addition `tensors`,
    the action on each, and `config`, that of the output. Writes nothing."""
    options["dry_run"] = True
    if isinstance(source, (str, bytes, os.PathLike)):
        return run_command("convert", {"input": source, "output": output}, options)
    return write(source, output, **options)


def inspect(path, pattern=None, **options):
    """A summary, the tensors that `pattern` selects, or with gpu="h100" whether it fits there."""
    return run_command("inspect", {"directory": path, "pattern": pattern}, options)


def check(path, **options):
    """Everything wrong with a directory: `errors` and `warnings` are lists of faults, `passed` is
    the verdict."""
    return run_command("check", {"directory": path}, options)


def verify(source, output=None, *, progress=None, **options):
    """Whether `output` is still the same model as its source: `passed` is the verdict. Without an
    output one checkpoint is measured."""
    return run_command("verify", {"source": source, "output": output}, options, progress)


def compare(a, b, *, progress=None, **options):
    """Which of two outputs is closer to reference=SOURCE, or how far apart they are."""
    return run_command("compare", {"a": a, "b": b}, options, progress)


def prune(input, output, *, progress=None, **options):
    """Makes a model with fewer experts, every byte of the others as it was."""
    return run_command("prune", {"input": input, "output": output}, options, progress)


def repair(input, output, *, progress=None, **options):
    """Corrects the JSON about a checkpoint's weights, and scales of fused weights."""
    return run_command("repair", {"input": input, "output": output}, options, progress)


def merge(input, output, *, progress=None, **options):
    """Puts the slices of ranks together again."""
    return run_command("merge", {"input": input, "output": output}, options, progress)


def join(output, **options):
    """Publishes a conversion whose parts (part="0/4") have ended."""
    return run_command("join", {"output": output}, options)


def attest(output, key, *, progress=None, **options):
    """Signs what an output was made from and how, or with verify=True checks such a statement."""
    return run_command("attest", {"output": output, "key": key}, options, progress)


def rederive(output, source, *, progress=None, **options):
    """Makes tensors of an output again from its source, and compares their bytes."""
    return run_command("rederive", {"output": output, "source": source}, options, progress)


def calibrate(path, text, out, *, progress=None, **options):
    """Measures the inputs of linear layers while the model reads the file `text`, into the file `out`."""
    return run_command("calibrate", {"directory": path, "text": text, "out": out}, options, progress)


def balance(path, out, *, ep, progress=None, **options):
    """Shares experts out to `ep` ranks by the tokens that a text gives them, into the file `out`."""
    return run_command("balance", {"directory": path, "out": out, "ep": ep}, options, progress)


def generate(path, prompt=None, *, progress=None, **options):
    """Answers a prompt, or each of a list, or those of prompts="FILE", with exactly the files to be deployed:
    `sequences` has the answers. In a list a prompt is a text, a list of messages, or an object as in a line
    of such a file."""
    if prompt is None or isinstance(prompt, str):
        return run_command("generate", {"directory": path, "prompt": prompt}, options, progress)
    lines = [{"messages": one} if isinstance(one, (tuple, builtins.list)) else one for one in prompt]
    if not lines:
        raise ValueError("the list has no prompt")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        return run_command("generate", {"directory": path, "prompts": file.name}, options, progress)


def delta(action, path, *paths, progress=None, **options):
    """Versions of a checkpoint as differences: ("make", old, new, out=STREAM), ("check", base, versions, ...) and
    ("apply", base, versions, ...)."""
    words = {"action": action, "directory": path, "versions": [*paths]}
    return run_command("delta", words, options, progress)


def synth(output, **options):
    """Writes a valid random checkpoint, the same for the same seed."""
    return run_command("synth", {"output": output}, options)


def list(table, *words, **options):
    """The rows of a table, "schemes", "families", "engines", "rules" and so on, that name all of `words`."""
    first, more = (*words, None)[0], [*words[1:]]
    return run_command("list", {"table": table, "word": first, "more": more}, options)[table]


for _function in (convert, plan, inspect, check, verify, compare, prune, repair, merge, join, attest, rederive, calibrate,
                  balance, generate, delta, synth, list):
    _name = "convert" if _function is plan else _function.__name__
    _own = _name.capitalize() + "Options"
    for _class in (getattr(_options, _own), *_options.INHERITED.get(_own, ())):
        _function.__doc__ += "\n\n    " + _class.__doc__
