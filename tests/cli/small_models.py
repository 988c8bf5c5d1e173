"""The small checkpoints of tests/golden, and what holds of an output that was made of one."""
import glob
import os


def folders_of(golden):
    found = sorted(os.path.dirname(path) for path in glob.glob(f"{golden}/**/config.json", recursive=True))
    return [folder for folder in found if glob.glob(folder + "/*.safetensors")]


def faults_of(run, model, out):
    """An output passes `check` where its source does, compares with it, and runs where it does. `run` calls ingot."""
    before, after = run("check", model), run("check", out)
    if after.returncode > before.returncode:
        yield "check: " + after.stdout + after.stderr
    compared = run("verify", model, out)
    if compared.returncode != 0:
        yield "verify: " + (compared.stderr + compared.stdout)[:600]
    asked = ["--tokens", "1 2 3", "--greedy", "--max-new-tokens", "2"]
    if run("generate", model, *asked).returncode == 0:
        answer = run("generate", out, *asked)
        if answer.returncode != 0:
            yield "generate: " + answer.stderr
