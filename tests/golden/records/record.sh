#!/usr/bin/env bash
# record.sh INGOT FAULTS: adds the records that jobs names and this folder lacks, as INGOT writes them: an earlier build,
# never the one under test. FAULTS is what tests/support/faults.c becomes.
set -euo pipefail
ingot=$1 faults=$2 records=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$records/../families/gpt_oss_bf16" .

# keep FROM TO: all files of a folder but weights, and those that were copied from the source.
keep() {
  cp -r "$1" "$records/$2"
  find "$records/$2" \( -name '*.safetensors' -o -name generation_config.json -o -name '*claim' \) -delete
  find "$records/$2" -type d -empty -delete
}
while IFS=: read -r name command; do
  # shellcheck disable=SC2086
  "$ingot" $command --quiet >log 2>&1 || { cat log >&2; exit 1; }
  case $name in src | fp8 | spare | small) continue ;; esac
  [ -d "$records/$name" ] || keep "$name" "$name"
done <"$records/jobs"

if [ ! -d "$records/unfinished" ]; then
  options=(--to nvfp4 --dialect modelopt --activations weight-only --search amax --max-shard-size 100KB --quiet)
  LD_PRELOAD=$faults INGOT_FAULTS=fsync:KILL:1:1 "$ingot" convert small cut "${options[@]}" --threads 1 >log 2>&1 || true
  keep cut/.ingot-partial unfinished
  for part in 0 1; do "$ingot" convert small parts "${options[@]}" --part "$part/2" >log 2>&1; done
  keep parts/.ingot-partial parts
  mkdir -p "$records/reports"
  for part in 0 1; do
    "$ingot" verify small modelopt-nvfp4-weight-only --part "$part/2" --json | sed "s|$work/|/WORK/|" >"$records/reports/part$part.json"
  done
  "$ingot" balance "$records/../../../examples/tiny-v32" --text "$records/jobs" --ep 4 --slots 20 \
    --out "$records/reports/map.json" --quiet >log 2>&1
fi
