#!/usr/bin/env bash
# scripts/tidy.sh        clang-tidy over the C++ files that changed since the merge base with main (of INGOT_BASE where
#                        that is set; the last commit where the base is the commit itself)
# scripts/tidy.sh --all  over every file, half an hour on two processors
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh --clang
files=()
case "${1:-}" in
  "")
    base=HEAD
    for branch in ${INGOT_BASE:-origin/main main}; do
      base=$(git merge-base HEAD "$branch" 2>/dev/null) && break
    done
    if [ "$(git rev-parse "$base")" = "$(git rev-parse HEAD)" ]; then base=HEAD~1; fi
    # Without history there is nothing to compare with.
    git rev-parse -q --verify "$base" >/dev/null || { echo "tidy: no earlier commit to compare with"; exit 0; }
    mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- '*.cc') ;;
  --all) mapfile -t files < <(git ls-files '*.cc') ;;
  *) echo "usage: scripts/tidy.sh [--all]" >&2; exit 2 ;;
esac

cmake --preset tidy >/dev/null
# Only what the build compiles here: no other file has a command.
mapfile -t files < <(for file in "${files[@]}"; do
  if grep -qF "\"$PWD/$file\"" build/tidy/compile_commands.json; then echo "$file"; fi
done)
echo "tidy: ${#files[@]} files"
[ "${#files[@]}" -eq 0 ] && exit 0
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/tidy --quiet 2>/dev/null
