#!/usr/bin/env bash
# scripts/saved_by_transformers.sh [OPTION...]: loads configs and small models with transformers 5.24, saves them again, and
# compares what ingot makes of both (scripts/saved_by_transformers.py, which takes the options). By hand: no test of CTest.
#
# Needs Python 3.10 or later with pip; models need torch and scipy, for which 4 GB of disk are enough. SAVED_VENV: where the packages
# are put, and found again (default: build/saved). INGOT: the program (default: build/release/cli/ingot).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${SAVED_VENV:-build/saved}
ingot=${INGOT:-build/release/cli/ingot}
[ -x "$ingot" ] || scripts/build.sh release ingot_cli
if [ ! -x "$venv/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/pip" install --quiet "transformers==5.24.*" torch scipy
fi
exec nice "$venv/bin/python" scripts/saved_by_transformers.py "$ingot" "$@"
