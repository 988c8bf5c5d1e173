#!/usr/bin/env python3
"""What one host does: conversions, verification and dry runs next to the machine's own limits.

Makes a synthetic FP8 checkpoint with real widths in DIR (hot), then alternates in rounds: plain writers and readers with as many processes as
ingot has threads, direct writes and reads of the disk, conversions into memory and onto the disk, the same conversions of a tiny checkpoint
with as many tensors and files, `ingot verify` of the outputs, dry runs of the 671B headers, and the start of a program. Stops when the time is
over, and says what it left out. Every output is deleted before the next. Needs Python's standard library and an ingot program, no network.
--model compares with docs/jobs.md.
"""

import argparse
import dataclasses
import json
import mmap
import multiprocessing
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing

import host_model
from jobs import evict, files_of, run

PIECE, DIRECT_PIECE = 1 << 20, 8 << 20  # as ingot's windows
RANDOM = mmap.mmap(-1, DIRECT_PIECE)  # at a page, as direct I/O wants it; bytes that no file system saves
RANDOM.write(os.urandom(DIRECT_PIECE))
CUT = ["--tp", "8", "--ep", "8", "--tp-fit", "bf16"]  # nothing to fit in real widths
CONVERSIONS = {
    "bf16": ["--to", "bf16"],
    "int8": ["--to", "int8"],
    "nvfp4": ["--to", "nvfp4"],
    "int4": ["--to", "int4"],
    "fp8 tp 8 ep 8": CUT,
    "bf16 tp 8 ep 8": ["--to", "bf16", *CUT],
    # With --jobs.
    "copy": [],
    "nvfp4 amax": ["--to", "nvfp4", "--search", "amax"],
    "nvfp4 4over6": ["--to", "nvfp4", "--search", "4over6"],
    "int4 amax": ["--to", "int4", "--search", "amax"],
    "int4 signed": ["--to", "int4", "--search", "signed"],
    "int4 zero points": ["--to", "int4", "--zero-points"],
    "mxfp4": ["--to", "mxfp4"],
    "fp8 ue8m0": ["--to", "fp8", "--fp8-grid", "ue8m0"],
    "one rank": ["--layout", "ranks"],
    "tp 16": ["--tp", "16", "--tp-fit", "bf16"],
    "ep 16": ["--ep", "16"],
    "mp 16": ["--layout", "deepseek-mp", "--mp", "16", "--tp-fit", "bf16"],
}
DEFAULT = list(CONVERSIONS)[:6]
VERIFIED = ["bf16", "int8", "nvfp4"]
# The largest output as a multiple of the source: BF16 with what every rank repeats; and the memory that source, output and ingot take together.
LARGEST_OUTPUT, WORKING_MEMORY = 2.3, 4 << 30


class Refused(Exception):
    pass


