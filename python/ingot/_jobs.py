"""Jobs over directories."""

import json
from ctypes import byref, c_void_p

from ingot._calls import Handle, call, library, options_json, path_bytes, run_job, taken_text


def _planned(source, output, options):
    handle = Handle("plan_free")
    call("plan_conversion", path_bytes(source), path_bytes(output), options_json(options),
         byref(handle.value))
    return handle


def plan(source, output, **options):
    """The plan of a conversion, as a dict; writes nothing. Options as those of convert()."""
    handle = _planned(source, output, options)
    return json.loads(library().ingot_plan_json(handle.value) or "{}")


def convert(source, output, *, progress=None, **options):
    """Converts a checkpoint into a directory, as `ingot convert` does, and returns its report.

    Options are the flags of the command: to="nvfp4", max_shard_size="5GB", rule=["role:experts=keep"],
    resume=True. progress(phase, done, total) is called now and then, from another thread. Ctrl-C
    stops the job, which resume=True continues."""
    handle = _planned(source, output, options)
    report = c_void_p()
    run_job("plan_run", [handle.value], progress, report)
    return taken_text(report)


def inspect(path, pattern=None, tensors=False, **options):
    """The document of `ingot inspect --json`: a summary, or the tensors that `pattern` selects. Options:
    family, family_file, config."""
    handle = Handle("close")
    call("open", path_bytes(path), options_json(options), byref(handle.value))
    report = c_void_p()
    call("inspect", handle.value, options_json({"pattern": pattern, "tensors": tensors}), byref(report))
    return taken_text(report)


def check(path, **options):
    """Everything wrong with a directory, as `ingot check --json` prints it: `errors` and
    `warnings` are lists of faults, `passed` is the verdict. Options are the flags of the command."""
    report = c_void_p()
    run_job("check", [path_bytes(path), options_json(options)], None, report)
    return taken_text(report)


def verify(source, output=None, *, progress=None, **options):
    """Whether `output` is still the same model as its source, as `ingot verify --json` prints it:
    `passed` is the verdict. Without an output one checkpoint is measured. Options are the flags of
    the command: levels="structure,weights", require=["weights.cosine>=0.99"]."""
    report = c_void_p()
    other = None if output is None else path_bytes(output)
    run_job("verify", [path_bytes(source), other, options_json(options)], progress, report)
    return taken_text(report)
