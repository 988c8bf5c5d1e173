"""Checks that constants and classes hide no others where files are compiled together: in a layer, a name is that of one
thing, and no constant has the name of one in a header of a namespace around it. Compilers are silent there.
Usage: own_names.py SOURCE_DIR"""

import pathlib
import re
import sys

NAMESPACE = re.compile(r"^namespace (ingot[\w:]*) \{", re.M)
NAMES = re.compile(
    r"^(?:inline |static )*constexpr [^=;{()]*?\b(k[A-Z]\w*)(?=\[| =|\{|;)"
    r"|^(?:class|struct|enum class) (\w+)(?: final)?(?: : [^;{]*)? \{",
    re.M,
)


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    lists = [path for path in root.glob("*/CMakeLists.txt") if path.parent.name != "tests"]
    compiled_together = {path.parent.name for path in lists if "ingot_unity(" in path.read_text()}
    places = {}
    for layer in sorted(path.parent.name for path in lists):
        for path in sorted((root / layer).rglob("*")):
            is_header = path.suffix == ".h" and not path.name.endswith("-inl.h")
            is_source = path.suffix == ".cc" and not path.name.endswith("_simd.cc") and layer in compiled_together
            if not is_header and not is_source:
                continue
            text = path.read_text()
            space = NAMESPACE.search(text)
            for match in NAMES.finditer(text) if space else ():
                place = (space[1] + "::", is_header, layer, path.relative_to(root))
                places.setdefault(match[1] or match[2], []).append(place)
    if not places:
        print("found no names: wrong SOURCE_DIR?")
        return 1
    faults = []
    for name, found in sorted(places.items()):
        for i, (space, is_header, layer, path) in enumerate(found):
            for other_space, other_is_header, other_layer, other in found[:i]:
                meet = layer == other_layer or (name.startswith("k") and (is_header or other_is_header))
                if meet and (space.startswith(other_space) or other_space.startswith(space)):
                    faults.append(f"{name} is in {other} and in {path}: give one of them another name")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
