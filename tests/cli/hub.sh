#!/usr/bin/env bash
# Models are opened by their name on the hub where its cache has them, and nothing is changed there.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
commit=0123456789abcdef0123456789abcdef01234567

# cached CACHE: the example in a cache, as the hub's programs write it.
cached() {
  local folder=$1/models--Org--Tiny
  mkdir -p "$folder"/{blobs,refs} "$folder/snapshots/$commit"
  for file in "$example"/*; do
    cp "$file" "$folder/blobs/$(basename "$file")"
    ln -s "../../blobs/$(basename "$file")" "$folder/snapshots/$commit/$(basename "$file")"
  done
  printf %s $commit > "$folder/refs/main"
}
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_HOME XDG_CACHE_HOME
cached "$work/cache"
cd "$work" || exit 1

# Each variable by itself, in the order of the hub's own programs.
mkdir -p "$work/home/.cache/huggingface" "$work/hf"
ln -s "$work/cache" "$work/home/.cache/huggingface/hub"
ln -s "$work/cache" "$work/hf/hub"
export HOME=$work/home
expect 0 "snapshots/$commit" "$ingot" inspect Org/Tiny
expect 0 "snapshots/$commit" env HOME=/nowhere XDG_CACHE_HOME="$work/home/.cache" "$ingot" inspect Org/Tiny
expect 0 "snapshots/$commit" env XDG_CACHE_HOME=/nowhere HF_HOME="$work/hf" "$ingot" inspect Org/Tiny
expect 0 "snapshots/$commit" env HF_HOME='~/.cache/huggingface' "$ingot" inspect Org/Tiny
expect 0 "snapshots/$commit" env HF_HOME=/nowhere HF_HUB_CACHE="$work/cache" "$ingot" inspect Org/Tiny
expect 2 "hf download Org/Tiny --local-dir Tiny" env HF_HUB_CACHE="$work/none" "$ingot" inspect Org/Tiny
expect 2 "no such directory, and no model of that name in the hub's cache $work/home/.cache/huggingface/hub" \
  "$ingot" convert Org/Other "$work/out" --to bf16
expect 2 "hf download Org/Other --revision v2 --local-dir Other" "$ingot" check Org/Other@v2
expect 2 "has no refs/v2" "$ingot" check Org/Tiny@v2
expect 2 "no such directory" "$ingot" inspect no/such/directory

# In every command that opens a checkpoint.
expect 0 " 0 errors" "$ingot" check "Org/Tiny@$commit"
expect 0 "" "$ingot" convert Org/Tiny "$work/out" --to bf16 --progress never
expect 0 "PASS" "$ingot" verify Org/Tiny "$work/out" --levels structure,weights --progress never
expect 0 "" "$ingot" check Org/Tiny --source-of "$work/out"
expect 0 "" "$ingot" compare "$work/out" Org/Tiny --reference Org/Tiny --levels weights --progress never
expect 0 "" "$ingot" repair Org/Tiny "$work/repaired" --progress never
[ -f "$work/repaired/model-00001-of-00002.safetensors" ] && [ ! -L "$work/repaired/model-00001-of-00002.safetensors" ] ||
  fail "a repair copies links"
expect 0 "" "$ingot" repair "$work/cache/models--Org--Tiny" "$work/mended" --progress never
expect 0 "" "$ingot" generate Org/Tiny --prompt x --max-new-tokens 1
expect 0 "" "$ingot" list roles Org/Tiny
expect 0 "" "$ingot" convert Org/Tiny "$work/ranks" --ep 2 --progress never
mkdir -p "$work/cache/models--Org--Ranks/refs" "$work/cache/models--Org--Ranks/snapshots"
mv "$work/ranks" "$work/cache/models--Org--Ranks/snapshots/$commit"
printf %s $commit > "$work/cache/models--Org--Ranks/refs/main"
expect 0 "" "$ingot" merge Org/Ranks "$work/merged" --progress never
cmp "$example/model-00001-of-00002.safetensors" "$work/merged/model-00001-of-00002.safetensors" || fail "merged"

# A directory of that name wins.
mkdir -p "$work/Org" && cp -r "$work/out" "$work/Org/Tiny"
expect 0 "inspect Org/Tiny" bash -c "echo inspect Org/Tiny; '$ingot' inspect Org/Tiny --json | grep -q snapshots && exit 1; exit 0"
rm -r "$work/Org"

# Nothing is deleted or replaced in the cache.
(cd "$work/cache" && find . -type f -exec sha256sum {} + | sort) > "$work/before"
snapshot=$work/cache/models--Org--Tiny/snapshots/$commit
ln -s "$snapshot" "$work/link"
for source in Org/Tiny "$snapshot" "$work/link" "$work/cache/models--Org--Tiny"; do
  expect 2 "lies in the hub's cache" "$ingot" convert "$source" "$work/new" --to bf16 --consume-source
done
expect 2 "hf download ORG/NAME --local-dir DIR" "$ingot" convert Org/Tiny "$work/new" --to bf16 --consume-source
ranks=$work/cache/models--Org--Ranks/snapshots/$commit
for output in "$ranks" "$ranks/new" "$work/cache/models--Org--Ranks/blobs/x"; do
  expect 2 "lies in the hub's cache $work/cache/models--Org--Ranks" "$ingot" convert "$example" "$output" --to bf16
  expect 2 "lies in the hub's cache" "$ingot" convert "$example" "$output" --to bf16 --force
  expect 2 "lies in the hub's cache" "$ingot" repair "$example" "$output" --force
done
expect 2 "lies in the hub's cache" "$ingot" convert "$example" "$work/home/.cache/huggingface/hub/mine" --to bf16 --force
(cd "$work/cache" && find . -type f -exec sha256sum {} + | sort) | cmp - "$work/before" || fail "the cache has changed"

# A snapshot that lacks files says how to get them.
rm "$work/cache/models--Org--Tiny/blobs/model-00002-of-00002.safetensors"
expect 2 "this snapshot in the hub's cache is not complete: hf download Org/Tiny --revision $commit" \
  "$ingot" convert Org/Tiny "$work/new" --to bf16
finish
