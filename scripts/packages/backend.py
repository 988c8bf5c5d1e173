"""The backend of pyproject.toml: `pip install .` in a clone builds the program as scripts/build.sh does, and packs it as
scripts/package.sh does. Where that fails, the last line says what to do."""

import os
import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    missing = [tool for tool in ("cmake", "ninja", "c++", "patchelf") if not shutil.which(tool)]
    # The scripts are for the system's Python: pip's own environment has only what is declared.
    environment = {**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}"}
    before = set(os.listdir(wheel_directory))
    for command in (["scripts/build.sh", "release", "ingot_cli", "ingot_shared"],
                    ["scripts/package.sh", "build/release", os.path.abspath(wheel_directory), "wheel"]):
        if missing or subprocess.run([SOURCE / command[0], *command[1:]], cwd=SOURCE, env=environment).returncode:
            why = f"there is no {missing[0]}" if missing else f"{' '.join(command[:2])} failed"
            sys.exit(f"error: {why}: run scripts/deps.sh in {SOURCE}, which installs what a build needs, and try again")
    (wheel,) = set(os.listdir(wheel_directory)) - before
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    sys.exit("error: there is no archive of the source by pip: use the clone")
