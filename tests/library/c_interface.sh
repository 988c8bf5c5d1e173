#!/usr/bin/env bash
# Runs the program in C and the example, and compares the conversions that they make with those of the command line.
# Usage: c_interface.sh PROGRAM EXAMPLE INGOT CHECKPOINT, where an emulator may precede the first two in one word.
set -euo pipefail
program=$1 example=$2 ingot=$3 checkpoint=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$program "$checkpoint" "$work/library"
"$ingot" convert "$checkpoint" "$work/words" --to int8 --rule role:attention=bf16 --mtp drop --max-shard-size 5MB -q > /dev/null
diff -r "$work/library" "$work/words"

$example "$checkpoint" "$work/example" bf16 > "$work/list" 2> /dev/null
grep -q '^expert-up *fp8-block *model.layers.4' "$work/list"
"$ingot" convert "$checkpoint" "$work/plain" --to bf16 --max-shard-size 5GB -q > /dev/null
diff -r "$work/example" "$work/plain"
