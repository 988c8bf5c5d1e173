#!/usr/bin/env python3
"""Reads the package of an engine, and says of each row of engines/versions/ whether its code still says so.

    read.py PACKAGE [--against OTHER] [--json FILE] [--only ID] [--lists] [--engine NAME]

PACKAGE is a wheel, a source archive (.tar.gz), or a folder that has the package in it: an environment's site-packages, a
checkout, an unpacked archive. OTHER is the same, or the JSON that an earlier run wrote. Nothing of a package is imported
or run: its Python files are parsed. Probes are data, engines/versions/ENGINE.json: what a definition in the package has
to say, in fragments of code where `...` is any text. The id of a probe is that of a row (`ingot list engines --json`).

Answers: still so; changed (the definition is there, and says something else); gone (no such file or definition); never so
(OTHER answers alike, so the row was wrong before); cannot be probed (the probe says why). With OTHER a row also has the
same code or other code there: evidence of runs holds where the code is the same, else the row was only read.

Exit code: 0 every row is still so, 1 some are not, 2 package or probes cannot be used. Standard library only."""

import argparse
import ast
import fnmatch
import functools
import hashlib
import io
import json
import pathlib
import platform
import re
import sys
import tarfile
import time
import tokenize
import zipfile

PROBES = pathlib.Path(__file__).resolve().parents[2] / "engines/versions"
LARGEST = 32 << 20  # bytes of a file that is parsed
STILL, CHANGED, GONE, NEVER, UNPROBED = "still so", "changed", "gone", "never so", "cannot be probed"
WORST = [STILL, CHANGED, GONE]


class Unusable(Exception):
    """A package or a file of probes that cannot be read."""


def squeezed(text):
    """Code on one line, with one kind of quotes, and spaces only between words."""
    text = re.sub(r"\s+", " ", text.replace('"', "'")).strip()
    text = re.sub(r" ?([^\w ]) ?", r"\1", text)
    return re.sub(r",(?=[)\]}])", "", text)


@functools.lru_cache(maxsize=None)
def pattern_of(fragment):
    """A fragment of code as an expression on squeezed code: `...` is any text, words are whole."""
    parts = [squeezed(part) for part in fragment.split("...")]
    if not any(parts):
        raise Unusable(f"a fragment says nothing: '{fragment}'")
    first, last = parts[0][:1], parts[-1][-1:]
    before = r"(?<!\w)" if re.match(r"\w", first) else ""
    after = r"(?!\w)" if re.match(r"\w", last) else ""
    return re.compile(before + ".*?".join(map(re.escape, parts)) + after)


def without_comments(text):
    """Source that does not parse here (a newer grammar), without comments where its tokens can be told."""
    try:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return " ".join(token.string for token in tokens if token.type != tokenize.COMMENT)
    except (tokenize.TokenError, SyntaxError):
        return text


def code_of(node):
    """A definition as the parser writes it, without docstrings."""
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(
                getattr(body[0].value, "value", None), str):
            body[0].value.value = ""
    return squeezed(ast.unparse(node))


