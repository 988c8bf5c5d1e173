#!/usr/bin/env python3
"""unreached.py COVERAGE_JSON: compares the lines that no default test runs with the list of those that we know.

Reads gcovr's JSON and tests/unreached.txt, whose rows are a reason, a file and the text of the first line of a region
(neighbouring lines that no test runs). Prints regions that are not on the list, and rows whose line runs or is gone;
ends with 1 where it printed any. With --write the list is written anew: a known region keeps its reason, another gets
`new`, which is then to be replaced.
"""

import argparse
import json
import os
import sys

LIST = os.path.join(os.path.dirname(__file__), "..", "tests", "unreached.txt")
LAYERS = ("convert", "formats", "quantize", "shard")


def regions(report):
    """(file, text of the first line) of each region, in the order of files and lines."""
    for file in report["files"]:
        if file["file"].split("/")[0] not in LAYERS:
            continue
        runs = {}
        for line in file["lines"]:
            if not line.get("gcovr/noncode"):
                number = line["line_number"]
                runs[number] = max(runs.get(number, 0), line["count"])
        with open(file["file"], encoding="utf-8") as source:
            text = source.read().split("\n")
        before_ran = True
        for number, count in sorted(runs.items()):
            if count == 0 and before_ran:
                yield file["file"], " ".join(text[number - 1].split())
            before_ran = count > 0


def listed():
    """The head of the list, and its rows: {(file, text): reasons in their order}."""
    head, rows = [], {}
    with open(LIST, encoding="utf-8") as known:
        for line in known.read().splitlines():
            if line.startswith("#") or not line:
                head.append(line)
            else:
                reason, file, text = line.split(" ", 2)
                rows.setdefault((file, text), []).append(reason)
    return head, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with open(options.json, encoding="utf-8") as report:
        found = sorted(regions(json.load(report)))
    head, rows = listed()
    lines, unknown = [], []
    for region in found:
        reasons = rows.get(region)
        reason = reasons.pop(0) if reasons else "new"
        lines.append(f"{reason} {region[0]} {region[1]}")
        if reason == "new":
            unknown.append(f"{region[0]}: no test runs: {region[1]}")
    needless = [f"{file}: runs now, or is gone: {text}" for (file, text), left in rows.items() for _ in left]
    if options.write:
        with open(LIST, "w", encoding="utf-8") as known:
            known.write("\n".join([*head, *lines]) + "\n")
    for line in unknown + needless:
        print(line)
    return 1 if unknown or needless else 0


if __name__ == "__main__":
    sys.exit(main())
