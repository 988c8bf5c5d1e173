"""The shared library: its structs, its functions, and how they are called."""

import ctypes
import errno
import json
import operator
import os
import threading
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p

_ABI = 1
_LIBRARY_NAME = "libingot.so.1"
_TURN = 0.1  # seconds


class Error(Exception):
    """A fault: `code` ("not-found"), and the `file`, `tensor` and `message` that are known. It is
    also one of Python's own errors where there is one for it: FileNotFoundError, FileExistsError,
    PermissionError, OSError or ValueError. `report` is the document of the command, or None."""

    def __init__(self, code, file, tensor, message, text, report=None):
        super().__init__(text)
        self.code, self.file, self.tensor, self.message, self.report = code, file, tensor, message, report
        if isinstance(self, OSError):
            self.errno, self.filename = _NUMBERS.get(code), file

    def __str__(self):
        return self.args[0]

    def __reduce__(self):
        return error_of, (self.code, self.file, self.tensor, self.message, str(self), self.report)


_NUMBERS = {"not-found": errno.ENOENT, "exists": errno.EEXIST, "permission": errno.EACCES, "no-space": errno.ENOSPC}
_KINDS = {"not-found": FileNotFoundError, "exists": FileExistsError, "permission": PermissionError,
          "no-space": OSError, "io": OSError,
          **dict.fromkeys(("invalid-argument", "corrupt", "shape-mismatch", "dtype-mismatch", "bad-scale", "non-finite"),
                          ValueError)}
_CLASSES = {code: type("Error", (Error, kind), {"__module__": "ingot"}) for code, kind in _KINDS.items()}


def error_of(code, file, tensor, message, text, report=None):
    """An Error of this code, which is also Python's own for it. A tensor that is not there is no file."""
    kind = Error if code == "not-found" and not file else _CLASSES.get(code, Error)
    return kind(code, file, tensor, message, text, report)


