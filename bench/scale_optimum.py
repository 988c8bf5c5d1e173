#!/usr/bin/env python3
"""How far scales of FP8 and INT8 by `--search hessian` are from the best there are, on standard output.
scale_optimum.py INGOT MODEL TOKENIZER DOCUMENTS

MODEL is tests/golden/tiny-v32/bf16, TOKENIZER that of examples/tiny-v32, DOCUMENTS
tests/golden/tiny-v32/val_docs.json. Some rows or blocks of some linears are encoded by ingot with moments of these
documents, and others of normal values by the same candidates. The loss of a scale s is the sum of d' S d over rows and
blocks of 16 columns, d = w - s q. Between two scales at which a code changes it is a parabola in s: its least value
over all of these intervals is the best that any scale has, in real numbers. Scales are those between the least and the
largest candidate, and those from 5/16 of the largest magnitude over the largest code, as for the other schemes, to
twice that."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/differential"))
import container  # noqa: E402  (weights files, next to the differential test)

BLOCK = 16
# The values of codes, and the codes that `mse` gives the largest magnitude.
E4M3 = np.array([c % 8 / 512 if c < 8 else 2.0 ** (c // 8 - 7) * (1 + c % 8 / 8) for c in range(127)])
GRIDS = {"fp8": (E4M3, [448, 416, 384, 352, 320, 288, 256, 240]), "int8": (np.arange(128.0), [127, 126, 128, 130])}


def numbers(tensors):
    """Values of the tensors in F32 and BF16, by name."""
    found = {}
    for stored in tensors:
        if stored.dtype == "BF16":
            values = (np.frombuffer(stored.data, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif stored.dtype == "F32":
            values = np.frombuffer(stored.data, "<f4")
        else:
            continue
        found[stored.name] = values.reshape(stored.shape)
    return found


def nearest(y, levels):
    """Values of the nearest codes; halves go to the even code."""
    size = np.minimum(np.abs(y), levels[-1])
    at = np.searchsorted((levels[1:] + levels[:-1]) / 2, size, side="left")
    above = levels[np.minimum(at + 1, len(levels) - 1)]
    is_tie = (at < len(levels) - 1) & (size == (above + levels[at]) / 2) & (at % 2 == 1)
    return np.sign(y) * levels[at + is_tie]


def loss(values, moments, scale, levels):
    """values [rows, blocks, 16], moments [blocks, 16, 16]."""
    rest = values - scale * nearest(values / scale, levels)
    return float(np.einsum("rbi,bij,rbj->", rest, moments, rest))


def least_losses(values, moments, levels, tops):
    """The least loss of any scale between the candidates, and in all: by the parabolas between changes of codes."""
    amax = np.abs(values).max()
    low, high = amax / levels[-1] * 5 / 16, amax / levels[-1] * 2
    rows, blocks, _ = values.shape
    x = values.reshape(rows * blocks, BLOCK)
    square = np.tile(moments, (rows, 1, 1))
    n = len(x)
    middles = (levels[1:] + levels[:-1]) / 2
    at = np.abs(x)[:, :, None] / middles
    code = np.sign(x) * levels[(at >= high).sum(axis=2)]
    s_x, s_q = np.einsum("nij,nj->ni", square, x), np.einsum("nij,nj->ni", square, code)
    a, b = float((code * s_q).sum()), float((code * s_x).sum())
    constant = float((x * s_x).sum())
    # Events of each block, from the largest scale down.
    is_event = (at < high) & (at > low)
    order = np.argsort(np.where(is_event, -at, np.inf).reshape(n, -1), axis=1, kind="stable")
    count = is_event.reshape(n, -1).sum(1)
    scales, more_a, more_b = [], [], []
    each = np.arange(n)
    for k in range(int(count.max(initial=0))):
        alive = each[count > k]
        event = order[alive, k]
        column, level = event // len(middles), event % len(middles)
        step = np.sign(x[alive, column]) * (levels[level + 1] - levels[level])
        scales.append(at[alive, column, level])
        more_a.append(2 * step * s_q[alive, column] + step * step * square[alive, column, column])
        more_b.append(step * s_x[alive, column])
        s_q[alive] += step[:, None] * square[alive, column]
    scales, more_a, more_b = (np.concatenate(part) for part in (scales, more_a, more_b))
    down = np.argsort(-scales, kind="stable")
    upper = np.concatenate([[high], scales[down]])
    bottoms = np.concatenate([scales[down], [low]])
    all_a = a + np.concatenate([[0], np.cumsum(more_a[down])])
    all_b = b + np.concatenate([[0], np.cumsum(more_b[down])])
    vertex = np.divide(all_b, all_a, out=np.full_like(all_a, high), where=all_a > 0)

    def least(first, last):
        inside = (bottoms < last) & (upper > first)
        at = np.clip(vertex[inside], np.maximum(bottoms[inside], first), np.minimum(upper[inside], last))
        return float((constant - 2 * at * all_b[inside] + at * at * all_a[inside]).min())

    return least(amax / max(tops), amax / min(tops)), least(low, high)


def report(name, taken, best):
    """Taken losses of groups, and the least of both ranges of scales."""
    near, far = np.array(best).T
    ratio = np.array(taken) / near - 1
    print(f"| {name} | {len(taken)} | {100 * (sum(taken) / near.sum() - 1):.1f}% | {100 * np.median(ratio):.1f}% | "
          f"{100 * ratio.max():.1f}% | {100 * (sum(taken) / far.sum() - 1):.1f}% | "
          f"{100 * np.median(np.array(taken) / far - 1):.1f}% |", flush=True)


def normal_groups(rng, kind, rows, cols, count):
    levels, tops = GRIDS[kind]
    taken, best = [], []
    for _ in range(count):
        inputs = rng.normal(size=(400, cols // BLOCK, BLOCK)) + 0.7 * rng.normal(size=(400, cols // BLOCK, 1))
        moments = np.einsum("tbi,tbj->bij", inputs, inputs) / len(inputs)
        values = rng.normal(size=(rows, cols // BLOCK, BLOCK))
        amax = np.abs(values).max()
        taken.append(min(loss(values, moments, amax / top, levels) for top in tops))
        best.append(least_losses(values, moments, levels, tops))
    return taken, best


def main(ingot, model, tokenizer, documents):
    print("| groups | number | above the least between candidates, all | median | largest | above the least of all "
          "scales, all | median |\n|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(5)
    for name, kind, rows, cols, count in [("`fp8-channel`, 4096 normal values", "fp8", 1, 4096, 12),
                                          ("`fp8-block`, 128 x 128 normal values", "fp8", 128, 128, 4),
                                          ("`int8`, 256 normal values", "int8", 1, 256, 60),
                                          ("`int8`, 4096 normal values", "int8", 1, 4096, 12)]:
        report(name, *normal_groups(rng, kind, rows, cols, count))
    with tempfile.TemporaryDirectory() as work:
        def run(*arguments):
            done = subprocess.run([ingot, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, f"{arguments}: {done.stderr}"

        given, model = model, os.path.join(work, "model")
        shutil.copytree(given, model)
        shutil.copy(tokenizer, os.path.join(model, "tokenizer.json"))
        stats = os.path.join(work, "stats")
        run("calibrate", model, "--text", documents, "--out", stats, "--without", "moments")
        blocks = numbers(container.read_file(os.path.join(stats, "blocks.safetensors")))
        shared = json.load(open(os.path.join(stats, "calibration.json")))["shared"]["blocks"]
        owner = {module: group[0] for group in shared for module in group}
        source = numbers(container.read_checkpoint(model).values())
        for to in ("fp8-channel", "fp8-block", "int8"):
            out = os.path.join(work, to)
            run("convert", model, out, "--to", to, "--dialect", "compressed-tensors", "--search", "hessian",
                "--importance", stats)
            output = numbers(container.read_checkpoint(out).values())
            levels, tops = GRIDS["int8" if to == "int8" else "fp8"]
            taken, best = [], []
            for name, values in sorted(source.items())[::8]:
                module = name.removesuffix(".weight")
                key = owner.get(module, module) + ".input_block_moments"
                if module + ".weight_scale" not in output or key not in blocks:
                    continue
                scale = output[module + ".weight_scale"]
                step = 128 if to == "fp8-block" else 1
                for row in range(0, len(values), max(step, len(values) // 2)):
                    part = values[row:row + step, :128 if to == "fp8-block" else None].astype(np.float64)
                    moments = blocks[key][:part.shape[1] // BLOCK].astype(np.float64)
                    part = part.reshape(len(part), -1, BLOCK)
                    if not np.abs(part).max() > 0:
                        continue
                    taken.append(loss(part, moments, float(scale[row // step, 0]), levels))
                    best.append(least_losses(part, moments, levels, tops))
            report(f"`{to}`, tiny-v32", taken, best)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
