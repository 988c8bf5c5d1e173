#!/usr/bin/env bash
# The one list of packages, for Debian 12 and Ubuntu 24.04. Installs what is missing; asks for nothing if all is here.
#   scripts/deps.sh          what building, testing and the demo need
#   scripts/deps.sh --demo   what the demo needs where a program is there
#   scripts/deps.sh --clang  clang with libFuzzer and clang-tidy as well, for scripts/test.sh --all and scripts/tidy.sh
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config ccache
  nlohmann-json3-dev libcli11-dev libtbb-dev libzstd-dev libhwy-dev libfmt-dev libspdlog-dev libyaml-cpp-dev
  libxxhash-dev libssl-dev libpcre2-dev libonig-dev libutf8proc-dev libedit-dev
  libopenmpi-dev openmpi-bin iproute2
  libgtest-dev libgmock-dev libbenchmark-dev
  python3 python3-numpy time
)
# The page of `ingot verify --html` is looked at in a browser; Ubuntu's package only asks for snap.
if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then packages+=(chromium); fi
clang_packages=(clang clang-tidy libclang-rt-dev)

case "${1:-}" in
  "") ;;
  --clang) packages+=("${clang_packages[@]}") ;;
  --demo) packages=(openmpi-bin python3 python3-numpy) ;;
  *) echo "usage: scripts/deps.sh [--demo | --clang]" >&2; exit 2 ;;
esac

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

command -v apt-get >/dev/null || { echo "these packages are missing, and there is no apt-get: ${missing[*]}" >&2; exit 2; }
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -q >&2
"${sudo[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