class Sized(ctypes.Structure):
    """A struct of the interface, which begins with its size."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(self), **members)


class Fault(Sized):
    _fields_ = [("size", c_size_t), ("code", c_int), ("code_name", c_char_p), ("file", c_char_p),
                ("tensor", c_char_p), ("message", c_char_p), ("text", c_char_p)]


class TensorInfo(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("role", c_char_p), ("scheme", c_char_p),
                ("shape", POINTER(c_uint64)), ("n_dims", c_size_t), ("layer", c_int64),
                ("expert", c_int64), ("n_parts", c_size_t)]


class PartInfo(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_char_p), ("name", c_char_p), ("dtype", c_char_p),
                ("shape", POINTER(c_uint64)), ("n_dims", c_size_t), ("n_bytes", c_uint64),
                ("path", c_char_p), ("offset", c_uint64), ("device", c_uint64), ("inode", c_uint64),
                ("file_bytes", c_uint64), ("modified_ns", c_int64), ("changed_ns", c_int64),
                ("n_links", c_uint64)]


class EncodedInfo(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dtype", c_char_p),
                ("shape", POINTER(c_uint64)), ("n_dims", c_size_t), ("bytes", c_void_p),
                ("n_bytes", c_uint64)]


PROGRESS = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_uint64, c_uint64)


class Run(Sized):
    _fields_ = [("size", c_size_t), ("progress", PROGRESS), ("context", c_void_p),
                ("stop", POINTER(c_int))]


_HANDLE = c_void_p
_SIGNATURES = {
    "open": [c_char_p, c_char_p, POINTER(_HANDLE)],
    "tensor_info": [_HANDLE, c_size_t, POINTER(TensorInfo)],
    "part_info": [_HANDLE, c_size_t, c_size_t, POINTER(PartInfo)],
    "read_stored": [_HANDLE, c_size_t, c_size_t, c_uint64, c_void_p, c_uint64],
    "read_decoded": [_HANDLE, c_size_t, POINTER(c_float), c_uint64, c_size_t],
    "read_rows": [_HANDLE, c_size_t, c_uint64, c_uint64, POINTER(c_float), c_uint64, c_size_t],
    "plan_shapes": [c_char_p, c_char_p, c_char_p, POINTER(_HANDLE)],
    "command": [c_char_p, c_char_p, POINTER(Run), POINTER(c_void_p)],
    "writer_open": [c_char_p, c_char_p, c_char_p, POINTER(Run), POINTER(_HANDLE)],
    "writer_put": [_HANDLE, c_char_p, c_char_p, POINTER(c_uint64), c_size_t, c_void_p, c_uint64],
    "writer_finish": [_HANDLE, POINTER(c_void_p)],
    "convert_memory": [c_char_p, c_char_p, c_char_p, POINTER(EncodedInfo), c_size_t, POINTER(Run), POINTER(c_void_p)],
    "encoder_new": [_HANDLE, POINTER(_HANDLE)],
    "encoder_put_array": [_HANDLE, c_char_p, c_char_p, POINTER(c_uint64), c_size_t, c_void_p, c_uint64,
                          POINTER(c_size_t)],
    "encoder_made": [_HANDLE, c_size_t, POINTER(EncodedInfo)],
    "encoder_finish": [_HANDLE],
}
_OTHERS = {
    "abi_version": (c_int, []),
    "version": (c_char_p, []),
    "last_error": (None, [POINTER(Fault)]),
    "free_text": (None, [c_void_p]),
    "close": (None, [_HANDLE]),
    "tensor_count": (c_size_t, [_HANDLE]),
    "plan_free": (None, [_HANDLE]),
    "plan_json": (c_char_p, [_HANDLE]),
    "writer_free": (None, [_HANDLE]),
    "encoder_free": (None, [_HANDLE]),
}

_FREE = {"checkpoint": "close", "plan": "plan_free", "encoder": "encoder_free", "writer": "writer_free"}

_library = None


def library():
    """The shared library, loaded at the first call: that of the variable INGOT_LIBRARY, the one in
    the package, or the one that the system finds."""
    global _library
    if _library is None:
        bundled = os.path.join(os.path.dirname(__file__), "lib", _LIBRARY_NAME)
        path = os.environ.get("INGOT_LIBRARY") or (
            bundled if os.path.exists(bundled) else _LIBRARY_NAME)
        loaded = ctypes.CDLL(path)
        for name, arguments in _SIGNATURES.items():
            getattr(loaded, "ingot_" + name).argtypes = arguments
        for name, (result, arguments) in _OTHERS.items():
            function = getattr(loaded, "ingot_" + name)
            function.restype, function.argtypes = result, arguments
        if loaded.ingot_abi_version() < _ABI:
            raise ImportError(f"{path} has interface {loaded.ingot_abi_version()}, and {_ABI} is needed")
        _library = loaded
    return _library


def version():
    """The version of the library."""
    return library().ingot_version().decode()


def call(name, *arguments):
    """Calls a function that may fail; ctypes lets go of the GIL meanwhile."""
    if getattr(library(), "ingot_" + name)(*arguments) != 0:
        fault = Fault()
        library().ingot_last_error(byref(fault))
        raise error_of(*(getattr(fault, field).decode(errors="replace")
                         for field in ("code_name", "file", "tensor", "message", "text")))


class Handle:
    """A handle of the library, which is freed with this object, or by close(): not before calls with it in other
    threads have ended, while new ones are refused."""

    def __init__(self, kind):
        self._kind, self._lock, self._n_users, self._is_closed = kind, threading.Lock(), 0, False
        self._free = getattr(library(), "ingot_" + _FREE[kind])
        self.value, self._beneath = c_void_p(), None

    def build_on(self, beneath):
        """Uses another handle until this one is freed."""
        value = beneath.__enter__()
        self._beneath = beneath
        return value

    def __enter__(self):
        with self._lock:
            if self._is_closed:
                fact = f"the {self._kind} is closed"
                raise error_of("invalid-argument", "", "", fact, fact)
            self._n_users += 1
        return self.value

    def __exit__(self, *_):
        with self._lock:
            self._n_users -= 1
        self._free_if_unused()

    def call(self, name, *arguments):
        """Calls a function, of which the handle is the first argument."""
        with self as value:
            call(name, value, *arguments)

    def close(self):
        self._is_closed = True
        self._free_if_unused()

    def _free_if_unused(self):
        with self._lock:
            if not self._is_closed or self._n_users:
                return
            value, self.value = self.value, c_void_p()
            beneath, self._beneath = self._beneath, None
        if value:
            self._free(value)
        if beneath is not None:
            beneath.__exit__()

    __del__ = close


def taken_text(text):
    """The JSON of a text that the library gave away, or None."""
    try:
        return json.loads(ctypes.string_at(text)) if text else None
    finally:
        library().ingot_free_text(text)


def path_bytes(path):
    return os.fsencode(os.fspath(path))


def options_json(options):
    """Keywords as a JSON object of flags: max_shard_size is --max-shard-size."""
    def plain(value):
        if isinstance(value, (os.PathLike, bytes)):
            return os.fsdecode(value)
        return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value
    flags = {name.rstrip("_").replace("_", "-"):
             [plain(one) for one in value] if isinstance(value, (list, tuple)) else plain(value)
             for name, value in options.items()}
    return json.dumps(flags).encode()


def config_text(config):
    """config.json as text: of a mapping, its text, its file, or a config of transformers."""
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if isinstance(config, Mapping):
        return json.dumps(config, indent=2)
    if isinstance(config, str) and config.lstrip().startswith("{"):
        return config
    with open(config, encoding="utf-8") as file:
        return file.read()


def shape_of(info):
    return tuple(info.shape[i] for i in range(info.n_dims))


def run_command(command, words, options, progress=None):
    """Runs a command, of which `words` are those at their places, and returns its document."""
    return run_call("command", [command.encode(), options_json({**words, **options})], progress)


def run_call(name, arguments, progress=None):
    """Calls a function that runs a command, and returns its document. It runs in a thread of its own with
    progress(phase, done, total): so this one gets signals, and Ctrl-C stops it."""
    report = c_void_p()
    stop = c_int(0)
    failures = []

    def told(_, phase, done, total):
        try:
            progress(phase.decode(), done, total)
        except BaseException as failure:  # raised where the job was called
            failures.append(failure)
            stop.value = 1

    run = Run(progress=PROGRESS(told) if progress else PROGRESS(), stop=ctypes.pointer(stop))

    go, done = threading.Event(), threading.Event()

    def work():
        go.wait()
        try:
            if not stop.value:
                call(name, *arguments, byref(run), byref(report))
        except BaseException as failure:
            failures.append(failure)
        finally:
            done.set()

    # Not Thread.join(), which forgets a thread once it was interrupted (bpo-45274); and nothing
    # begins before start(), which can be interrupted too, has returned.
    thread = threading.Thread(target=work, name="ingot")
    try:
        thread.start()
        go.set()
        # In turns: the system may give a signal to another thread, and this one acts on it.
        while not done.wait(_TURN):
            pass
    except BaseException:
        stop.value = 1
        while go.is_set() and not done.is_set():
            try:
                done.wait(_TURN)
            except KeyboardInterrupt:
                pass  # it is stopping
        go.set()
        raise
    document = taken_text(report)
    if failures:
        failures[0].report = document
        raise failures[0]
    return document
