#!/usr/bin/env python3
"""Gives programs the libraries that they need, and notices of all that is inside: licence texts and an SBOM.

Usage, in the folder that is packed:
bundle.py BUILD ROOT TRIPLET [--into FOLDER [--leave NAME]...] --notices FOLDER FILE...

FILEs are the programs and libraries of BUILD, which took Debian's libraries for TRIPLET from ROOT. With --into, the
libraries that they need are copied to that folder, all but glibc and those left to the system, and found there wherever
the package lies. Their names are changed, so that a process has room for the system's as well; GCC's own runtime keeps
its name, since a process can have only one. Needs patchelf, and the files that Debian lists."""

import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess

# Headers of these only declare functions of the system.
SYSTEM = ("glibc", "linux", "cross-toolchain-base", "openmpi")
GCC_RUNTIME = ("libstdc++.so.6", "libgcc_s.so.1")
Package = collections.namedtuple("Package", "name version architecture source source_version documents")


def said(*command, check=True):
    return subprocess.run(command, check=check, text=True, stdout=subprocess.PIPE,
                          stderr=None if check else subprocess.DEVNULL).stdout


class Archive:
    """The Debian packages that lie below a root."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.dpkg = ["dpkg-query", f"--admindir={self.root / 'var/lib/dpkg'}"]

    def owners(self, paths):
        """{path: name of its package}, for the paths as of the root that have one."""
        told = said(*self.dpkg, "-S", *paths, check=False) if paths else ""
        rows = [line.rpartition(": ") for line in told.splitlines()]
        return {path: package.split(", ")[0] for package, _, path in rows}

    def packages(self, names):
        """{name: Package}"""
        fields = r"${binary:Package}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}\n"
        rows = [line.split("\t") for line in said(*self.dpkg, "-W", "-f", fields, *names).splitlines()] if names else []
        return {name: Package(*row, self.root / "usr/share/doc" / row[0] / "copyright") for name, *row in rows}


class Build:
    def __init__(self, folder, root, triplet):
        self.folder, self.triplet = pathlib.Path(folder).resolve(), triplet
        cache = (self.folder / "CMakeCache.txt").read_text()
        self.version = re.search(r"(?m)^CMAKE_PROJECT_VERSION:\w+=(.*)$", cache)[1]
        self.commit = re.search(r'"(.*)"', (self.folder / "cli/include/cli/commit.h").read_text())[1]
        self.host = self.target = Archive("/")
        if root != "/":
            self.target = Archive(root)

    def libraries(self, names):
        """{name: (path, Package)} of shared libraries of the target."""
        places = {f"/{folder}/{self.triplet}/{name}": name for folder in ("lib", "usr/lib") for name in names}
        owners = self.target.owners(list(places))
        packages = self.target.packages(sorted(set(owners.values())))
        found = {places[place]: (self.target.root / place[1:], packages[owner]) for place, owner in owners.items()}
        for name in set(names) - set(found):
            raise SystemExit(f"error: {name}: no package has this library (install what scripts/deps.sh names)")
        return found

    def compiled_in(self):
        """The packages whose headers were compiled into the product."""
        named, is_product = set(), False
        for line in said("ninja", "-C", str(self.folder), "-t", "deps").splitlines():
            if not line.startswith(" "):
                is_product = not line.startswith(("tests/", "bench/", "ninja: "))
            elif is_product:
                named.add(line.strip())
        headers = {self.host: [], self.target: []}
        root = f"{self.target.root}/".replace("//", "/")
        for path in sorted(os.path.normpath(self.folder / name) for name in named):
            if path.startswith(root):
                headers[self.target].append("/" + path[len(root):])
            elif path.startswith("/usr/"):
                headers[self.host].append(path)
        for archive, paths in headers.items():
            for package in archive.packages(sorted(set(archive.owners(paths).values()))).values():
                if package.source.removesuffix("-cross") not in SYSTEM:
                    yield package


def bundle(build, files, into, left):
    """Returns {package: [library]} for those that the files need: with `into` the copies."""
    found, origins, renamed, todo = set(left), collections.defaultdict(list), {}, files
    while todo:
        needed = {name for file in todo for name in said("patchelf", "--print-needed", file).split()} - found
        found |= needed
        todo = []
        for name, (path, package) in sorted(build.libraries(sorted(needed)).items()):
            if package.source == "glibc":
                continue
            todo.append(path)
            place = name
            if into:
                renamed[name] = name if name in GCC_RUNTIME else name.replace(".so", "-ingot.so", 1)
                place = into / renamed[name]
                shutil.copy(path, place)
                place.chmod(0o644)
            origins[package].append(str(place))
    if into:
        names = [word for name, new in renamed.items() if new != name for word in ("--replace-needed", name, new)]
        for file in [*files, *(into / name for name in renamed.values())]:
            way = os.path.relpath(into, pathlib.Path(file).parent)
            # One by one: patchelf 0.14 mixes up names that it changes together with another entry.
            for change in (names, ["--set-rpath", "$ORIGIN" if way == "." else f"$ORIGIN/{way}"]):
                subprocess.run(["patchelf", *change, file], check=True)
        for name in set(renamed.values()) - set(renamed):
            subprocess.run(["patchelf", "--set-soname", name, into / name], check=True)
    return origins


def write_licences(packages, folder):
    """A text for each source package, and the licences that they say Debian has elsewhere."""
    folder.mkdir(parents=True)
    common = set()
    for package in packages:
        text = package.documents.read_text()
        (folder / f"{package.source}.txt").write_text(text)
        common |= set(re.findall(r"/usr/share/common-licenses/([A-Za-z][\w.-]*\w)", text))
    for path in {pathlib.Path("/usr/share/common-licenses", name).resolve() for name in common}:
        shutil.copy(path, folder / f"{path.name}.txt")


def licence_name(source, text):
    stated = re.search(r"(?ms)^Files:\s*\*$.*?^License: *([^\n]+)", text)
    return stated[1] if stated else source


def spdx(build, files, bundled, linked, compiled):
    """The SBOM: SPDX 2.3, with a package for each package of Debian that something came from."""
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    origins = {**bundled, **linked, **{package: [] for package in compiled}}
    ids = {package: "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{package.name}-{package.architecture}")
           for package in origins}
    licences = {package.source: "LicenseRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", package.source) for package in origins}
    contents = "".join(hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() for file in files)
    number = hashlib.sha256((contents + " ".join(files)).encode()).hexdigest()[:32]
    name, system = f"ingot-{build.version}-{build.triplet}", platform.freedesktop_os_release()["ID"]

    def row(identifier, name, version, supplier, declared, **more):
        return {"SPDXID": identifier, "name": name, "versionInfo": version, "supplier": supplier, **more,
                "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
                "licenseDeclared": declared, "copyrightText": "NOASSERTION"}

    def relation(a, kind, b):
        return {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}

    packages = [row("SPDXRef-ingot", "ingot", build.version, "NOASSERTION", "Apache-2.0",
                    comment=f"commit {build.commit}; {', '.join(files)}")]
    texts, relations = [], [relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-ingot")]
    for package, places in sorted(origins.items()):
        link = f"pkg:deb/{system}/{package.name}@{package.version}?arch={package.architecture}"
        packages.append(row(
            ids[package], package.name, package.version, f"Organization: {system.capitalize()}",
            licences[package.source],
            **({"comment": ", ".join(sorted(places))} if places else {}),
            sourceInfo=f"built from {package.source} {package.source_version}",
            externalRefs=[{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                           "referenceLocator": link.replace("+", "%2B")}]))
        for kind, some in (("CONTAINS", bundled), ("DYNAMIC_LINK", linked), ("STATIC_LINK", compiled)):
            if package in some:
                relations.append(relation("SPDXRef-ingot", kind, ids[package]))
    for source, licence in sorted(licences.items()):
        text = next(package for package in origins if package.source == source).documents.read_text()
        texts.append({"licenseId": licence, "name": licence_name(source, text), "extractedText": text})
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
            "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{number}",
            "creationInfo": {"created": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
                             "creators": [f"Tool: ingot-{build.version}"]},
            "packages": packages, "relationships": relations, "hasExtractedLicensingInfos": texts}


def main():
    options = argparse.ArgumentParser()
    for name in ("build", "root", "triplet"):
        options.add_argument(name)
    options.add_argument("--into", type=pathlib.Path)
    options.add_argument("--leave", action="append", default=[])
    options.add_argument("--notices", type=pathlib.Path, required=True)
    options.add_argument("files", nargs="+")
    given = options.parse_args()
    build = Build(given.build, given.root, given.triplet)
    origins = bundle(build, given.files, given.into, given.leave)
    bundled, linked = (origins, {}) if given.into else ({}, origins)
    compiled = list(build.compiled_in())
    write_licences([*bundled, *compiled], given.notices / "licences")
    document = spdx(build, given.files, bundled, linked, compiled)
    (given.notices / "ingot.spdx.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
