#!/usr/bin/env bash
# A small tmpfs: refused before the start when the plan does not fit, and statements; needs the right to mount.
source "$(dirname "$0")/expect.sh"
ingot=$1
mkdir "$work/small"
if ! mount -t tmpfs -o size=20m tmpfs "$work/small" 2>/dev/null; then
  echo "no right to mount a tmpfs here; nothing was tested" >&2
  exit 1
fi
trap 'umount "$work/small"; rm -rf "$work"' EXIT
"$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers 2 --dense-layers 1 --experts 8 --mtp-layers 0 --hidden 1024 \
  --moe-intermediate 512 --intermediate 2048 --heads 16 --vocab 4096 >/dev/null || fail "synth"
"$ingot" convert "$work/in" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
expect 2 "free" "$ingot" convert "$work/in" "$work/small/out" --to bf16 --progress never
expect_unpublished "$work/small/out"
# Something else takes the space after the start: the job fails in the middle and can go on later.
mount -o remount,size=$(($(du -sm "$work/whole" | cut -f1) + 16))m "$work/small"
"$ingot" convert "$work/in" "$work/small/out" --to bf16 --progress never --threads 1 >"$work/stdout" 2>"$work/stderr" &
convert=$!
while kill -0 $convert 2>/dev/null && [ ! -e "$work/small/out/.ingot-partial/files" ]; do :; done
head -c 1G /dev/zero >"$work/small/hog" 2>/dev/null
wait $convert
status=$?
if [ $status -ne 0 ]; then
  [ $status -eq 2 ] || fail "exit status $status"
  grep -q "No space left" "$work/stderr" || fail "$(cat "$work/stderr")"
  expect_unpublished "$work/small/out"
  rm -f "$work/small/hog"
  expect 0 "" "$ingot" convert "$work/in" "$work/small/out" --to bf16 --progress never --resume
fi
echo "with the disk filled meanwhile: exit status $status"
diff -r "$work/whole" "$work/small/out" || fail "the output differs"

# A statement for which there is no room leaves nothing, and one that is there as it was.
cp "$(dirname "$0")/../golden/oms/signers/ed25519.pem" "$work/key.pem"
chmod 600 "$work/key.pem"
fill() { head -c 1G /dev/zero >"$work/small/hog" 2>/dev/null || true; }
attest=("$ingot" attest "$work/small/out" --key "$work/key.pem" --source "$work/in" --progress never)
fill
expect 2 "No space left" "${attest[@]}"
diff -r "$work/whole" "$work/small/out" || fail "something of a statement is left"
rm "$work/small/hog"
expect 0 "signed with Ed25519" "${attest[@]}"
cp "$work/small/out/ingot.intoto.json" "$work/before"
fill
expect 2 "No space left" "${attest[@]}"
cmp "$work/small/out/ingot.intoto.json" "$work/before" || fail "the statement changed"
finish