def names_of(node):
    """The names that a statement defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    targets = [getattr(node, "target", None), getattr(node, "name", None)]
    if isinstance(node, ast.Assign):
        targets = node.targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def definitions(tree, path):
    """Every definition or assignment called a.b.c, those under conditions too."""
    nodes = [tree]
    for part in path.split("."):
        found = []
        for node in nodes:
            pending = list(ast.iter_child_nodes(node))
            while pending:
                child = pending.pop(0)
                if part in names_of(child):
                    found.append(child)
                elif isinstance(child, (ast.If, ast.Try, ast.ExceptHandler, ast.With)):
                    pending[:0] = ast.iter_child_nodes(child)
        nodes = found
    return nodes


def strings_in(node):
    return [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant) and isinstance(inner.value, str)]


class Package:
    """The Python files of a package, by their paths in it: "vllm/envs.py"."""

    def __init__(self, where, top, names):
        self.top, self.where = top, pathlib.Path(where)
        prefix = self.open_folder() if self.where.is_dir() else self.open_archive()
        self.read = {name[len(prefix):]: read for name, read in self.read.items() if name.startswith(prefix)}
        self.files = sorted(name for name in self.read if name.startswith(top + "/") and name.endswith(".py"))
        if not self.files:
            raise Unusable(f"{where}: no package {top} is in it")
        named = "|".join(re.escape(name.replace("-", "_")) for name in names)
        about = re.compile(rf"({named})-\d[^/]*\.dist-info/METADATA|PKG-INFO")
        self.about = next((self.text(name) for name in sorted(self.read) if about.fullmatch(name)), "")
        self.trees = {}

    def open_folder(self):
        places = [self.where, self.where / "python", self.where / "src", *sorted(self.where.glob("*-[0-9]*"))]
        root = next((place for place in places if (place / self.top).is_dir()), self.where)
        paths = [*(root / self.top).rglob("*.py"), *root.glob("*.dist-info/METADATA"), *root.glob("PKG-INFO")]
        self.read = {path.relative_to(root).as_posix(): path.read_bytes for path in paths}
        return ""

    def open_archive(self):
        try:
            if zipfile.is_zipfile(self.where):
                archive = zipfile.ZipFile(self.where)
                self.read = {entry.filename: functools.partial(archive.read, entry) for entry in archive.infolist()
                             if entry.file_size <= LARGEST}
                return ""
            self.read = {}
            with tarfile.open(self.where) as archive:
                for entry in archive:
                    if entry.isfile() and entry.size <= LARGEST and entry.name.endswith((".py", "PKG-INFO")):
                        data = archive.extractfile(entry).read()
                        self.read[entry.name] = functools.partial(bytes, data)
        except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
            raise Unusable(f"{self.where}: {error}") from error
        marks = [name for name in self.read if name.endswith("/" + self.top + "/__init__.py")]
        return min(marks, key=len)[: -len(self.top + "/__init__.py")] if marks else ""

    def text(self, name):
        return self.read[name]().decode("utf-8", "replace")

    def tree(self, name):
        """The parsed file, or None where this Python's grammar is too old for it."""
        if name not in self.trees:
            try:
                self.trees[name] = ast.parse(self.text(name))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self.trees[name] = None
        return self.trees[name]

    def version(self):
        found = re.search(r"^Version: (.+)$", self.about, re.M)
        return found.group(1).strip() if found else "unknown"

    def matching(self, globs):
        return [name for name in self.files if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]

    @functools.lru_cache(maxsize=None)
    def code(self, name, path):
        """Squeezed code of a definition, or of a file, and its first line; None where it is not there."""
        if name not in self.read:
            return None
        tree = self.tree(name)
        if tree is None:
            return squeezed(without_comments(self.text(name))), 1
        if not path:
            return code_of(tree), 1
        nodes = definitions(tree, path)
        return (" ".join(map(code_of, nodes)), nodes[-1].lineno) if nodes else None

    def line_of(self, name, fragment, first):
        """Line of a fragment, as near as its first words tell."""
        word = re.search(r"\w{3,}", fragment)
        lines = self.text(name).splitlines()
        return next((n for n in range(first, len(lines) + 1) if word and word.group() in lines[n - 1]), first)


