#!/usr/bin/env python3
"""Whole jobs against their yardsticks, in one run.

Makes a synthetic FP8 checkpoint with real widths, then alternates per round (the order changes each round):
  dd       dd oflag=direct bs=16M of the output's bytes, read from a hot page cache
  cp       cp of the same bytes, followed by fsync of every file
  cast     ingot convert --to bf16, durable when it returns
  copy     ingot convert without --to: plan, read, write, no compute (the null transform)
with the sources hot, and cp and cast again with the sources evicted from the page cache.
Prints medians and the ratios pair by pair. No gate: these machines are shared; see bench/README.md.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time


def files_of(directory):
    return sorted(os.path.join(directory, f) for f in os.listdir(directory)
                  if os.path.isfile(os.path.join(directory, f)))


def rotated(names, by):
    """The same in another order each round, so that a drift of the machine meets all of them."""
    names = list(names)
    shift = by % len(names)
    return names[shift:] + names[:shift]


def read_through(directory):
    for path in files_of(directory):
        with open(path, "rb", buffering=0) as f:
            while f.read(1 << 24):
                pass


def evict(directory):
    for path in files_of(directory):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm_memory(n_bytes):
    """A guest hands freed memory back to its host; touch what the round will need, then free it."""
    block = bytearray(n_bytes)
    for i in range(0, n_bytes, 4096):
        block[i] = 1
    del block


def timed(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def run(command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def fsync_tree(directory):
    for path in files_of(directory):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def median_ratio(a, b):
    return statistics.median(x / y for x, y in zip(a, b))


def spread(seconds):
    return f"{statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


class Jobs:
    def __init__(self, options):
        self.ingot, self.threads = options.ingot, options.threads
        self.base = options.dir
        self.source = os.path.join(self.base, "source")
        self.reference = os.path.join(self.base, "reference")  # the output's bytes, what dd and cp copy
        self.copied = os.path.join(self.base, "copied")
        self.scratch = os.path.join(self.base, "scratch")

    def make_source(self, options):
        if os.path.isdir(self.source):
            return
        run([self.ingot, "synth", self.source, "--family", "deepseek_v3", "--like", "layer", "--layers", str(options.layers),
             "--experts", str(options.experts), "--shards", str(options.shards), "--vocab", "16384"])

    def fresh(self):
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.sync()

    def time_hot(self, action, *directories):
        """Seconds that an action takes when these directories are in the page cache."""
        self.fresh()
        for directory in directories:
            read_through(directory)
        warm_memory(1 << 30)
        return timed(action)

    def convert(self, *arguments):
        command = [self.ingot, "convert", self.source, self.scratch, "--progress", "never", *arguments]
        if self.threads:
            command += ["--threads", str(self.threads)]
        run(command)

    def dd(self):
        os.mkdir(self.scratch)
        for path in files_of(self.reference):
            run(["dd", f"if={path}", f"of={self.scratch}/{os.path.basename(path)}", "bs=16M", "oflag=direct"])

    def cp(self, source=None):
        run(["cp", "-r", source or self.reference, self.scratch])
        fsync_tree(self.scratch)


def add_options(parser):
    parser.add_argument("--ingot", default="build/release/cli/ingot")
    parser.add_argument("--dir", required=True, help="an empty folder on the disk to measure")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: ingot's default")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    os.makedirs(options.dir, exist_ok=True)
    jobs = Jobs(options)
    jobs.make_source(options)
    if not os.path.isdir(jobs.reference):
        run([options.ingot, "convert", jobs.source, jobs.reference, "--to", "bf16", "--progress", "never"])
    bytes_in = sum(os.path.getsize(p) for p in files_of(jobs.source))
    bytes_out = sum(os.path.getsize(p) for p in files_of(jobs.reference))
    print(f"source {bytes_in / 1e9:.2f} GB, bf16 output {bytes_out / 1e9:.2f} GB, {options.rounds} rounds", flush=True)

    hot = {"dd": jobs.dd, "cp": jobs.cp, "cast": lambda: jobs.convert("--to", "bf16"), "copy": jobs.convert,
           "cp-source": lambda: jobs.cp(jobs.source)}
    cold = {"cp cold": jobs.cp, "cast cold": lambda: jobs.convert("--to", "bf16")}
    seconds = {name: [] for name in [*hot, *cold]}
    for round_number in range(options.rounds):
        for name in rotated(hot, round_number):
            seconds[name].append(jobs.time_hot(hot[name], jobs.source, jobs.reference))
        for name in rotated(cold, round_number):
            jobs.fresh()
            evict(jobs.source)
            evict(jobs.reference)
            warm_memory(1 << 30)
            seconds[name].append(timed(cold[name]))
    jobs.fresh()

    def ratio(a, b):
        return median_ratio(seconds[a], seconds[b])

    result = {name: {"median_s": statistics.median(s), "min_s": min(s), "max_s": max(s)} for name, s in seconds.items()}
    for name, row in result.items():
        n_bytes = bytes_in if name in ("copy", "cp-source") else bytes_out
        print(f"{name:10s} median {row['median_s']:7.3f} s  ({row['min_s']:.3f} to {row['max_s']:.3f})"
              f"  {n_bytes / 1e9 / row['median_s']:6.2f} GB/s of output")
    ratios = {"cast / dd direct": ratio("cast", "dd"), "cast / cp+fsync": ratio("cast", "cp"),
              "dd direct / cp+fsync": ratio("dd", "cp"), "copy / cp+fsync of the source": ratio("copy", "cp-source"),
              "cast cold / cp+fsync cold": ratio("cast cold", "cp cold")}
    for name, value in ratios.items():
        print(f"{name:32s} {value:.2f}")
    if options.json:
        print(json.dumps({"schema": 1, "seconds": result, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
