#!/usr/bin/env bash
# scripts/compare_outputs.sh OLD_BINARY NEW_BINARY [REGEX]: whether two builds of ingot write the same bytes.
# Both convert the bundled checkpoints (the example, and the small ones of tests/golden) into every scheme, dialect,
# activations and layout, as far as OLD_BINARY accepts it; outputs of OLD_BINARY are sources as well. Weights files and
# the JSON that engines read have to be equal byte for byte. Manifests and records have to be equal when decoded, except
# the tool's version, the hashes that depend on it and the keys of `renamed_keys`. Both binaries have to refuse the same
# cases with the same exit code. Prints a line per difference and a summary; exit code 1 when anything differs.
# REGEX restricts the run to matching cases (`SOURCE: OPTIONS`); JOBS cases run at once (default: every processor).
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: scripts/compare_outputs.sh OLD_BINARY NEW_BINARY [REGEX]" >&2; exit 2; }
old=$(realpath "$1") new=$(realpath "$2") regex=${3:-.}
root=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-compare-XXXXXX")
trap 'rm -rf "$work"' EXIT

# Keys of manifests and records that a later build calls otherwise: {"old_key": "new_key"}.
renamed_keys='{"nvfp4_search": "search"}'
# A manifest without what depends on the tool's version.
readonly manifest_filter='
  walk(if type == "object" then with_entries(.key |= ($renamed[.] // .)) else . end)
  | del(.version, .tensors.hash, .slicing.job, .slicing.conversion, .slicing.ranks[]?.manifest_hash)'
export old new work renamed_keys manifest_filter

decoded() {
  case $1 in
    *.zst) zstd -qdc "$1" | if [ "$renamed_keys" = '{}' ]; then cat; else
             jq -cS --argjson renamed "$renamed_keys" "$manifest_filter"; fi ;;
    *) jq -S --argjson renamed "$renamed_keys" "$manifest_filter" "$1" ;;
  esac
}

# Sets `code`; stderr is kept for the reader of a difference.
convert_with() {
  local binary=$1 folder=$2
  shift 2
  code=0
  mkdir "$folder"
  (cd "$folder" && "$binary" convert "$@") >"$folder/stdout" 2>"$folder/stderr" || code=$?
}

# compare_case 'SOURCE<tab>NAME<tab>OPTIONS': one line in $work/equal, $work/refused or $work/different.
compare_case() {
  local source name options folder file old_code code
  IFS=$'\t' read -r source name options <<<"$1"
  folder=$(mktemp -d "$work/case-XXXXXX")
  # shellcheck disable=SC2086  # options are words
  convert_with "$old" "$folder/old" "$source" out $options
  old_code=$code
  # shellcheck disable=SC2086
  convert_with "$new" "$folder/new" "$source" out $options
  local label="$name: ${options:-(no options)}" found=$folder/found
  if [ "$old_code" != "$code" ]; then
    echo "exit code $old_code, now $code: $(tail -1 "$folder/new/stderr")" >>"$found"
  elif [ "$code" != 0 ]; then
    echo "$label" >>"$work/refused"
  else
    (cd "$folder" && diff -rq -x ingot.json -x '*.zst' old/out new/out) >>"$found" || true
    while IFS= read -r file; do
      cmp -s <(decoded "$folder/old/out/$file") <(decoded "$folder/new/out/$file") || echo "$file differs" >>"$found"
    done < <(cd "$folder/old/out" && find . -name ingot.json -o -name '*.zst')
    [ -s "$found" ] || echo "$label" >>"$work/equal"
  fi
  [ ! -s "$found" ] || sed "s|^|$label: |" "$found" | tee -a "$work/different"
  rm -rf "$folder"
}
export -f decoded convert_with compare_case

# Options of every quantized form that a dialect has.
mapfile -t forms < <("$old" list dialects --json | jq -r '
  .dialects[] | . as $row | .activations[]
  | "--to \($row.scheme | {"fp8-block": "fp8", "int8-channel": "int8"}[.] // .) --dialect \($row.name) --activations \(.)"
  + if . == "static" then " --input-scale 1" else "" end')
layouts=("" "--max-shard-size 1MB" "--tp 2" "--ep 2" "--tp 2 --ep 2 --etp 2" "--pp 2 --tp 2 --links no"
         "--tp 4 --tp-fit retile" "--tp 4 --tp-fit pad" "--tp 8 --tp-fit bf16"
         "--layout deepseek-mp --mp 2 --mtp drop" "--layout vllm-sharded --tp 2 --mtp drop"
         "--experts stacked" "--experts separate" "--experts stacked --tp 2 --ep 2 --etp 2")

# Sources as they are in the tree, with every form and layout.
cases=$work/cases
example=$root/examples/tiny-v32
for source in "$example" "$root"/tests/golden/tiny-v32/bf16 "$root"/tests/golden/arch*/*/checkpoint; do
  for form in "" "--to bf16" "--to f16" "--to f32" "${forms[@]}"; do
    for layout in "${layouts[@]}"; do
      printf '%s\t%s\t%s\n' "$source" "${source#"$root"/}" "${form}${layout:+ $layout}"
    done
  done
done >"$cases"
for source in "$root"/tests/golden/families/*/; do
  for options in "" "--to bf16" "--to fp8" "--to int8" "--to nvfp4" "--to mxfp4" "--tp 2" "--ep 2" \
    "--tp 2 --ep 2 --etp 2" "--tp 4 --tp-fit pad" "--max-shard-size 100kB" "--layout vllm-sharded --tp 2 --mtp drop" \
    "--experts separate" "--experts separate --to bf16" "--experts separate --to bf16 --tp 2" \
    "--experts stacked" "--experts stacked --to bf16" "--experts stacked --to bf16 --tp 2 --ep 2 --etp 2"; do
    [ ! -e "$source/config.json" ] || printf '%s\t%s\t%s\n' "${source%/}" "tests/golden/families/$(basename "$source")" "$options"
  done
done >>"$cases"

# Choices of the encoders, and what passes through them.
"$old" calibrate "$example" --text "$example/PROVENANCE.md" --out "$work/statistics.safetensors" >/dev/null
for options in "--to nvfp4 --search amax" "--to nvfp4 --search 4over6" "--to nvfp4 --quantize-attention" \
  "--to nvfp4 --importance $work/statistics.safetensors" "--to fp8 --fp8-grid amax" "--to fp8 --fp8-grid ue8m0" \
  "--to int8 --via bf16" "--to fp8 --scales-from $example" "--to bf16 --mtp drop" "--to nvfp4 --mtp keep" \
  "--rule *.experts.*=mxfp4 --dialect compressed-tensors" "--rule role:norm=f32" "--to f16 --hash sha256" \
  "--to int8 --dialect modelslim --activations static --activation-scales $work/statistics.safetensors" \
  "--to nvfp4 --dialect modelopt --activations static --activation-scales $work/statistics.safetensors"; do
  printf '%s\t%s\t%s\n' "$example" examples/tiny-v32 "$options" >>"$cases"
  printf '%s\t%s\t%s\n' "$root/tests/golden/tiny-v32/bf16" tests/golden/tiny-v32/bf16 "$options" >>"$cases"
done

# Maps of experts: several slots for one, and ranks with different numbers of them.
echo '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 3, 0]' >"$work/redundant.json"
jq -n '{slots: [range(16)], slots_per_rank: [5, 11]}' >"$work/uneven.json"
for options in "$work/redundant.json --redundant-experts" "$work/uneven.json --uneven-experts"; do
  for form in "" "--to bf16 --experts stacked" "--to nvfp4"; do
    printf '%s\t%s\t%s\n' "$example" examples/tiny-v32 "--ep 2 --expert-map $options${form:+ $form}"
  done
done >>"$cases"

# Converted sources: decoded, kept in other dialects, encoded again, cut, joined.
for form in "${forms[@]}" "--to bf16 --ep 2" "--tp 4 --tp-fit retile" "--to nvfp4 --tp 2 --ep 2" \
  "--to bf16 --tp 4 --tp-fit pad" "--to fp8 --tp 4 --tp-fit pad" "--to bf16 --pp 2 --tp 2" \
  "--to bf16 --experts stacked" "--to bf16 --experts stacked --tp 2 --ep 2 --etp 2" \
  "--to bf16 --layout vllm-sharded --tp 2 --mtp drop" "--to bf16 --layout deepseek-mp --mp 2 --mtp drop"; do
  name=$(echo "converted $form" | tr -cs 'a-z0-9-' '_')
  "$old" convert "$example" "$work/$name" $form >/dev/null 2>&1 || continue
  for options in "" "--to bf16" "--to fp8" "--to nvfp4" "--max-shard-size 1MB" "--ep 2" "--tp 2" "--tp 4 --tp-fit pad" \
    "--experts stacked" "--experts separate" \
    "--dialect deepseek" "--dialect compressed-tensors" "--dialect modelopt" "--dialect modelslim" \
    "--activations weight-only" "--activations dynamic" "--activations static --input-scale 1" \
    "--dialect modelslim --activations static --input-scale 1"; do
    printf '%s\t%s\t%s\n' "$work/$name" "$name" "$options" >>"$cases"
  done
done

touch "$work/equal" "$work/refused" "$work/different"
awk -F'\t' -v regex="$regex" '($2 ": " $3) ~ regex' "$cases" | tr '\n' '\0' |
  xargs -0 -r -P "${JOBS:-$(nproc)}" -I{} bash -c 'compare_case "$1"' _ {}
lines() { wc -l <"$work/$1"; }
differing=$(cut -d: -f1,2 "$work/different" | sort -u | wc -l)
echo "$(lines equal) cases equal, $(lines refused) refused by both, $differing different"
[ "$differing" = 0 ]
