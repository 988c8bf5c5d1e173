#!/usr/bin/env python3
"""Quantizing jobs against cp followed by fsync of the same output bytes, in one run.

Makes the synthetic FP8 checkpoint of jobs.py, and for every target its output once. Then each round (the order changes) runs, with hot
sources, the conversion and the copy of its output, and prints medians, ratios pair by pair, and elements per second and core.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess

from jobs import Jobs, add_options, files_of, median_ratio, rotated, spread

TARGETS = {
    "int8": ["--to", "int8"],
    "nvfp4 amax": ["--to", "nvfp4", "--search", "amax"],
    "nvfp4 4over6": ["--to", "nvfp4", "--search", "4over6"],
    "nvfp4 mse": ["--to", "nvfp4", "--search", "mse"],
    "int4 amax": ["--to", "int4", "--search", "amax"],
    "int4 mse": ["--to", "int4", "--search", "mse"],
    "int4 signed": ["--to", "int4", "--search", "signed"],
    "mxfp4": ["--to", "mxfp4"],
    "fp8 ue8m0 grid": ["--to", "fp8", "--fp8-grid", "ue8m0"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--targets", nargs="*", choices=list(TARGETS), default=list(TARGETS))
    options = parser.parse_args()

    os.makedirs(options.dir, exist_ok=True)
    jobs = Jobs(options)
    jobs.make_source(options)
    references, elements = {}, {}
    for target in options.targets:
        references[target] = os.path.join(options.dir, "reference " + target)
        shutil.rmtree(references[target], ignore_errors=True)
        output = subprocess.run([options.ingot, "convert", jobs.source, references[target], "--json", "--progress", "never",
                                 *TARGETS[target]], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        elements[target] = sum(row["elements"] for row in json.loads(output.stdout)["quality"]["rows"])
    bytes_in = sum(os.path.getsize(p) for p in files_of(jobs.source))
    print(f"source {bytes_in / 1e9:.2f} GB, {options.rounds} rounds, {os.cpu_count()} cores", flush=True)

    seconds = {(target, kind): [] for target in options.targets for kind in ("convert", "cp")}
    for round_number in range(options.rounds):
        for target, kind in rotated(seconds, round_number):
            if kind == "convert":
                action = lambda: jobs.convert(*TARGETS[target])
            else:
                action = lambda: jobs.cp(references[target])
            seconds[target, kind].append(jobs.time_hot(action, jobs.source, references[target]))
    jobs.fresh()

    cores = options.threads or os.cpu_count()
    for target in options.targets:
        convert, cp = seconds[target, "convert"], seconds[target, "cp"]
        bytes_out = sum(os.path.getsize(p) for p in files_of(references[target]))
        rate = elements[target] / statistics.median(convert) / cores
        print(f"{target:14s} out {bytes_out / 1e9:5.2f} GB  convert {spread(convert)}"
              f"  cp+fsync {spread(cp)}  ratio {median_ratio(convert, cp):.2f}"
              f"  {rate / 1e6:.0f} M elements/s and core", flush=True)


if __name__ == "__main__":
    main()
