#!/usr/bin/env bash
# scripts/release_notes.sh prints the section of the version, and nothing for a tag that is not this version's.
set -euo pipefail
root=$(mktemp -d "${TMPDIR:-/tmp}/ingot-notes-XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir "$root/scripts"
cp "$(dirname "$0")/../scripts/release_notes.sh" "$root/scripts/"
echo 'project(ingot VERSION 1.2.3 LANGUAGES CXX' > "$root/CMakeLists.txt"
echo 'version = "1.2.3"' > "$root/pyproject.toml"
printf '# Changelog\n\n## [Unreleased]\n\n* later\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n* now\n\n## [1.2.2] - 2026-01-01\n\n* before\n' \
  > "$root/CHANGELOG.md"
notes() { "$root/scripts/release_notes.sh" "$1" 2>/dev/null; }

[ "$(notes v1.2.3)" = $'\n### Added\n\n* now' ]
for tag in v1.2.2 v1.2.30 1.2.3 v1.2 ""; do
  if notes "$tag"; then echo "notes for '$tag'" >&2; exit 1; fi
done
echo 'version = "1.2.4"' > "$root/pyproject.toml"
if notes v1.2.3; then echo "notes where the Python package has another version" >&2; exit 1; fi
echo 'version = "1.2.3"' > "$root/pyproject.toml"
sed -i 's/^\* now$//; s/^### Added$//' "$root/CHANGELOG.md"
if notes v1.2.3; then echo "notes of an empty section" >&2; exit 1; fi
