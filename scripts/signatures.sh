#!/usr/bin/env bash
# scripts/signatures.sh: what ingot signs, verified by model-signing, securesystemslib, in-toto-attestation and cryptography
# from PyPI, and what they sign by ingot (tests/cli/signatures.py). By hand, as it asks the package index; the test
# cli.signatures (slow) does the same where the packages are there.
#
# Needs Python 3.11 or later with pip, 100 MB of disk and a minute. SIGNING_VENV: where the packages are put, and found
# again (default: build/signing). INGOT: the program (default: build/release/cli/ingot, built if it is not there).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${SIGNING_VENV:-build/signing}
ingot=${INGOT:-build/release/cli/ingot}

[ -x "$ingot" ] || scripts/build.sh release ingot_cli
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Without pyOpenSSL, which it does not name, model-signing does not start.
"$venv/bin/pip" install --quiet model-signing==1.1.1 pyOpenSSL==26.4.0 securesystemslib==1.6.0 in-toto-attestation==0.9.3
exec "$venv/bin/python" tests/cli/signatures.py "$ingot" examples/tiny-v32 tests/golden
