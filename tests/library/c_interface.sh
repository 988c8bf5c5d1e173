#!/usr/bin/env bash
# Runs the program in C with a folder of its own. Usage: c_interface.sh PROGRAM CHECKPOINT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" "$2" "$work/none"
