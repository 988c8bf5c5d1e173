#!/usr/bin/env bash
# file_systems.sh INGOT EXAMPLE LIBRARY: file systems that lack what others have (network and FUSE mounts), each in
# every way of saying so. The output has the usual bytes, and what is missing is said once.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2 library=$3
"$ingot" convert "$example" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
"$ingot" convert "$example" "$work/whole_ranks" --tp 2 --ep 2 --tp-fit retile --progress never >/dev/null 2>&1 || fail "convert for ranks"

# lacking FAULTS WARNING NAME OPTIONS...: converts under faults, and compares with NAME.
lacking() {
  local faults=$1 warning=$2 name=$3
  shift 3
  rm -rf "$work/out"
  INGOT_FAULTS=$faults LD_PRELOAD=$library "$ingot" convert "$example" "$work/out" --progress never "$@" \
    >"$work/stdout" 2>"$work/stderr" || fail "$faults: $(cat "$work/stderr")"
  diff -r "$work/$name" "$work/out" || fail "$faults: the output differs"
  [ -z "$warning" ] && return
  local said
  said=$(cat "$work/stdout" "$work/stderr" | grep -cF -- "$warning")
  [ "$said" -eq 1 ] || fail "$faults: '$warning' was said $said times"
}

for error in EINVAL EOPNOTSUPP ENOSYS EPERM; do
  lacking "fsyncdir:$error:1" "cannot sync directories" whole --to bf16
  lacking "fallocate:$error:1" "cannot reserve space" whole --to bf16
  lacking "syncfs:$error:1" "" whole_ranks --tp 2 --ep 2 --tp-fit retile
  lacking "link:$error:1" "has no hard links" whole_ranks --tp 2 --ep 2 --tp-fit retile
  lacking "flock:$error:1" "has no locks" whole --to bf16
done
lacking "flock:ENOLCK:1" "has no locks" whole --to bf16

# A signal may interrupt any call.
calls="open pread pwrite fsync fsyncdir fdatasync syncfs fallocate ftruncate link rename flock"
interrupted=""
for call in $calls; do interrupted="$interrupted$call:EINTR:1;"; done
lacking "$interrupted" "" whole --to bf16 --read-back
lacking "$interrupted" "" whole_ranks --tp 2 --ep 2 --tp-fit retile

# Without locks a claim is dead when nobody renews it.
rm -rf "$work/out"
claim=$work/out/.ingot-partial/claims/whole.1.claim
mkdir -p "${claim%/*}"
echo '{"host":"h","boot":"b","pid":77,"started":"then","command":"ingot convert"}' >"$claim"
renew() { while sleep 0.1; do touch "$claim"; done; }
renew &
for options in "" --resume --force; do
  INGOT_FAULTS="flock:EOPNOTSUPP:1" LD_PRELOAD=$library judge 2 "process 77 on h" \
    "$ingot" convert "$example" "$work/out" --to bf16 --progress never $options
done
kill $!
wait $! 2>/dev/null
touch -d '2 minutes ago' "$claim"
INGOT_FAULTS="flock:EOPNOTSUPP:1" LD_PRELOAD=$library expect 0 "" \
  "$ingot" convert "$example" "$work/out" --to bf16 --progress never --resume
diff -r "$work/whole" "$work/out" || fail "the output differs"

# NFS and FUSE keep a file that is removed while it is open, and its folder with it: none is.
export INGOT_SILLY=1
lacking "" "" whole --to bf16 --read-back
lacking "" "" whole_ranks --tp 2 --ep 2 --tp-fit retile
rm -rf "$work/out"
for words in "convert $example $work/out --to bf16 --part 0/2" "convert $example $work/out --to bf16 --part 1/2" "join $work/out" \
    "convert $example $work/out --to bf16 --resume"; do
  LD_PRELOAD=$library expect 0 "" "$ingot" $words --progress never
done
diff -r "$work/whole" "$work/out" || fail "the output of parts differs"
unset INGOT_SILLY

# Other errors of the same calls end the run.
for call in fsyncdir fallocate fdatasync; do
  rm -rf "$work/out"
  INGOT_FAULTS="$call:EIO:1" LD_PRELOAD=$library judge 2 "Input/output error" \
    "$ingot" convert "$example" "$work/out" --to bf16 --progress never
  expect_unpublished "$work/out"
done
finish
