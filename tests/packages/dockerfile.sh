#!/usr/bin/env bash
# tests/packages/dockerfile.sh: builds the image of Dockerfile, whose program converts the bundled model as this one does.
# Exit status 77: no engine for images runs here.
set -euo pipefail
source=$(realpath "$(dirname "$0")/../..")
for candidate in docker podman; do
  if [ -z "${engine:-}" ] && "$candidate" info >/dev/null 2>&1; then engine=$candidate; fi
done
[ -n "${engine:-}" ] || { echo "no docker and no podman that runs; nothing was tested" >&2; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-image-XXXXXX")
trap '"$engine" rmi -f "ingot-test-$$" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
"$engine" build -t "ingot-test-$$" "$source"
"$engine" run --rm "ingot-test-$$" --version
"$engine" run --rm -v "$source/examples:/examples:ro" -v "$work:/out" "ingot-test-$$" \
  convert /examples/tiny-v32 /out/nvfp4 --to nvfp4
"$source/build/release/cli/ingot" convert "$source/examples/tiny-v32" "$work/expected" --to nvfp4
diff -r -x ingot.json -x .ingot -x '*.md' "$work/expected" "$work/nvfp4"
