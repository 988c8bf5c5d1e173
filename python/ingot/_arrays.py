"""Bytes of tensors: ctypes arrays, which have the buffer protocol, without a copy."""

import ctypes
import functools
import math
import operator
import sys
from collections import namedtuple
from collections.abc import Mapping
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_void_p

# By dtype of safetensors: element of a buffer, its numpy dtype (of ml_dtypes after a colon), and
# the type code, of DLPack (dlpack.h, version 1.1). Others are bytes.
_DTYPES = {
    "BOOL": (ctypes.c_bool, "bool", 6),
    "U8": (ctypes.c_uint8, "uint8", 1),
    "I8": (ctypes.c_int8, "int8", 0),
    "I16": (ctypes.c_int16, "int16", 0),
    "U16": (ctypes.c_uint16, "uint16", 1),
    "I32": (ctypes.c_int32, "int32", 0),
    "U32": (ctypes.c_uint32, "uint32", 1),
    "I64": (ctypes.c_int64, "int64", 0),
    "U64": (ctypes.c_uint64, "uint64", 1),
    "F32": (ctypes.c_float, "float32", 2),
    "F64": (ctypes.c_double, "float64", 2),
    "F16": (ctypes.c_uint16, "float16", 2),
    "BF16": (ctypes.c_uint16, ":bfloat16", 4),
    "F8_E4M3": (ctypes.c_uint8, ":float8_e4m3fn", 10),
    "F8_E4M3FNUZ": (ctypes.c_uint8, ":float8_e4m3fnuz", 11),
    "F8_E5M2": (ctypes.c_uint8, ":float8_e5m2", 12),
    "F8_E5M2FNUZ": (ctypes.c_uint8, ":float8_e5m2fnuz", 13),
    "F8_E8M0": (ctypes.c_uint8, ":float8_e8m0fnu", 14),
}
_BY_NAME = {kind[1:]: dtype for dtype, (_, kind, _) in _DTYPES.items() if kind.startswith(":")}
_BY_CODE = {(code, 8 * ctypes.sizeof(element)): dtype for dtype, (element, _, code) in _DTYPES.items()}


_BY_ANY_NAME = {**_BY_NAME, **{kind: dtype for dtype, (_, kind, _) in _DTYPES.items() if not kind.startswith(":")}}
_FEW_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def byte_count(dtype, shape):
    bits = _FEW_BITS.get(dtype) or 8 * ctypes.sizeof(element_of(dtype))
    return math.prod(shape) * bits // 8


def form_of(array):
    """dtype and shape of an array of any library, without its bytes."""
    name = str(getattr(array, "dtype", "")).rpartition(".")[2]  # torch.bfloat16
    dtype = name if name in _DTYPES or name in _FEW_BITS else _BY_ANY_NAME.get(name)
    if dtype is not None:
        return dtype, tuple(array.shape)
    lent = borrowed(array)
    return lent.dtype, tuple(lent.shape)


def stated_form(form):
    """dtype and shape as a safetensors header has them: of a shape, which is one of BF16, or of an array."""
    if hasattr(form, "dtype"):
        form = dict(zip(("dtype", "shape"), form_of(form)))
    elif not isinstance(form, Mapping):
        form = {"dtype": "BF16", "shape": form}
    return {"dtype": form["dtype"], "shape": [*form["shape"]]}


# Dtypes whose numbers no element of a buffer is: these would be taken for whole numbers.
_WORDS = {"F16", *_BY_NAME.values()}
# By dtype of FP8: bits of the mantissa, bias, and how NaN and infinity are coded.
_FLOATS = {"F8_E4M3": (3, 7, "fn"), "F8_E4M3FNUZ": (3, 8, "fnuz"), "F8_E5M2": (2, 15, "ieee"),
           "F8_E5M2FNUZ": (2, 16, "fnuz"), "F8_E8M0": (0, 127, "scale")}


def element_of(dtype):
    return _DTYPES.get(dtype, (ctypes.c_uint8,))[0]


