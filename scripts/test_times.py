#!/usr/bin/env python3
"""test_times.py BUILD KEPT [--write] [-R REGEX]: runs each test that is not slow, one after the other, and prints the
CPU-seconds that it took (user and system, with all its processes) next to those in the file KEPT.

--write puts the figures of this run into KEPT. No test fails by its time; the exit status says whether one failed.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def tests_of(build, pattern):
    """Name, command, properties of each test."""
    listed = subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1", "-LE", "slow", *(["-R", pattern] if pattern else [])],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for test in json.loads(listed)["tests"]:
        properties = {one["name"]: one["value"] for one in test.get("properties", [])}
        if not properties.get("DISABLED") and test.get("command"):
            yield test["name"], test["command"], properties


def run(command, properties):
    """CPU-seconds, and whether the test passed."""
    environment = {**os.environ, **dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=properties.get("WORKING_DIRECTORY"),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, code in (0, properties.get("SKIP_RETURN_CODE"))


def read_kept(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: float(seconds) for name, seconds in (line.split() for line in lines if not line.startswith("#"))}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("build")
    options.add_argument("kept", type=pathlib.Path)
    options.add_argument("--write", action="store_true")
    options.add_argument("-R", dest="pattern")
    options = options.parse_args()
    kept = read_kept(options.kept)
    found, failed = {}, []
    print(f"{'kept':>8}{'now':>8}  CPU-seconds", flush=True)
    for name, command, properties in tests_of(options.build, options.pattern):
        seconds, passed = run(command, properties)
        found[name] = round(seconds, 1)
        if not passed:
            failed.append(name)
        print(f"{kept.get(name, '-'):>8}{found[name]:>8}  {name}{'' if passed else '  FAILED'}", flush=True)
    gone = [name for name in kept if name not in found and not (options.pattern and not re.search(options.pattern, name))]
    for name in gone:
        print(f"{kept[name]:>8}{'-':>8}  {name}")
    before = sum(kept.get(name, 0) for name in found)
    print(f"{before:8.1f}{sum(found.values()):8.1f}  all {len(found)}")
    if options.write and not failed:
        head = "# CPU-seconds of each test that is not slow, run one after the other: scripts/test.sh --times --write\n"
        left = {} if not options.pattern else {name: seconds for name, seconds in kept.items() if name not in gone}
        lines = [f"{name} {seconds:g}\n" for name, seconds in sorted({**left, **found}.items())]
        options.kept.write_text(head + "".join(lines))
    if failed:
        sys.exit(f"{len(failed)} tests failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
