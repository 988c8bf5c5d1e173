#!/usr/bin/env bash
# many_machines.sh INGOT: four parts of a conversion as four users, each in a mount namespace of its own that shows the
# source, the shared output and no other user's files; a fifth user joins them. The result is that of one run. It needs
# root (for users and namespaces), and says so.
set -euo pipefail
ingot=$(realpath "${1:?usage: scripts/many_machines.sh INGOT}")
for tool in unshare setpriv; do
  command -v $tool >/dev/null || { echo "needs $tool (util-linux)" >&2; exit 2; }
done
[ "$(id -u)" -eq 0 ] || { echo "needs root, to become several users in namespaces of their own" >&2; exit 2; }
unshare --mount --uts --pid --ipc --fork true 2>/dev/null || { echo "this kernel or container refuses namespaces" >&2; exit 2; }

n=4 group=70000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
install -m 755 "$ingot" "$work/ingot"
"$work/ingot" synth "$work/source" --family deepseek_v3 --layers 2 --dense-layers 1 --experts 4 --shards 3 >/dev/null
options=(--to nvfp4 --max-shard-size 24MB --progress never)
"$work/ingot" convert "$work/source" "$work/whole" "${options[@]}" >/dev/null
# Shared by a group: what a user makes there is the group's, and may be written by it.
mkdir "$work/shared"
chgrp $group "$work/shared"
chmod 2775 "$work/shared"

# as_user NUMBER WORDS...: on a "host" of its own: names, processes, and the folders of all but this work.
as_user() {
  local user=$((70000 + $1))
  shift
  unshare --mount --uts --pid --ipc --mount-proc --fork bash -c '
    hostname "host$0"
    mount -t tmpfs none /home; mount -t tmpfs none /var/tmp
    umask 002
    exec setpriv --reuid="$0" --regid='$group' --clear-groups "$@"' "$user" "$@"
}

pids=()
for ((i = 0; i < n; i++)); do
  as_user $((i + 1)) "$work/ingot" convert "$work/source" "$work/shared/out" "${options[@]}" --part "$i/$n" >"$work/part$i" 2>&1 &
  pids+=($!)
done
for ((i = 0; i < n; i++)); do wait "${pids[$i]}" || { echo "part $i: $(cat "$work/part$i")" >&2; exit 1; }; done
owners=$(stat -c %u "$work/shared/out/.ingot-partial/files"/*.safetensors | sort -u | wc -l)
as_user 9 "$work/ingot" join "$work/shared/out" --progress never >/dev/null
diff -r "$work/whole" "$work/shared/out"
echo "$n parts of $owners users, joined by another: the bytes of one run"
[ "$owners" -eq "$n" ]
