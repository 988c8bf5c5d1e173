#!/usr/bin/env python3
"""CPU-seconds of a model in memory against those of `ingot convert` of the same weights on a tmpfs, in one run.

Makes a layer of a synthetic DeepSeek-V3 of real widths in BF16 on the tmpfs. Each round (the order changes) converts it
  files     by `ingot convert`, which reads and writes files on the tmpfs
  encoder   by ingot.Encoder, set by set; the tensors that it makes are let go of at once
  mapping   by ingot.convert() of all tensors, which writes files on the tmpfs
  iterator  by ingot.convert() of the tensors one by one
with the same number of threads, and prints medians of CPU-seconds of the whole process, after the weights of a model
in memory have been loaded, and the ratios pair by pair. Asked for: at most 1.5. It needs as much memory as two models
and their output, and the variables INGOT_LIBRARY and PYTHONPATH for the package of the same build.
"""

import argparse
import copy
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

WAYS = ["files", "encoder", "mapping", "iterator"]


def cpu_seconds():
    told = os.times()
    return told.user + told.system


def in_memory(way, source, output, options):
    """CPU-seconds and seconds of the weights of `source`, which are loaded before."""
    import ingot
    with ingot.open(source) as checkpoint:
        state = {name: copy.copy(tensor) for name, tensor in checkpoint.stored.items()}
        shapes = checkpoint.shapes()
    with open(f"{source}/config.json", encoding="utf-8") as file:
        config = file.read()
    threads = options.pop("threads")
    before, began = cpu_seconds(), time.perf_counter()
    if way in ("mapping", "iterator"):
        ingot.convert(state if way == "mapping" else iter(state.items()), output, config=config, shapes=shapes,
                      threads=threads, **options)
    else:
        with ingot.Plan(config, shapes, **options) as plan, ingot.Encoder(plan) as encoder:
            for names in plan.sets:
                for name in names:
                    encoder.encode(name, state[name])
            encoder.finish()
    return cpu_seconds() - before, time.perf_counter() - began


def by_files(ingot, source, output, options):
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    before, began = os.times(), time.perf_counter()
    subprocess.run([ingot, "convert", source, output, *words, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user + after.children_system - before.children_user - before.children_system,
            time.perf_counter() - began)


def main():
    if sys.argv[1:2] == ["--measure"]:
        way, source, output, options = sys.argv[2:]
        return print(json.dumps(in_memory(way, source, output, json.loads(options))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default="build/release/cli/ingot")
    parser.add_argument("--dir", default="/dev/shm/ingot-memory-jobs", help="an empty folder on a tmpfs, which is deleted")
    parser.add_argument("--experts", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", nargs="*", default=["fp8-block", "fp8-channel", "int8", "nvfp4", "int4"])
    options = parser.parse_args()

    source, output = f"{options.dir}/source", f"{options.dir}/output"
    os.makedirs(options.dir)
    try:
        words = f"--layers 1 --dense-layers 0 --mtp-layers 0 --experts {options.experts} --scheme bf16 --vocab 16384 --shards 2"
        subprocess.run([options.ingot, "synth", source, "--family", "deepseek_v3", *words.split(), "-q"], check=True,
                       stdout=subprocess.DEVNULL)
        n_bytes = sum(os.path.getsize(f"{source}/{name}") for name in os.listdir(source))
        print(f"source {n_bytes / 1e9:.2f} GB, {options.threads} threads, {options.rounds} rounds", flush=True)
        for scheme in options.to:
            taken = {way: [] for way in WAYS}
            flags = {"to": scheme, "threads": options.threads}
            for number in range(options.rounds):
                for way in WAYS[number % len(WAYS):] + WAYS[:number % len(WAYS)]:
                    if way == "files":
                        taken[way].append(by_files(options.ingot, source, output, flags))
                    else:
                        told = subprocess.run([sys.executable, __file__, "--measure", way, source, output, json.dumps(flags)],
                                              check=True, stdout=subprocess.PIPE).stdout
                        taken[way].append(json.loads(told))
                    shutil.rmtree(output, ignore_errors=True)
            cpu = {way: [one[0] for one in taken[way]] for way in WAYS}
            said = [f"{way} {statistics.median(cpu[way]):.2f} s" for way in WAYS]
            ratios = [f"{way} {statistics.median(a / b for a, b in zip(cpu[way], cpu['files'])):.2f}" for way in WAYS[1:]]
            print(f"{scheme:12s} CPU: {', '.join(said)}; of files: {', '.join(ratios)}", flush=True)
    finally:
        shutil.rmtree(options.dir)


if __name__ == "__main__":
    main()
