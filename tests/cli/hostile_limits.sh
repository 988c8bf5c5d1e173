#!/usr/bin/env bash
# hostile_limits.sh INGOT EXAMPLE: with little address space every command ends as usual or with one error, and what files
# hold makes no error endless.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# ends LIMIT_MIB COMMAND...: status 0, or status 2 and one error.
ends() {
  local limit=$1 status
  shift
  (ulimit -v $((limit << 10)) && exec "$ingot" "$@") >"$work/stderr" 2>&1 </dev/null
  status=$?
  [ $status -eq 0 ] && return
  [ $status -eq 2 ] || fail "exit status $status with $limit MiB: $*: $(head -c 400 "$work/stderr")"
  [ "$(grep -c '^error: ' "$work/stderr")" -eq 1 ] || fail "not one error with $limit MiB: $*: $(head -c 400 "$work/stderr")"
}
for limit in 48 64 80 100 130 160 200 260 400; do
  ends $limit convert "$example" "$work/out" --to bf16 --progress never --threads 4
  rm -rf "$work/out"
  ends $limit check "$example" --deep
  ends $limit verify "$example" "$example" --progress never
  ends $limit generate "$example" --prompt Hello --max-new-tokens 1
done

# Arenas of threads are no part of the budget: a job fits into what its process may have.
"$ingot" synth "$work/large" --family deepseek_v3 --layers 1 --experts 4 --hidden 512 --moe-intermediate 256 \
  --intermediate 512 --vocab 4000 >/dev/null || fail "synth"
for limit in 200 300; do
  expect 0 "" bash -c "ulimit -v $((limit << 10)) && exec '$ingot' convert '$work/large' '$work/out' --to bf16 --threads 4"
  rm -r "$work/out"
done
rm -r "$work/large"

# An error does not print the megabyte that a file holds.
python3 -c 'print("to: " + "x" * 900_000)' >"$work/long.yaml"
expect 2 "bytes more)" "$ingot" convert "$example" "$work/out" --recipe "$work/long.yaml"
[ "$(wc -c <"$work/stderr")" -lt 20000 ] || fail "an error of $(wc -c <"$work/stderr") bytes"
# An index that cannot be read is there all the same.
cp -r "$example" "$work/index"
echo '[' >"$work/index/model.safetensors.index.json"
expect 2 "index.json" "$ingot" check "$work/index"
! grep -q "is missing, and there is no single" "$work/stdout" "$work/stderr" || fail "an index that is there is called missing"
finish
