#!/usr/bin/env bash
# scripts/test.sh         installs, builds and runs every test that is not labelled slow
# scripts/test.sh --all   those, then the slow ones, everything once more under the address, undefined-behaviour and
#                         thread sanitizers, and each fuzz target for a minute; ends with a summary
set -euo pipefail
cd "$(dirname "$0")/.."

all=false
case "${1:-}" in
  "") ;;
  --all) all=true ;;
  *) echo "usage: scripts/test.sh [--all]" >&2; exit 2 ;;
esac
jobs=$(nproc)

if ! $all; then
  scripts/deps.sh
  scripts/build.sh release
  log=$(mktemp)
  status=0
  ctest --preset release -j "$jobs" --no-label-summary 2>&1 | tee "$log" || status=$?
  # The one line that says it all stays the last, also below a list of failures.
  grep 'tests passed' "$log" | tail -1 || true
  rm -f "$log"
  exit "$status"
fi

scripts/deps.sh --fuzz
summary=() failed=false

# stage NAME COMMAND...: runs it, shows it, keeps its last telling line for the summary.
stage() {
  local name=$1 log status=0 line
  shift
  log=$(mktemp)
  echo "== $name: $*" >&2
  "$@" 2>&1 | tee "$log" || status=$?
  line=$(grep -E 'tests passed|No tests were found|error:' "$log" | tail -1 || true)
  rm -f "$log"
  [ "$status" -eq 0 ] || failed=true
  summary+=("$(printf '%-20s %s  %s' "$name" "$([ "$status" -eq 0 ] && echo ok || echo "FAILED ($status)")" "$line")")
}

stage "build release" scripts/build.sh release
stage "release" ctest --preset release -j "$jobs"
stage "release, slow" ctest --test-dir build/release -L slow --no-tests=error --output-on-failure
for sanitizer in asan tsan; do
  stage "build $sanitizer" scripts/build.sh "$sanitizer"
  stage "$sanitizer" ctest --preset "$sanitizer" -j "$jobs"
done
# Only the fuzz targets are built here: their replays and all other tests ran under the sanitizers above.
mapfile -t fuzzers < <(sed -n 's/^ingot_fuzz(\([a-z_]*\) .*/fuzz_\1/p' tests/fuzz/CMakeLists.txt)
stage "build fuzz" scripts/build.sh fuzz "${fuzzers[@]}"
stage "fuzz, a minute each" ctest --test-dir build/fuzz -R '^fuzz\.run\.' --no-tests=error --output-on-failure -j "$jobs"

echo
echo "summary"
printf '  %s\n' "${summary[@]}"
if $failed; then exit 1; fi
