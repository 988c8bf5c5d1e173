#!/usr/bin/env python3
"""Random conversions, judged by decoding every tensor in NumPy, and by bytes against other ways to the same output.

    differential.py INGOT GOLDEN [--faults LIBRARY] [--seeds 0-9] [--jobs N] [--without KIND] [--keep FOLDER]
        [--verbose] [--verdicts] [--rederive]

GOLDEN is tests/golden, LIBRARY what tests/support/faults.c becomes; without it no run is killed. A case is a pure
function of its seed. Where one fails, its commands are printed. `--seeds 17 --keep DIR --verbose` repeats one, and
leaves its files. `--verdicts` also asks `ingot check` and `ingot verify` about every output that is right; `--rederive`
makes every output again, in whichever way it was made, and once more after one of its bytes was changed.
"""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from multiprocessing import Pool

try:
    import numpy
except ImportError:
    sys.exit("numpy is missing (scripts/deps.sh installs python3-numpy)")

from case import VARIANTS, make_case
from config_files import write_widened
from derived import Derivations
from families import FAMILIES
from forms import FORMS
from job import Refused, Shell, Wrong
from judge import Model, judge
from made import write_made
from salt import salt
from statistics_file import write_statistics
from targets import STATISTICS
from variants import Runner, cleanup

# A larger share of refusals would leave too little to judge: of conversions, and of what is done with them besides.
MOST_REFUSED, MOST_VARIANTS_REFUSED = 0.35, 0.5


def reason_of(refusal):
    """The first fault of a refusal, in short."""
    lines = [line.strip() for line in str(refusal).splitlines()]
    return (lines[1] if len(lines) > 1 and lines[0].endswith("faults") else lines[0])[:140]


def make_source(shell, case):
    """The source of a case. Returns its name in the shell's folder."""
    source = case.source
    if source["kind"] == "fixture":
        shell.note(f"cp -r {source['folder']} source; chmod -R u+w source")
        shutil.copytree(source["folder"], shell.path("source"), copy_function=shutil.copyfile)
    elif source["kind"] == "made":
        shell.note(
            f"cd {shlex.quote(os.path.dirname(os.path.abspath(__file__)))}; python3 -c "
            f"\"import made; made.write_made({source}, '{shell.path('source')}')\"; cd -"
        )
        write_made(source, shell.path("source"))
    else:
        words = list(source["words"])
        if source["kind"] == "widened":
            write_widened(source, shell.path("config.json"))
            shell.note(
                f"# config.json: {source['config']}, widths times {source['factors']}: "
                + open(shell.path("config.json")).read()
            )
            words += ["--config", "config.json"]
        code, text = shell.run("synth", "source", *words)
        if code == 2 and text.startswith("error:"):
            raise Refused(text)
        if code != 0:
            raise Wrong(f"synth ended with {code}: {text}")
    if case.salt is not None:
        shell.note(
            f"cd {shlex.quote(os.path.dirname(os.path.abspath(__file__)))}; python3 -c "
            f"\"import salt; salt.salt('{shell.path('source')}', {case.salt}, {case.is_finite})\"; cd -"
        )
        salt(shell.path("source"), case.salt, case.is_finite)
    return "source"


def learn(shell, source, target, seed):
    """Adds the files that the target's options name to the judge's knowledge."""
    if "--search" in target.words and "search" not in target.choices:
        _, text = shell.run("convert", source, "dry", *target.words, "--dry-run", "--quiet")
        if "under scales that leave a choice" in text:  # codes are kept
            at = target.words.index("--search")
            del target.words[at : at + 2]
    if "released" in target.choices:
        target.choices["released"] = shell.path(target.choices["released"])
    if STATISTICS in target.words:
        modules = write_statistics(Model(shell.path(source)), seed, shell.path(STATISTICS))
        shell.note(f"# {STATISTICS}: random ranges and mean squares of the inputs of every matrix (--keep leaves it)")
        if "--activation-scales" in target.words:
            target.choices["modules"] = modules
        if "importance" in target.choices:
            target.choices["importance_of"] = {name + ".weight": module[2] for name, module in modules.items()}


def faults_of(text):
    return [line.strip() for line in text.splitlines() if "FAIL" in line or line.startswith("error")]


def ask_for_verdicts(shell, source, output, target):
    """Runs check and verify, which have to accept an output that the judge accepts, but for what its source has too."""
    family = ["--family", "generic"] if target.choices.get("is_generic") else []
    for words in [["check", output], ["verify", source, output, "--levels", "structure,weights"]]:
        code, text = shell.run(*words, *family)
        if code != 0 and words[0] == "check":
            code = set(faults_of(text)) - set(faults_of(shell.run("check", source, *family)[1])) or not faults_of(text)
        if code:
            raise Wrong(f"{words[0]} of a right output fails: {(faults_of(text) or [text])[0]}")


