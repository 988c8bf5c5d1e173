#!/usr/bin/env bash
# scripts/coverage.sh [option of ctest...]: builds the preset `coverage`, runs the tests that are not labelled slow, and
# prints for each layer how many of its lines and branches they ran. build/coverage/lines.txt has the lines of each file
# that no test ran. Regions of formats, quantize, shard and convert that no test ran are compared with
# tests/unreached.txt, where each has its reason.
#
# Branches are those of the compiler, without the ones that only an exception takes. A process that is killed, or that
# ends by _exit, writes no counts: what only such a process runs counts as not run. Tests and benchmarks are not
# counted, nor are files of cli/terminal in the test that compiles them itself. A test that fails is named, and stops
# nothing: some measure memory, which counts are a part of.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh --coverage
scripts/build.sh coverage
find build/coverage -name '*.gcda' -delete
ctest --preset coverage -j "$(nproc)" --no-label-summary "$@" >&2 || true
gcovr --root . --object-directory build/coverage -j "$(nproc)" --exclude-throw-branches \
  --filter '(formats|report|engines|synth|quantize|shard|check|inference|convert|verify|library|cli)/' \
  --csv build/coverage/files.csv --txt build/coverage/lines.txt --json build/coverage/lines.json build/coverage
awk -F, '
  function row(name) {
    printf "| %s | %d | %.1f%% | %d | %.1f%% |\n", name, lines[name], 100 * ran[name] / lines[name], branches[name],
      100 * taken[name] / (branches[name] ? branches[name] : 1)
  }
  NR > 1 {
    split($1, path, "/")
    split(path[1] " all", names, " ")
    for (i in names) {
      lines[names[i]] += $2; ran[names[i]] += $3; branches[names[i]] += $5; taken[names[i]] += $6
    }
  }
  END {
    print "| layer | lines | of which ran | branches | of which taken |\n|---|---|---|---|---|"
    n = split("formats report engines synth quantize shard check inference convert verify library cli all", order, " ")
    for (i = 1; i <= n; ++i) if (lines[order[i]]) row(order[i])
  }' build/coverage/files.csv
python3 scripts/unreached.py build/coverage/lines.json
