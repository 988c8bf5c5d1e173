"""Offline conversion of checkpoints: the functions of the command line `ingot`, for programs.

>>> import ingot
>>> checkpoint = ingot.open("DeepSeek-V3.2")             # doctest: +SKIP
>>> ingot.convert("DeepSeek-V3.2", "OUT", to="nvfp4")    # doctest: +SKIP

docs/python.md has more examples. Nothing but ctypes is needed; numpy is imported where arrays of it
are asked for.
"""

from ingot._calls import Error, version
from ingot._checkpoint import Checkpoint, QuantizedTensor, Tensor, open
from ingot._encoder import Encoder, Parts, Plan, dequantize, quantize
from ingot._writer import Writer
from ingot._jobs import (attest, balance, calibrate, check, compare, convert, delta, generate, inspect, join, list,
                         merge, plan, prune, rederive, repair, synth, verify)


def __getattr__(name):
    if name == "__version__":
        return version()
    raise AttributeError(f"module 'ingot' has no attribute {name!r}")


__all__ = ["Checkpoint", "Encoder", "Error", "Parts", "Plan", "QuantizedTensor", "Tensor", "Writer", "attest",
           "balance", "calibrate", "check", "compare", "convert", "delta", "dequantize", "generate", "inspect", "join",
           "list", "merge", "open", "plan", "prune", "quantize", "rederive", "repair", "synth", "verify",
           "version"]