@functools.lru_cache(maxsize=4096)
def _types(base, dtype, shape, n_bytes):
    """The class of a tensor, and the ctypes array of its words."""
    element = element_of(dtype)
    if dtype not in _DTYPES or math.prod(shape) * ctypes.sizeof(element) != n_bytes:
        element, shape = c_uint8, (n_bytes,)
    words = element
    for n in reversed(shape):
        words = words * n
    if not shape:
        words = element * 1
    if dtype in _WORDS or dtype not in _DTYPES:
        return base, words
    return type(base.__name__, (base, words), {"__module__": base.__module__}), words


def new_tensor(base, dtype, shape, n_bytes, memory=None, offset=0):
    """A tensor over memory of its own, or over a part of `memory`. Where buffers know its dtype it is a buffer."""
    shape = tuple(shape)
    kind, words = _types(base, dtype, shape, n_bytes)
    if kind is not base:
        tensor = kind.from_buffer(memory, offset) if memory is not None and n_bytes else kind()
    else:
        tensor = base()
        tensor._memory = words.from_buffer(memory, offset) if memory is not None and n_bytes else words()
    tensor.dtype, tensor.shape = dtype, shape
    return tensor


@functools.lru_cache(maxsize=None)
def _values(dtype):
    """The values of the 256 codes of an FP8 dtype, as a numpy array."""
    import numpy
    mantissa_bits, bias, kind = _FLOATS[dtype]
    code = numpy.arange(256)
    if kind == "scale":
        return numpy.where(code == 255, numpy.nan, numpy.ldexp(1.0, code - bias)).astype("float32")
    magnitude = code & 127
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & (1 << mantissa_bits) - 1
    value = numpy.where(exponent == 0, numpy.ldexp(mantissa * 1.0, 1 - bias - mantissa_bits),
                        numpy.ldexp((1 << mantissa_bits) + mantissa * 1.0, exponent - bias - mantissa_bits))
    if kind == "ieee":
        top = exponent == (1 << 7 - mantissa_bits) - 1
        value = numpy.where(top, numpy.where(mantissa == 0, numpy.inf, numpy.nan), value)
    value = numpy.where(code & 128, -value, value)
    nan = code == 128 if kind == "fnuz" else (magnitude == 127) & (kind == "fn")
    return numpy.where(nan, numpy.nan, value).astype("float32")


class Array:
    """Numbers of a stored tensor: numpy(), float32(), words(), DLPack, and the buffer protocol where it
    knows the dtype."""

    name: str
    dtype: str
    shape: tuple

    @property
    def nbytes(self):
        return ctypes.sizeof(self.words())

    def words(self):
        """The memory as a buffer: of BF16, F16 and FP8 these are unsigned integers of their width."""
        return self.__dict__.get("_memory", self)

    def tobytes(self):
        return bytes(memoryview(self.words()).cast("B")) if self.nbytes else b""

    def _viewed(self, kind):
        import numpy
        flat = numpy.frombuffer(self.words(), dtype=numpy.uint8) if self.nbytes else numpy.empty(0, "uint8")
        array = flat.view(kind)
        return array.reshape(self.shape) if array.size == math.prod(self.shape) else array

    def numpy(self):
        """A numpy array over the same memory; BF16 and FP8 have the dtypes of ml_dtypes."""
        kind = _DTYPES.get(self.dtype, (None, "uint8"))[1]
        if kind.startswith(":"):
            import numpy
            try:
                import ml_dtypes
                kind = numpy.dtype(getattr(ml_dtypes, kind[1:]))
            except (ImportError, AttributeError):
                raise ImportError(
                    f"{self.name}: numpy has no {self.dtype} (pip install ingot-convert[arrays], or take .float32(), "
                    "or the integers of .words())") from None
        return self._viewed(kind)

    def float32(self, out=None):
        """The values as a numpy array of float32, in `out` where it is given."""
        import numpy
        if self.dtype == "BF16":
            values = (self._viewed("uint16").astype("uint32") << 16).view("float32")
        elif self.dtype in _FLOATS:
            values = _values(self.dtype)[self._viewed("uint8")]
        elif self.dtype in _DTYPES:
            values = self._viewed(_DTYPES[self.dtype][1])
        else:
            raise TypeError(f"{self.name}: {self.dtype} are codes, of which the weight has the values")
        if out is None:
            return values.astype("float32", copy=False)
        numpy.copyto(out, values, casting="same_kind")
        return out

    def __array__(self, dtype=None, copy=None):
        if dtype == "float32" and self.dtype in _WORDS:
            return self.float32()
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __len__(self):
        if not self.shape:
            raise TypeError(f"{self.name} has no dimensions")
        return self.shape[0]

    def __getitem__(self, rows):
        """Rows, as a tensor over the same memory: others are not read."""
        begin, end = row_range(self, rows)
        n_bytes = self.nbytes // len(self) if len(self) else 0
        shape = (end - begin, *self.shape[1:]) if isinstance(rows, slice) else self.shape[1:]
        part = new_tensor(_base_of(self), self.dtype, shape, n_bytes * (end - begin), self.words(), begin * n_bytes)
        part.__dict__.update({name: value for name, value in self.__dict__.items()
                              if name not in ("_memory", "dtype", "shape")})
        return part

    def __reduce__(self):
        facts = {name: value for name, value in self.__dict__.items() if name not in ("_memory", "_objects")}
        return _restored, (_base_of(self), facts, self.tobytes())

    def __dlpack_device__(self):
        return (1, 0)  # the memory of the host

    def __dlpack__(self, **_):
        if self.dtype not in _DTYPES:
            raise BufferError(f"{self.name}: DLPack has no {self.dtype} (take its bytes)")
        return _capsule(self)

    def __repr__(self):
        return f"<{self.dtype} {list(self.shape)} {self.name}>"


