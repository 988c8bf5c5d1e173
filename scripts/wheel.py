#!/usr/bin/env python3
"""Makes the wheel of the Python package, with the shared library and the program of a build inside.

Usage: wheel.py BUILD OUT. The same build gives the same bytes, with the date of SOURCE_DATE_EPOCH. Other
libraries are those of the system, so the wheel runs where the build does."""

import base64
import hashlib
import os
import pathlib
import platform
import sys
import time
import tomllib
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def contents(build):
    """(name in the wheel, bytes, mode), sorted."""
    for path in sorted((SOURCE / "python/ingot").iterdir()):
        if path.suffix in (".py", ".pyi", ".typed"):
            yield f"ingot/{path.name}", path.read_bytes(), 0o644
    yield "ingot/bin/ingot", (build / "cli/ingot").read_bytes(), 0o755
    yield "ingot/lib/libingot.so.1", (build / "library/libingot.so.1").read_bytes(), 0o755


def main(build, out):
    project = tomllib.loads((SOURCE / "python/pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"{name}-{version}.dist-info"
    metadata = (f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
                f"Summary: {project['description']}\nLicense: {project['license']['text']}\n"
                f"License-File: LICENSE\nRequires-Python: {project['requires-python']}\n")
    scripts = "[console_scripts]\n" + "".join(f"{k} = {v}\n" for k, v in project["scripts"].items())
    files = [*contents(build),
             (f"{info}/LICENSE", (SOURCE / "LICENSE").read_bytes(), 0o644),
             (f"{info}/METADATA", metadata.encode(), 0o644),
             (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: ingot\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
              0o644),
             (f"{info}/entry_points.txt", scripts.encode(), 0o644)]
    record = ""
    for path, data, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]  # zip begins in 1980
    wheel = pathlib.Path(out) / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data, mode in files:
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
