"""Reads the tensors of a checkpoint: every *.safetensors file below a folder, from the bytes up."""

import json
import os
import struct
from dataclasses import dataclass

BYTES_OF = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}


@dataclass
class Stored:
    """A tensor as a file holds it."""

    name: str
    dtype: str
    shape: tuple
    data: bytes
    file: str
    begin: int  # of its data in the file


def read_file(path):
    """The stored tensors of one file, in the order of its header."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = []
    for name, facts in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = facts["data_offsets"]
        size = BYTES_OF[facts["dtype"]]
        for side in facts["shape"]:
            size *= side
        if size != end - begin or 8 + length + end > len(data):
            raise ValueError(f"{path}: {name} has {end - begin} bytes, its shape and dtype say {size}")
        at = 8 + length
        tensors.append(
            Stored(name, facts["dtype"], tuple(facts["shape"]), data[at + begin : at + end], path, at + begin)
        )
    return tensors


def write_file(path, tensors, metadata=None):
    """One file of tensors: (dtype, shape, bytes) by name."""
    header, begin = {"__metadata__": metadata or {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for _, _, data in tensors.values())


def write_checkpoint(folder, files, config):
    """A checkpoint of these files of tensors, with an index if there are several."""
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    names = [f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)]
    if len(files) == 1:
        names = ["model.safetensors"]
    for name, tensors in zip(names, files):
        write_file(os.path.join(folder, name), tensors)
    if len(files) > 1:
        home = {tensor: name for name, tensors in zip(names, files) for tensor in tensors}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": home}, file)


def weights_files(folder):
    """Names of the weights files that lie in the folder itself."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))


def read_checkpoint(folder):
    """Stored tensors by name. No name may occur twice, and the index has to name exactly these."""
    tensors, home = {}, {}
    for file in weights_files(folder):
        for stored in read_file(os.path.join(folder, file)):
            if stored.name in tensors:
                raise ValueError(f"{folder}: {stored.name} is stored twice")
            tensors[stored.name] = stored
            home[stored.name] = file
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as file:
            named = json.load(file)["weight_map"]
        if named != home:
            raise ValueError(f"{folder}: the index and the files have different tensors")
    return tensors


def read_rows(folder):
    """(dtype, shape, bytes) by name, as write_file takes them, of the weights files in a folder."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))
    stored = {own.name: own for path in paths for own in read_file(path)}
    return {name: (own.dtype, list(own.shape), own.data) for name, own in stored.items()}


def read_config(folder):
    """config.json, or nothing where there is none."""
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def text_config(config):
    """The keys of the text model, which models of several modalities have in an object of their own."""
    for key in ["text_config", "llm_config", "language_config"]:
        if isinstance(config.get(key), dict):
            return {**config, **config[key]}
    return config


def quantization_config(config):
    """The config's block about quantization, at the top or among the text model's keys."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    return found if isinstance(found, dict) else {}
