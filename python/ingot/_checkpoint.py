"""Checkpoints as mappings of names to tensors."""

import ctypes
import math
import mmap
import operator
import os
from collections.abc import Mapping
from ctypes import byref

from ingot._arrays import Array, new_tensor, row_range
from ingot._calls import (Handle, PartInfo, TensorInfo, call, error_of, library, options_json, path_bytes,
                          shape_of)


def open(path, **options):
    """Opens a checkpoint: its config, index and headers, and no weights. Options: family,
    family_file, config."""
    return Checkpoint(path, **options)


class Tensor(Array):
    """A stored tensor, of a checkpoint or made by an Encoder."""

    kind = "weight"
    role, scheme, layer, expert = "", "", None, None


class QuantizedTensor:
    """A weight that is stored as codes and scales: `parts`, by kind ("weight", "scale")."""

    def __init__(self, checkpoint, index, info, parts):
        self._checkpoint, self._index, self._rows = checkpoint, index, None
        self.parts = parts
        _describe(self, info)
        self.dtype = "F32"

    def numpy(self, out=None, threads=0):
        """The decoded values, float32, in `out` where it is given; on `threads` threads, 0: every processor."""
        import numpy
        values = numpy.empty(self.shape, "float32") if out is None else out
        if (values.shape, values.dtype, values.flags.carray) != (self.shape, "float32", True):
            raise ValueError(f"{self.name}: out is no contiguous, writable array of float32 {list(self.shape)}")
        place = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        call = self._checkpoint._handle.call
        if self._rows is None:
            call("read_decoded", self._index, place, values.size, threads)
        else:
            begin, end = self._rows
            call("read_rows", self._index, begin, end - begin, place, values.size, threads)
        return values

    float32 = numpy

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        """Rows of the weight: their numpy() reads and decodes no others. `parts` stay those of all rows."""
        begin, end = row_range(self, rows)
        part = object.__new__(QuantizedTensor)
        part.__dict__.update(self.__dict__)
        first = self._rows[0] if self._rows else 0
        part._rows = first + begin, first + end
        part.shape = (end - begin, *self.shape[1:])
        return part if isinstance(rows, slice) else part.numpy()[0]

    def __reduce__(self):
        whole = operator.getitem, (self._checkpoint, self.name)
        return whole if self._rows is None else (_rows_of, (self._checkpoint, self.name, slice(*self._rows)))

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype or "float32", copy=False)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        return self.numpy().__dlpack__(**options)

    def __repr__(self):
        return f"<{self.scheme} {list(self.shape)} {self.name}>"


def _rows_of(checkpoint, name, rows):
    return checkpoint[name][rows]


def _describe(tensor, info):
    tensor.name, tensor.role = info.name.decode(), info.role.decode()
    tensor.scheme, tensor.shape = info.scheme.decode(), shape_of(info)
    tensor.layer = None if info.layer < 0 else info.layer
    tensor.expert = None if info.expert < 0 else info.expert


def _changed(info):
    path, tensor = os.fsdecode(info.path), info.name.decode()
    fact = "its file was replaced, written to or removed after the checkpoint was opened (open it again)"
    return error_of("mismatch", path, tensor, fact, f"{path}: tensor '{tensor}': {fact}")


def _require_unchanged(info, file):
    """Whether a file, by its path or descriptor, has the header that open() read, and so the offsets. A link to it
    changes the time that no program can put back, too."""
    now = os.stat(file)
    is_put_back = now.st_nlink == info.n_links and now.st_ctime_ns != info.changed_ns
    if is_put_back or (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) != (
            info.device, info.inode, info.file_bytes, info.modified_ns):
        raise _changed(info)


def _map(info):
    # Private pages, for which nothing is reserved: who writes into an array changes no file.
    descriptor = os.open(info.path, os.O_RDONLY)
    try:
        _require_unchanged(info, descriptor)
        return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000),
                         prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(descriptor)


