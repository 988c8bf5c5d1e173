#!/usr/bin/env bash
# scripts/build.sh PRESET [TARGET...]: configures and builds one preset on every processor, through ccache where it is.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift

launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# A newer compiler may warn where ours do not: that stops us, but no user.
warnings=()
[ -z "${CI:-}" ] || warnings=(-DCMAKE_COMPILE_WARNING_AS_ERROR=ON)
cmake --preset "$preset" "${launcher[@]}" "${warnings[@]}" >&2
cmake --build --preset "$preset" -j "$(nproc)" ${1:+--target "$@"} >&2
