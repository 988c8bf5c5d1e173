#!/usr/bin/env python3
"""Times conversions that order the tensors of a file by name against those by dtype, as ratios of pairs in turns.

  bench/write_order.py INGOT SOURCE WORK... [--pairs 9]

Each WORK is a folder of a file system of its own. Outputs are removed as soon as they are timed; the time is that of
the whole command, which ends when all bytes are on the disk. On a machine with other work, time of processors says more.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import time

JOBS = {
    "copy in 4 files": ("--files", "4"),
    "--to bf16": ("--to", "bf16"),
    "--to fp8": ("--to", "fp8", "--dialect", "compressed-tensors"),
    "--to int8": ("--to", "int8"),
    "--to nvfp4": ("--to", "nvfp4", "--search", "amax"),
    "--to int4 in 8 files": ("--to", "int4", "--files", "8"),
}


def seconds(ingot, source, out, options):
    """Seconds from the start to the end of a conversion, and those of processors."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [ingot, "convert", source, out, *options, "--progress", "never", "--quiet"], check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    taken, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot")
    parser.add_argument("source")
    parser.add_argument("work", type=pathlib.Path, nargs="+")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", help="jobs whose name contains this")
    options = parser.parse_args()
    print("| job | folder | seconds by dtype | time: name / dtype | range | of processors: name / dtype |\n|---|---|---|---|---|---|")
    for job, words in JOBS.items():
        if options.only and options.only not in job:
            continue
        for work in options.work:
            ratios, of_processors, by_dtype = [], [], []
            for pair in range(options.pairs):
                orders = ["name", "dtype"] if pair % 2 == 0 else ["dtype", "name"]
                taken = {o: seconds(options.ingot, options.source, work / "out", (*words, "--order", o)) for o in orders}
                ratios.append(taken["name"][0] / taken["dtype"][0])
                of_processors.append(taken["name"][1] / taken["dtype"][1])
                by_dtype.append(taken["dtype"][0])
            print(
                f"| {job} | {work} | {statistics.median(by_dtype):.2f} | {statistics.median(ratios):.2f} "
                f"| {min(ratios):.2f} to {max(ratios):.2f} | {statistics.median(of_processors):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
