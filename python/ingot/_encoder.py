"""Encoding of tensors in memory, for programs that have the model."""

import ctypes
import json
from ctypes import byref, c_size_t, c_uint64

from ingot._arrays import borrowed, new_tensor
from ingot._calls import EncodedInfo, Handle, call, library, options_json, shape_of
from ingot._checkpoint import Tensor


class Plan:
    """The work of an Encoder, made of config.json (a dict, or its text) and shapes, {name: shape} of
    BF16 tensors or {name: {"dtype": "F32", "shape": shape}}. Options as those of convert().

    `config` is the config.json of the output, `sets` the names that are encoded together, and
    `tensors` the action on each weight."""

    def __init__(self, config, shapes, **options):
        self._handle = Handle("plan_free")
        header = {name: shape if isinstance(shape, dict) else {"dtype": "BF16", "shape": list(shape)}
                  for name, shape in shapes.items()}
        text = config if isinstance(config, str) else json.dumps(config)
        call("plan_shapes", text.encode(), json.dumps(header).encode(), options_json(options),
             byref(self._handle.value))
        self.__dict__.update(json.loads(library().ingot_plan_json(self._handle.value)))


class Encoder:
    """Encodes the tensors of a model one by one, with the bytes that a conversion writes. A tensor is
    held until all of its set have come: those that share a scale, or a stack. A plan has one
    encoder."""

    def __init__(self, plan):
        self._plan = plan
        self._handle = Handle("encoder_free")
        call("encoder_new", plan._handle.value, byref(self._handle.value))

    def encode(self, name, array):
        """Takes a tensor: anything with DLPack or the buffer protocol, of the dtype and shape in the
        plan; unsigned integers are the words of any dtype of their width. Returns {name: Tensor} of
        the output, or {} until its set is complete."""
        lent = borrowed(array)
        n_made = c_size_t()
        shape = (c_uint64 * len(lent.shape))(*lent.shape)
        call("encoder_put_array", self._handle.value, name.encode(), lent.dtype.encode(), shape,
             len(lent.shape), lent.address, lent.n_bytes, byref(n_made))
        del lent
        return dict(self._made(index) for index in range(n_made.value))

    def finish(self):
        """Fails with code "missing-tensor" while tensors of the plan have not come."""
        call("encoder_finish", self._handle.value)

    def _made(self, index):
        info = EncodedInfo()
        call("encoder_made", self._handle.value, index, byref(info))
        shape, dtype = shape_of(info), info.dtype.decode()
        tensor = new_tensor(Tensor, dtype, shape, info.n_bytes)
        ctypes.memmove(tensor.words(), info.bytes, info.n_bytes)
        tensor.name = info.name.decode()
        return tensor.name, tensor
