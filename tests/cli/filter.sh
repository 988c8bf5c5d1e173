#!/usr/bin/env bash
# A command among others in a pipe: standard input, JSON lines, --quiet; one weights file, and a hub folder.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
sum="What is 2 + 2?" capital="What is the capital of Norway?"

# same WANTED COMMAND...: what is printed on stdout; stdin comes through.
same() {
  local wanted=$1 got
  shift
  got=$("$@" 2>"$work/stderr") || fail "$*: $(cat "$work/stderr")"
  [ "$got" = "$wanted" ] || fail "'$got' instead of '$wanted': $*"
}

# - is the standard input, whatever it is: a pipe, a file, a socket.
echo "$sum" | same "2 + 2 = 4." "$ingot" generate "$example" --prompt - --greedy
printf '%s\n\n%s\n' "$sum" "$sum" | same $'2 + 2 = 4.\n\n2 + 2 = 4.' "$ingot" generate "$example" --prompts - --greedy
printf '"%s"\n{"prompt": "%s"}\n' "$sum" "$sum" |
  same $'2 + 2 = 4.\n\n2 + 2 = 4.' "$ingot" generate "$example" --prompts - --greedy
echo "[{\"role\": \"user\", \"content\": \"$sum\"}]" | same "2 + 2 = 4." "$ingot" generate "$example" --messages - --greedy
echo "$sum" >"$work/prompts"
same "2 + 2 = 4." "$ingot" generate "$example" --prompts - --greedy <"$work/prompts"
same "2 + 2 = 4." "$ingot" generate "$example" --prompts <(cat "$work/prompts") --greedy
python3 - "$ingot" "$example" <<'P' || fail "a socket as standard input"
import socket, subprocess, sys
ours, theirs = socket.socketpair()
run = subprocess.Popen([sys.argv[1], "generate", sys.argv[2], "--prompt", "-", "--greedy", "--quiet"],
                       stdin=theirs, stdout=subprocess.PIPE)
theirs.close()
ours.sendall(b"What is 2 + 2?\n")
ours.close()
assert run.communicate()[0] == b"2 + 2 = 4.\n" and run.returncode == 0
P
ids=$("$ingot" generate "$example" --prompt "$sum" --greedy --json 2>/dev/null |
  python3 -c 'import json, sys; print(*json.load(sys.stdin)["sequences"][0]["prompt_ids"])')
printf '%s\n\n%s\r\n' "$ids" "${ids// /, }" | same $'24 613 227 24 523 227 26 20 1\n\n24 613 227 24 523 227 26 20 1' \
  "$ingot" generate "$example" --tokens - --greedy
expect 2 "the prompt is empty" "$ingot" generate "$example" --prompt -
expect 2 "/dev/stdin: holds no prompt" "$ingot" generate "$example" --prompts -
expect 2 "/dev/stdin: holds no token ids" "$ingot" generate "$example" --tokens -
expect 2 "both read the standard input" "$ingot" verify "$example" "$example" --levels layers --prompts - --text -
yes | head -c 68000000 | "$ingot" generate "$example" --prompts - >"$work/stdout" 2>"$work/stderr" && fail "68 MB of prompts"
grep -q "/dev/stdin: has more than the 67108864 bytes" "$work/stderr" || fail "no limit in: $(cat "$work/stderr")"
echo '{"prompt": 7}' | "$ingot" generate "$example" --prompts - --jsonl >"$work/stdout" 2>"$work/stderr" && fail "a number as a prompt"
grep -q "/dev/stdin: line 1: " "$work/stderr" || fail "no line in: $(cat "$work/stderr")"

# Texts to be measured.
printf 'Once upon a time there was a small fox.\n' >"$work/text.txt"
printf '{"docs": ["Once upon a time there was a small fox."]}' >"$work/text.json"
printf '"Once upon a time there was a small fox."\n' >"$work/text.jsonl"
perplexity() { python3 -c 'import json, sys; print(json.load(sys.stdin)["text"])'; }
for text in text.txt text.json text.jsonl; do
  "$ingot" verify "$example" --text "$work/$text" --json 2>/dev/null | perplexity >"$work/named"
  "$ingot" verify "$example" --text - --json <"$work/$text" 2>/dev/null | perplexity >"$work/piped"
  [ -s "$work/named" ] && cmp -s "$work/named" "$work/piped" || fail "$text differs when it comes from a pipe"
done
"$ingot" calibrate "$example" --text - --out "$work/statistics.safetensors" --quiet <"$work/text.jsonl" >/dev/null || fail "calibrate from a pipe"

# JSON lines in and out: one object per answer, with its prompt and id; the shorter answer may come first.
printf '{"id": "a", "prompt": "%s", "more": 1}\n\n{"id": 7, "messages": [{"role": "user", "content": "%s"}]}\n"%s"\n' \
  "$sum" "$capital" "$sum" >"$work/in"
