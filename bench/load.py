#!/usr/bin/env python3
"""Times loads of a checkpoint in several orders, files and ways, as ratios of one run.

  bench/load.py INGOT SOURCE WORK [--pairs 7] [--throttled]

SOURCE is converted into WORK: files ordered by dtype and by name, 4 files and 16, and rank files for two ranks. Then each way of loading reads each of them, in turns, cold and warm, and the medians of the
ratios in pairs are printed. Cold means that the pages were dropped before (posix_fadvise), which tmpfs cannot do.
With --throttled the files are also read through a file system in user space that waits 1 ms for each request and gives
200 MB/s, as storage over a network does (needs python3-fusepy and /dev/fuse). safetensors, torch and fastsafetensors
are used where they are installed, and named where they are not.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import time

KIB, MIB = 1 << 10, 1 << 20


def header(path):
    with open(path, "rb") as file:
        n_bytes = struct.unpack("<Q", file.read(8))[0]
        tensors = json.loads(file.read(n_bytes))
    tensors.pop("__metadata__", None)
    return 8 + n_bytes, tensors


def weights(folder):
    return sorted(pathlib.Path(folder).rglob("*.safetensors"))


def drop_pages(paths):
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_span(path, begin, end, block):
    buffer = bytearray(block)
    file = os.open(path, os.O_RDONLY)
    try:
        while begin < end:
            n_bytes = os.preadv(file, [memoryview(buffer)[: min(block, end - begin)]], begin)
            if n_bytes == 0:
                raise EOFError(path)
            begin += n_bytes
    finally:
        os.close(file)


def whole_files(block, threads):
    def load(paths):
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda path: read_span(path, 0, path.stat().st_size, block), paths))

    return load


def tensors_in(order):
    """Every tensor of each file by one read of its own, in the order of names or of offsets."""

    def load(paths):
        for path in paths:
            begin, tensors = header(path)
            key = (lambda item: item[0]) if order == "name" else (lambda item: item[1]["data_offsets"])
            for _, tensor in sorted(tensors.items(), key=key):
                first, last = tensor["data_offsets"]
                read_span(path, begin + first, begin + last, 16 * MIB)

    return load


def safe_open_copies(paths):
    """The default loader of engines: keys() by name, each tensor copied out of the memory map."""
    from safetensors import safe_open

    for path in paths:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():
                file.get_tensor(name).clone()


def fast_files(paths):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [str(path) for path in paths]})
    buffer = loader.copy_files_to_device()
    for name in loader.get_keys():
        buffer.get_tensor(name)
    buffer.close()
    loader.close()


def spans_of_rank(rank, ranks, config):
    """The rank's bytes of a whole checkpoint: rows of some weights, its own experts, and all else whole."""
    n_experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0

    def load(paths):
        for path in paths:
            begin, tensors = header(path)
            for name, tensor in sorted(tensors.items()):
                first, last = tensor["data_offsets"]
                parts = name.split(".experts.")
                if len(parts) == 2 and parts[1].split(".")[0].isdigit():
                    if int(parts[1].split(".")[0]) * ranks // max(n_experts, 1) != rank:
                        continue
                elif len(tensor["shape"]) == 2 and any(
                    part in name for part in ("q_b", "kv_b", "gate_proj", "up_proj", "lm_head")
                ):
                    size = (last - first) // ranks
                    first, last = first + rank * size, first + (rank + 1) * size
                read_span(path, begin + first, begin + last, 16 * MIB)

    return load


def available(load):
    try:
        if load is safe_open_copies:
            import safetensors  # noqa: F401
            import torch  # noqa: F401
        if load is fast_files:
            import fastsafetensors  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def seconds(load, paths, is_cold):
    if is_cold:
        drop_pages(paths)
    else:
        whole_files(16 * MIB, 1)(paths)
    begin = time.perf_counter()
    load(paths)
    return time.perf_counter() - begin


def ratio(first, second, pairs, is_cold):
    """Median of first / second over pairs that take turns, with the smallest and the largest."""
    ratios = []
    for pair in range(pairs):
        sides = [first, second] if pair % 2 == 0 else [second, first]
        taken = {id(side): seconds(*side, is_cold) for side in sides}
        ratios.append(taken[id(first)] / taken[id(second)])
    return statistics.median(ratios), min(ratios), max(ratios)


def converted(ingot, source, work, name, *options):
    out = work / name
    if not out.exists():
        subprocess.run(
            [ingot, "convert", source, out, *options, "--progress", "never"], check=True, stdout=subprocess.DEVNULL
        )
    return out


class Throttled:
    """A read-only view of a folder that waits for each request: 1 ms, and the time that its bytes take at 200 MB/s."""

    LATENCY, RATE = 0.001, 200e6

    def __init__(self, folder, mountpoint):
        self.mountpoint = pathlib.Path(mountpoint)
        self.mountpoint.mkdir(exist_ok=True)
        self.server = subprocess.Popen([sys.executable, __file__, "--serve", str(folder), str(mountpoint)])
        for _ in range(100):
            if os.path.ismount(mountpoint):
                return
            time.sleep(0.05)
        raise RuntimeError("the throttled file system did not start")

    def __enter__(self):
        return self.mountpoint

    def __exit__(self, *unused):
        subprocess.run(["fusermount", "-u", str(self.mountpoint)], check=False)
        self.server.wait(10)


