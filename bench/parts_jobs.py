#!/usr/bin/env python3
"""A conversion in parts against the same conversion at once, on one disk, in one run.

Makes the synthetic FP8 checkpoint of jobs.py. Each round (the order changes) converts it, with a hot source, at once and in 1, 2 and 4 parts,
one after another, with the join; prints medians and, pair by pair, what parts and join cost together against the conversion at once.
"""

import argparse
import os

from jobs import Jobs, add_options, files_of, median_ratio, rotated, run, spread, timed

PARTS = [1, 2, 4]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--to", default="bf16")
    options = parser.parse_args()

    os.makedirs(options.dir, exist_ok=True)
    jobs = Jobs(options)
    jobs.make_source(options)
    arguments = ["--to", options.to, "--max-shard-size", "500MB"]
    joins = []

    def in_parts(n):
        for index in range(n):
            jobs.convert(*arguments, "--part", f"{index}/{n}")
        joins.append(timed(lambda: run([options.ingot, "join", jobs.scratch, "--progress", "never"])))

    runs = {"at once": lambda: jobs.convert(*arguments)}
    runs |= {f"{n} parts": lambda n=n: in_parts(n) for n in PARTS}
    print(f"source {sum(os.path.getsize(p) for p in files_of(jobs.source)) / 1e9:.2f} GB, {options.rounds} rounds, {os.cpu_count()} cores", flush=True)
    seconds = {name: [] for name in runs}
    for round_number in range(options.rounds):
        for name in rotated(runs, round_number):
            seconds[name].append(jobs.time_hot(runs[name], jobs.source))
    jobs.fresh()
    for name in runs:
        print(f"{name:8s} {spread(seconds[name])}  of at once {median_ratio(seconds[name], seconds['at once']):.2f}", flush=True)
    print(f"join     {spread(joins)}")


if __name__ == "__main__":
    main()
