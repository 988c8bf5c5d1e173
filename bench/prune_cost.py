#!/usr/bin/env python3
"""Measures the cost of fewer experts for the bundled model: the table of docs/prune.md, on standard output.
prune_cost.py INGOT EXAMPLE DOCUMENTS

DOCUMENTS is tests/golden/tiny-v32/val_docs.json. Experts are ranked by its documents with even numbers; perplexity, KL
and drafts are those of the first 24 with odd numbers. The second model is the first one without groups of experts."""
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile

ingot, example = os.path.abspath(sys.argv[1]), sys.argv[2]
documents = json.load(open(sys.argv[3]))["docs"]


def run(*arguments):
    done = subprocess.run([ingot, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def weights(folder):
    return sum(os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder) if name.endswith(".safetensors"))


def each(form, reports, *path):
    """A figure of each report, by the keys that lead to it."""
    return ", ".join(form.format(functools.reduce(dict.get, path, report)) for report in reports)


with tempfile.TemporaryDirectory() as work:
    for name, some in (("rank", documents[::2]), ("measure", documents[1:48:2])):
        json.dump({"docs": some}, open(f"{work}/{name}.json", "w"))
    print("| groups | experts left out | weights, MB | perplexity by saliency, by tokens | KL per token, nats "
          "| drafts taken |")
    print("|---|---|---|---|---|---|")
    for groups, shares in (("4", ("0.75", "0.5")), ("none", ("0.875", "0.75", "0.625", "0.5"))):
        source = f"{work}/{groups}"
        shutil.copytree(example, source)
        if groups == "none":
            config = json.load(open(f"{source}/config.json"))
            json.dump({**config, "n_group": 1, "topk_group": 1}, open(f"{source}/config.json", "w"))
        stats = f"{source}-stats"
        run("calibrate", source, "--text", f"{work}/rank.json", "--out", stats, "--without", "blocks,moments")
        for share in shares:
            reports = []
            for by in ("saliency", "tokens"):
                out = f"{source}-{share}-{by}"
                run("prune", source, out, "--keep", share, "--by", by, "--statistics", stats, "--no-measure")
                reports.append(json.loads(run("verify", source, out, "--levels", "layers,draft", "--text",
                                              f"{work}/measure.json", "--json")))
            text, draft = reports[0]["text"]["source"], reports[0]["draft"]["source"]
            if share == shares[0]:
                print(f"<!-- whole: {weights(source) / 1e6:.2f} MB, {text['tokens']} tokens, perplexity "
                      f"{text['perplexity']:.3f}, drafts {draft['acceptance']:.1%} -->")
            print(f"| {groups} | {1 - float(share):.1%} | {weights(out) / 1e6:.2f} "
                  f"| {each('{:.3f}', reports, 'text', 'output', 'perplexity')} "
                  f"| {each('{:.3f}', reports, 'text', 'kl', 'mean')} "
                  f"| {each('{:.1%}', reports, 'draft', 'output', 'acceptance')} |", flush=True)
