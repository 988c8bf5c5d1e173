#!/usr/bin/env bash
# The one list of packages, for Debian 12 and Ubuntu 24.04. Installs what is missing; asks for nothing if all is here.
#   scripts/deps.sh            what building, testing and the demo need
#   scripts/deps.sh --build    what building the program, the library and the packages needs, and no test
#   scripts/deps.sh --demo     what the demo needs where a program is there
#   scripts/deps.sh --clang    clang with libFuzzer and clang-tidy as well, for scripts/test.sh --all and scripts/tidy.sh
#   scripts/deps.sh --coverage what scripts/coverage.sh counts lines with as well
#   scripts/deps.sh --aarch64  a compiler for 64-bit ARM and an emulator as well, and the ARM libraries of the same list
#                              in build/aarch64-root. On Debian only: Ubuntu has ARM packages on other servers
#   scripts/deps.sh --packages what scripts/package.sh needs for all its packages, and their tests on clean systems
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config ccache
  nlohmann-json3-dev libcli11-dev libtbb-dev libzstd-dev libhwy-dev libfmt-dev libspdlog-dev libyaml-cpp-dev
  libxxhash-dev libssl-dev libpcre2-dev libonig-dev libutf8proc-dev libedit-dev
  libopenmpi-dev openmpi-bin iproute2
  libgtest-dev libgmock-dev libbenchmark-dev
  python3 python3-numpy patchelf
)
building=("${packages[@]}" dpkg-dev zstd)
# curl brings the library by which engines are asked; it is loaded when it is used.
packages+=(python3-jsonschema time mkdocs curl)
# The page of `ingot verify --html` is looked at in a browser; Ubuntu's package only asks for snap.
if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then packages+=(chromium); fi
clang_packages=(clang clang-tidy libclang-rt-dev)

case "${1:-}" in
  "") ;;
  --clang) packages+=("${clang_packages[@]}") ;;
  --coverage) packages+=(gcovr) ;;
  --build) packages=("${building[@]}") ;;
  --demo) packages=(openmpi-bin python3 python3-numpy) ;;
  --aarch64)
    grep -qx 'ID=debian' /etc/os-release 2>/dev/null ||
      { echo "scripts/deps.sh --aarch64 takes libraries from Debian's archive: use a Debian 12" >&2; exit 2; }
    packages+=(g++-aarch64-linux-gnu qemu-user jq zstd) ;;
  --packages) packages+=(dpkg-dev zstd mmdebstrap python3-venv) ;;
  *) echo "usage: scripts/deps.sh [--build | --demo | --clang | --coverage | --aarch64 | --packages]" >&2; exit 2 ;;
esac

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
if [ "${#missing[@]}" -ne 0 ]; then
  command -v apt-get >/dev/null ||
    { echo "these packages are missing, and there is no apt-get: ${missing[*]}" >&2; exit 2; }
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  echo "installing ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get update -q >&2
  "${sudo[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
fi
if [ "${1:-}" = --packages ]; then
  # Debian has none; it judges the wheel.
  judge=$(dirname "$0")/../build/auditwheel
  [ -x "$judge/bin/auditwheel" ] ||
    { /usr/bin/python3 -m venv "$judge" && "$judge/bin/pip" install -q auditwheel==6.8.2 >&2; }
fi
[ "${1:-}" = --aarch64 ] || exit 0

# Unpacked and not installed: libyaml-cpp-dev and libonig-dev of two architectures exclude each other, and the
# architectures of this machine stay as they are. Without MPI, whose module is optional.
libraries=()
for package in "${packages[@]}"; do
  case $package in libopenmpi-dev) ;; *-dev) libraries+=("$package") ;; esac
done
root=$(dirname "$0")/../build/aarch64-root
[ ! -e "$root/var/lib/dpkg/status" ] || [ "$(cat "$root/packages" 2>/dev/null)" != "${libraries[*]}" ] || exit 0
rm -rf "$root"
mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial" "$root/var/lib/dpkg/info"
root=$(realpath "$root")
touch "$root/apt/status"
echo 1 >"$root/var/lib/dpkg/info/format"  # names have architectures
apt_arm=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$root/apt"
  -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt" -o APT::Sandbox::User="")
echo "unpacking the arm64 packages of ${libraries[*]}" >&2
"${apt_arm[@]}" update >&2
"${apt_arm[@]}" install -y --no-install-recommends --download-only "${libraries[@]}" >&2
for package in "$root"/apt/archives/*.deb; do
  # With dpkg's records of them, by which scripts/package.sh finds the package of a library.
  list=$(dpkg-deb -f "$package" Package)
  [ "$(dpkg-deb -f "$package" Multi-Arch)" != same ] || list+=:arm64
  dpkg-deb -x "$package" "$root"
  dpkg-deb --fsys-tarfile "$package" | tar -t | sed 's|^\.||; s|/$||; s|^$|/.|' >"$root/var/lib/dpkg/info/$list.list"
  { dpkg-deb -f "$package" && printf 'Status: install ok installed\n\n'; } >>"$root/var/lib/dpkg/status"
done
rm -rf "$root/apt"
echo "${libraries[*]}" >"$root/packages"
