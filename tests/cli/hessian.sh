#!/usr/bin/env bash
# Scales by the moments of inputs (--search hessian): each scheme is verified, another number of threads changes no byte, and a
# search without moments says what it lacks.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

printf 'There was once a small fox, and his name was Sam. One day he found a kite.' >"$work/text.txt"
"$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/stats" --without moments --progress never \
  >/dev/null 2>&1 || fail "calibrate"
"$ingot" calibrate "$example" --text "$work/text.txt" --out "$work/squares.safetensors" --progress never \
  >/dev/null 2>&1 || fail "mean squares only"

for options in nvfp4 mxfp4 int4 int8 "fp8-channel --fp8-grid amax"; do
  to=${options%% *}
  # shellcheck disable=SC2086  # words of options
  expect 0 "PASS" "$ingot" convert "$example" "$work/$to" --to $options --search hessian --importance "$work/stats" \
    --verify structure,weights --progress never
  grep -q "of them by moments" "$work/stderr" "$work/stdout" || fail "$to: the report does not say what is by moments"
  grep -q '"search": "hessian"' "$work/$to/ingot.json" || fail "$to: the manifest does not say the search"
  # shellcheck disable=SC2086
  "$ingot" convert "$example" "$work/mse" --to $options --progress never >/dev/null 2>&1 || fail "$to by mse"
  # A row with one scale holds the codes of this source, so that nothing is left to choose.
  if [ "$to" != fp8-channel ] && cat "$work/$to"/*.safetensors | cmp -s - <(cat "$work"/mse/*.safetensors); then
    fail "$to: moments change nothing"
  fi
  rm -r "$work/mse"
done
"$ingot" convert "$example" "$work/one" --to nvfp4 --search hessian --importance "$work/stats" --threads 1 \
  --mem-limit 200MB --progress never >/dev/null 2>&1 || fail "one thread"
for file in "$work"/one/*.safetensors; do
  cmp "$file" "$work/nvfp4/$(basename "$file")" || fail "one thread, other bytes"
done

# Parts of a job, and INT4 with zero points.
for part in 0 1; do
  "$ingot" convert "$example" "$work/parts" --to nvfp4 --search hessian --importance "$work/stats" --max-shard-size 3MB \
    --part "$part/2" --progress never >/dev/null 2>&1 || fail "part $part"
done
"$ingot" join "$work/parts" --progress never >/dev/null 2>&1 || fail "join"
"$ingot" compare "$work/nvfp4" "$work/parts" --levels weights --json >"$work/json" 2>/dev/null
facts='g = d.get("difference", {}).get("weights", {}).get("by_scheme_and_role")'
holds "g and all(one['exact'] == one['elements'] for one in g)"

expect 2 "needs --importance" "$ingot" convert "$example" "$work/none" --to nvfp4 --search hessian
expect 2 "has moments of the inputs of none" "$ingot" convert "$example" "$work/none" --to nvfp4 --search hessian \
  --importance "$work/squares.safetensors"
expect 2 "leave a choice" "$ingot" convert "$example" "$work/none" --to mxfp8 --search hessian --importance "$work/stats"
finish
