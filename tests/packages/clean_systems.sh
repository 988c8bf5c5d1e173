#!/usr/bin/env bash
# tests/packages/clean_systems.sh BUILD OUT: makes all packages of a build in OUT, makes them again and compares, and
# installs each on a Debian of its own that has nothing else. Those of a build for ARM run in an emulator next to glibc.
# As root, after scripts/deps.sh --packages. The last line says how many cases hold.
set -euo pipefail
source=$(realpath "$(dirname "$0")/../..")
build=$(realpath "$1") out=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-clean-XXXXXX")
trap 'rm -rf "$work"' EXIT
example=$source/examples/tiny-v32
cases=0
holds() { cases=$((cases + 1)); echo "holds: $*"; }
fail() { echo "error: $*" >&2; exit 1; }
# quietly COMMAND...: shows the end of its output if it fails.
quietly() { "$@" >"$work/log" 2>&1 || fail "$*: $(tail -20 "$work/log")"; }
same() { diff -r -x ingot.json -x .ingot -x '*.md' "$1" "$2" || fail "$1 and $2 differ"; }

"$source/scripts/package.sh" "$build" "$work/packages"
"$source/scripts/package.sh" "$build" "$work/again"
same "$work/packages" "$work/again"
holds "two runs give the same bytes"
mkdir -p "$out" && cp "$work"/packages/* "$out" && ls -l "$out"
wheel=$(ls "$work"/packages/*.whl)
granted=$("$source/build/auditwheel/bin/auditwheel" show "$wheel" | tr '\n' ' ')
tag=$(grep -oE 'manylinux_[0-9]+_[0-9]+_[a-z0-9_]+' <<<"$wheel")
[[ $granted == *"is consistent with the following platform tag: \"$tag\""* ]] || fail "auditwheel says: $granted"
holds "auditwheel grants $tag"

# Packages write the same bytes as the program of this machine.
quietly "$source/build/release/cli/ingot" convert "$example" "$work/expected" --to nvfp4

if [[ $tag == *aarch64 ]]; then
  mkdir -p "$work/glibc/lib" "$work/wheel"
  cp -L "$source"/build/aarch64-root/lib/{ld-linux-aarch64.so.1,aarch64-linux-gnu/lib{c,m}.so.6} "$work/glibc/lib"
  tar -C "$work" -xf "$work"/packages/*.tar.zst
  python3 -m zipfile -e "$wheel" "$work/wheel"
  chmod +x "$work/wheel/ingot/bin/ingot"
  # A wheel takes these from the system.
  cp -L "$source"/build/aarch64-root/{lib/aarch64-linux-gnu/libgcc_s.so.1,usr/lib/aarch64-linux-gnu/libstdc++.so.6} \
    "$work/wheel/ingot/lib"
  for program in "$work"/ingot-*/bin/ingot "$work/wheel/ingot/bin/ingot"; do
    emulated=(qemu-aarch64 -L "$work/glibc" "$program")
    "${emulated[@]}" --version
    quietly "${emulated[@]}" convert "$example" "$work/converted" --to nvfp4
    same "$work/expected" "$work/converted"
    rm -r "$work/converted"
  done
  holds "program of archive and wheel convert to the same bytes"
  echo "$cases cases hold"
  exit
fi

mmdebstrap --quiet --variant=apt "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" "$work/debian"
# system NAME: a copy of the bare system with the packages in /packages, called $root from now on.
system() {
  root=$work/$1
  cp -a "$work/debian" "$root"
  cp -L /etc/resolv.conf "$root/etc"
  mkdir "$root/packages"
  cp "$work"/packages/* "$root/packages"
  cp -r "$example" "$root/packages/tiny-v32"
}
# inside COMMAND...: in that system, with an environment of its own.
inside() {
  unshare --fork --pid --mount-proc --root="$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}
install() { quietly inside apt-get install -q -y --no-install-recommends "$@"; }
# converts PROGRAM: a random checkpoint, and the example to the expected bytes.
converts() {
  inside "$1" --version
  quietly inside "$1" synth /packages/random --family qwen3_moe --like tiny
  quietly inside "$1" convert /packages/random /packages/random-fp8 --to fp8
  quietly inside "$1" convert /packages/tiny-v32 /packages/converted --to nvfp4
  same "$work/expected" "$root/packages/converted"
}

system archive
inside sh -c 'command -v zstd python3' && fail "the bare system has zstd or python3"
tar -C "$root/opt" -xf "$work"/packages/*.tar.zst
mv "$root"/opt/ingot-* "$root/opt/somewhere else"
converts "/opt/somewhere else/bin/ingot"
others=$(inside ldd "/opt/somewhere else/bin/ingot" |
  grep -vE 'somewhere else/|linux-vdso|/ld-linux|/lib[cm]\.so\.6 ' || true)
[ -z "$others" ] || fail "taken from the system: $others"
holds "the archive runs on a bare system, with nothing but its glibc"

system wheel
quietly inside apt-get update -q
install python3-venv python3-numpy
inside python3 -m venv --system-site-packages /venv
inside /venv/bin/pip install -q --no-index "/packages/$(basename "$wheel")"
converts /venv/bin/ingot
cp "$source/docs/python.md" "$root/packages"
inside sh -c 'cd packages && /venv/bin/python -c "
import doctest
failed, tried = doctest.testfile(\"/packages/python.md\", module_relative=False)
print(tried, \"examples of docs/python.md\")
raise SystemExit(failed or tried < 20)"'
inside /venv/bin/python -X importtime -c 'import ingot' 2>&1 | tail -1
holds "the wheel runs in a fresh environment, and the examples of its document"

system deb
quietly inside apt-get update -q
install "/packages/$(cd "$work/packages" && ls ingot_*.deb)"
converts ingot
install python3-minimal libpython3-stdlib
inside python3 -c 'import ingot; print(len(ingot.open("/packages/tiny-v32")), ingot.__file__)'
[ -e "$root/usr/share/man/man1/ingot-convert.1.gz" ] || fail "no manual page"
[ -e "$root/usr/share/bash-completion/completions/ingot" ] || fail "no completion"
[ -e "$root/usr/share/ingot/schema/verify.json" ] || fail "no schema"
read -ra flags < <(PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$root/usr/lib/$(gcc -dumpmachine)/pkgconfig \
  pkg-config --cflags --libs ingot)
gcc "$root/usr/share/ingot/c/convert.c" -o "$root/packages/c_example" "${flags[@]}" -Wl,--allow-shlib-undefined
[ "$(dpkg-deb -f "$(ls "$work"/packages/ingot_*.deb)" Description | wc -l)" -gt 3 ] || fail "a short description"
quietly inside /packages/c_example /packages/tiny-v32 /packages/by-c bf16
holds "apt installs the program, the library with its header, the Python module, manual pages and completions"

install "/packages/$(cd "$work/packages" && ls ingot-mpi_*.deb)" openmpi-bin
quietly inside mpirun --allow-run-as-root --oversubscribe -n 2 \
  ingot convert /packages/tiny-v32 /packages/by-ranks --to nvfp4
same "$work/expected" "$root/packages/by-ranks"
holds "two processes of MPI write the same bytes"
quietly inside apt-get purge -q -y ingot ingot-mpi
left=$(find "$root/usr" "$root/etc" -name '*ingot*')
[ -z "$left" ] || fail "left after removal: $left"
holds "removal leaves nothing"
echo "$cases cases hold"