class Checkpoint(Mapping):
    """The weights of a checkpoint by name: a Tensor where it is plain, a QuantizedTensor where it is
    codes and scales. `stored` has every stored tensor by its own name. It is closed by close(), at the end of
    `with`, or with its last reference; arrays over its files stay."""

    def __init__(self, path, **options):
        self._opened = os.path.abspath(os.fspath(path)) if os.path.exists(path) else path, options
        self._handle = Handle("checkpoint")
        call("open", path_bytes(path), options_json(options), byref(self._handle.value))
        self._files = {}
        self._index, self._stored = {}, {}
        for index in range(library().ingot_tensor_count(self._handle.value)):
            info = self._info(index)
            self._index[info.name.decode()] = index
        self.stored = _Stored(self)

    def _info(self, index):
        info = TensorInfo()
        self._handle.call("tensor_info", index, byref(info))
        return info

    def _part_info(self, index, part):
        info = PartInfo()
        self._handle.call("part_info", index, part, byref(info))
        return info

    def _part(self, index, part):
        info = self._part_info(index, part)
        shape, dtype = shape_of(info), info.dtype.decode()
        if info.path and info.n_bytes:
            tensor = new_tensor(Tensor, dtype, shape, info.n_bytes, self._mapped(info), info.offset)
        else:
            tensor = new_tensor(Tensor, dtype, shape, info.n_bytes)
            if info.n_bytes:
                words = ctypes.addressof(tensor.words())
                self._handle.call("read_stored", index, part, 0, words, info.n_bytes)
        tensor.name, tensor.kind = info.name.decode(), info.kind.decode()
        return tensor

    def _mapped(self, info):
        files = self._files
        try:
            if info.path in files:
                _require_unchanged(info, info.path)
            else:
                files[info.path] = _map(info)
        except FileNotFoundError:
            raise _changed(info) from None
        return files[info.path]

    def __getitem__(self, name):
        index = self._index[name]
        with self._handle:  # the texts of an info are its
            info = self._info(index)
            parts = [self._part(index, part) for part in range(info.n_parts)]
            if len(parts) > 1:
                return QuantizedTensor(self, index, info, {part.kind: part for part in parts})
            _describe(parts[0], info)
            return parts[0]

    def close(self):
        """Gives the handle back, once threads that read have what they read; nothing can be read any more."""
        self._handle.close()
        self._files = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        path, options = self._opened
        return _reopened, (path, options)

    def __repr__(self):
        return f"<ingot.Checkpoint {os.fspath(self._opened[0])!r}, {len(self)} weights>"

    def __iter__(self):
        return iter(self._index)

    def __len__(self):
        return len(self._index)

    def nbytes(self):
        """Bytes of all stored tensors."""
        return sum(self._part_info(i, p).n_bytes for i in self._index.values()
                   for p in range(self._info(i).n_parts))

    def shapes(self, decoded=None):
        """dtype and shape of every stored tensor, as Plan takes them; with decoded="BF16" those of a model whose
        weights of codes and scales are of that dtype."""
        with self._handle:
            shapes = {}
            for name, index in self._index.items():
                weight = self._info(index)
                if decoded is not None and weight.n_parts > 1:
                    shapes[name] = {"dtype": decoded, "shape": list(shape_of(weight))}
                    continue
                for part in range(weight.n_parts):
                    info = self._part_info(index, part)
                    shapes[info.name.decode()] = {"dtype": info.dtype.decode(), "shape": list(shape_of(info))}
            return shapes


def _reopened(path, options):
    return Checkpoint(path, **options)


class _Stored(Mapping):
    def __init__(self, checkpoint):
        self._checkpoint, self._places = checkpoint, None

    def _all(self):
        if self._places is None:
            of = self._checkpoint
            with of._handle:
                self._places = {of._part_info(i, p).name.decode(): (i, p) for i in of._index.values()
                                for p in range(of._info(i).n_parts)}
        return self._places

    def __getitem__(self, name):
        place = self._all()[name]
        with self._checkpoint._handle:
            return self._checkpoint._part(*place)

    def __iter__(self):
        return iter(self._all())

    def __len__(self):
        return len(self._all())
