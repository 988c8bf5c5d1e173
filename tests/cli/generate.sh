#!/usr/bin/env bash
# Uses of `ingot generate`: prompts of every kind, documents, slices, and wrong input.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
fox="Tell me a story about a fox and a kite."
story="There was once a small fox, and his name was Sam."
answer() { "$ingot" generate "$@" 2>"$work/stderr" || fail "$*: $(cat "$work/stderr")"; }

# Text streams to stdout and nothing else does; figures go to stderr.
[ "$(answer "$example" --prompt "What is 2 + 2?" --greedy)" = "2 + 2 = 4." ] || fail "2 + 2"
grep -q "tokens/s.*first token after.*peak memory" "$work/stderr" || fail "no figures: $(cat "$work/stderr")"
[ "$(answer "$example" --prompt "中国的首都是哪里？" --greedy)" = "中国的首都是北京。" ] || fail "北京"
expect 0 "$story" "$ingot" generate "$example" --prompt "$fox" --greedy --max-new-tokens 20 --profile f32
[ "$(answer "$example" --prompt "$fox" --seed 3)" = "$(answer "$example" --prompt "$fox" --seed 3 --threads 1)" ] ||
  fail "one seed, two answers"

# A file of prompts is one batch, in order.
printf 'What is 2 + 2?\n\n\nWhat is the capital\nof Norway?\r\n\r\n中国的首都是哪里？' >"$work/prompts"
answer "$example" --prompts "$work/prompts" --greedy >"$work/answers"
[ "$(head -1 "$work/answers")" = "2 + 2 = 4." ] || fail "first of three: $(cat "$work/answers")"
grep -q Oslo "$work/answers" || fail "no Oslo: $(cat "$work/answers")"
[ "$(tail -1 "$work/answers")" = "中国的首都是北京。" ] || fail "last of three: $(cat "$work/answers")"

# A conversation as JSON, as text, from a terminal's pipe.
echo '[{"role":"user","content":"What is the capital of Norway?"},{"role":"assistant","content":"The capital of Norway is Oslo."},
  {"role":"user","content":"What is 2 + 2?"}]' >"$work/messages.json"
[ "$(answer "$example" --messages "$work/messages.json" --greedy)" = "2 + 2 = 4." ] || fail "messages"
[ "$(answer "$example" --raw --greedy --prompt '<｜User｜>What is 2 + 2?<｜Assistant｜>')" = "2 + 2 = 4." ] || fail "raw"
printf 'What is 2 + 2?\n/clear\n\nWhat is the capital of Norway?\n/exit\nnever\n' |
  "$ingot" generate "$example" --interactive --greedy >"$work/chat" 2>"$work/stderr" || fail "interactive"
[ "$(head -1 "$work/chat")" = "2 + 2 = 4." ] || fail "interactive: $(cat "$work/chat")"
[ "$(wc -l <"$work/chat")" -eq 2 ] || fail "two answers: $(cat "$work/chat")"

# Documents: BOS once, the id of the end included, text without it.
answer "$example" --prompt "What is 2 + 2?" --greedy --json >"$work/json"
python3 - "$work/json" <<'P' || fail "the document: $(cat "$work/json")"
import json, sys
d = json.load(open(sys.argv[1]))
s, = d["sequences"]
assert d["schema"] == 2 and s["prompt_ids"].count(0) == 1 and s["prompt_ids"][0] == 0
assert s["generated_ids"][-1] == 1 and s["text"] == "2 + 2 = 4." and s["stop"] == "eos"
assert d["prefill"]["tokens"] == 11 and d["prefill"]["tokens_per_second"] > 0
assert d["decode"]["tokens"] == 8 and d["seconds_to_first_token"] > 0 and d["peak_memory_bytes"] > 0
P
ids=$(python3 -c "import json; print(' '.join(map(str, json.load(open('$work/json'))['sequences'][0]['prompt_ids'])))")
[ "$(answer "$example" --tokens "$ids" --greedy)" = "24 613 227 24 523 227 26 20 1" ] || fail "ids in, ids out"
expect 0 '"stop": "length"' "$ingot" generate "$example" --prompt "$fox" --greedy --max-new-tokens 3 --json

# Without a tokenizer ids still go.
cp -r "$example" "$work/bare" && chmod -R u+w "$work/bare" && rm "$work/bare"/tokenizer*.json
expect 0 "24 613 227" "$ingot" generate "$work/bare" --tokens "$ids" --greedy
expect 2 "tokenizer" "$ingot" generate "$work/bare" --prompt hello

# Converted and sliced models answer alike, also with experts on demand.
"$ingot" convert "$example" "$work/ranks" --tp 2 --ep 4 --tp-fit retile --progress never >/dev/null || fail convert
for profile in f32 bf16 native; do
  [ "$(answer "$work/ranks" --prompt "What is 2 + 2?" --greedy --profile $profile)" = "2 + 2 = 4." ] || fail "ranks, $profile"
