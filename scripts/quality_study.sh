#!/usr/bin/env bash
# scripts/quality_study.sh [--ingot PROGRAM] [OPTION...]: the tables of docs/quality.md, with a low priority. Options of
# scripts/quality_study.py: --methods, --schemes, --draws, --seeds, --keep FILE, --tables, --write docs/quality.md.
set -euo pipefail
cd "$(dirname "$0")/.."
ingot=build/release/cli/ingot
[ "${1:-}" != --ingot ] || { ingot=$2; shift 2; }
python=/usr/bin/python3  # which has the packages of scripts/deps.sh
[ -x "$python" ] || python=python3
exec nice -n 10 "$python" scripts/quality_study.py "$ingot" examples/tiny-v32 tests/golden/tiny-v32/val_docs.json "$@"
