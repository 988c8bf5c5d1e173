#!/usr/bin/env python3
"""scripts/freeze.py PROGRAM FOLDER [REGEX]: writes what a build of ingot answers about every checkpoint of the tree.

Two builds that answer alike have equal folders: `diff -r OLD NEW` names each answer that differs. One file per question:
the tables of `list`, each family as a file, `--help` of every command, `inspect`, `check` (with every engine), dry runs,
`verify` of a fresh conversion, tokens that `generate` chooses, and refusals with their texts. Durations and
rates are left out, paths are relative to the tree. REGEX restricts the run to matching questions. Outputs are compared by
scripts/compare_outputs.sh.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Keys of answers that differ from run to run.
TIMES = re.compile(r"seconds|bytes_per_second|per_second|peak_memory|elapsed|duration|resident|available|free_bytes|hostname|^cpu|^version$|^date$|^host$|^rate$|threads")
ENGINES = ["vllm", "sglang", "tensorrt-llm", "vllm-ascend"]
TARGETS = ["bf16", "fp8", "int8", "nvfp4", "mxfp4", "int4"]
# Words that are refused, or were once accepted in silence; SOURCE is a small checkpoint.
REFUSALS = """
convert
convert SOURCE
convert missing OUT
convert SOURCE SOURCE
convert SOURCE OUT --to nvpf4
convert SOURCE OUT --to
convert SOURCE OUT --too bf16
convert SOURCE OUT extra
convert SOURCE OUT --tp 0
convert SOURCE OUT --tp -1
convert SOURCE OUT --tp x
convert SOURCE OUT --tp 3
convert SOURCE OUT --ep 5
convert SOURCE OUT --etp 2
convert SOURCE OUT --pp 99
convert SOURCE OUT --mp 2
convert SOURCE OUT --layout nosuch
convert SOURCE OUT --layout vllm-sharded --pp 2
convert SOURCE OUT --dialect nosuch
convert SOURCE OUT --to int8 --dialect deepseek
convert SOURCE OUT --activations static
convert SOURCE OUT --to nvfp4 --activations static
convert SOURCE OUT --to int8 --activations sometimes
convert SOURCE OUT --rule
convert SOURCE OUT --rule nonsense
convert SOURCE OUT --rule role:nosuch=bf16
convert SOURCE OUT --rule role:experts=nosuch
convert SOURCE OUT --rule re:([=bf16
convert SOURCE OUT --rule no.such.tensor=bf16
convert SOURCE OUT --recipe missing.yaml
convert SOURCE OUT --recipe README.md
convert SOURCE OUT --recipe README.md --to bf16
convert SOURCE OUT --allow nosuch
convert SOURCE OUT --family nosuch
convert SOURCE OUT --family-file README.md
convert SOURCE OUT --family llama
convert SOURCE OUT --family generic
convert SOURCE OUT --experts sideways
convert SOURCE OUT --part 0/4
convert SOURCE OUT --part 5/4
convert SOURCE OUT --part x
convert SOURCE OUT --resume
convert SOURCE OUT --resume --force
convert SOURCE OUT --mem-limit 1
convert SOURCE OUT --mem-limit lots
convert SOURCE OUT --threads 0
convert SOURCE OUT --threads 99999999
convert SOURCE OUT --max-shard-size 0
convert SOURCE OUT --max-shard-size 1parsec
convert SOURCE OUT --align 3
convert SOURCE OUT --hash md5
convert SOURCE OUT --links perhaps
convert SOURCE OUT --search amax
convert SOURCE OUT --to nvfp4 --search nosuch
convert SOURCE OUT --importance README.md
convert SOURCE OUT --to nvfp4 --importance README.md
convert SOURCE OUT --input-scale 1
convert SOURCE OUT --input-scale nan
convert SOURCE OUT --activation-scales README.md
convert SOURCE OUT --scales-from README.md
convert SOURCE OUT --fp8-grid square
convert SOURCE OUT --via f16
convert SOURCE OUT --mtp sometimes
convert SOURCE OUT --group-size 7
convert SOURCE OUT --to int4 --group-size 7
convert SOURCE OUT --expert-map README.md
convert SOURCE OUT --redundant-experts
convert SOURCE OUT --uneven-experts
convert SOURCE OUT --tp-fit stretch
convert SOURCE OUT --tp-fit pad
convert SOURCE OUT --for nosuch
convert SOURCE OUT --for vllm --dialect modelslim
convert SOURCE OUT --to bf16 --to fp8
convert SOURCE OUT --json --dry-run --quiet --nosuch
convert SOURCE OUT --consume-source --links yes
convert --version
convert README.md OUT
convert docs OUT
convert tests OUT
check
check missing
check README.md
check docs
check SOURCE --engine nosuch
check SOURCE --engine vllm@0
check SOURCE --deep --engine vllm
check SOURCE --family nosuch
check SOURCE --rule nosuch
check SOURCE extra
inspect
inspect missing
inspect README.md
inspect docs
inspect SOURCE --layer 999
inspect SOURCE --tensor nosuch
inspect SOURCE --nosuch
verify
verify SOURCE
verify SOURCE missing
verify missing SOURCE
verify SOURCE SOURCE --gate nosuch=1
verify SOURCE SOURCE --gate weights.scale_error
verify SOURCE SOURCE --gate weights.scale_error=x
verify SOURCE SOURCE --level nosuch
verify SOURCE SOURCE --samples -1
verify SOURCE docs
compare
compare SOURCE
compare SOURCE SOURCE
compare SOURCE SOURCE missing
generate
generate missing --prompt x
generate SOURCE --prompt
generate SOURCE --tokens 1,2,x
generate SOURCE --tokens 99999999
generate SOURCE --prompt x --max-new-tokens -1
generate SOURCE --prompt x --temperature -1
generate SOURCE --prompt x --top-p 2
generate SOURCE --prompt x --ranks 3
generate SOURCE --prompt x --nosuch
generate docs --prompt x
calibrate
calibrate SOURCE
calibrate SOURCE --text missing --out OUT
calibrate SOURCE --text README.md
calibrate missing --text README.md --out OUT
balance
balance SOURCE
balance SOURCE --ep 0
balance SOURCE --text README.md --ep 3 --out OUT
merge
merge missing OUT
merge SOURCE OUT
merge docs OUT
join
join missing
join SOURCE
join docs
repair
repair missing OUT
repair docs OUT
repair SOURCE SOURCE
repair SOURCE OUT --nosuch
attest
attest missing --key missing
attest SOURCE --key missing
attest SOURCE --key missing --nosuch
rederive
rederive missing --source SOURCE
rederive SOURCE --source SOURCE
rederive SOURCE --source SOURCE --seed x
synth
synth OUT
synth OUT --family nosuch
synth OUT --like missing
synth OUT --seed x
synth OUT --config README.md
list nosuch
list roles missing
list schemes --yaml
list schemes --json --markdown
list families nosuch --yaml
help nosuch
help convert extra
completions
completions nosuch
nosuch
conver
--nosuch
-x
""".strip().splitlines()


def cleaned(value):
    """A JSON value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: cleaned(item) for key, item in value.items() if not TIMES.search(key)}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return value


def written(text, scratch):
    """The words of a run, without paths of this run, durations and sizes of memory."""
    text = text.replace(str(scratch), "OUT").replace(str(ROOT), "TREE")
    try:
        return json.dumps(cleaned(json.loads(text)), indent=1, ensure_ascii=False) + "\n"
    except ValueError:
        text = re.sub(r"\d+(\.\d+)? ?(ms|s|min|h|tokens/s|[kMG]?B/s|of [0-9.]+ GB free)\b", "N", text)
        return re.sub(r"\d+(\.\d+)? [kMGT]?i?B (free|available)|peak memory \d+(\.\d+)? MB", "N", text)


class Freeze:
    def __init__(self, program, folder, regex):
        self.program, self.folder, self.regex = program, folder, re.compile(regex)

    def run(self, arguments, scratch):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("INGOT", "HF_"))}
        environment["COLUMNS"] = "100"
        done = subprocess.run([str(self.program), *arguments], cwd=ROOT, env=environment, capture_output=True, timeout=300,
                              stdin=subprocess.DEVNULL, check=False)
        return done.returncode, written(done.stdout.decode(errors="replace"), scratch), written(done.stderr.decode(errors="replace"), scratch)

    def keep(self, name, arguments, scratch):
        code, out, error = self.run(arguments, scratch)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"exit {code}\n{out}" + (f"---- stderr\n{error}" if error else ""))

    def question(self, item):
        name, kind, source = item
        if not self.regex.search(name):
            return
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch) / "out"
            if kind == "words":
                self.keep(name, [str(out) if word == "OUT" else word for word in source], scratch)
            elif kind == "verify":
                target, where = source
                code, _, error = self.run(["convert", where, str(out), "--to", target, "--quiet"], scratch)
                if code == 0:
                    self.keep(name, ["verify", where, str(out), "--json", "--quiet"], scratch)
                    for engine in ENGINES:
                        self.keep(f"{name}.{engine}", ["check", str(out), "--engine", engine, "--json"], scratch)
                else:
                    path = self.folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(f"refused {code}\n{error}")

    def questions(self):
        for table in ["schemes", "dialects", "families", "layouts", "recipes", "loads", "trials", "engines", "metrics", "rules", "gpus"]:
            yield f"list/{table}", "words", ["list", table, "--json"]
            yield f"list/{table}.md", "words", ["list", table, "--markdown"]
        listed = subprocess.run([str(self.program), "list", "families", "--json"], capture_output=True, check=True).stdout
        for row in json.loads(listed)["families"]:
            yield f"family/{row['name']}", "words", ["list", "families", row["name"], "--yaml"]
        for command in ["inspect", "check", "calibrate", "balance", "convert", "join", "merge", "repair", "verify", "compare",
                        "generate", "synth", "list", "help", "completions"]:
            yield f"help/{command}", "words", [command, "--help"]
            yield f"help/{command}.topic", "words", ["help", command]
        for shell in ["bash", "zsh", "fish"]:
            yield f"completions/{shell}", "words", ["completions", shell]
        for line in REFUSALS:
            words = ["examples/tiny-v32" if word == "SOURCE" else word for word in line.split()]
            yield "refusal/" + re.sub(r"[^A-Za-z0-9.=-]+", "_", line), "words", words
        configs = sorted([*ROOT.glob("tests/golden/**/config.json"), ROOT / "examples/tiny-v32/config.json"])
        for config in configs:
            source = str(config.parent.relative_to(ROOT))
            where = source.replace("/", "+")
            yield f"inspect/{where}", "words", ["inspect", source, "--json"]
            yield f"inspect/{where}.text", "words", ["inspect", source]
            yield f"check/{where}", "words", ["check", source, "--json"]
            yield f"deep/{where}", "words", ["check", source, "--deep", "--json"]
            for engine in ENGINES:
                yield f"engine/{where}.{engine}", "words", ["check", source, "--engine", engine, "--json"]
            yield f"engine/{where}.text", "words", ["check", source, "--engine", "vllm"]
            yield f"roles/{where}", "words", ["list", "roles", source, "--json"]
            yield f"tokens/{where}", "words", ["generate", source, "--tokens", "1,2,3,4,5", "--max-new-tokens", "8", "--greedy", "--json"]
            for target in TARGETS:
                yield f"plan/{where}.{target}", "words", ["convert", source, "OUT", "--to", target, "--dry-run", "--json"]
            yield f"plan/{where}.tp2", "words", ["convert", source, "OUT", "--tp", "2", "--dry-run", "--json"]
            for target in ["bf16", "nvfp4"]:
                yield f"verify/{where}.{target}", "verify", (target, source)


def main():
    program, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    freeze = Freeze(program, folder, sys.argv[3] if len(sys.argv) > 3 else ".")
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", os.cpu_count()))) as pool:
        for done in [pool.submit(freeze.question, item) for item in freeze.questions()]:
            done.result()
    print(f"{sum(1 for path in folder.rglob('*') if path.is_file())} answers in {folder}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main()
