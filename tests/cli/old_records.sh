#!/usr/bin/env bash
# Records of outputs, reports and unfinished jobs as an earlier version wrote them (tests/golden/records): every command
# reads them. Weights are written by this program: their bytes by amax never changed, or check would say so.
source "$(dirname "$0")/expect.sh"
ingot=$1 records=$2
run() { "$ingot" "$@" --quiet >"$work/log" 2>&1 || fail "$*: $(tail -3 "$work/log")"; }
# same FOLDER FOLDER: the same bytes in the weights.
same() {
  local file
  for file in "$1"/*.safetensors; do
    cmp -s "$file" "$2/${file##*/}" || fail "$1 and $2 differ in ${file##*/}"
  done
}
cd "$work" || exit 1
ln -s "$records/../families/gpt_oss_bf16" .

while IFS=: read -r name command; do
  # shellcheck disable=SC2206
  words=($command)
  run "${words[@]}"
  [ -d "$records/$name" ] || continue
  # Scales as first written are in the records.
  case $name in f16 | f32) ;; *) run convert "$name" back --to bf16 --mtp drop ;; esac
  cp -r "$records/$name/." "$name/"
  # Early ones have a README.md that was copied.
  [ -n "$(find "$records/$name" -name README.md)" ] || find "$name" -name README.md -exec cp src/README.md {} \;
  expect 0 "hashed and compared with the manifest: 0 errors" "$ingot" check "$name"
  expect 0 '"command": "inspect"' "$ingot" inspect "$name" --json
  expect 0 "" "$ingot" verify "${words[1]}" "$name"
  [ -d back ] || continue
  run convert "$name" back-old --to bf16 --mtp drop
  same back back-old
  rm -r back back-old
done <"$records/jobs"

# Slices are whole again, in the bytes of the source of their cut.
for pair in ranks:hf pad:spare retile:fp8 vllm-sharded:hf stages:compressed-tensors-nvfp4-static; do
  run merge "${pair%%:*}" merged
  same "${pair##*:}" merged
  rm -r merged
done
run merge deepseek-mp merged
run convert src plain --to bf16 --mtp drop
same plain merged

expect 2 "begun with other options: --nvfp4-search mse (now not given)" \
  "$ingot" convert src hf --to int8 --dialect compressed-tensors --resume

for part in 0 1; do sed "s|/WORK/|$work/|" "$records/reports/part$part.json" >"part$part.json"; done
expect 0 "PASS: structure of 35 tensors, weights of 35 tensors compared" "$ingot" verify --join part0.json part1.json
run convert "$records/../../../examples/tiny-v32" balanced --ep 4 --expert-map "$records/reports/map.json" \
  --redundant-experts

# Unfinished jobs, with the weights that they had written, are continued by the version that began them.
options=(--to nvfp4 --dialect modelopt --activations weight-only --search amax --max-shard-size 100KB)
run convert small whole "${options[@]}"
version=$(sed -n 's/^.*"identity":{"version":"\([^"]*\)".*$/\1/p' "$records/unfinished/journal.jsonl")
for job in unfinished parts; do
  mkdir -p "$job/.ingot-partial/files"
  cp whole/*.safetensors "$job/.ingot-partial/files/"
  cp -r "$records/$job/." "$job/.ingot-partial/"
done
if [[ $("$ingot" --version) == "ingot $version"$'\n'* ]]; then
  expect 0 "(35 of them by an earlier run)" "$ingot" convert small unfinished "${options[@]}" --resume
  same whole unfinished
  run convert small parts "${options[@]}" --part join
  same whole parts
else
  expect 2 "begun by version $version" "$ingot" convert small unfinished "${options[@]}" --resume
  expect 2 "by another version" "$ingot" convert small parts "${options[@]}" --part join
fi
finish
