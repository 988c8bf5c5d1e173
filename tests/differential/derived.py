"""Outputs made again from their sources by `ingot rederive`, and outputs of which one byte was changed."""

import os
import random
import shutil

from container import read_file
from job import Wrong

# Options whose values are files that decide bytes.
FILES = ["importance", "activation-scales", "kv-scales", "scales-from", "lora"]


def _changed_tensor(folder, draw):
    """Changes one byte of a stored tensor. Returns the file, the tensor's name, and what undoes it."""
    files = sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(".safetensors")
    )
    path = draw.choice(files)
    tensor = draw.choice([tensor for tensor in read_file(path) if tensor.data])
    place, bit = tensor.begin + draw.randrange(len(tensor.data)), draw.randrange(8)
    # Files may be hard links to each other, or to the source.
    shutil.copy2(path, path + ".own")
    os.rename(path, path + ".linked")
    os.rename(path + ".own", path)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))
    return os.path.relpath(path, folder), tensor.name, lambda: os.replace(path + ".linked", path)


class Derivations:
    """Makes each output of a shell again, by the words that made it."""

    def __init__(self, shell, seed):
        self.shell, self.draw, self.n_made = shell, random.Random(f"derivations {seed}"), 0
        self.words = {}

    def note(self, words):
        """Keeps the words of `convert` or `merge`, by their output."""
        self.words.setdefault(words[2], words)

    def require(self, output):
        """The output, made again, is equal, and with one byte changed it is not."""
        words = self.words.pop(output)
        given = ["--source", self.shell.originals.get(words[1], words[1])]
        for name in FILES:
            if "--" + name in words:
                given += ["--with", f"{name}={words[words.index('--' + name) + 1]}"]
        self.require_of(output, given)

    def require_of(self, output, given):
        """The same, with the words that name the source."""
        given = [*given, "--all", "--progress", "never"]
        self.expect(0, "is not made again", output, *given)
        file, tensor, undo = _changed_tensor(self.shell.path(output), self.draw)
        text = self.expect(1, f"is made again, though a byte of '{tensor}' in {file} was changed", output, *given)
        is_named = f"{file}: tensor " in text and f"differs in '{tensor}'" in text
        if not is_named and f"{file}: has other bytes in the constant '{tensor}'" not in text:
            raise Wrong(f"a changed byte of '{tensor}' in {file} has another name: {text}")
        undo()
        self.n_made += 1

    def expect(self, status, fact, output, *given):
        code, text = self.shell.run("rederive", output, *given)
        if code != status:
            raise Wrong(f"{output} {fact}: exit code {code}: {text}")
        return text

