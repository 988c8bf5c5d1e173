#!/usr/bin/env python3
"""Makes python/ingot/_options.py of the tables of flags, as the library tells them.

Usage: python_options.py [OUT], with INGOT_LIBRARY and PYTHONPATH as the package needs them. The test python.package
fails where the file is another one."""

import collections
import inspect
import keyword
import os
import sys
import textwrap

HEAD = '''"""Options of the functions, made of the program's tables of flags by scripts/python_options.py.

Each class has the keywords of one function, or those that several have in common; their texts are the end of the text
of each function."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Literal

    Path = str | bytes | PathLike[str]
    Size = str | int
    Texts = str | Sequence[str]
'''
TYPES = {"text": "str | int | float", "path": "Path", "size": "Size", "whole": "int", "number": "float", "flag": "bool",
         "list": "Texts"}
LEAST_SHARED = 3  # fewer are written once for each command


def key_of(row):
    return row["option"], row["type"], tuple(row["choices"]), row["help"]


def keyword_of(row):
    name = row["option"].replace("-", "_")
    return name + "_" * keyword.iskeyword(name)


def type_of(row):
    if row["choices"]:
        return "Literal[" + ", ".join(f'"{choice}"' for choice in row["choices"]) + "]"
    return TYPES[row["type"]]


def parameters_of(package, command):
    """The names of what a function takes by itself; none where the package lacks the command."""
    return inspect.signature(getattr(package, command)).parameters if hasattr(package, command) else ()


def text_of(name, title, bases, rows):
    """A class with these options, and its text."""
    text = f'\n\nclass {name}({", ".join(bases) or "TypedDict"}, total=False):\n    """{title}:\n\n'
    for row in rows:
        meaning = row["help"].replace("\\", "\\\\").replace('"""', "'''")
        text += textwrap.fill(f"{keyword_of(row)}: {meaning}", 112, initial_indent="    ", subsequent_indent="        ",
                              break_long_words=False, break_on_hyphens=False) + "\n"
    text += '    """\n' + "\n" * bool(rows)
    for row in rows:
        line = f"    {keyword_of(row)}: {type_of(row)}"
        if len(line) > 116:
            line = textwrap.fill(line, 116, subsequent_indent="        ", break_long_words=False)
        text += line + "\n"
    return text


def main():
    import ingot
    rows = [row for row in ingot._calls.run_command("options", {}, {})["options"]
            if not row["is_word"] and not row["is_required"]
            and keyword_of(row) not in parameters_of(ingot, row["command"])]
    commands = list(dict.fromkeys(row["command"] for row in rows))
    takers = {}  # the commands that have the same option
    for row in rows:
        takers.setdefault(key_of(row), []).append(row["command"])
    # Options that several commands have in common are a class that theirs inherit.
    shared = collections.Counter(tuple(of) for of in takers.values() if len(of) > 1)
    names = {of: "".join(word.capitalize() for word in of) for of, n in shared.items() if n >= LEAST_SHARED}
    text, inherited = HEAD, ""
    for of, name in names.items():
        title = f"Options of {', '.join(of[:-1])} and {of[-1]}"
        first = [row for row in rows if row["command"] == of[0]]
        text += text_of(name, title, [], [row for row in first if tuple(takers[key_of(row)]) == of])
    for command in commands:
        name = command.capitalize() + "Options"
        bases = [shared_name for of, shared_name in names.items() if command in of]
        own = [row for row in rows if row["command"] == command and tuple(takers[key_of(row)]) not in names]
        text += text_of(name, "Options", bases, own)
        inherited += f'    "{name}": [{", ".join(bases)}],\n' if bases else ""
    # A TypedDict forgets which classes it was made of.
    text += f"\n\nINHERITED: dict[str, list[type]] = {{\n{inherited}}}\n"
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../python/ingot/_options.py")
    with open(out, "w") as file:
        file.write(text)


main()
