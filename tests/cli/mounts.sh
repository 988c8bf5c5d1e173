#!/usr/bin/env bash
# mounts.sh INGOT: an output that is the source, or inside of it, or around it, by another mount, and mounts in the place of
# ingot's own folders. Nothing that is there may change. Passes over what this machine does not let us mount.
source "$(dirname "$0")/expect.sh"
ingot=$1
enter=(unshare -m)
[ "$(id -u)" -eq 0 ] || enter=(unshare -rm)
if [ "${2:-}" != inside ]; then
  "${enter[@]}" true 2>/dev/null || { echo "no mounts here"; exit 0; }
  exec "${enter[@]}" bash "$0" "$ingot" inside
fi
mount --make-rprivate / 2>/dev/null
"$ingot" synth "$work/in" --family deepseek_v3 --like tiny --layers 2 --dense-layers 1 --experts 4 --mtp-layers 0 >/dev/null || fail "synth"
mkdir "$work"/{in/sub,place,around,upper,scratch,merged,out}
echo '{}' >"$work/in/sub/settings.json"
cp -r "$work/in" "$work/safe"
to=(--to bf16 --progress never --force)
refused() { # TEXT IN OUT
  judge 2 "$1" "$ingot" convert "$2" "$3" "${to[@]}"
  diff -r "$work/safe" "$work/in" >&2 || fail "the source has changed: convert $2 $3"
}

mount --bind "$work/in" "$work/place" || fail "mount"
for out in place place/new place/sub place/../place/sub/new; do
  refused "must not contain one another" "$work/in" "$work/$out"
  refused "must not contain one another" "$work/place" "$work/${out/#place/in}"
done
umount "$work/place"

# Folders below: the source's own, and the directory of a rank.
mount --bind "$work/in/sub" "$work/place"
refused "must not contain one another" "$work/in" "$work/place"
refused "must not contain one another" "$work/in" "$work/place/new"
umount "$work/place"
"$ingot" convert "$work/in" "$work/ranks" --tp 2 --tp-fit retile --progress never >/dev/null 2>&1 || fail "ranks"
cp -r "$work/ranks" "$work/safe-ranks"
mount --bind "$work/ranks" "$work/place"
judge 2 "must not contain one another" "$ingot" merge "$work/place" "$work/ranks" --progress never --force
judge 2 "must not contain one another" "$ingot" merge "$work/ranks" "$work/place" --progress never --force
umount "$work/place"
mount --bind "$(find "$work/ranks" -name "rank-0*" | head -1)" "$work/place"
judge 2 "must not contain one another" "$ingot" repair "$work/place" "$work/ranks" --progress never --force
umount "$work/place"
diff -r "$work/safe-ranks" "$work/ranks" >&2 || fail "the ranks have changed"

# A mount in place of the unfinished output.
mkdir "$work/out/.ingot-partial"
mount --bind "$work/in" "$work/out/.ingot-partial"
refused "is another mount" "$work/safe" "$work/out"
umount "$work/out/.ingot-partial"
rmdir "$work/out/.ingot-partial"

# An overlay has other devices than its layers.
if mount -t overlay overlay -o "lowerdir=$work/place,upperdir=$work/in,workdir=$work/scratch" "$work/merged" 2>/dev/null; then
  refused "must not contain one another" "$work/in" "$work/merged"
  refused "must not contain one another" "$work/in" "$work/merged/new"
  refused "must not contain one another" "$work/merged" "$work/in"
  refused "must not contain one another" "$work/merged" "$work/in/new"
  umount "$work/merged"
else
  echo "no overlays here"
fi
finish