class Reader:
    """A package, read with the probes of its engine."""

    def __init__(self, probes, where):
        self.probes = probes
        self.package = Package(where, probes["top"], probes["packages"])

    def full(self, path):
        """A path whose first folder has a short name: "ct:schemes/a.py"."""
        short, colon, rest = path.partition(":")
        if not colon:
            return path
        if short not in self.probes["folders"]:
            raise Unusable(f"no folder is called '{short}:'")
        return self.probes["folders"][short] + rest

    def look(self, check):
        """(answer, note, code, place) of one check."""
        if "class" in check:
            return self.look_for_class(check["class"])
        if "nowhere" in check:
            return self.look_nowhere(check["nowhere"], self.full(check["under"]))
        if "requires" in check:
            pins = [line.replace(" ", "") for line in re.findall(r"^Requires-Dist: (.+)$", self.package.about, re.M)]
            name = re.split(r"[^\w.-]", check["requires"])[0]
            named = [line for line in pins if re.split(r"[^\w.-]", line)[0] == name]
            if check["requires"] in named:
                return STILL, "", check["requires"], "Requires-Dist"
            return CHANGED, f"now: {named}", "", "Requires-Dist"
        places = check["at"] if isinstance(check["at"], list) else [check["at"]]  # by the names of several versions
        for place in places:
            name, _, path = self.full(place).partition(" ")
            found = self.package.code(name, path)
            if found is not None:
                break
        else:
            return GONE, f"no {places[0]}", "", ""
        text, line = found
        place = f"{name}:{line}"
        for fragment in check.get("has", []):
            if not pattern_of(fragment).search(text):
                return CHANGED, f"no longer: {fragment}", text, place
        for fragment in check.get("lacks", []):
            if pattern_of(fragment).search(text):
                return CHANGED, f"now there: {fragment}", text, place
        if check.get("has"):
            place = f"{name}:{self.package.line_of(name, check['has'][0], line)}"
        return STILL, "", text, place

    def look_nowhere(self, fragment, under):
        words = re.findall(r"\w+", fragment)
        for name in self.package.files:
            if not name.startswith(under):
                continue
            text = self.package.text(name)
            if all(word in text for word in words) and pattern_of(fragment).search(self.package.code(name, "")[0]):
                return CHANGED, f"now in {name}", "", name
        return STILL, "", "", under

    def classes(self):
        """Served architectures: the file that says so, its line, and the files of the class."""
        found, how = {}, self.probes["classes"]
        for name in self.package.matching(how["files"]):
            tree = self.package.tree(name) if how["kind"] in self.package.text(name) else None
            if tree is None:
                continue
            if how["kind"] == "EntryClass":
                for node in definitions(tree, "EntryClass"):
                    names = [n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)]
                    found.update({served: (name, node.lineno, [name]) for served in names})
            else:  # a dictionary of modules and classes
                for node in (n for n in ast.walk(tree) if isinstance(n, ast.Dict)):
                    for key, value in zip(node.keys, node.values):
                        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                            module = str(getattr(value.elts[0], "value", "")).replace(".", "/")
                            path = module if "/" in module else how["modules"] + module
                            found[key.value] = (name, key.lineno, [f for f in self.package.files
                                                                   if f == path + ".py" or f.startswith(path + "/")])
        return found

    def look_for_class(self, wanted):
        if not hasattr(self, "served"):
            self.served = self.classes()
        if wanted not in self.served:
            return GONE, f"no class serves {wanted}", "", ""
        name, line, files = self.served[wanted]
        code = []
        for file in files:
            tree = self.package.tree(file)
            nodes = [] if tree is None else [
                node for node in ast.walk(tree) if any(n in self.probes["loaders"] for n in names_of(node))]
            code += [code_of(node) for node in nodes] if tree else [self.package.code(file, "")[0]]
        return STILL, "", " ".join(code), f"{name}:{line}"

    def answer(self, probe):
        """The answers for every row of a probe."""
        ids = probe["id"] if isinstance(probe["id"], list) else [probe["id"]]
        if "unprobed" in probe:
            return [{"id": row, "answer": UNPROBED, "note": probe["unprobed"], "code": "", "at": ""} for row in ids]
        looks = [self.look(check) for check in probe["checks"]]
        worst = max(looks, key=lambda look: WORST.index(look[0]))
        code = hashlib.sha256("\n".join(look[2] for look in looks).encode()).hexdigest()[:12]
        at = worst[3] if worst[0] != STILL else looks[0][3]
        return [{"id": row, "answer": worst[0], "note": worst[1], "code": code, "at": at} for row in ids]

    def items(self, listed):
        """The words of a list: what the package knows of a kind."""
        kind = listed["kind"]
        if kind == "classes":
            return sorted(self.classes())
        if kind == "pins":
            lines = re.findall(r"^Requires-Dist: (.+)$", self.package.about, re.M)
            return sorted(line for line in lines if "extra ==" not in line
                          and re.match(r"[\w.-]+", line).group().lower().replace("_", "-") in listed["names"])
        files = self.package.matching([self.full(glob) for glob in listed["files"]])
        if kind == "files":
            return files
        found = set()
        for tree in filter(None, map(self.package.tree, files)):
            if kind == "config keys":
                found.update(config_keys(tree))
            elif kind == "decorators":
                calls = [call for node in tree.body for call in getattr(node, "decorator_list", [])]
                found.update("/".join(strings_in(call)) for call in calls
                             if isinstance(call, ast.Call) and getattr(call.func, "id", "") in listed["names"])
                continue
            for name in listed.get("names", []):
                for node in definitions(tree, name):
                    value = getattr(node, "value", None)
                    if kind == "choices":
                        for inner in ast.walk(node):
                            if isinstance(inner, ast.keyword) and inner.arg == "choices":
                                found.update(strings_in(inner.value))
                    elif kind == "keys" and value is not None:
                        pairs = [n for n in ast.walk(value) if isinstance(n, ast.Tuple) and n.elts]
                        keys = next((n.keys for n in ast.walk(value) if isinstance(n, ast.Dict)),
                                    [pair.elts[0] for pair in pairs])
                        found.update(key.value for key in keys if isinstance(key, ast.Constant))
                    elif kind == "strings":
                        found.update(strings_in(value if value is not None else node))
        return sorted(map(str, found))

    def read(self, only):
        """Everything that the probes and lists ask, as a document."""
        rows = [row for probe in self.probes["probes"] for row in self.answer(probe) if row["id"].startswith(only)]
        return {"engine": self.probes["engine"], "version": self.package.version(),
                "python": platform.python_version(), "rows": rows,
                "lists": {listed["id"]: self.items(listed) for listed in self.probes["lists"]}}


CONFIG = re.compile(r"(hf_|modelopt_)?(quant(ization)?_)?(config|cfg|section)(_dict)?|layer_(info|config)|extra_config")


