#!/usr/bin/env bash
# scripts/build.sh PRESET [TARGET...]: configures and builds one preset on every processor, through ccache where it is.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift

options=(-DCMAKE_DISABLE_PRECOMPILE_HEADERS=OFF)
if [ -n "${CI:-}" ]; then
  # A newer compiler may warn where ours do not: that stops us, but no user.
  options+=(-DCMAKE_COMPILE_WARNING_AS_ERROR=ON)
elif command -v ccache >/dev/null; then
  # Work trees share objects: paths are hashed relative to the tree, and precompiled headers by their contents. Those are
  # 100 MB, hashed once thanks to the inode cache. In the launcher, so that ninja by hand means the same.
  launcher="env;CCACHE_BASEDIR=$PWD;CCACHE_NOHASHDIR=1;CCACHE_INODECACHE=1"
  options+=("-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher;CCACHE_SLOPPINESS=pch_defines,time_macros;ccache")
fi
# Assertions name files relative to the build: the same bytes in any folder.
export CXXFLAGS="${CXXFLAGS:-} -ffile-prefix-map=$PWD=../.."
cmake --preset "$preset" "${options[@]}" >&2
cmake --build --preset "$preset" -j "$(nproc)" ${1:+--target "$@"} >&2
