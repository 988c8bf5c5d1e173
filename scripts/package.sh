#!/usr/bin/env bash
# scripts/package.sh [BUILD [OUT [KIND...]]]: makes packages of a build, which is build/release unless told, in OUT,
# which is build/packages. They hold what docs/packages.md says. KINDs are
#   wheel  the Python package, with program and libraries: ingot_convert-VERSION-py3-none-TAG.whl
#   tar    all that is installed, with every library but glibc: ingot-VERSION-linux-MACHINE.tar.zst
#   deb    ingot and ingot-mpi for this Debian; not of a build for another processor
# and all of them unless told. It says what it made, and how that is installed. The same build gives the same bytes;
# their date is SOURCE_DATE_EPOCH, else the commit's. Needs scripts/deps.sh --build; the wheel only scripts/deps.sh.
set -euo pipefail
source=$(realpath "$(dirname "$0")/..")
build=$(realpath "${1:-$source/build/release}")
out=${2:-$source/build/packages}
mkdir -p "$out"
out=$(realpath "$out")
for file in cli/ingot library/libingot.so.1; do
  [ -e "$build/$file" ] ||
    { echo "error: $build has no $file (scripts/build.sh PRESET ingot_cli ingot_shared)" >&2; exit 2; }
done
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct 2>/dev/null)} ||
  { echo "error: no commit tells the date of the packages (set SOURCE_DATE_EPOCH)" >&2; exit 2; }
