"""Checkpoints of models that are in memory."""

import ctypes
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from ctypes import byref, c_int, c_uint64, c_void_p

from ingot._arrays import byte_count, is_at_hand, named, stated_form
from ingot._calls import (PROGRESS, EncodedInfo, Handle, Run, call, config_text, options_json, path_bytes, run_call,
                          run_command, taken_text)
from ingot._checkpoint import Checkpoint

_FILE_BYTES = 5 * 10 ** 9


# How dtypes of codes begin.
_CODES = ("F8", "F6", "F4", "I8", "U8", "I32", "U32")


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

    `shapes` and `config` are those of Plan, the shapes and the config.json of the model, and
    `like` a checkpoint, by its folder or name on the hub, from which it is taken if not given, with
    tokenizer, card and other side files, and the division into files where its tensors are the same.
    close() publishes, and returns the report; leaving `with` by an exception publishes nothing."""

    def __init__(self, output, shapes, *, config=None, like=None, progress=None, **options):
        forms = {name: stated_form(form) for name, form in dict(shapes).items()}
        self._progress, self._failure, self._stop = progress, None, c_int(0)
        self._handle, self.report, self._folder = Handle("writer"), None, tempfile.mkdtemp(prefix="ingot-")
        try:
            source = _make_source(self._folder, forms, config, like)
            self._run = Run(progress=PROGRESS(self._told) if progress else PROGRESS(), stop=ctypes.pointer(self._stop))
            call("writer_open", path_bytes(source), path_bytes(output), options_json(options), byref(self._run),
                 byref(self._handle.value))
        except BaseException:
            self.abandon()
            raise

    def _told(self, _, phase, done, total):
        try:
            self._progress(phase.decode(), done, total)
        except BaseException as failure:  # raised by the call of the writer that it meets, or the next
            self._failure, self._stop.value = failure, 1

    def _call(self, name, *arguments):
        if self._folder is None:
            raise ValueError("the writer is closed")
        try:
            self._handle.call(name, *arguments)
        finally:
            if self._failure is not None:
                raise self._failure

    def write(self, name, array):
        """Gives a tensor, as Encoder.encode() takes it; its memory is free again afterwards. Waits while
        `mem_limit` is full of tensors that are being converted."""
        lent = named(name, array)
        shape = (c_uint64 * len(lent.shape))(*lent.shape)
        self._call("writer_put", name.encode(), lent.dtype.encode(), shape, len(lent.shape), lent.address, lent.n_bytes)

    def close(self):
        """Publishes the output, of which all tensors must have come, and returns the report."""
        if self.report is not None:
            return self.report
        report = c_void_p()
        try:
            self._call("writer_finish", byref(report))
        finally:
            document = taken_text(report)
        self.report = document
        self.abandon()
        return document

    def abandon(self):
        """Publishes nothing, if that has not been done."""
        self._stop.value = 1  # calls of other threads end soon, and the handle is freed after them
        self._handle.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __repr__(self):
        return f"<ingot.Writer, {'published' if self.report else 'open' if self._folder else 'closed'}>"

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
    """convert() of a module of torch, of a mapping, or of an iterable of (name, array) with shapes=, or like= a
    checkpoint of the same shapes."""
    if hasattr(tensors, "state_dict"):
        if (config, like) == (None, None):
            config = _config_of(tensors)
        tensors = _tensors_of(tensors)
    if isinstance(tensors, Mapping):
        tensors = _without_tied_head(tensors, config, like)
        if shapes is None:
            shapes = tensors
    elif shapes is None and like is not None:
        shapes, tensors = _shapes_like(like, tensors)
    if shapes is None:
        raise ValueError("tensors that come one by one need shapes={name: shape}, or like= a checkpoint of these shapes")
    if isinstance(tensors, Mapping) and all(map(is_at_hand, tensors.values())):
        return _write_at_hand(tensors, output, shapes, config, like, progress, options)
    with Writer(output, shapes, config=config, like=like, progress=progress, **options) as writer:
        for name, array in tensors.items() if isinstance(tensors, Mapping) else tensors:
            writer.write(name, array)
        return writer.close()


def _write_at_hand(tensors, output, shapes, config, like, progress, options):
    """A model that is whole in the host's memory, which may be read more than once."""
    lent = {name: named(name, array) for name, array in tensors.items()}
    infos = (EncodedInfo * len(lent))()
    for info, (name, array) in zip(infos, lent.items()):
        info.__init__(name=name.encode(), dtype=array.dtype.encode(), n_dims=len(array.shape), bytes=array.address,
                      shape=(c_uint64 * len(array.shape))(*array.shape), n_bytes=array.n_bytes)
    forms = {name: stated_form(form) for name, form in dict(shapes).items()}
    with tempfile.TemporaryDirectory(prefix="ingot-") as folder:
        source = _make_source(folder, forms, config, like)
        words = [path_bytes(source), path_bytes(output), options_json(options)]
        return run_call("convert_memory", [*words, infos, len(lent)], progress)


