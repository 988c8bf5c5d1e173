#!/usr/bin/env bash
# hosts.sh INGOT EXAMPLE LIBRARY: ranks on several hosts answer, and end, as on one. The hosts are network namespaces with names of
# their own, joined by one cable; each mounts its own ranks' directories. The preloaded
# LIBRARY kills a rank. Needs the right to make them.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PATH=$PATH:/usr/sbin:/sbin
net=ingot$$
if ! ip netns add "${net}a" 2>/dev/null; then
  echo "no right to make a network namespace here; nothing was tested" >&2
  exit 1
fi
trap 'ip netns del ${net}a; ip netns del ${net}b; rm -rf "$work"' EXIT
ip netns add "${net}b" || fail "a second host"
ip link add cable netns "${net}a" type veth peer name cable netns "${net}b" || fail "a cable"
for host in a b; do
  address=10.77.0.$([ $host = a ] && echo 1 || echo 2)
  { ip -n "$net$host" addr add $address/24 dev cable && ip -n "$net$host" link set cable up &&
    ip -n "$net$host" link set lo up; } || fail "the address of host $host"
done

# on HOST COMMAND...: each host has its own model directory.
cat >"$work/on" <<S
#!/usr/bin/env bash
host=\$([ "\$1" = 10.77.0.1 ] && echo a || echo b)
shift
exec ip netns exec $net\$host unshare --uts --mount bash -c '
  hostname ingot-\$1 && mount --bind "$work/host\$1" "$work/model" && shift && eval "\$*"' on "\$host" "\$@"
S
chmod +x "$work/on"
printf '10.77.0.1 slots=2\n10.77.0.2 slots=2\n' >"$work/hostfile"
launch() {
  timeout 120 "$work/on" 10.77.0.1 "$(printf '%q ' mpirun --hostfile "$work/hostfile" --mca plm_rsh_agent "$work/on" \
    --mca btl tcp,self --mca btl_tcp_if_include cable --mca oob_tcp_if_include cable --oversubscribe --bind-to none -n 4 "$@")"
}
received() { ip netns exec "${net}b" cat /sys/class/net/cable/statistics/rx_bytes; }

"$ingot" convert "$example" "$work/whole" --tp 2 --ep 4 --tp-fit retile --progress never >/dev/null 2>&1 || fail "cut"
mkdir -p "$work/model" "$work/hosta" "$work/hostb"
cp -r "$work"/whole/rank-0000[01]-of-00004 "$work/hosta"
cp -r "$work"/whole/rank-0000[23]-of-00004 "$work/hostb"
[ "$(launch sh -c hostname | sort | uniq -c | xargs)" = "2 ingot-a 2 ingot-b" ] || fail "two ranks on each host"

printf 'What is 2 + 2?\n\nTell me a story about a fox and a kite.\n\nWhat is the capital of Norway?' >"$work/prompts"
answer=(--prompts "$work/prompts" --greedy --max-new-tokens 16 --profile f32 --json --threads 1 --mem-limit 1G)
ids() { python3 -c 'import json, sys; print([s["generated_ids"] for s in json.load(sys.stdin)["sequences"]])'; }
whole=$("$ingot" generate "$work/whole" "${answer[@]}" 2>/dev/null | ids)
before=$(received)
hosts=$(launch "$ingot" generate "$work/model" "${answer[@]}" 2>"$work/stderr" | ids)
[ "$(wc -w <<<"$whole")" -gt 20 ] && [ "$hosts" = "$whole" ] || fail "hosts answer $hosts, one process $whole: $(cat "$work/stderr")"
[ $(($(received) - before)) -gt 100000 ] || fail "only $(($(received) - before)) bytes came through the cable"

verify=("$example" "$work/model" --levels "layers,greedy" --profile f32 --progress never --threads 1 --mem-limit 1G)
launch "$ingot" verify "${verify[@]}" >"$work/stdout" 2>"$work/stderr" || fail "verify: $(cat "$work/stderr" "$work/stdout")"

# A fault on the second host is told by the first one, and its death ends both.
cp "$work"/hostb/*/ep-02-of-04-00001-of-00001.safetensors "$work/kept"
truncate -s -1000 "$work"/hostb/*/ep-02-of-04-00001-of-00001.safetensors
judge 2 "ep-02-of-04" launch "$ingot" generate "$work/model" "${answer[@]}"
cp "$work/kept" "$(echo "$work"/hostb/*/ep-02-of-04-00001-of-00001.safetensors)"
# shellcheck disable=SC2016
launch bash -c 'if [ "$OMPI_COMM_WORLD_RANK" = 3 ]; then export INGOT_FAULTS=pread:KILL:4 LD_PRELOAD=$1; fi; shift; exec "$@"' \
  rank "$library" "$ingot" generate "$work/model" --prompt hello --greedy >"$work/stdout" 2>"$work/stderr" &&
  fail "a killed rank: $(cat "$work/stderr")"
grep -q "exited on signal 9" "$work/stderr" || fail "not ended by the launcher: $(cat "$work/stderr")"
finish
