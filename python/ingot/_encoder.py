"""Encoding of tensors in memory, for programs that have the model."""

import ctypes
import json
from ctypes import byref, c_size_t, c_uint64

from ingot._arrays import form_of, named, new_tensor, stated_form
from ingot._calls import EncodedInfo, Handle, call, config_text, library, options_json, shape_of
from ingot._checkpoint import Tensor


class Plan:
    """The work of an Encoder, made of config.json (a dict, its text or file, or a config of transformers) and
    shapes: {name: shape} of BF16 tensors, {name: {"dtype": "F32", "shape": shape}}, or {name: tensor}, as
    also named_parameters() has them. Options as those of convert().

    `config` is the config.json of the output, `sets` the names that are encoded together, and
    `tensors` the action on each weight."""

    def __init__(self, config, shapes, **options):
        self._handle = Handle("plan")
        header = {name: stated_form(form) for name, form in dict(shapes).items()}
        call("plan_shapes", config_text(config).encode(), json.dumps(header).encode(), options_json(options),
             byref(self._handle.value))
        self.__dict__.update(json.loads(library().ingot_plan_json(self._handle.value)))

    def close(self):
        """Gives the plan back, once its encoder is closed."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<ingot.Plan of {len(self.tensors)} weights to {self.dialect}>"


class Parts(dict):
    """The stored tensors of one weight, by the ends of their names ("weight_packed", "weight_scale"), its `scheme`
    and `shape`, and the `config` of a checkpoint that holds it: its quantization_config says how it is stored."""

    def __init__(self, parts, scheme, shape, config):
        super().__init__(parts)
        self.scheme, self.shape, self.config = scheme, shape, config


_MODULE = "module."


def _encoded(config, arrays, scheme, options):
    """The tensors that a plan makes of all tensors of one weight."""
    shapes = {_MODULE + name: dict(zip(("dtype", "shape"), form_of(array))) for name, array in arrays.items()}
    rule = [*options.pop("rule", ()), f"{_MODULE}weight={scheme}"]
    with Plan(config, shapes, rule=rule, family="generic", **options) as plan, Encoder(plan) as encoder:
        made = {}
        for name, array in arrays.items():
            made.update(encoder.encode(_MODULE + name, array))
        encoder.finish()
        return {name.removeprefix(_MODULE): tensor for name, tensor in made.items()}, plan.config


def quantize(array, scheme, **options):
    """The Parts of one weight in a scheme of `ingot list schemes`, bit for bit those of `ingot convert`. Options are
    those of convert() that decide about it: dialect="modelopt", group_size=32."""
    shape = form_of(array)[1]
    parts, config = _encoded({"model_type": "none"}, {"weight": array}, scheme, options)
    return Parts(parts, scheme, shape, config)


def dequantize(parts, config=None, out=None):
    """The values of a weight as a numpy array of float32, in `out` where it is given. `parts` are those of
    quantize(), or a mapping of the stored tensors, with the config.json of their checkpoint."""
    if config is None:
        config = getattr(parts, "config", None)
    if config is None:
        raise ValueError("parts by themselves do not say how they are meant (give config=, that of their checkpoint)")
    config = json.loads(config_text(config))
    config = {"model_type": "none", **{key: config[key] for key in ("quantization_config",) if key in config}}
    if {form_of(part)[0] for part in parts.values()} == {"F32"} and len(parts) == 1:
        import numpy
        values = numpy.asarray(*parts.values())
        return values if out is None else numpy.copyto(out, values) or out
    return _encoded(config, dict(parts), "f32", {})[0]["weight"].float32(out)


class Encoder:
    """Encodes the tensors of a model one by one, with the bytes that a conversion writes. A tensor is
    held until all of its set have come: those that share a scale, or a stack. A plan has one
    encoder, to which several threads may give tensors: their sets are encoded at once."""

    def __init__(self, plan):
        self._plan = plan
        self._handle = Handle("encoder")
        call("encoder_new", self._handle.build_on(plan._handle), byref(self._handle.value))

    def encode(self, name, array):
        """Takes a tensor: anything with DLPack or the buffer protocol, of the dtype and shape in the
        plan; unsigned integers are the words of any dtype of their width. Returns {name: Tensor} of
        the output, or {} until its set is complete."""
        lent = named(name, array)
        n_made = c_size_t()
        shape = (c_uint64 * len(lent.shape))(*lent.shape)
        with self._handle as handle:
            call("encoder_put_array", handle, name.encode(), lent.dtype.encode(), shape,
                 len(lent.shape), lent.address, lent.n_bytes, byref(n_made))
            del lent
            return dict(self._made(index) for index in range(n_made.value))

    def finish(self):
        """Fails with code "missing-tensor" while tensors of the plan have not come."""
        self._handle.call("encoder_finish")

    def close(self):
        """Gives up what it holds."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<ingot.Encoder of {self._plan!r}>"

    def _made(self, index):
        info = EncodedInfo()
        self._handle.call("encoder_made", index, byref(info))
        shape, dtype = shape_of(info), info.dtype.decode()
        tensor = new_tensor(Tensor, dtype, shape, info.n_bytes)
        ctypes.memmove(tensor.words(), info.bytes, info.n_bytes)
        tensor.name = info.name.decode()
        return tensor.name, tensor
