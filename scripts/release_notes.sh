#!/usr/bin/env bash
# scripts/release_notes.sh vMAJOR.MINOR.PATCH: prints the changelog's section of a version. Fails where that is missing or
# empty, or where the tree has another version.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "usage: scripts/release_notes.sh vMAJOR.MINOR.PATCH" >&2; exit 2; }
version=${1#v}

grep -qE "^project\(ingot VERSION ${version//./\\.}[ )]" CMakeLists.txt ||
  { echo "CMakeLists.txt has another version than $1" >&2; exit 1; }
grep -qx "version = \"$version\"" pyproject.toml ||
  { echo "pyproject.toml has another version than $1" >&2; exit 1; }
notes=$(awk -v section="## [$version] - " '
  index($0, "## ") == 1 { inside = index($0, section) == 1; next }
  inside' CHANGELOG.md)
[ -n "${notes//[[:space:]]/}" ] || { echo "CHANGELOG.md has no section ## [$version] - DATE with a text" >&2; exit 1; }
printf '%s\n' "$notes"
