#!/usr/bin/env bash
# many_machines.sh INGOT: four parts of a conversion as four users, each in a mount namespace of its own that shows the
# source and the shared output; a fifth user joins them. Then a part whose host is lost is taken over by another, which
# takes a minute. The result is that of one run. It needs root (for users and namespaces), and says so.
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

# on_host HOST USER WORDS...: with a name, processes and a boot id of its own, so that no lock proves anything to the
# others, and without the folders of users.
on_host() {
  local host=$1 user=$((70000 + $2))
  shift 2
  unshare --mount --uts --pid --ipc --mount-proc --fork bash -c '
    hostname "host$0"
    mount -t tmpfs none /home
    mount -t tmpfs none /var/tmp
    echo "boot-of-host$0" >/var/tmp/boot
    mount --bind /var/tmp/boot /proc/sys/kernel/random/boot_id
    umask 002
    user=$1
    shift
    exec setpriv --reuid="$user" --regid='$group' --clear-groups "$@"' "$host" "$user" "$@"
}
command=("$work/ingot" convert "$work/source" "$work/shared/out" "${options[@]}")

pids=()
for ((i = 0; i < n; i++)); do
  on_host $i $i "${command[@]}" --part "$i/$n" >"$work/part$i" 2>&1 &
  pids+=($!)
done
for ((i = 0; i < n; i++)); do wait "${pids[$i]}" || { echo "part $i: $(cat "$work/part$i")" >&2; exit 1; }; done
owners=$(stat -c %u "$work/shared/out/.ingot-partial/files"/*.safetensors | sort -u | wc -l)
on_host 9 9 "$work/ingot" join "$work/shared/out" --progress never >/dev/null
diff -r "$work/whole" "$work/shared/out"
[ "$owners" -eq "$n" ]
echo "$n parts of $owners users, joined by another: the bytes of one run"

# A host that is lost: another takes its part over when the claim was not renewed for a minute.
rm -rf "$work/shared/out"
on_host 1 1 "${command[@]}" --part 1/2 >/dev/null 2>&1
on_host 0 1 bash -c '"$@" & sleep 0.05; kill -9 $!' lost "${command[@]}" --part 0/2 >/dev/null 2>&1 || true
on_host 2 1 "${command[@]}" --part 0/2 --resume >/dev/null 2>&1
on_host 9 9 "$work/ingot" join "$work/shared/out" --progress never >/dev/null
diff -r "$work/whole" "$work/shared/out"
echo "a part of a lost host, taken over by another: the bytes of one run"