def run_case(shell, case, counts, reasons, verdicts=False, without=None):
    """Raises Wrong for a fault, Refused where the conversion itself was refused."""
    source = make_source(shell, case)
    for n, target in enumerate(case.targets):
        output = f"output{n}"
        learn(shell, source, target, case.seed)
        shell.make(output, "convert", source, output, *target.words, may_refuse=True)
        complaints = judge(shell.path(source), shell.path(output), target.choices)
        counts["conversions"] += 1
        if case.source["kind"] == "made":
            counts.update([f"of form {case.source['form']}", f"of family {case.source['config']['model_type']}"])
        if complaints:
            raise Wrong(
                f"{output}, {len(complaints)} complaints: "
                + "; ".join(f"{name} {words}" for name, words in complaints[:4])
            )
        if verdicts and case.salt is None:  # a model that made-up values ruined may well fail
            ask_for_verdicts(shell, source, output, target)
        if target is not case.targets[-1]:
            source = output
    runner = Runner(shell, source, f"output{len(case.targets) - 1}", case.targets[-1])
    for variant in case.variants:
        if variant["kind"] == without:
            continue
        try:
            runner.run(variant)
            counts[variant["kind"]] += 1
        except Refused as refusal:
            counts[variant["kind"] + " refused"] += 1
            reasons[variant["kind"] + ": " + reason_of(refusal)] += 1
            shell.note(f"# refused: {refusal}")
        cleanup(shell)


def run_seed(arguments, seed):
    """The seed; the fault as text, or None; the commands; what was done how often; reasons of refusals."""
    counts, reasons = Counter(), Counter()
    folder = arguments.keep or tempfile.mkdtemp(prefix=f"ingot-differential-{seed}-")
    os.makedirs(folder, exist_ok=True)
    shell, fault = Shell(arguments.ingot, arguments.faults, folder), None
    if arguments.rederive:
        shell.derives = Derivations(shell, seed)
    try:
        run_case(shell, make_case(seed, arguments.golden), counts, reasons, arguments.verdicts, arguments.without)
    except Refused as refusal:
        counts["refused"] += 1
        reasons[reason_of(refusal)] += 1
        shell.note(f"# refused: {refusal}")
    except Wrong as wrong:
        fault = str(wrong)
    except Exception as error:  # an unreadable output is a fault, too
        fault = f"{type(error).__name__}: {error}"
    counts["times killed"] += shell.n_killed
    if shell.derives:
        counts["made again"] += shell.derives.n_made
    if not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return seed, fault, shell.lines, counts, reasons


def seeds_of(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ingot", type=os.path.abspath)
    parser.add_argument("golden", type=os.path.abspath)
    parser.add_argument("--faults", type=os.path.abspath)
    parser.add_argument("--without", help="a kind of variant that is left out")
    parser.add_argument("--seeds", type=seeds_of, default=range(10))
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--keep", type=os.path.abspath)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--rederive", action="store_true")
    arguments = parser.parse_args()
    counts, reasons, n_wrong = Counter(), Counter(), 0
    with Pool(arguments.jobs) as pool:
        for seed, fault, lines, own_counts, own_reasons in pool.imap(partial(run_seed, arguments), arguments.seeds):
            if fault or arguments.verbose:
                print(f"seed {seed}: {fault or 'right'}", *lines, sep="\n    ", flush=True)
            n_wrong += bool(fault)
            counts += own_counts
            reasons += own_reasons
    n = len(arguments.seeds)
    print(f"{n} cases, {n_wrong} wrong: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    for reason, count in reasons.most_common(20 if arguments.verbose or n > 50 else 0):
        print(f"  {count} refused: {reason}")
    rows = [f"of form {form.name}" for form in FORMS] + [f"of family {family.type}" for family in FAMILIES]
    never = [row for row in rows if n >= 1000 and not counts[row]]
    if never:
        print(f"no conversion was judged {', '.join(never)}")
        n_wrong += 1
    n_variants = sum(counts[kind] for kind in VARIANTS)
    n_variants_refused = sum(counts[kind + " refused"] for kind in VARIANTS)
    is_too_little = counts["refused"] > MOST_REFUSED * n
    is_too_little |= n_variants_refused > MOST_VARIANTS_REFUSED * (n_variants + n_variants_refused)
    if n >= 10 and is_too_little:
        print(f"{counts['refused']} cases and {n_variants_refused} variants were refused: too little is left to judge")
        n_wrong += 1
    if n >= 10 and arguments.faults and counts["times killed"] == 0:
        print("no run was killed: the preloaded library does nothing")
        n_wrong += 1
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
