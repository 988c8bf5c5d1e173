#!/usr/bin/env bash
# `convert --gptq`: what it gains, that its bytes depend on nothing else, what it refuses, and how `verify` judges it.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 whole=$3  # of many experts
here=$(realpath "$(dirname "$0")")
stats=$work/stats
"$ingot" calibrate "$example" --text "$here/../../README.md" --max-tokens 1000 --out "$stats" >/dev/null 2>"$work/stderr" || fail "calibrate"

convert() { # NAME OPTIONS: the output $work/NAME
  local name=$1; shift
  "$ingot" convert "$example" "$work/$name" --importance "$stats" --progress never "$@" >"$work/stdout" 2>"$work/stderr" ||
    fail "convert $name"
}
same() { # NAME NAME: the same weights
  printf 'same\t%s\t%s\n' "$work/$1" "$work/$2" >"$work/claims"
  python3 "$here/decoded.py" "$work/claims" || fail "$2 is not $1"
}
decoded() { # NAME: as F32, in $work/NAME-f32
  "$ingot" convert "$work/$1" "$work/$1-f32" --to f32 --progress never >/dev/null 2>"$work/stderr" || fail "$1 to f32"
}
"$ingot" convert "$example" "$work/source-f32" --to f32 --progress never >/dev/null 2>"$work/stderr" || fail "source to f32"

for to in nvfp4 mxfp4 "int4 --group-size 32"; do
  form=${to%% *}
  convert "$form-plain" --to $to
  convert "$form" --to $to --gptq
  grep -q "^gptq: " "$work/stdout" || fail "the report does not say what --gptq did"
  decoded "$form-plain"
  decoded "$form"
  read -r mean largest n worst < <(python3 "$here/gptq_traces.py" "$work/source-f32" "$work/$form-plain-f32" "$work/$form-f32" "$stats")
  echo "$form: trace $mean of that without, at most $largest ($worst), $n tensors"
  [ "$n" -ge 24 ] || fail "$form: only $n tensors differ"
  awk "BEGIN { exit !($mean < 0.7 && $largest < 1.02) }" || fail "$form: GPTQ loses $mean of plain rounding, at most $largest"
done

# The same bytes for any threads, memory, parts and slices.
for part in 0 1; do convert parts --to nvfp4 --gptq --part "$part/2" --max-shard-size 3MB --threads 5 --mem-limit 60MB; done
"$ingot" join "$work/parts" >/dev/null 2>"$work/stderr" || fail "join"
same nvfp4 parts
convert ranks --to nvfp4 --gptq --threads 1 --tp 2 --ep 2 --tp-fit retile
"$ingot" merge "$work/ranks" "$work/merged" >/dev/null 2>"$work/stderr" || fail "merge"
same nvfp4 merged
"$ingot" convert "$example" "$work/dry" --to nvfp4 --gptq --importance "$stats" --dry-run >"$work/stdout" 2>"$work/stderr" || fail "dry run"
grep -q "^gptq .*factors of moments" "$work/stdout" || fail "the dry run does not count factors"
grep -q "peak memory.*factors of moments" "$work/stdout" || fail "the dry run does not count the memory of factors"

# Codes far from the source's values are right where the manifest says so, and are judged by the error of their rows.
for form in nvfp4 mxfp4 int4; do
  expect 0 "PASS" "$ingot" verify "$example" "$work/$form" --levels structure,weights
  cp -r "$work/$form" "$work/unknown"
  rm "$work/unknown/ingot.json" "$work/unknown/ingot.tensors.jsonl.zst"
  expect 1 "misrounded" "$ingot" verify "$example" "$work/unknown" --levels structure,weights
  rm -r "$work/unknown"
  # The judgement is one code: every fault for one form, one for each of the others.
  faults="turned shuffled doubled"
  [ "$form" = nvfp4 ] || faults=shuffled
  for fault in $faults; do
    cp -r "$work/$form" "$work/$fault"
    python3 "$here/spoil_codes.py" "$work/$fault" model.layers.1.mlp.experts.3.up_proj "$fault" || fail "spoil $fault"
    expect 1 "model.layers.1.mlp.experts.3.up_proj" "$ingot" verify "$example" "$work/$fault" --levels weights
    rm -r "$work/$fault"
  done
done

# Where a text reached no token of an expert, its down projection has no moments: it is rounded plainly, and judged so.
printf 'There was once a small fox, and his name was Sam. One day he found a kite.' >"$work/few.txt"
"$ingot" calibrate "$whole" --text "$work/few.txt" --out "$work/few" >/dev/null 2>"$work/stderr" || fail "calibrate few"
"$ingot" convert "$whole" "$work/apart" --to nvfp4 --gptq --importance "$work/few" --json --progress never >"$work/json" 2>"$work/stderr" || fail "apart"
plain=$(python3 -c 'import json,sys; print(next(n for n in json.load(open(sys.argv[1]))["gptq"]["without_moments"] if "down_proj" in n).removesuffix(".weight"))' "$work/json")
expect 0 "PASS" "$ingot" verify "$whole" "$work/apart" --levels structure,weights
python3 "$here/spoil_codes.py" "$work/apart" "$plain" swapped || fail "spoil $plain"
expect 1 "$plain" "$ingot" verify "$whole" "$work/apart" --levels weights
grep -q misrounded "$work/stdout" || fail "two swapped codes of a tensor that was rounded plainly are not misrounded"

expect 2 "needs the second moments" "$ingot" convert "$example" "$work/none" --to nvfp4 --gptq
expect 2 "carries the errors of columns" "$ingot" convert "$example" "$work/none" --to fp8 --gptq --importance "$stats"
expect 2 "input_moments of none" "$ingot" convert "$example" "$work/none" --to nvfp4 --gptq --importance "$stats/inputs.safetensors"
finish