def config_keys(tree):
    """Keys that code asks of a dictionary that is called like a config."""
    def is_config(node):
        return isinstance(node, ast.Name) and CONFIG.fullmatch(node.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("get", "pop") and is_config(node.func.value) and node.args:
                yield from strings_in(node.args[0])
            elif node.func.attr in ("get_from_keys", "get_from_keys_or") and len(node.args) > 1:
                yield from strings_in(node.args[1])
        elif isinstance(node, ast.Subscript) and is_config(node.value):
            yield from strings_in(node.slice)
        elif isinstance(node, ast.Compare) and any(map(is_config, node.comparators)):
            yield from strings_in(node.left)


def load_probes(path):
    try:
        probes = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Unusable(f"{path}: {error}") from error
    missing = {"engine", "top", "packages", "folders", "classes", "loaders", "probes", "lists"} - probes.keys()
    if missing:
        raise Unusable(f"{path}: no {', '.join(sorted(missing))}")
    return probes


def probes_for(where, engine, folder):
    """The probes whose package is in a place."""
    fitting = []
    for path in sorted(folder.glob("*.json")):
        probes = load_probes(path)
        if engine in ("", probes["engine"]):
            try:
                fitting.append((probes, Reader(probes, where)))
            except Unusable:
                continue
    if len(fitting) != 1:
        names = ", ".join(probes["engine"] for probes, _ in fitting)
        raise Unusable(f"{where}: " + (f"--engine says which of {names} is meant" if names else
                                       "it has the package of no engine that has probes"))
    return fitting[0]


def compare(new, old):
    """Adds to each row what the older package says of it, and the differences of the lists."""
    before = {row["id"]: row for row in old["rows"]}
    new["against"] = old["version"]
    for row in new["rows"]:
        then = before.get(row["id"])
        row["then"] = then["answer"] if then else ""
        # Two Pythons write the same code otherwise.
        is_known = then and row["code"] and old["python"].split(".")[:2] == new["python"].split(".")[:2]
        row["same_code"] = row["code"] == then["code"] if is_known else None
        if row["answer"] in (CHANGED, GONE) and row["then"] in (CHANGED, GONE):
            row["answer"] = NEVER
        elif row["answer"] == STILL and row["then"] in (CHANGED, GONE):
            row["note"] = f"not so in {old['version']}"
    new["differences"] = {
        name: {"added": sorted(set(items) - set(old["lists"].get(name, []))),
               "removed": sorted(set(old["lists"].get(name, [])) - set(items))}
        for name, items in new["lists"].items()}


def print_answers(new, shows_lists):
    print(f"{new['engine']} {new['version']}" + (f" against {new['against']}" if "against" in new else ""))
    for row in new["rows"]:
        code = {True: "same code", False: "other code", None: ""}[row.get("same_code")]
        note = f"\n{'':28}{row['note']}" if row["note"] else ""
        print(f"{row['answer']:17}{code:11}{row['id']:50} {row['at']}{note}")
    counts = {}
    for row in new["rows"]:
        counts[row["answer"]] = counts.get(row["answer"], 0) + 1
    print("\n" + ", ".join(f"{n} {answer}" for answer, n in sorted(counts.items())))
    other = [row["id"] for row in new["rows"] if row.get("same_code") is False and row["answer"] == STILL]
    if other:
        print("\nother code, so evidence of runs does not hold (read_again): " + " ".join(other))
    for name, items in new["lists"].items():
        changes = new.get("differences", {}).get(name)
        if changes is not None:
            print(f"\n{name}: {len(items)}" + ("" if any(changes.values()) else ", unchanged"))
            print("".join(f"  + {item}\n" for item in changes["added"]) +
                  "".join(f"  - {item}\n" for item in changes["removed"]), end="")
        if shows_lists or changes is None:
            print(f"\n{name} ({len(items)}): " + ", ".join(items))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package")
    parser.add_argument("--against", metavar="OTHER", help="an older package, or the JSON of a run on it")
    parser.add_argument("--json", metavar="FILE", help="write the answers there")
    parser.add_argument("--only", default="", metavar="ID", help="rows whose ids begin so")
    parser.add_argument("--lists", action="store_true", help="print lists whole, not only their differences")
    parser.add_argument("--engine", default="", help="which engine, where a folder has several")
    parser.add_argument("--probes", type=pathlib.Path, default=PROBES, help="the folder of probes")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        probes, reader = probes_for(options.package, options.engine, options.probes)
        new = reader.read(options.only)
        if options.against and options.against.endswith(".json"):
            old = json.loads(pathlib.Path(options.against).read_text())
            compare(new, old)
        elif options.against:
            compare(new, Reader(probes, options.against).read(options.only))
        print_answers(new, options.lists)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(new, indent=1) + "\n")
    except (Unusable, OSError, ValueError, KeyError, TypeError, re.error) as error:
        print(f"read.py: {error}", file=sys.stderr)
        return 2
    print(f"\n{time.monotonic() - began:.1f} s", file=sys.stderr)
    return 0 if all(row["answer"] in (STILL, UNPROBED) for row in new["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