"$ingot" generate "$example" --prompts "$work/in" --jsonl --greedy >"$work/out" 2>"$work/stderr" || fail "jsonl: $(cat "$work/stderr")"
python3 - "$work/out" <<'P' || fail "the lines: $(cat "$work/out")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["index"] for line in lines] == [0, 2, 1], lines   # as they finish
first, third, second = lines
assert first["id"] == "a" and first["prompt"] == third["prompt"] == "What is 2 + 2?" and "id" not in third
assert second["id"] == 7 and second["messages"][0]["role"] == "user" and "Oslo" in second["text"]
assert first["text"] == "2 + 2 = 4." and first["stop"] == "eos" and first["generated_ids"][-1] == 1
P
"$ingot" generate "$example" --prompts - --jsonl --greedy --quiet <"$work/in" 2>"$work/stderr" | cmp -s - "$work/out" || fail "JSON lines from a pipe"
[ ! -s "$work/stderr" ] || fail "--quiet says: $(cat "$work/stderr")"
"$ingot" generate "$example" --tokens "$ids" --jsonl --greedy --quiet | grep -q '^{"index":0,"prompt_ids":' || fail "ids as a line"
expect 2 "--json" "$ingot" generate "$example" --prompt x --json --jsonl
expect 2 "--jsonl" "$ingot" generate "$example" --interactive --jsonl

# --quiet leaves the result and errors.
cp -r "$example" "$work/in.d" && chmod -R u+w "$work/in.d" && : >"$work/in.d/picture.png"
"$ingot" inspect "$work/in.d" >"$work/loud" 2>"$work/stderr"
grep -q warning "$work/stderr" || fail "no warning without --quiet"
for arguments in "inspect $work/in.d" "check $example" "list schemes" "convert $work/in.d $work/bf16 --to bf16 --progress always" \
  "verify $example $work/bf16 --progress always" "synth $work/synth --family deepseek_v3 --like tiny" "help" "completions bash"; do
  # shellcheck disable=SC2086
  "$ingot" $arguments --quiet >"$work/stdout" 2>"$work/stderr" || fail "$arguments --quiet"
  [ -s "$work/stdout" ] || fail "$arguments --quiet has no result"
  [ ! -s "$work/stderr" ] || fail "$arguments --quiet says: $(cat "$work/stderr")"
done
"$ingot" inspect "$work/in.d" --quiet | cmp -s - "$work/loud" || fail "--quiet changes a result"
expect 2 "error: " "$ingot" inspect "$work/absent" --quiet

# A single file: any names, and any other files in its folder.
one=$example/model-00001-of-00002.safetensors
expect 0 "generic" "$ingot" inspect "$one"
expect 0 "model.embed_tokens.weight" "$ingot" inspect "$one" model.embed_tokens.weight
expect 0 "generic: " "$ingot" check "$one"
# At its border the scale of a weight is in the next file.
expect 0 "whose codes or scales are in another file: model.layers.3.mlp.experts.15.gate_proj.weight" "$ingot" inspect "$one"
expect 0 "left out: 1 tensor" "$ingot" check "$one"
expect 0 "PASS" "$ingot" verify "$one" "$one"
expect 0 "deepseek_v32" "$ingot" inspect "$one" --config "$example/config.json"
expect 2 "is not a directory" "$ingot" convert "$one" "$work/none" --to bf16
cp "$one" "$work/one.safetensors" && chmod u+w "$work/one.safetensors"
(cd "$work" && judge 0 "generic" "$ingot" inspect one.safetensors && "$ingot" check one.safetensors >/dev/null) || fail "a file by its bare name"
python3 - "$work/one.safetensors" <<'P'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    f.seek(8 + n + 1000)
    b = f.read(1)
    f.seek(8 + n + 1000)
    f.write(bytes([b[0] ^ 0x55]))
P
expect 1 "FAIL" "$ingot" verify "$one" "$work/one.safetensors"
truncate -s -7 "$work/one.safetensors"
for command in inspect check; do expect 2 "one.safetensors" "$ingot" $command "$work/one.safetensors"; done
expect 2 "one.safetensors" "$ingot" verify "$work/one.safetensors" "$one"
: >"$work/empty.safetensors"
expect 2 "empty.safetensors" "$ingot" inspect "$work/empty.safetensors"

# A model's folder in the hub's cache, in every place.
hub=$work/models--ingot--tiny
mkdir -p "$hub/blobs" "$hub/refs" "$hub/snapshots" && cp -r "$example" "$hub/snapshots/0a1b" && printf 0a1b >"$hub/refs/main"
for arguments in "inspect $hub" "check $hub" "verify $hub $hub" "verify $example $hub" "generate $hub --prompt x --max-new-tokens 1"; do
  # shellcheck disable=SC2086
  expect 0 "" "$ingot" $arguments
done
finish