@dataclasses.dataclass
class Row:
    """A line of the table, measured once a round: `action` returns the bytes that count, and its own seconds if it knows better."""
    name: str
    place: str
    threads: int
    action: typing.Callable
    limit: "Row" = None
    prepare: typing.Callable = lambda: None
    of_n_threads: "Row" = None  # the same on every processor, whose CPU-seconds tell how long this one takes
    n_bytes: int = 0
    planned: int = 0  # bytes of a dry run's output
    largest: int = 0  # bytes of the largest file of the output
    fixed: "Row" = None  # the same job with hardly any bytes
    most: int = 1000  # rounds
    stages: list = dataclasses.field(default_factory=list)  # by round
    left_out: str = ""
    seconds: list = dataclasses.field(default_factory=list)
    cpu_seconds: list = dataclasses.field(default_factory=list)

    def rate(self):
        return self.n_bytes / statistics.median(self.seconds) if self.seconds else 0

    def cpu(self):
        return statistics.median(self.cpu_seconds)

    def median(self):
        return statistics.median(self.seconds)

    def work(self):
        """CPU-seconds besides reading and writing, of a conversion into memory; else those of the stages that compute."""
        cpu = [of["compute"]["seconds"] + of["hash"]["seconds"] if self.place != "memory" else
               seconds - of["read"]["seconds"] - of["write"]["seconds"] for of, seconds in zip(self.stages, self.cpu_seconds)]
        return max(0, statistics.median(cpu))

    def computing(self):
        return statistics.median(of["compute"]["seconds"] + of["hash"]["seconds"] for of in self.stages)

    def expected(self):
        if self.seconds:
            return max(self.seconds)
        known = self.of_n_threads
        return known.cpu() / self.threads if known and known.seconds else 0

    def measure(self):
        self.prepare()
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        result = self.action(self)
        n_bytes, seconds = result if isinstance(result, tuple) else (result, time.perf_counter() - begin)
        self.seconds.append(seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        self.n_bytes = n_bytes or self.n_bytes

    def json(self):
        facts = {"job": self.name, "place": self.place, "threads": self.threads, "bytes": self.n_bytes, "seconds": self.seconds,
                 "cpu_seconds": self.cpu_seconds, "bytes_per_second": self.rate()}
        if self.left_out:
            facts["left_out"] = self.left_out  # some rounds, or all
        if self.stages:
            facts["stages"] = self.stages
        if self.largest:
            facts["largest_file"] = self.largest
        if self.limit:
            facts["limit"] = f"{self.limit.name}, {self.limit.place}, {self.limit.threads}"
            facts["of_limit"] = self.of_limit()
        return facts

    def of_limit(self):
        if not (self.limit and self.seconds and self.limit.seconds):
            return None
        if not self.n_bytes:
            return statistics.median(self.limit.seconds) / statistics.median(self.seconds)
        return self.rate() / self.limit.rate()


def memory_available():
    """Bytes: of the machine, or of the container that this is."""
    with open("/proc/meminfo") as f:
        facts = dict(line.split(":") for line in f)
    available = int(facts["MemAvailable"].split()[0]) << 10
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as now:
            available = min(available, int(most.read()) - int(now.read()))
    except (OSError, ValueError):
        pass
    return available


def processors():
    n = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as f:
            quota, period = f.read().split()
            return max(1, min(n, int(quota) // int(period)))
    except (OSError, ValueError):
        return n


def file_system(directory):
    return subprocess.run(["stat", "-f", "-c", "%T", directory], stdout=subprocess.PIPE, text=True).stdout.strip()


def together(n, work):
    """Seconds of work(k, start) in n processes from when all of them have called start(): ready, with files open."""
    fork = multiprocessing.get_context("fork")
    barrier, begun, ended = fork.Barrier(n), fork.Array("d", n), fork.Array("d", n)

    def process_of(k):
        def start():
            barrier.wait(60)
            begun[k] = time.perf_counter()

        work(k, start)
        ended[k] = time.perf_counter()

    processes = [fork.Process(target=process_of, args=(k,)) for k in range(n)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise Refused("a plain reader or writer failed")
    return max(ended) - min(begun)


def open_past_cache(path, flags):
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError:  # a file system without direct I/O
        return os.open(path, flags)


def writing(directory, n_bytes, n, direct):
    """The bytes that n processes write, and the work of each: a fresh file. One on a disk is reserved first, as ingot does it."""
    piece = DIRECT_PIECE if direct else PIECE
    pieces = max(1, int(n_bytes) // n // piece)
    open_file = open_past_cache if direct else os.open

    def work(k, start):
        buffer = memoryview(RANDOM)[:piece]
        fd = open_file(os.path.join(directory, str(k)), os.O_WRONLY | os.O_CREAT)
        start()
        if direct:
            os.posix_fallocate(fd, 0, pieces * piece)
        for i in range(pieces):
            if os.pwrite(fd, buffer, i * piece) != piece:
                sys.exit(1)
        if direct:
            os.fsync(fd)

    os.makedirs(directory)
    return n * pieces * piece, work


def reading(paths, n, direct):
    """The bytes that n processes read, and the work of each: pieces of files."""
    piece = DIRECT_PIECE if direct else PIECE
    pieces = [(path, at) for path in paths for at in range(0, os.path.getsize(path), piece)]
    open_file = open_past_cache if direct else os.open

    def work(k, start):
        buffer = mmap.mmap(-1, piece)
        fds = {path: open_file(path, os.O_RDONLY) for path in paths}
        start()
        for path, at in pieces[k::n]:
            os.preadv(fds[path], [buffer], at)

    return sum(os.path.getsize(path) for path in paths), work


def write_plainly(directory, n_bytes, n, direct):
    n_bytes, work = writing(directory, n_bytes, n, direct)
    return n_bytes, together(n, work)


def read_plainly(paths, n, direct):
    n_bytes, work = reading(paths, n, direct)
    return n_bytes, together(n, work)


def copy_plainly(paths, directory, n):
    """Reads files and writes as many bytes at the same time, past the page cache, with n processes each."""
    n_read, read = reading(paths, n, True)
    n_written, write = writing(directory, n_read, n, True)
    return n_read + n_written, together(2 * n, lambda k, start: (read if k < n else write)(k % n, start))


class Host:
    """The folders of a run, and the rows of its table."""

    def __init__(self, options):
        self.options = options
        self.memory = None
        self.directory = tempfile.mkdtemp(prefix="ingot-host-", dir=options.dir)
        self.source, self.tiny, self.headers = (os.path.join(self.directory, name) for name in ("source", "tiny", "headers"))
        self.rows = []
        self.left_out = []

    def remove(self):
        for directory in filter(None, [self.directory, self.memory]):
            shutil.rmtree(directory, ignore_errors=True)

    def choose_size(self):
        """Bytes of the source: as asked, or what half of the free memory and disk allow."""
        disk, memory = shutil.disk_usage(self.directory).free, memory_available()
        in_memory = file_system(self.directory) == "tmpfs"

        def needs(size):
            on_disk, working = (1 + LARGEST_OUTPUT) * size, min(size, WORKING_MEMORY)
            return on_disk, (1 + LARGEST_OUTPUT + (1 + LARGEST_OUTPUT if in_memory else 0)) * size + working

        def fits(size):
            return all(need <= free / 2 for need, free in zip(needs(size), (disk, memory)))

        size = 1e7 if self.options.like == "tiny" else self.options.size
        if size is None:
            size = next((s * 10**9 for s in (8, 6, 4, 3, 2.3) if fits(s * 10**9)), 2.3 * 10**9)
        if not fits(size):
            on_disk, working = needs(size)
            raise Refused(f"a source of {size / 1e9:.1f} GB needs {on_disk / 1e9:.1f} GB of disk and {working / 1e9:.1f} GB of memory, and half of "
                          f"what is free is {disk / 2e9:.1f} and {memory / 2e9:.1f} GB (choose a smaller --size, or another folder)")
        free = shutil.disk_usage(self.options.memory).free if os.path.isdir(self.options.memory) else 0
        if LARGEST_OUTPUT * size <= free / 2:
            self.memory = tempfile.mkdtemp(prefix="ingot-host-", dir=self.options.memory)
        else:
            self.left_out.append(f"outputs in memory: {self.options.memory} has {free / 1e9:.1f} GB free (--memory names another tmpfs)")
        return size

    def make_source(self, size):
        ingot, like = self.options.ingot, self.options.like
        # Without experts 1.5 GB in real widths, and 88 MB an expert.
        experts = 16 if like == "tiny" else max(8, int((size - 1.52e9) / 88.1e6) // 8 * 8)
        for path, widths in (self.source, like), (self.tiny, "tiny"):
            run([ingot, "synth", path, "--family", "deepseek_v3", "--like", widths, "--layers", "3", "--dense-layers", "1", "--mtp-layers", "0",
                 "--experts", str(experts), "--shards", str(max(4, self.options.processors)),
                 *(["--heads", "16"] if widths == "tiny" else ["--vocab", "16384"])])
        self.weights = [path for path in files_of(self.source) if path.endswith(".safetensors")]
        self.source_bytes = sum(os.path.getsize(path) for path in self.weights)
        if like == "tiny":
            self.headers = self.source
        else:
            run([ingot, "synth", self.headers, "--family", "deepseek_v3", "--like", "headers"])

    def scratch(self, place):
        return os.path.join(self.memory if place == "memory" else self.directory, "output")

    def clear(self):
        for place in ("memory", "disk") if self.memory else ("disk",):
            shutil.rmtree(self.scratch(place), ignore_errors=True)

    def ingot_document(self, *arguments):
        """The document of a job; raises its error."""
        done = subprocess.run([self.options.ingot, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        document = json.loads(done.stdout)
        if document["error"] or done.returncode:
            raise Refused(f"ingot {' '.join(arguments)}: {(document['error'] or {}).get('text', f'exit code {done.returncode}')}")
        return document

    def add(self, name, place, threads, action, **more):
        self.rows.append(Row(name, place, threads, action, **more))
        return self.rows[-1]

    def converting(self, source, name, place, threads):
        def action(row):
            begin = time.perf_counter()
            document = self.ingot_document("convert", source, self.scratch(place), *CONVERSIONS[name], "--threads", str(threads),
                                           "--progress", "never")
            seconds = time.perf_counter() - begin
            row.stages.append(document["stages"])
            row.largest = max(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(self.scratch(place)) for file in files)
            return document["bytes_written"], seconds
        return action

    def add_conversion(self, name, place, threads, prepare, **more):
        fixed = None
        if self.options.model:
            output = "memory" if place == "memory" else "disk"
            fixed = self.add(f"tiny {name}", place, threads, self.converting(self.tiny, name, output, threads), prepare=self.clear)
        return self.add(name, place, threads, self.converting(self.source, name, "memory" if place == "memory" else "disk", threads),
                        prepare=prepare, fixed=fixed, **more)

    def verifying(self, row):
        self.ingot_document("verify", self.source, self.scratch("memory"), "--threads", str(row.threads), "--progress", "never")
        return self.source_bytes + sum(os.path.getsize(path) for path in files_of(self.scratch("memory")) if path.endswith(".safetensors"))

    def planning(self, name):
        def action(row):
            row.planned = self.ingot_document("convert", self.headers, self.scratch("disk"), *CONVERSIONS[name], "--dry-run", "--assume-disk",
                                              "100TB")["bytes_out"]
        return action

    def add_rows(self):
        options = self.options
        threads = sorted(options.threads, reverse=True)

        def hot():
            self.clear()
            read_plainly(self.weights, options.processors, False)

        def cold():
            self.clear()
            evict(self.source)

        writers, readers, requests = {}, {}, threads[0]
        for n in sorted({1, min(8, threads[0]), *threads}, reverse=True):
            if self.memory:
                n_bytes = min(LARGEST_OUTPUT, n / 4) * self.source_bytes
                writers[n] = self.add("plain writers", "memory", n, lambda row, n_bytes=n_bytes: write_plainly(
                    self.scratch("memory"), n_bytes, row.threads, False), prepare=hot)
        for n in threads:
            readers[n] = self.add("plain readers", "hot", n, lambda row: read_plainly(self.weights, row.threads, False), prepare=hot)
        disk = self.add("direct writes", "disk", requests, lambda row: write_plainly(self.scratch("disk"), self.source_bytes, requests, True),
                        prepare=self.clear)
        for name in options.jobs:
            best = None
            for n in threads if self.memory else []:
                row = self.add_conversion(name, "memory", n, hot, limit=writers[n], of_n_threads=best)
                best = best or row
                if best is row and name in VERIFIED:
                    self.add(f"verify {name}", "hot", n, self.verifying, limit=readers[n])
            self.add_conversion(name, "disk", threads[0], hot, limit=disk, of_n_threads=best)
        # The last ones: what comes after them must read the source again.
        self.add("direct reads", "disk", requests, lambda row: read_plainly(self.weights, requests, True), prepare=cold)
        self.add("direct reads and writes", "disk", requests, lambda row: copy_plainly(self.weights, self.scratch("disk"), requests), prepare=cold)
        if "bf16" in options.jobs:
            self.add_conversion("bf16", "disk, cold", threads[0], cold, limit=disk)
        for name in options.jobs if options.model else [j for j in ("nvfp4", "bf16 tp 8 ep 8") if j in options.jobs]:
            self.add(f"dry run {name}", "headers", threads[0], self.planning(name), prepare=self.clear, most=1)
        true = self.add("start of true", "", 1, lambda row: run(["true"]))
        self.add("start of ingot --version", "", 1, lambda row: run([options.ingot, "--version"]), limit=true)

    def measure(self, end):
        """All rows in rounds, until the time is over. A row that takes too much of it is left out."""
        whole = end - time.monotonic()
        if self.memory:  # a guest has handed free memory back to its host: the first touch is slow
            write_plainly(self.scratch("memory"), LARGEST_OUTPUT * self.source_bytes, self.options.processors, False)
        for number in range(self.options.rounds):
            for row in (row for row in self.rows if number < row.most):
                left = end - time.monotonic()
                if left <= 0 or row.expected() > min(left, whole / (5 if number == 0 else 30)):
                    row.left_out = row.left_out or f"takes about {row.expected():.0f} s, {max(left, 0):.0f} s were left"
                    continue
                try:
                    row.measure()
                except (OSError, Refused, subprocess.CalledProcessError) as error:
                    row.left_out = str(error)
                result = row.left_out or f"{row.seconds[-1]:.3f} s"
                print(f"round {number + 1}: {row.name}, {row.place}, {row.threads}: {result}", file=sys.stderr, flush=True)
        self.clear()

    def facts(self):
        with open("/proc/cpuinfo") as f:
            models = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
        return {"processor": models[0] if models else platform.machine(), "processors": self.options.processors, "kernel": platform.release(),
                "memory_available": memory_available(), "disk_free": shutil.disk_usage(self.directory).free,
                "disk_file_system": file_system(self.directory), "load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d"),
                "ingot": subprocess.run([self.options.ingot, "--version"], stdout=subprocess.PIPE, text=True).stdout.splitlines()}


def table(rows):
    lines = ["| job | place | threads | rounds | median s | min to max | CPU s | GB/s | of the limit |", "|---|---|---|---|---|---|---|---|---|"]
    for row in filter(lambda row: row.seconds, rows):
        share = f"{row.of_limit():.2f} of {row.limit.name}" if row.of_limit() else ""
        rate = f"{row.rate() / 1e9:.2f}" if row.n_bytes else ""
        lines.append(f"| {row.name} | {row.place} | {row.threads} | {len(row.seconds)} | {statistics.median(row.seconds):.3f} | "
                     f"{min(row.seconds):.3f} to {max(row.seconds):.3f} | {row.cpu():.2f} | {rate} | {share} |")
    return lines


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", help="a folder on the disk to measure")
    parser.add_argument("--ingot", default="build/release/cli/ingot")
    parser.add_argument("--memory", metavar="DIR", default="/dev/shm", help="a tmpfs for outputs in memory")
    parser.add_argument("--size", type=lambda gigabytes: float(gigabytes) * 1e9, metavar="GB",
                        help="of the source (default: as much as is allowed, at most 8)")
    parser.add_argument("--minutes", type=float, default=15, help="that all of it may take")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], help="e.g. 1,4,16 (default: 1, 4 and every processor)")
    parser.add_argument("--jobs", nargs="+", choices=list(CONVERSIONS), default=DEFAULT)
    parser.add_argument("--like", choices=["layer", "tiny"], default="layer", help="widths of the source; tiny only tries the script")
    parser.add_argument("--model", action="store_true", help="compare with docs/jobs.md, and say what 671B would take here")
    parser.add_argument("--json", metavar="FILE", help="write everything to FILE too")
    options = parser.parse_args()
    options.processors = processors()
    options.threads = sorted(set(options.threads or [1, min(4, options.processors), options.processors]))
    return options


def main():
    options = parsed()
    end = time.monotonic() + 60 * options.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(options.dir, exist_ok=True)
    host = Host(options)
    try:
        host.make_source(host.choose_size())
        host.add_rows()
        host.measure(end)
        document = {"schema": 1, "host": host.facts(), "source_bytes": host.source_bytes, "rows": [row.json() for row in host.rows],
                    "left_out": host.left_out}
        facts = document["host"]
        print(f"{facts['processor']}, {facts['processors']} processors, {facts['memory_available'] / 1e9:.0f} GB of memory free, "
              f"{facts['disk_file_system']}; {facts['ingot'][0]}; source {host.source_bytes / 1e9:.2f} GB, {facts['date']}\n")
        print("\n".join(table(host.rows)))
        for note in [*host.left_out, *(f"{row.name} {row.place} {row.threads}: {row.left_out}" for row in host.rows if not row.seconds)]:
            print(f"left out: {note}")
        if options.model:
            document["model"] = host_model.model(host)
            print("\n".join(host_model.table(document["model"])))
        if options.json:
            with open(options.json, "w") as f:
                json.dump(document, f, indent=1)
    except Refused as error:
        sys.exit(f"error: {error}")
    finally:
        host.remove()


if __name__ == "__main__":
    main()
