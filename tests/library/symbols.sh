#!/usr/bin/env bash
# The shared library exports the functions of the committed list, with their version, and nothing else; the header
# declares the same. Usage: symbols.sh LIBRARY HEADER
set -euo pipefail
list=$(dirname "$0")/exported_symbols.txt
diff <(nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | LC_ALL=C sort) "$list"
diff <(grep -oE '^INGOT_API [^(]*\(' "$2" | grep -oE 'ingot_[a-z_]+\($' | sed 's/($/@@INGOT_1/' | LC_ALL=C sort) "$list"
if readelf -d "$1" | grep -E 'NEEDED.*lib(edit|ncurses|tinfo)'; then exit 1; fi
if [ "$(wc -l < "$list")" -gt 32 ]; then echo "more than 32 functions"; exit 1; fi
