"""Checkpoints of models that are in memory."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from ctypes import byref, c_void_p, c_uint64

from ingot._arrays import borrowed, byte_count, form_of
from ingot._calls import PROGRESS, Handle, Run, call, options_json, path_bytes, run_command, taken_text

_FILE_BYTES = 5 * 10 ** 9


def _form_of(shape):
    return shape if isinstance(shape, Mapping) else {"dtype": "BF16", "shape": list(shape)}


def _entry(form, offset):
    return {"dtype": form["dtype"], "shape": list(form["shape"]),
            "data_offsets": [offset, offset + byte_count(form["dtype"], form["shape"])]}


def _write_headers(folder, forms):
    """Weights files of which only the headers are written; the rest are holes."""
    files, n_bytes = [{}], 0
    for name, form in forms.items():
        size = byte_count(form["dtype"], form["shape"])
        if files[-1] and n_bytes + size > _FILE_BYTES:
            files.append({})
            n_bytes = 0
        files[-1][name] = form
        n_bytes += size
    places = {}
    for number, tensors in enumerate(files, 1):
        path = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for name, form in tensors.items():
            header[name] = _entry(form, offset)
            offset = header[name]["data_offsets"][1]
            places[name] = path
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        _write_holes(os.path.join(folder, path), len(text).to_bytes(8, "little") + text, offset)
    if len(files) > 1:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": places}, file)


def _write_holes(path, header, n_bytes):
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + n_bytes)


def _copy_headers(source, folder, forms):
    """The weights files of a checkpoint that has just these tensors, as holes; False for another one."""
    headers, found = {}, {}
    for name in sorted(os.listdir(source)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(source, name), "rb") as file:
            n = int.from_bytes(file.read(8), "little")
            text = file.read(min(n, 10 ** 8))
            headers[name] = n.to_bytes(8, "little") + text, os.fstat(file.fileno()).st_size - 8 - n
        found.update(json.loads(text))
    found.pop("__metadata__", None)
    if {name: (form["dtype"], list(form["shape"])) for name, form in forms.items()} != {
            name: (form["dtype"], form["shape"]) for name, form in found.items()}:
        return False
    for name, (header, n_bytes) in headers.items():
        _write_holes(os.path.join(folder, name), header, n_bytes)
    index = os.path.join(source, "model.safetensors.index.json")
    if os.path.exists(index):
        shutil.copy(index, folder)
    return True


class Writer:
    """Writes a model that is in memory as the checkpoint that `ingot convert` makes of it, tensor by
    tensor, in any order and from any thread.

    `shapes` are those of Plan. `config` is the config.json of the model (a dict, or its text), and
    `like` a checkpoint, by its folder or name on the hub, from which it is taken if not given, with
    tokenizer, card and other side files, and the division into files where its tensors are the same.
    close() publishes, and returns the report; leaving `with` by an exception publishes nothing."""

    def __init__(self, output, shapes, *, config=None, like=None, progress=None, **options):
        forms = {name: _form_of(shape) for name, shape in shapes.items()}
        self._progress, self._failure = progress, None
        self._handle, self.report, self._folder = Handle("writer_free"), None, tempfile.mkdtemp(prefix="ingot-")
        try:
            source = self._make_source(forms, config, like)
            self._run = Run(progress=PROGRESS(self._told) if progress else PROGRESS())
            call("writer_open", path_bytes(source), path_bytes(output), options_json(options), byref(self._run),
                 byref(self._handle.value))
        except BaseException:
            self.abandon()
            raise

    def _make_source(self, forms, config, like):
        folder = self._folder
        if like is not None:
            found = run_command("inspect", {"directory": like}, {"family": "generic"})
            like = os.path.realpath(found["directory"])
            # A snapshot of the hub's cache says the name of its model, which the card has.
            name = "models--" + like.rpartition("models--")[2] if "models--" in like else ""
            folder = os.path.join(folder, name)
            os.makedirs(folder, exist_ok=True)
            for side in found["side_files"]:
                place = os.path.join(folder, side["name"])
                os.makedirs(os.path.dirname(place), exist_ok=True)
                shutil.copyfile(os.path.join(like, side["name"]), place)
            if config is None:
                shutil.copyfile(os.path.join(like, "config.json"), os.path.join(folder, "config.json"))
        elif config is None:
            raise ValueError("a model needs its config.json (give config=, or like= a checkpoint that has it)")
        if config is not None:
            with open(os.path.join(folder, "config.json"), "w") as file:
                file.write(config if isinstance(config, str) else json.dumps(config, indent=2))
        if like is None or not _copy_headers(like, folder, forms):
            _write_headers(folder, forms)
        return folder

    def _told(self, _, phase, done, total):
        try:
            self._progress(phase.decode(), done, total)
        except BaseException as failure:  # raised by the next call of the writer
            self._failure = failure

    def _require_open(self):
        if self._failure is not None:
            raise self._failure
        if self._folder is None:
            raise ValueError("the writer is closed")

    def write(self, name, array):
        """Gives a tensor, as Encoder.encode() takes it; its memory is free again afterwards. Waits while
        `mem_limit` is full of tensors that are being converted."""
        self._require_open()
        lent = borrowed(array)
        shape = (c_uint64 * len(lent.shape))(*lent.shape)
        call("writer_put", self._handle.value, name.encode(), lent.dtype.encode(), shape, len(lent.shape),
             lent.address, lent.n_bytes)

    def close(self):
        """Publishes the output, of which all tensors must have come, and returns the report."""
        if self.report is not None:
            return self.report
        self._require_open()
        report = c_void_p()
        try:
            call("writer_finish", self._handle.value, byref(report))
            self.report = taken_text(report)
        finally:
            if self.report is not None:
                self.abandon()
        return self.report

    def abandon(self):
        """Publishes nothing, if that has not been done."""
        self._handle.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.close()
        finally:
            self.abandon()

    __del__ = abandon


def write(tensors, output, *, shapes=None, config=None, like=None, progress=None, **options):
    """convert() of a mapping, or of an iterable of (name, array) with shapes=, or like= a checkpoint of the
    same shapes."""
    is_mapping = isinstance(tensors, Mapping)
    if shapes is None and is_mapping:
        shapes = {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in
                  ((name, form_of(array)) for name, array in tensors.items())}
    if shapes is None and like is not None:
        from ingot._checkpoint import Checkpoint
        with Checkpoint(like) as checkpoint:
            shapes = checkpoint.shapes()
    if shapes is None:
        raise ValueError("tensors that come one by one need shapes={name: shape}, or like= a checkpoint of these shapes")
    with Writer(output, shapes, config=config, like=like, progress=progress, **options) as writer:
        for name, array in tensors.items() if is_mapping else tensors:
            writer.write(name, array)
        return writer.close()
