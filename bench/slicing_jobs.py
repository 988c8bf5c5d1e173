#!/usr/bin/env python3
"""Slicing for many ranks against ingot's own unsliced copy of the same source, per output byte, in one run.

Makes the synthetic FP8 checkpoint of jobs.py, whose widths are the real ones, so that blocks fit TP 16. Each round (the order changes) runs,
with a hot source, the unsliced copy and one conversion per cut, and prints medians and, pair by pair, the ratios of seconds per byte written.
"""

import argparse
import json
import os
import subprocess

from jobs import Jobs, add_options, files_of, median_ratio, rotated, spread

CUTS = {
    "one rank": ["--layout", "ranks"],
    "tp 16": ["--tp", "16"],
    "ep 16": ["--ep", "16"],
    "tp 2 ep 8": ["--tp", "2", "--ep", "8"],
    "tp 16 ep 16": ["--tp", "16", "--ep", "16"],
    "tp 4 pp 2": ["--tp", "4", "--pp", "2"],
    "mp 16": ["--layout", "deepseek-mp", "--mp", "16"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--cuts", nargs="*", choices=list(CUTS), default=list(CUTS))
    options = parser.parse_args()

    os.makedirs(options.dir, exist_ok=True)
    jobs = Jobs(options)
    jobs.make_source(options)
    runs = {"copy": []} | {cut: CUTS[cut] for cut in options.cuts}
    written = {}
    for name, arguments in runs.items():
        plan = subprocess.run([options.ingot, "convert", jobs.source, jobs.scratch, "--dry-run", "--json", *arguments], check=True,
                              stdout=subprocess.PIPE).stdout
        written[name] = json.loads(plan)["bytes_out"]
    bytes_in = sum(os.path.getsize(p) for p in files_of(jobs.source))
    print(f"source {bytes_in / 1e9:.2f} GB, {options.rounds} rounds, {os.cpu_count()} cores", flush=True)

    per_byte = {name: [] for name in runs}
    seconds = {name: [] for name in runs}
    for round_number in range(options.rounds):
        for name in rotated(runs, round_number):
            elapsed = jobs.time_hot(lambda: jobs.convert(*runs[name]), jobs.source)
            seconds[name].append(elapsed)
            per_byte[name].append(elapsed / written[name])
    jobs.fresh()

    for name in runs:
        print(f"{name:12s} wrote {written[name] / 1e9:5.2f} GB  {spread(seconds[name])}"
              f"  per byte of the copy {median_ratio(per_byte[name], per_byte['copy']):.2f}", flush=True)


if __name__ == "__main__":
    main()
