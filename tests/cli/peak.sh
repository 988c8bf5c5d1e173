# Sourced by the tests of memory, after expect.sh.

# How often each command is measured: the slow tests say 3, since how many windows a run touches depends on how far the
# disk falls behind.
runs=1

# peak_kb COMMAND...: the highest peak RSS of `runs` runs, in KiB; $work/out is removed after each, and $work/stdout is
# what the last one said. Absurdly much after a failure, which breaks every claim.
peak_kb() {
  local peak=0 once run
  for ((run = 0; run < runs; run++)); do
    /usr/bin/time -f %M -o "$work/peak" "$@" >"$work/stdout" 2>"$work/stderr" || {
      echo "FAILED: $*: $(cat "$work/stderr")" >&2
      echo 999999999
      return
    }
    once=$(cat "$work/peak")
    [ "$once" -le "$peak" ] || peak=$once
    rm -rf "$work/out"
  done
  echo "$peak"
}

# bytes SIZE: of 512MiB or 4GiB.
bytes() { python3 -c 'import sys; print(int(sys.argv[1][:-3]) << (20 if sys.argv[1][-3] == "M" else 30))' "$1"; }

# announced_bytes COMMAND...: the peak that a dry run announces, 0 after a failure, which breaks every claim.
announced_bytes() {
  "$@" --dry-run --json 2>"$work/stderr" | python3 -c 'import json, sys; print(json.load(sys.stdin)["peak_memory_bytes"])' || {
    echo "FAILED: $*: $(cat "$work/stderr")" >&2
    echo 0
  }
}
