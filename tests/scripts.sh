#!/usr/bin/env bash
# What scripts/test.sh and scripts/demo.sh say: how long they take, before they begin, as README.md says it; and commands
# that can be copied. They run in a folder of their own, and what they call only notes that it was called.
set -euo pipefail
source=$(realpath "$(dirname "$0")/..")
root=$(mktemp -d "${TMPDIR:-/tmp}/ingot-scripts-XXXXXX")
trap 'rm -rf "$root"' EXIT
fail() { echo "$*" >&2; exit 1; }
mkdir -p "$root"/{scripts,tests,bin,examples/tiny-v32}
cp "$source"/scripts/{test,demo}.sh "$root/scripts"
printf '# seconds\ncheck 100\ncli.align 200.5\n' >"$root/tests/durations.txt"
cp "$source/CMakeLists.txt" "$root"
for script in scripts/deps.sh scripts/build.sh bin/ctest; do
  printf '#!/bin/sh\necho "began: %s" >>"%s/order"\n' "$script" "$root" >"$root/$script"
  chmod +x "$root/$script"
done
export PATH=$root/bin:$PATH

# test.sh, and its time for this many processors.
printf '#!/bin/sh\necho 2\n' >"$root/bin/nproc"
chmod +x "$root/bin/nproc"
"$root/scripts/test.sh" >"$root/said" 2>&1 || fail "test.sh fails: $(cat "$root/said")"
[ "$(cat "$root/order")" = $'began: scripts/deps.sh\nbegan: scripts/build.sh\nbegan: bin/ctest' ] || fail "$(cat "$root/order")"
head -2 "$root/said" | paste -sd' ' | grep -q '7 min on two cores.*300 CPU-seconds, about 3 min' ||
  fail "test.sh does not say how long it takes: $(cat "$root/said")"

# One time of the build, wherever it is said.
times=$(grep -ohE '(ingot_cli +# |compiles ingot \(|the program )[0-9]+ min on two cores' \
  "$source/README.md" "$source"/scripts/{demo,test}.sh | grep -oE '[0-9]+ min')
[ "$(wc -l <<<"$times")" -eq 3 ] && [ "$(sort -u <<<"$times" | wc -l)" -eq 1 ] || fail "times of a build: $times"

# demo.sh: a shell reads each printed command as the words that were run, and the outputs stay.
git -C "$root" init -q
git -C "$root" -c user.name=a -c user.email=a@b commit -q --allow-empty -m a
version=$(sed -n 's/^project(ingot VERSION \([0-9.]*\) .*/\1/p' "$root/CMakeLists.txt")
cat >"$root/bin/note" <<E2
#!/bin/bash
if [ "\$(basename "\$0") \$*" = "ingot --version" ]; then
  printf 'ingot $version\n  commit  %s\n' "\$(git -C "$root" rev-parse --short=12 HEAD)"
  exit
fi
printf '%s' "\$(basename "\$0")" >>"\$NOTED"
printf ' <%s>' "\$@" >>"\$NOTED"
echo >>"\$NOTED"
if [ "\$1" = convert ] && [ ! -e "\$3" ]; then mkdir "\$3" && touch "\$3/model.safetensors"; fi
E2
for program in ingot python3 mpirun cmp cp; do cp "$root/bin/note" "$root/bin/$program"; done
chmod +x "$root"/bin/*
NOTED=$root/ran "$root/scripts/demo.sh" >"$root/said" 2>&1 </dev/null || fail "demo.sh fails: $(tail -5 "$root/said")"
sed -n 's/^\$ //p' "$root/said" >"$root/copied"
(cd "$root" && NOTED=$root/again bash -e copied >/dev/null)
diff "$root/ran" "$root/again" || fail "demo.sh prints other commands than it runs"
[ "$(wc -l <"$root/copied")" -gt 20 ] || fail "demo.sh prints few commands"
[ -d "$root/build/demo/nvfp4" ] || fail "demo.sh keeps no output"
grep -qF "export PATH=$root/bin:" "$root/said" || fail "demo.sh does not say where the program is"
