# Sourced by the command line tests: a work folder, and claims about what a command does.
set -uo pipefail
work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-cli-XXXXXX")
trap 'chmod -R u+rwx "$work" 2>/dev/null; rm -rf "$work"' EXIT
failures=0
# For `from container import ...` in Python.
PYTHONPATH=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../differential")
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# expect STATUS TEXT COMMAND...: exit status, and a fixed string somewhere in stdout or stderr. A refusal (2) of convert
# or merge is repeated as a dry run: the same status, the same first line.
expect() {
  judge "$@"
  [ "$1" -eq 2 ] && [[ "${4:-}" =~ ^(convert|merge)$ && " $* " != *" --dry-run "* ]] || return 0
  local line got again
  IFS= read -r line <"$work/stderr"
  shift 2
  "$@" --dry-run >"$work/stdout" 2>"$work/stderr" </dev/null
  got=$?
  [ "$got" -eq 2 ] || fail "exit status $got instead of 2 as a dry run: $*"
  IFS= read -r again <"$work/stderr"
  [ "$again" = "$line" ] || fail "'$again' instead of '$line' as a dry run: $*"
}

# judge STATUS TEXT COMMAND...: the same without the dry run, for refusals that bytes of tensors decide.
judge() {
  local status=$1 text=$2
  shift 2
  "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
  local got=$?
  [ "$got" -eq "$status" ] || fail "exit status $got instead of $status: $*: $(head -c 400 "$work/stderr")"
  # By the shell: a thousand claims would start as many processes.
  [[ $(<"$work/stdout") == *"$text"* || $(<"$work/stderr") == *"$text"* ]] ||
    fail "no '$text' in the output of: $*: $(head -c 600 "$work/stderr")"
}

# A wrapper that finds an interpreter takes ten times as long to start as Debian's.
[ ! -x /usr/bin/python3 ] || python3() { /usr/bin/python3 "$@"; }

# holds CLAIM [FILE]: a claim in Python about the JSON document d in $work/FILE (json), and about names that $facts gives
# its parts. One interpreter judges all claims of a script: to start one takes longer than most commands of the program.
facts=""
holds() {
  [ -n "${claims_PID:-}" ] || coproc claims { python3 "$(dirname "${BASH_SOURCE[0]}")/claims.py"; }
  local answer
  printf '%s\n' "$work/${2:-json}" "$facts" "$1" >&"${claims[1]}"
  IFS= read -r answer <&"${claims[0]}" || answer="no answer"
  [ -z "$answer" ] || fail "not so: $1: $answer"
}

# Nothing may have a final name in an output that failed.
expect_unpublished() {
  local left
  left=$(find "$1" -mindepth 1 -maxdepth 1 ! -name .ingot-partial 2>/dev/null | head -3)
  [ -z "$left" ] || fail "files under final names: $left"
}

finish() {
  [ "$failures" -eq 0 ] || { echo "$failures claims failed" >&2; exit 1; }
  echo "all claims hold"
}