def _own_module(module):
    """The module of a model that was compiled, or is shared out."""
    while hasattr(module, "_orig_mod") or type(module).__name__.endswith("DataParallel"):
        module = getattr(module, "_orig_mod", None) or module.module
    return module


def _config_of(module):
    """The config that save_pretrained() of transformers writes, or None; other modules have settings of that name."""
    module = _own_module(module)
    config = getattr(module, "config", None)
    if not isinstance(config, Mapping) and not hasattr(config, "to_dict"):
        return None
    config = json.loads(config_text(config))
    config["architectures"] = config.get("architectures") or [type(module).__name__]
    return config


def _tensors_of(module):
    """The tensors of a module of torch, as save_pretrained() of transformers writes them."""
    module = _own_module(module)
    state = module.state_dict()
    if hasattr(module, "save_pretrained") and not any(hasattr(tensor, "full_tensor") for tensor in state.values()):
        try:  # names of experts differ in memory from those in files
            from transformers.core_model_loading import revert_weight_conversion
            state = revert_weight_conversion(module, state)
        except ImportError:
            pass
    return state


def _without_tied_head(tensors, config, like):
    """The mapping without a head that is the embedding, in the same memory, where config.json says that it is tied."""
    if config is None and like is not None:
        config = os.path.join(_found(like)["directory"], "config.json")
    keys = {} if config is None else json.loads(config_text(config))
    if not any(isinstance(part, dict) and part.get("tie_word_embeddings") for part in (keys, *keys.values())):
        return tensors
    places = set()

    def is_new(array):
        place = (array.data_ptr(), tuple(array.shape)) if hasattr(array, "data_ptr") else None
        if place is None or place in places:
            return place is None
        return places.add(place) or True
    return {name: array for name, array in tensors.items() if is_new(array)}


def _found(like):
    return run_command("inspect", {"directory": like}, {"family": "generic"})


def _shapes_like(like, tensors):
    """The shapes of a checkpoint for tensors that come one by one, and these; without codes and scales where the
    first weight that has them there comes without."""
    with Checkpoint(like) as checkpoint:
        shapes, decoded = checkpoint.shapes(), checkpoint.shapes("BF16")
        coded = {name for name, form in decoded.items() if form != shapes.get(name)}
        ahead, tensors = [], iter(tensors)
        for name, array in tensors if coded else ():
            ahead.append((name, array))
            if name in shapes and name not in decoded:
                break  # a part of codes: it has the release's own
            if name not in coded:
                continue
            form = stated_form(array)
            *stack, rows, columns = form["shape"]
            if form != shapes.get(name):
                shapes = checkpoint.shapes(form["dtype"])
            if form != shapes[name]:  # codes of stacks may be stored the other way round
                for other in coded & {one for one in shapes if len(shapes[one]["shape"]) == len(form["shape"]) > 2}:
                    shapes[other]["shape"][-2:] = shapes[other]["shape"][:-3:-1]
            if not stack or rows != columns:
                break
        return shapes, itertools.chain(ahead, tensors)


def _make_source(folder, forms, config, like):
    """A checkpoint of these tensors in the folder, of which only the headers are there."""
    has_codes = any(form["dtype"].startswith(_CODES) for form in forms.values())
    name = "model"  # in reports
    if like is not None:
        found = _found(like)
        like = os.path.realpath(found["directory"])
        # A snapshot of the hub's cache says the name of its model, which the card has.
        name = "models--" + like.rpartition("models--")[2] if "models--" in like else os.path.basename(like)
    folder = os.path.join(folder, name)
    os.makedirs(folder)
    if like is not None:
        for side in found["side_files"]:
            place = os.path.join(folder, side["name"])
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copyfile(os.path.join(like, side["name"]), place)
        if config is None:
            config = os.path.join(like, "config.json")
            if not has_codes and "quantization_config" in config_text(config):  # of a release that has them
                config = run_command("convert", {"input": like, "output": os.path.join(folder, "none")},
                                     {"to": "bf16", "dry_run": True})["config"]
    elif config is None:
        raise ValueError("a model needs its config.json (give config=, or like= a checkpoint that has it)")
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        file.write(config_text(config))
    if like is None or not _copy_headers(like, folder, forms):
        _write_headers(folder, forms)
    return folder