def _base_of(tensor):
    """The class of which new_tensor() makes others."""
    return next(kind for kind in type(tensor).__mro__ if not issubclass(kind, ctypes.Array))


def _restored(base, facts, content):
    tensor = new_tensor(base, facts["dtype"], facts["shape"], len(content))
    if content:
        ctypes.memmove(tensor.words(), content, len(content))
    tensor.__dict__.update(facts)
    return tensor


def row_range(tensor, rows):
    """The first row, and the one behind the last, of an index of the first dimension."""
    n = len(tensor)
    if isinstance(rows, slice):
        begin, end, step = rows.indices(n)
        if step != 1:
            raise ValueError(f"{tensor.name}: rows are taken one after another (a step of {step})")
        return begin, max(begin, end)
    row = operator.index(rows)
    if not -n <= row < n:
        raise IndexError(f"{tensor.name} has {n} rows, and no row {row}")
    return row % n, row % n + 1


class _Managed(Structure):
    """DLManagedTensor; the DLTensor is its beginning."""
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("n_dims", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", ctypes.c_uint64), ("manager", c_void_p), ("deleter", c_void_p)]


_NAME = b"dltensor"
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)
_api = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _api))
_lent = {}  # by address of the struct: what it refers to


@_DELETER
def _give_back(address):
    _lent.pop(address, None)


@_DESTRUCTOR
def _destroy(capsule):
    # One that was taken has another name, and its taker gives it back.
    if _is_valid(capsule, _NAME):
        _lent.pop(_pointer(capsule, _NAME), None)


def _capsule(array):
    shape = (c_int64 * len(array.shape))(*array.shape)
    managed = _Managed(data=ctypes.addressof(array.words()), device_type=1, n_dims=len(array.shape),
                       code=_DTYPES[array.dtype][2],
                       bits=8 * ctypes.sizeof(element_of(array.dtype)), lanes=1,
                       shape=ctypes.cast(shape, POINTER(c_int64)),
                       deleter=ctypes.cast(_give_back, c_void_p))
    _lent[ctypes.addressof(managed)] = (managed, shape, array)
    return _new(ctypes.addressof(managed), _NAME, ctypes.cast(_destroy, c_void_p))


# Memory of an array of another library, as long as its owner lives.
Lent = namedtuple("Lent", "dtype shape address n_bytes owner")


