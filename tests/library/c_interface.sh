#!/usr/bin/env bash
# Runs the program in C, and compares the conversion that it makes with that of the command line.
# Usage: c_interface.sh PROGRAM INGOT CHECKPOINT
set -euo pipefail
program=$1 ingot=$2 checkpoint=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" "$checkpoint" "$work/library"
"$ingot" convert "$checkpoint" "$work/words" --to int8 --rule role:attention=bf16 --mtp drop --max-shard-size 5MB -q > /dev/null
diff -r "$work/library" "$work/words"