export SOURCE_DATE_EPOCH LC_ALL=C
umask 022

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
version=$(cached CMAKE_PROJECT_VERSION)
triplet=$(sed -n 's/^set(CMAKE_CXX_LIBRARY_ARCHITECTURE "\(.*\)")/\1/p' \
  "$build"/CMakeFiles/*/CMakeCXXCompiler.cmake | tail -1)
machine=${triplet%%-*}
kinds=("${@:3}") root=$source/build/$machine-root
if [ "$machine" = "$(uname -m)" ]; then root=/; fi
if [ "${#kinds[@]}" -eq 0 ]; then
  kinds=(wheel tar)
  if [ "$root" = / ]; then kinds+=(deb); fi
fi
bundle() { "$source/scripts/packages/bundle.py" "$build" "$root" "$triplet" "$@"; }

work=$(mktemp -d "${TMPDIR:-/tmp}/ingot-package-XXXXXX")
trap 'rm -rf "$work"' EXIT
program=$work/program
cmake --install "$build" --strip --prefix "$program" >/dev/null
mkdir -p "$program/share/doc/ingot"
cp "$source"/{LICENSE,README.md,CHANGELOG.md,SECURITY.md} "$program/share/doc/ingot"
modules=("$source"/python/ingot/{*.py,*.pyi,py.typed})

pack_wheel() {
  local tree=$work/wheel
  mkdir -p "$tree"/ingot/{bin,lib}
  cp "${modules[@]}" "$tree/ingot"
  cp "$program/bin/ingot" "$tree/ingot/bin"
  cp -L "$program/lib/libingot.so.1" "$tree/ingot/lib"
  cd "$tree"
  # As every wheel does, it takes the runtime of GCC that the process has.
  bundle --into ingot/lib --leave libstdc++.so.6 --leave libgcc_s.so.1 \
    --notices notices ingot/bin/ingot ingot/lib/libingot.so.1
  cp "$source/LICENSE" notices/licences
  # Without the library's header a wheel has no use for the rest.
  mkdir -p data/share/ingot
  cp -r "$program"/share/{man,bash-completion,fish,zsh} data/share 2>/dev/null || true  # none, of another processor's
  cp -r "$program"/share/ingot/{kubernetes,recipes,schema,slurm} data/share/ingot
  "$source/scripts/packages/wheel.py" . "$machine" "$out"
}

pack_tar() {
  local name=ingot-$version-linux-$machine
  cp -r "$program" "$work/$name"
  cd "$work/$name"
  bundle --into lib --notices share/doc/ingot bin/ingot "lib/libingot.so.$version"
  cd "$work"
  tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go-w --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
    zstd -q -f -15 -T1 -o "$out/$name.tar.zst"
}

# pack_deb NAME SYNOPSIS FIELD...: packs $work/NAME; in a FIELD, {} is what Debian's libraries in it need.
pack_deb() {
  local name=$1 synopsis=$2 tree=$work/$1 doc=$work/$1/usr/share/doc/$1 by="the authors of ingot <ingot@localhost>"
  local architecture files libraries
  architecture=$(dpkg --print-architecture)
  shift 2
  mkdir -p "$tree/DEBIAN" "$doc" "$work/debian"
  printf 'Source: ingot\n\nPackage: %s\nArchitecture: any\n' "$name" >"$work/debian/control"
  mapfile -t files < <(find "$tree/usr" -type f \( -path '*/bin/*' -o -name '*.so*' \))
  libraries=$(cd "$work" && dpkg-shlibdeps -O "${files[@]/#/-e}" | sed 's/^shlibs:Depends=//')
  {
    printf 'Format: %s\n\n' https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
    printf 'Files: *\nCopyright: %s the authors of ingot\n' "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)"
    printf 'License: Apache-2.0\n The text is /usr/share/common-licenses/Apache-2.0.\n'
  } >"$doc/copyright"
  printf 'ingot (%s) stable; urgency=medium\n\n  * CHANGELOG.md of ingot tells the changes.\n\n -- %s  %s\n' \
    "$version" "$by" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
  {
    printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$name" "$version" "$architecture"
    printf 'Maintainer: %s\nSection: science\nPriority: optional\n' "$by"
    find "$tree/usr" -type f -printf '%s\n' |
      awk '{ n += int(($1 + 1023) / 1024) } END { print "Installed-Size: " n }'
    printf '%s\n' "${@//\{\}/$libraries}"
    printf 'Description: %s\n' "$synopsis"
    printf ' %s\n' "It turns the released checkpoint of a language model into the one that an engine" \
      "loads: in another number format (FP8, INT8, INT4, NVFP4, MXFP4), cut for the ranks" \
      "of a cluster, or both in one pass. It needs no GPU, works in bounded memory, and" \
      "says whether the result is still the same model."
  } >"$tree/DEBIAN/control"
  (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$tree" \
    "$out/${name}_${version}_$architecture.deb" >/dev/null
}

pack_debs() {
  local tree=$work/ingot
  mkdir -p "$tree"/{DEBIAN,usr/lib/{"$triplet",python3/dist-packages/ingot}} "$work/ingot-mpi/usr/lib"
  cp -r "$program"/{bin,include,share} "$tree/usr"
  cp -P "$program"/lib/libingot.so* "$tree/usr/lib/$triplet"
  mkdir "$tree/usr/lib/$triplet/pkgconfig"
  sed "s|^prefix=.*|prefix=/usr|; s|^libdir=.*|&/$triplet|" "$program/share/ingot/ingot.pc" |
    tee "$tree/usr/lib/$triplet/pkgconfig/ingot.pc" >"$tree/usr/share/ingot/ingot.pc"
  cp "${modules[@]}" "$tree/usr/lib/python3/dist-packages/ingot"
  (cd "$tree" && bundle --notices usr/share/doc/ingot usr/bin/ingot "usr/lib/$triplet/libingot.so.$version")
  rm "$tree/usr/share/doc/ingot/LICENSE"  # Debian has one
  gzip -9n "$tree/usr/share/man/man1"/* "$tree/usr/share/doc/ingot/CHANGELOG.md"
  echo "libingot 1 ingot (>= $version)" >"$tree/DEBIAN/shlibs"
  echo "activate-noawait ldconfig" >"$tree/DEBIAN/triggers"
  printf '#!/bin/sh\nset -e\nif command -v py3compile >/dev/null; then py3compile -p ingot; fi\n' \
    >"$tree/DEBIAN/postinst"
  printf '#!/bin/sh\nset -e\nif command -v py3clean >/dev/null; then py3clean -p ingot; fi\n' >"$tree/DEBIAN/prerm"
  chmod 755 "$tree"/DEBIAN/p*
  pack_deb ingot "$(cached CMAKE_PROJECT_DESCRIPTION)" "Depends: {}" "Recommends: libssl3, libcurl4" \
    "Suggests: ingot-mpi, python3 (>= 3.10), python3-numpy"
  [ -d "$program/lib/ingot" ] || return 0  # a build without MPI
  cp -r "$program/lib/ingot" "$work/ingot-mpi/usr/lib"
  pack_deb ingot-mpi "MPI for ingot: processes share one conversion" "Depends: ingot (= $version), {}" \
    "Recommends: openmpi-bin"
}

# made FILE COMMAND...: says what was made, and what installs it.
made() { printf '%s (%s): %s\n' "$1" "$(du -h --apparent-size "$1" | cut -f1)" "${*:2}"; }

for kind in "${kinds[@]}"; do
  case $kind in
    wheel) (pack_wheel) ;;
    tar) (pack_tar) ;;
    deb) (pack_debs) ;;
    *) echo "usage: scripts/package.sh [BUILD [OUT [wheel | tar | deb]...]]" >&2; exit 2 ;;
  esac
done
for kind in "${kinds[@]}"; do
  case $kind in
    wheel) for file in "$out/ingot_convert-$version"-*"$machine.whl"; do made "$file" pip install "$file"; done ;;
    tar) made "$out/ingot-$version-linux-$machine.tar.zst" tar xf "$out/ingot-$version-linux-$machine.tar.zst" ;;
    deb) for file in "$out"/ingot{,-mpi}_"${version}"_*.deb; do [ ! -e "$file" ] || made "$file" apt install "$file"; done ;;
  esac
done
