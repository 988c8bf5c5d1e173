"""Bytes of tensors: an array is a ctypes array, which has the buffer protocol, without a copy."""

import ctypes
import functools
import math
import sys
from collections import namedtuple
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


def element_of(dtype):
    return _DTYPES.get(dtype, (ctypes.c_uint8,))[0]


@functools.lru_cache(maxsize=4096)
def array_type(base, dtype, shape, n_bytes):
    """A class over `base`, and over the ctypes array of this shape."""
    element = element_of(dtype)
    if dtype not in _DTYPES or math.prod(shape) * ctypes.sizeof(element) != n_bytes:
        element, shape = c_uint8, (n_bytes,)
    array = element
    for n in reversed(shape):
        array = array * n
    if not shape:
        array = element * 1
    return type(base.__name__, (base, array), {})


class Array:
    """Numbers of a stored tensor, with the buffer protocol, DLPack and numpy()."""

    name: str
    dtype: str
    shape: tuple

    @property
    def nbytes(self):
        return ctypes.sizeof(self)

    def tobytes(self):
        return bytes(memoryview(self).cast("B")) if self.nbytes else b""

    def numpy(self):
        """A numpy array over the same memory. BF16 and FP8 have the dtypes of ml_dtypes where that
        is installed, else they are unsigned integers of their width."""
        import numpy
        kind = _DTYPES.get(self.dtype, (None, "uint8"))[1]
        flat = numpy.frombuffer(self, dtype=numpy.uint8) if self.nbytes else numpy.empty(0, "uint8")
        if kind.startswith(":"):
            try:
                import ml_dtypes
                kind = numpy.dtype(getattr(ml_dtypes, kind[1:]))
            except (ImportError, AttributeError):
                kind = f"uint{8 * ctypes.sizeof(element_of(self.dtype))}"
        array = flat.view(kind)
        return array.reshape(self.shape) if array.size == math.prod(self.shape) else array

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack_device__(self):
        return (1, 0)  # the memory of the host

    def __dlpack__(self, **_):
        if self.dtype not in _DTYPES:
            raise BufferError(f"{self.name}: DLPack has no {self.dtype} (take its bytes)")
        return _capsule(self)

    def __repr__(self):
        return f"<{self.dtype} {list(self.shape)} {self.name}>"


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
    managed = _Managed(data=ctypes.addressof(array), device_type=1, n_dims=len(array.shape),
                       code=_DTYPES[array.dtype][2],
                       bits=8 * ctypes.sizeof(element_of(array.dtype)), lanes=1,
                       shape=ctypes.cast(shape, POINTER(c_int64)),
                       deleter=ctypes.cast(_give_back, c_void_p))
    _lent[ctypes.addressof(managed)] = (managed, shape, array)
    return _new(ctypes.addressof(managed), _NAME, ctypes.cast(_destroy, c_void_p))


# Memory of an array of another library, as long as its owner lives.
Lent = namedtuple("Lent", "dtype shape address n_bytes owner")


def borrowed(array):
    """An array of another library as Lent, by DLPack or its buffer."""
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