def serve(folder, mountpoint):
    try:
        import fuse
    except ImportError:
        import fusepy as fuse  # as Debian calls the module

    class Slow(fuse.Operations):
        def __init__(self):
            self.free_at = 0.0

        def getattr(self, path, handle=None):
            info = os.lstat(folder + path)
            return {
                key: getattr(info, key)
                for key in ("st_mode", "st_size", "st_nlink", "st_uid", "st_gid", "st_mtime", "st_atime", "st_ctime")
            }

        def readdir(self, path, handle):
            return [".", "..", *os.listdir(folder + path)]

        def open(self, path, flags):
            return os.open(folder + path, os.O_RDONLY)

        def read(self, path, size, offset, handle):
            # Latency is each request's own, the rate is shared.
            now = time.monotonic()
            self.free_at = max(now, self.free_at) + size / Throttled.RATE
            time.sleep(max(Throttled.LATENCY, self.free_at - now))
            return os.pread(handle, size, offset)

        def release(self, path, handle):
            os.close(handle)

    fuse.FUSE(Slow(), mountpoint, foreground=True, ro=True, nothreads=False)


def compare(title, first, second, pairs, temperatures):
    for is_cold in temperatures:
        missing = available(first[0]) or available(second[0])
        if missing:
            print(f"| {title} | not measured: {missing} |", flush=True)
            return
        middle, least, most = ratio(first, second, pairs, is_cold)
        print(f"| {title} | {'cold' if is_cold else 'warm'} | {middle:.2f} | {least:.2f} to {most:.2f} |", flush=True)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--serve":
        return serve(sys.argv[2], sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot")
    parser.add_argument("source")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--throttled", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    config = json.loads((pathlib.Path(options.source) / "config.json").read_text())

    def made(name, *flags):
        return converted(options.ingot, options.source, options.work, name, *flags)

    folders = {
        "dtype": made("dtype", "--order", "dtype", "--files", "4"),
        "name": made("name", "--order", "name", "--files", "4"),
        "many": made("many", "--order", "name", "--files", "16"),
        "ranks": made("ranks", "--order", "name", "--tp", "2", "--ep", "2", "--layout", "ranks"),
    }
    is_on_tmpfs = (
        subprocess.run(["stat", "-f", "-c", "%T", options.work], capture_output=True, text=True).stdout.strip()
        == "tmpfs"
    )
    temperatures = [False] if is_on_tmpfs else [True, False]

    def table(root, pairs, temperatures):
        files = {name: weights(root(folder)) for name, folder in folders.items()}
        own = weights(root(folders["ranks"] / "rank-00000-of-00002"))
        print("\n| first / second | pages | time | range |\n|---|---|---|---|")
        for load, what in (
            (tensors_in("name"), "tensor by tensor, by name"),
            (safe_open_copies, "safetensors' keys(), copied"),
        ):
            compare(f"{what}: order name / dtype", (load, files["name"]), (load, files["dtype"]), pairs, temperatures)
        compare(
            "fastsafetensors: order name / dtype",
            (fast_files, files["name"]),
            (fast_files, files["dtype"]),
            pairs,
            temperatures,
        )
        for threads in (1, 4, 16):
            load = whole_files(16 * MIB, threads)
            compare(
                f"whole files, {threads} threads: 16 files / 4",
                (load, files["many"]),
                (load, files["name"]),
                pairs,
                temperatures,
            )
        for block, text in ((4 * KIB, "4 KiB"), (64 * KIB, "64 KiB"), (MIB, "1 MiB")):
            compare(
                f"reads of {text} / 16 MiB",
                (whole_files(block, 1), files["name"]),
                (whole_files(16 * MIB, 1), files["name"]),
                pairs,
                temperatures,
            )
        whole = whole_files(16 * MIB, 1)
        compare(
            "a rank of 2: its files / spans of the whole",
            (whole, own),
            (spans_of_rank(0, 2, config), files["name"]),
            pairs,
            temperatures,
        )
        compare("a rank of 2: its files / the whole", (whole, own), (whole, files["name"]), pairs, temperatures)

    n_bytes = sum(path.stat().st_size for path in weights(folders["name"]))
    print(f"{n_bytes / 1e9:.2f} GB, {options.pairs} pairs, {'tmpfs' if is_on_tmpfs else 'disk'}")
    table(lambda folder: folder, options.pairs, temperatures)
    if options.throttled:
        with Throttled(options.work.resolve(), options.work.parent / (options.work.name + ".slow")) as slow:
            print("\nthrottled: 1 ms a request, 200 MB/s")
            table(lambda folder: slow / folder.relative_to(options.work), max(1, options.pairs // 2), [True])


if __name__ == "__main__":
    sys.exit(main())
