#!/usr/bin/env bash
# scripts/test.sh             says how long it takes; installs, builds and runs every test that is not labelled slow
# scripts/test.sh --sanitize  the tests of the layers below cli/, and each form that the program writes, under the address
#                             and undefined-behaviour sanitizers
# scripts/test.sh --times     every test that is not labelled slow, one after the other: the CPU-seconds of each next to
#                             those in tests/durations.txt, which `--times --write` replaces
# scripts/test.sh --aarch64   formats and quantize cross-compiled for 64-bit ARM, and their tests in an emulator; and whether
#                             conversions have one digest there and here. On Debian only, whose archive has the libraries
# scripts/test.sh --all       every test, also the slow ones; all that are not slow once more under the address,
#                             undefined-behaviour and thread sanitizers; on Debian most of them for 64-bit ARM, and its
#                             outputs compared with those of this machine, and as root the packages of both processors
#                             on clean systems; each fuzz target for a minute. A stage that fails stops no other; the
#                             output ends with a summary, logs are in build/logs/.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

# claims LOG: how many claims the executables of GoogleTest made, in CTest's log.
claims() { awk '/^\[  PASSED  \]/ { n += $4 } END { print n + 0 }' "$1" 2>/dev/null || echo 0; }

# foretell: how long this takes, before it begins. The times of tests are those of tests/durations.txt.
foretell() {
  awk -v jobs="$jobs" '!/^#/ { seconds += $2 }
    END { printf "This installs missing packages, builds (%s),\nand runs the tests: %d CPU-seconds, about %d min.\n",
      "the program 7 min on two cores, its tests longer; only the first time", seconds,
      seconds / jobs / 60 + 1 }' tests/durations.txt >&2
}

# run_quick PRESET [option of ctest...]: prints CTest's output; the line that says it all stays the last, also below a
# list of failures.
run_quick() {
  local preset=$1 log status=0
  shift
  log=$(mktemp)
  ctest --preset "$preset" -j "$jobs" --no-label-summary "$@" 2>&1 | tee "$log" || status=$?
  echo "$(claims "build/$preset/Testing/Temporary/LastTest.log") claims of unit tests hold"
  grep 'tests passed' "$log" | tail -1 || true
  rm -f "$log"
  return "$status"
}

case "${1:-}" in
  "")
    foretell
    scripts/deps.sh
    scripts/build.sh release
    run_quick release
    exit ;;
  --sanitize)
    scripts/deps.sh
    scripts/build.sh asan unit_tests ingot_cli
    run_quick asan -E '^(cli\.|differential(\.self)?$)'
    exit ;;
  --times)
    scripts/deps.sh
    scripts/build.sh release
    scripts/test_times.py build/release tests/durations.txt "${@:2}"
    exit ;;
  --aarch64)
    scripts/deps.sh --aarch64
    scripts/build.sh aarch64 formats_tests quantize_tests output_digests
    # The same program for this processor, of libraries that all other tests need.
    scripts/build.sh release output_digests
    run_quick aarch64 -R '^(formats|quantize|one_digest)$'
    exit ;;
  --all) ;;
  *) echo "usage: scripts/test.sh [--sanitize | --times [--write] | --aarch64 | --all]" >&2; exit 2 ;;
esac

scripts/deps.sh --clang
logs=build/logs
mkdir -p "$logs"
summary=() failed=false

# stage NAME COMMAND...: runs it into a log and keeps its last telling line for the summary; shows the end of the log of
# one that failed.
stage() {
  local name=$1 log status=0 line from=$SECONDS
  shift
  log=$logs/${name//[ ,]/_}.log
  echo "== $name: $* (log: $log)" >&2
  "$@" >"$log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then failed=true; tail -60 "$log" >&2; fi
  line=$(grep -E 'tests passed|No tests were found|cases (equal|hold)|error:' "$log" | tail -1 || true)
  summary+=("$(printf '%-20s %-12s %5d s  %s' "$name" "$([ "$status" -eq 0 ] && echo ok || echo "FAILED ($status)")" \
    $((SECONDS - from)) "$line")")
}

stage "build release" scripts/build.sh release
stage "release" run_quick release
stage "release, slow" ctest --test-dir build/release -L slow --no-tests=error --output-on-failure
for sanitizer in asan tsan; do
  stage "build $sanitizer" scripts/build.sh "$sanitizer"
  stage "$sanitizer" run_quick "$sanitizer"
done
if grep -qx 'ID=debian' /etc/os-release; then
  stage "deps aarch64" scripts/deps.sh --aarch64
  stage "build aarch64" scripts/build.sh aarch64
  # Without those that compute models for hours in an emulator; their kernels are among the others.
  stage "aarch64" run_quick aarch64 -E '^(verify[._]|inference_(model|parallel|generate)$)'
  # The example, and models of other architectures, into every scheme and dialect.
  stage "aarch64, same bytes" scripts/compare_outputs.sh build/release/cli/ingot build/aarch64/emulated/ingot \
    '^(examples|tests/golden/arch)/.*: *(--to [^ ]+)?( --dialect [^ ]+ --activations [^ ]+( --input-scale 1)?)?$'
  if [ "$(id -u)" -eq 0 ]; then
    stage "deps packages" scripts/deps.sh --packages
    for preset in release aarch64; do
      stage "packages $preset" tests/packages/clean_systems.sh "build/$preset" build/packages
    done
  else
    summary+=("packages             not run: root makes clean systems")
  fi
else
  summary+=("aarch64, packages    not run: their libraries and systems come from Debian's archive")
fi
# Only the fuzz targets are built here: their replays and all other tests ran under the sanitizers above.
mapfile -t fuzzers < <(sed -n 's/^ingot_fuzz(\([a-z_]*\) .*/fuzz_\1/p' tests/fuzz/CMakeLists.txt)
stage "build fuzz" scripts/build.sh fuzz "${fuzzers[@]}"
stage "fuzz, a minute each" ctest --test-dir build/fuzz -R '^fuzz\.run\.' --no-tests=error --output-on-failure \
  -j "$jobs"

echo
echo "summary"
printf '  %s\n' "${summary[@]}"
if $failed; then exit 1; fi
