#!/usr/bin/env python3
"""Makes python/ingot/_options.py of the tables of flags, as the library tells them.

Usage: python_options.py [OUT], with INGOT_LIBRARY and PYTHONPATH as the package needs them. The test python.package fails
where the file is another one."""

import keyword
import os
import sys
import textwrap

HEAD = '''"""Options of the functions, made of the program's tables of flags by scripts/python_options.py.

Each class has the keywords of one function; its text is the end of that function's."""

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


def keyword_of(row):
    name = row["option"].replace("-", "_")
    return name + "_" * keyword.iskeyword(name)


def type_of(row):
    if row["choices"]:
        return "Literal[" + ", ".join(f'"{choice}"' for choice in row["choices"]) + "]"
    return TYPES[row["type"]]


def main():
    from ingot._calls import run_command
    rows = run_command("options", {}, {})["options"]
    text = HEAD
    for command in dict.fromkeys(row["command"] for row in rows):
        own = [row for row in rows if row["command"] == command and not row["is_word"] and not row["is_required"]]
        text += f'\n\nclass {command.capitalize()}Options(TypedDict, total=False):\n    """Options:\n\n'
        for row in own:
            name = keyword_of(row)
            meaning = row["help"].replace("\\", "\\\\").replace('"""', "'''")
            text += textwrap.fill(f"{name}: {meaning}", 112, initial_indent="    ", subsequent_indent="        ",
                                  break_long_words=False, break_on_hyphens=False) + "\n"
        text += '    """\n\n'
        for row in own:
            line = f"    {keyword_of(row)}: {type_of(row)}"
            if len(line) > 116:
                line = textwrap.fill(line, 116, subsequent_indent="        ", break_long_words=False)
            text += line + "\n"
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../python/ingot/_options.py")
    with open(out, "w") as file:
        file.write(text)


main()
