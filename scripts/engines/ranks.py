"""Runs a function in a process for each rank of an engine."""

import multiprocessing
import os
import pathlib
import queue
import sys
import tempfile
import traceback


def on_rank(work, rank, options, meeting, results):
    try:
        results.put((rank, True, work(rank, options, meeting)))
    except BaseException as error:  # the parent reports it
        traceback.print_exc()
        results.put((rank, False, f"{type(error).__name__}: {error}"))
    results.close()
    results.join_thread()
    os._exit(0)  # threads of engines do not end by themselves


def on_each_rank(work, options, n_ranks):
    """The results of work(rank, options, meeting), by rank; ranks meet in a file. Ends the program where one fails."""
    # CUDA does not go on in a process that was forked.
    context = multiprocessing.get_context("spawn" if getattr(options, "card", "") == "own" else "fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(pathlib.Path(folder, "meeting"))
        processes = [context.Process(target=on_rank, args=(work, rank, options, meeting, results)) for rank in range(n_ranks)]
        for process in processes:
            process.start()
        found = {}
        try:
            while len(found) < n_ranks and all(ok for ok, _ in found.values()):
                rank, ok, result = results.get(timeout=options.timeout)
                found[rank] = ok, result
        except queue.Empty:
            found = {rank: (False, f"no answer in {options.timeout} s") for rank in range(n_ranks)} | found
        for rank, process in enumerate(processes):
            process.join(10) if found.get(rank, (False,))[0] else process.kill()
    failures = [f"rank {rank}: {result}" for rank, (ok, result) in sorted(found.items()) if not ok]
    if failures:
        sys.exit("\n".join(failures))
    return [found[rank][1] for rank in range(n_ranks)]


def differences(whole, sharded, may_be_unset=False):
    """Says where the states of ranks that loaded rank files differ from those that loaded the whole checkpoint.
    `may_be_unset`: an engine leaves a tensor as it was allocated, and the rank files have ones."""
    faults = []
    for rank, (a, b) in enumerate(zip(whole, sharded, strict=True)):
        for name in sorted(a.keys() | b.keys()):
            if name not in a or name not in b:
                faults.append(f"rank {rank}: {name} is only {'there' if name in a else 'in the rank files'}")
            elif b[name]["filled"]:
                faults.append(f"rank {rank}: {name} was not filled from the rank files")
            elif a[name] != b[name]:
                what = [key for key in a[name] if a[name][key] != b[name][key]]
                if not (may_be_unset and a[name]["filled"] and what == ["sha256", "filled"]):
                    faults.append(f"rank {rank}: {name} differs in {', '.join(what)}: {a[name]} {b[name]}")
    return faults
