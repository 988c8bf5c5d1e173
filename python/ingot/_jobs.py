"""Jobs over directories."""

import ctypes
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