done
expect 2 "would be enough" "$ingot" generate "$example" --prompt "What is 2 + 2?" --mem-limit 1MB
enough=$(sed -n 's/.*--mem-limit \([0-9]*MB\) would be enough.*/\1/p' "$work/stderr")
[ "$(answer "$example" --prompt "What is 2 + 2?" --greedy --mem-limit "$enough")" = "2 + 2 = 4." ] || fail "in $enough"
grep -q "experts on demand" "$work/stderr" || fail "experts were not on demand in $enough"

# Many prompts wait for room in the caches, and arrive one after the other; a line of the log for each step.
for i in 1 2 3 4 5 6 7 8 9; do printf 'What is %s + 2?\n\n' $i; done >"$work/sums"
many=(--prompts "$work/sums" --greedy --profile f32)
answer "$example" "${many[@]}" >"$work/answers"
expect 2 "would be enough" "$ingot" generate "$example" "${many[@]}" --mem-limit 1MB
enough=$(sed -n 's/.*--mem-limit \([0-9]*MB\) would be enough.*/\1/p' "$work/stderr")
answer "$example" "${many[@]}" --mem-limit "$enough" --batch-tokens 3 --log "$work/log" >"$work/short"
cmp "$work/answers" "$work/short" || fail "answers in $enough: $(cat "$work/short")"
grep -q "at most . answered at once" "$work/stderr" || fail "no word of the steps: $(cat "$work/stderr")"
python3 - "$work/log" <<'P' || fail "a line of each step: $(tail -3 "$work/log")"
import json, sys
*steps, totals = map(json.loads, open(sys.argv[1]))
assert max(step["waiting"] for step in steps) > 0 and totals["steps"]["count"] == len(steps)
for step in steps:
    assert 0 < sum(step["tokens"].values()) <= 3 and step["cache"]["tokens"] <= step["cache"]["capacity"], step
P
printf '{"seconds": 0, "prompt": "%s"}\n{"seconds": 0.1, "id": 7, "prompt": "What is 2 + 2?"}\n' "$fox" >"$work/arrivals"
answer "$example" --arrivals "$work/arrivals" --greedy --jsonl >"$work/lines"
grep '"id":7' "$work/lines" | grep -F '"text":"2 + 2 = 4."' | grep -qF '"seconds":{"arrived":0.1,' || fail "arrivals: $(cat "$work/lines")"
printf '{"seconds": 1, "prompt": "a"}\n\n{"seconds": 0.5, "prompt": "b"}\n' >"$work/arrivals"
expect 2 'arrivals: line 3: an arrival has "seconds"' "$ingot" generate "$example" --arrivals "$work/arrivals"
expect 2 "--batch-tokens: 0 is not from 1 to 1048576" "$ingot" generate "$example" "${many[@]}" --batch-tokens 0
expect 2 "no such folder" "$ingot" generate "$example" "${many[@]}" --log "$work/none/log"
[ ! -c /dev/full ] || expect 2 "/dev/full: cannot write" "$ingot" generate "$example" "${many[@]}" --log /dev/full

# Wrong words and wrong input.
expect 2 "nothing to answer" "$ingot" generate "$example"
expect 2 "give one of" "$ingot" generate "$example" --prompt a --tokens 1
expect 2 "the prompt is empty" "$ingot" generate "$example" --prompt ""
expect 2 "not valid UTF-8" "$ingot" generate "$example" --prompt $'a\xff'
expect 2 "not within the vocabulary" "$ingot" generate "$example" --tokens 5,2048
expect 2 "--tokens takes ids" "$ingot" generate "$example" --tokens five
expect 2 "prompt 0 is empty" "$ingot" generate "$example" --tokens ""
expect 2 "context of 1024" "$ingot" generate "$example" --tokens "$(seq -s, 1 1025)"
expect 2 "--profile 'f64' is none of native, bf16, f32" "$ingot" generate "$example" --prompt a --profile f64
expect 2 "--kv-cache 'int3'" "$ingot" generate "$example" --prompt a --kv-cache int3
printf "\n\n" >"$work/blank"
expect 2 "holds no prompt" "$ingot" generate "$example" --prompts "$work/blank"
expect 2 "--temperature" "$ingot" generate "$example" --prompt a --temperature -1
sed -i 's/"deepseek_v32"/"mystery"/; s/DeepseekV32ForCausalLM/MysteryForCausalLM/' "$work/bare/config.json"
expect 2 "mystery" "$ingot" generate "$work/bare" --tokens 1
truncate -s -1000 "$work/ranks/rank-00000-of-00004"/*.safetensors
expect 2 "fetch this file again" "$ingot" generate "$work/ranks" --tokens 1
finish
