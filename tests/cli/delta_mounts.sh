#!/usr/bin/env bash
# delta_mounts.sh INGOT PYTHON: versions on file systems that share blocks (btrfs, XFS), on an overlay, and with mounts in
# and around the base. Each is the new version, or refused with nothing changed. Says which file systems this machine
# does not let us make or mount; tmpfs and bind mounts have to be there.
source "$(dirname "$0")/expect.sh"
ingot=$1 python=$2
enter=(unshare -m)
[ "$(id -u)" -eq 0 ] || enter=(unshare -rm)
if [ "${3:-}" != inside ]; then
  "${enter[@]}" true 2>/dev/null || { echo "no mounts here; nothing was tested" >&2; exit 77; }
  exec "${enter[@]}" bash "$0" "$ingot" "$python" inside
fi
mount --make-rprivate / 2>/dev/null
trap 'umount -R "$work"/* 2>/dev/null; chmod -R u+rwx "$work" 2>/dev/null; rm -rf "$work"' EXIT
PATH=$PATH:/usr/sbin

"$ingot" synth "$work/source0" --family qwen3_moe --scheme bf16 --like tiny --shards 3 --hidden 512 --moe-intermediate 512 \
  --experts 8 --vocab 8192 >/dev/null || fail "synth"
cp -r "$work/source0" "$work/source1"
# One value in the second file, and one in the last.
"$python" - "$work/source1" <<'END' || fail "change"
import pathlib, struct, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors"))[1:]:
    data = bytearray(path.read_bytes())
    data[8 + struct.unpack("<Q", data[:8])[0] + 100] ^= 1
    path.write_bytes(data)
END
to=(--to bf16 --progress never)
for i in 0 1; do "$ingot" convert "$work/source$i" "$work/out$i" "${to[@]}" >/dev/null 2>&1 || fail "convert $i"; done
expect 0 "version 1" "$ingot" delta make "$work/out0" "$work/out1" -o "$work/stream"

# applied CLAIM BASE TEXT [--in-place]: BASE, which is version 0, becomes version 1, and the report has TEXT.
applied() {
  expect 0 "$3" "$ingot" delta apply "$2" "$work/stream" --progress never "${@:4}"
  diff -r -x .weight_sync -x cache "$2" "$work/out1" >&2 || fail "$1: another version"
  [ -z "$(find "$2/.." -maxdepth 2 -name '.*ingot-*')" ] || fail "$1: something is left next to it"
}
refused() { # CLAIM BASE TEXT WORDS...
  judge 2 "$3" "$ingot" delta apply "$2" "$work/stream" --progress never "${@:4}"
  diff -r -x .weight_sync "$2" "$work/out0" >&2 || fail "$1: it has changed"
}
fresh() { # FOLDER
  mkdir -p "$1" && find "$1" -mindepth 1 -delete && cp -r "$work/out0/." "$1"
}
used() { sync -f "$1" && df --output=used -B1 "$1" | tail -1; }

for kind in btrfs xfs; do
  truncate -s 400M "$work/$kind.image"
  mkdir "$work/$kind"
  if ! { "mkfs.$kind" -q "$work/$kind.image" && mount -o loop "$work/$kind.image" "$work/$kind"; } >/dev/null 2>&1; then
    echo "no $kind here"
    continue
  fi
  echo "tried on $kind"
  at=$work/$kind
  cp -r "$work/out0" "$at/old"
  size=$(du -sb "$at/old" | cut -f1)
  before=$(used "$at")
  expect 0 "" "$ingot" convert "$work/source0" "$at/same" "${to[@]}" --base "$at/old" --links no
  diff -r "$work/out0" "$at/same" >&2 || fail "$kind: the output of a base differs"
  [ "$(stat -c %h "$at/same/model-00001-of-00003.safetensors")" -eq 1 ] || fail "$kind: a link, with --links no"
  more=$(($(used "$at") - before))
  [ "$more" -lt $((size / 10)) ] || fail "$kind: $more of $size bytes are not shared"
  cp -r --reflink=never "$work/out0" "$at/base"
  cp -r --reflink=always "$at/base" "$at/kept"
  before=$(used "$at")
  applied "$kind" "$at/base" "exchanged in one step"
  more=$(($(used "$at") - before))
  [ "$more" -lt $((size / 10)) ] || fail "$kind: $more of $size bytes are not shared by the new version"
  diff -r "$at/kept" "$work/out0" >&2 || fail "$kind: files with the same blocks have changed"
  fresh "$at/base"
  applied "$kind in place" "$at/base" "in place" --in-place
  umount "$at"
done

mkdir -p "$work"/{lower,upper,scratch,merged,place/base}
overlay() { # OPTIONS
  rm -rf "$work"/{upper,scratch} && mkdir "$work"/{upper,scratch}
  mount -t overlay overlay -o "lowerdir=$work/lower,upperdir=$work/upper,workdir=$work/scratch$1" "$work/merged" 2>/dev/null
}
fresh "$work/lower/base"
if overlay ",redirect_dir=off"; then
  # A directory of the lower layer has no other name.
  applied "a lower layer" "$work/merged/base" "in place: "
  fresh "$work/merged/new"
  applied "the upper layer" "$work/merged/new" "exchanged"
  umount "$work/merged"
  diff -r "$work/lower/base" "$work/out0" >&2 || fail "the lower layer has changed"
else
  echo "no overlays here"
fi

mount -t tmpfs tmpfs "$work/place/base" || fail "mount"
fresh "$work/place/base"
applied "a mount" "$work/place/base" "is another mount"
umount "$work/place/base"

fresh "$work/place/base"
mkdir "$work/place/base/cache"
mount -t tmpfs tmpfs "$work/place/base/cache" || fail "mount"
echo kept >"$work/place/base/cache/file"
applied "a mount inside" "$work/place/base" "in place, since"
[ "$(cat "$work/place/base/cache/file")" = kept ] || fail "a mount inside has changed"
umount "$work/place/base/cache"
rmdir "$work/place/base/cache"

for name in model-00001-of-00003.safetensors model-00002-of-00003.safetensors ingot.json; do
  fresh "$work/place/base"
  cp "$work/out0/$name" "$work/file"
  mount --bind "$work/file" "$work/place/base/$name" || fail "mount"
  case $name in
    model-00001*) applied "a file that stays is a mount" "$work/place/base" "in place, since" ;;
    *)
      refused "$name is a mount" "$work/place/base" "is another mount"
      refused "$name is a mount" "$work/place/base" "is another mount" --in-place
      ;;
  esac
  cmp "$work/file" "$work/out0/$name" || fail "$name was written through its mount"
  umount "$work/place/base/$name"
done
finish