def borrowed(array):
    """An array of another library as Lent, by DLPack or its buffer. Tensors of torch are taken as they are:
    parameters, shards of several devices, strided ones, and those of a GPU."""
    for method in ("full_tensor", "detach", "cpu", "contiguous"):
        if not isinstance(array, Array) and hasattr(array, "detach") and hasattr(array, method):
            array = getattr(array, method)()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and array.element_size() == 1 and array.is_floating_point():
        dtype, words = form_of(array)[0], borrowed(array.view(torch.uint8))  # which DLPack of torch may not have
        return words._replace(dtype=dtype)
    if not isinstance(array, Array) and hasattr(array, "__dlpack__"):
        try:
            capsule = array.__dlpack__()
        except (TypeError, BufferError, RuntimeError):
            capsule = None  # numpy's own types come by their buffer
        if capsule is not None:
            return _of_capsule(capsule)
    # A dtype that buffers do not know: an array of ours, or one of ml_dtypes.
    dtype = getattr(array, "dtype", None)
    known = dtype if isinstance(array, Array) else _BY_NAME.get(getattr(dtype, "name", None))
    shape = tuple(array.shape) if known else None
    if isinstance(array, Array):
        array = array.words()
    try:
        view = memoryview(array)
    except ValueError:
        if not known:
            raise TypeError(f"the array has dtype {dtype}, which is none of safetensors (convert it)") from None
        if not array.flags.c_contiguous:
            raise TypeError("the array is not contiguous (make it so)") from None
        view = memoryview(array.reshape(-1).view("uint8"))
    if not view.c_contiguous:
        raise TypeError("the array is not contiguous (make it so)")
    if not known:
        known, shape = _dtype_of(view), view.shape
    if view.nbytes == 0:
        return Lent(known, shape, 0, 0, view)
    if view.readonly:
        copy = (c_uint8 * view.nbytes).from_buffer_copy(view)
        return Lent(known, shape, ctypes.addressof(copy), view.nbytes, copy)
    held = (c_uint8 * view.nbytes).from_buffer(view)
    return Lent(known, shape, ctypes.addressof(held), view.nbytes, held)


def named(name, array):
    """borrowed(), with faults that name the tensor."""
    try:
        return borrowed(array)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def is_at_hand(array):
    """True for an array that borrowed() takes where it is, without a copy."""
    torch, flags = sys.modules.get("torch"), getattr(array, "flags", None)
    if torch is not None and isinstance(array, torch.Tensor):
        return array.device.type == "cpu" and not hasattr(array, "full_tensor") and array.is_contiguous()
    return isinstance(array, Array) or bool(getattr(flags, "c_contiguous", False) and flags.writeable)


def _of_capsule(capsule):
    tensor = ctypes.cast(_pointer(id(capsule), _NAME), POINTER(_Managed)).contents
    shape = tuple(tensor.shape[:tensor.n_dims])
    if tensor.device_type != 1:
        raise TypeError("the array is not in the memory of the host (move it to the CPU)")
    steps = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    if tensor.strides and any(n > 1 and step != stride for n, step, stride in
                              zip(shape, steps, tensor.strides[:tensor.n_dims])):
        raise TypeError("the array is not contiguous (make it so)")
    dtype = _BY_CODE.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"the array has type {tensor.code} of {tensor.bits} bits, {tensor.lanes} in an element "
                        "(DLPack), which is no dtype of safetensors")
    n_bytes = math.prod(shape) * tensor.bits // 8
    return Lent(dtype, shape, (tensor.data or 0) + tensor.byte_offset, n_bytes, capsule)


def _dtype_of(view):
    # The letters of the struct module; the size of some depends on the machine.
    kinds = {"?": "BOOL", "c": "U", "e": "F", "f": "F", "d": "F", **dict.fromkeys("bhilqn", "I"),
             **dict.fromkeys("BHILQN", "U")}
    order, letter = view.format[:-1], view.format[-1:]
    own = "<" if sys.byteorder == "little" else ">"
    kind = kinds.get(letter)
    if kind is None or order not in ("", "@", "=", own) and view.itemsize > 1:
        raise TypeError(f"the array has the format {view.format!r}, which is no dtype of safetensors (convert it)")
    return kind if kind == "BOOL" else f"{kind}{8 * view.itemsize}"
