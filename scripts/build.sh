#!/usr/bin/env bash
# scripts/build.sh PRESET [TARGET...]: configures and builds one preset on every processor. Through ccache where it is,
# or, where no cache outlives the build (CI), with precompiled headers, which ccache would not find again.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift

options=()
if [ -n "${CI:-}" ]; then
  # A newer compiler may warn where ours do not: that stops us, but no user.
  options=(-DCMAKE_COMPILE_WARNING_AS_ERROR=ON)
elif command -v ccache >/dev/null; then
  options=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON)
fi
cmake --preset "$preset" "${options[@]}" >&2
cmake --build --preset "$preset" -j "$(nproc)" ${1:+--target "$@"} >&2
