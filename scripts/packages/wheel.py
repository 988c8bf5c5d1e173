#!/usr/bin/env python3
"""Makes a wheel of a folder. Usage: wheel.py FOLDER MACHINE OUT

FOLDER has the package `ingot`, licences and SBOM in notices/, and in data/ what is installed below the environment. The tag is the one that auditwheel grants: the oldest
glibc that has every symbol the files ask for, with a libstdc++ of its time."""

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# (last version of GLIBCXX's symbols, glibc): rows of auditwheel's policy.
RUNTIMES = (((3, 4, 29), (2, 34)), ((3, 4, 30), (2, 35)), ((3, 4, 33), (2, 39)))


def platform(files, machine):
    needs = {"GLIBC": {(2, 17)}, "GLIBCXX": {(3, 4)}}
    for file in files:
        if file.read_bytes()[:4] == b"\x7fELF":
            told = subprocess.run(["readelf", "-VW", file], check=True, text=True, stdout=subprocess.PIPE).stdout
            asked = told.partition(".gnu.version_r")[2]
            for name, number in re.findall(r"Name: (GLIBC|GLIBCXX)_([0-9.]+)", asked):
                needs[name].add(tuple(map(int, number.split("."))))
    runtime = next((glibc for last, glibc in RUNTIMES if max(needs["GLIBCXX"]) <= last), None)
    if runtime is None:
        newest = ".".join(map(str, max(needs["GLIBCXX"])))
        sys.exit(f"error: no tag is known for GLIBCXX_{newest} (add the row of auditwheel's policy)")
    return "manylinux_{}_{}_{}".format(*max(runtime, *needs["GLIBC"]), machine)


def main(folder, machine, out):
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    info = f"{name}-{version}.dist-info"
    packed = sorted(path for path in folder.rglob("*") if path.is_file())
    tag = f"py3-none-{platform(packed, machine)}"
    files = []
    for path in packed:
        place = path.relative_to(folder).as_posix()
        for ours, theirs in (("notices/licences/", f"{info}/licenses"), ("notices/", f"{info}/sboms"),
                             ("data/", f"{name}-{version}.data/data")):
            if place.startswith(ours):
                place = f"{theirs}/{place.removeprefix(ours)}"
        files.append((place, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644))
    files.sort()
    licences = sorted(place.partition("/licenses/")[2] for place, _, _ in files if "/licenses/" in place)
    metadata = (f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {version}\n"
                f"Summary: {project['description']}\nLicense-Expression: {project['license']}\n"
                + "".join(f"License-File: {place}\n" for place in licences)
                + "".join(f"Author: {author['name']}\n" for author in project["authors"])
                + f"Keywords: {','.join(project['keywords'])}\n"
                + "".join(f"Classifier: {one}\n" for one in project["classifiers"])
                + f"Requires-Python: {project['requires-python']}\nDescription-Content-Type: text/markdown\n")
    for extra, needed in project["optional-dependencies"].items():
        metadata += f"Provides-Extra: {extra}\n"
        metadata += "".join(f"Requires-Dist: {one}; extra == '{extra}'\n" for one in needed)
    # An index shows the text without the files next to it: their links become words.
    readme = re.sub(r"(?m)^!\[[^\]]*\]\([^)]*\)\n\n", "", (SOURCE / project["readme"]).read_text())
    metadata += "\n" + re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", readme)
    scripts = "[console_scripts]\n" + "".join(f"{k} = {v}\n" for k, v in project["scripts"].items())
    files += [(f"{info}/METADATA", metadata.encode(), 0o644),
              (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: ingot\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
               0o644),
              (f"{info}/entry_points.txt", scripts.encode(), 0o644)]
    record = ""
    for path, data, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    date = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]  # zip begins in 1980
    with zipfile.ZipFile(pathlib.Path(out) / f"{name}-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data, mode in files:
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
