#!/usr/bin/env bash
# Faults of new users: strange directories, options without effect, too wide rules, and messages that name the cause.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
cp -r "$example" "$work/m"
lines() { grep -c . "$work/stdout" "$work/stderr" | awk -F: '{n += $2} END {print n}'; }
# json COMMAND...: its document, whatever the exit status.
json() { "$@" --json >"$work/json" 2>/dev/null </dev/null; true; }

# Files that are no part of the checkpoint are left out, with a word.
cp "$example/generation_config.json" "$work/m/consolidated.safetensors"
mkdir "$work/m/original" "$work/m/figures"
echo x | tee "$work/m/original/params.json" "$work/m/pytorch_model.bin" "$work/m/a.gguf" >"$work/m/figures/logo.png"
expect 0 "warning: left out, weights that the checkpoint does not use: consolidated.safetensors" "$ingot" inspect "$work/m"
expect 0 "original/" "$ingot" inspect "$work/m"
expect 0 "warning: $work/m: left out, pictures: figures/logo.png" "$ingot" check "$work/m"
expect 0 "left out" "$ingot" convert "$work/m" "$work/copy" --progress never
[ "$(cd "$work/copy" && ls -d original figures consolidated* *.bin *.gguf 2>/dev/null)" = "" ] || fail "strays were copied"
json "$ingot" inspect "$work/m"; holds "len(d['warnings']) == 5"
echo '{"peft_type": "LORA"}' >"$work/m/adapter_config.json"
expect 2 "container.no-adapter" "$ingot" check "$work/m"
expect 0 "left out, readers would look for another model" "$ingot" repair "$work/m" "$work/mended" --progress never
expect 0 "0 errors" "$ingot" check "$work/mended"
rm -r "$work/m"/adapter* "$work/mended" "$work/m/original" "$work/m/figures" "$work/m"/consolidated* "$work/m"/*.bin "$work/m"/*.gguf

# Directories that hold none.
mkdir -p "$work/gguf" "$work/pickles" "$work/hub/models--o--m/snapshots" "$work/hub/models--o--m/refs"
echo x >"$work/gguf/model-Q4.gguf"; echo x >"$work/pickles/pytorch_model.bin"
expect 2 "holds GGUF files" "$ingot" inspect "$work/gguf"
mkdir "$work/lora" && cp "$example"/*-00002-*.safetensors "$work/lora/adapter_model.safetensors"
echo '{"peft_type": "LORA"}' >"$work/lora/adapter_config.json"
expect 2 "holds an adapter (LoRA)" "$ingot" convert "$work/lora" "$work/none" --to bf16
expect 2 "holds PyTorch pickles" "$ingot" convert "$work/pickles" "$work/none" --to bf16
# Engines may load what is not read here.
expect 1 "is not known to load this checkpoint" "$ingot" check "$work/gguf" --engine vllm
expect 1 "is not known to load this checkpoint" "$ingot" check "$work/pickles" --engine vllm
mkdir "$work/zero" "$work/fsdp"
touch "$work/zero/latest" "$work/zero/zero_to_fp32.py" "$work/fsdp/__0_0.distcp"
expect 2 "holds DeepSpeed's states" "$ingot" inspect "$work/zero"
expect 2 "holds shards of torch.distributed.checkpoint" "$ingot" inspect "$work/fsdp"
cp -r "$example" "$work/hub/models--o--m/snapshots/abc"
expect 2 "has no refs/main" "$ingot" inspect "$work/hub/models--o--m"
printf 'abc' >"$work/hub/models--o--m/refs/main"
expect 0 "deepseek_v32" "$ingot" inspect "$work/hub/models--o--m"
expect 0 "0 errors" "$ingot" check "$work/hub/models--o--m"
expect 2 "is the hub's cache" "$ingot" inspect "$work/hub"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >"$work/hub/models--o--m/snapshots/abc/model-00002-of-00002.safetensors"
expect 2 "Git LFS pointer" "$ingot" inspect "$work/hub/models--o--m"
"$ingot" convert "$example" "$work/ranks" --tp 2 --ep 4 --tp-fit retile --progress never >/dev/null 2>&1 || fail "ranks"
rank=$work/ranks/rank-00000-of-00004
expect 2 "holds only the slices of rank 0" "$ingot" generate "$rank" --prompt hi --greedy
echo text >"$work/text.txt"
expect 2 "holds only the slices of rank 0" "$ingot" calibrate "$rank" --text "$work/text.txt" --out "$work/none"
expect 2 "holds only the slices of rank 0" "$ingot" verify "$rank" --text "$work/text.txt"

# One cause, few messages; --json has all.
truncate -s -1000 "$work/m/model-00002-of-00002.safetensors"
expect 2 "truncated" "$ingot" check "$work/m"
[ "$(lines)" -le 3 ] || fail "a truncated shard: $(lines) lines: $(cat "$work/stdout")"
cp -r "$work/copy" "$work/made"
truncate -s -1000 "$work/made/model-00002-of-00002.safetensors"
expect 2 "truncated" "$ingot" check "$work/made"
[ "$(lines)" -le 4 ] || fail "a truncated shard with a manifest: $(lines) lines: $(cat "$work/stdout")"
cp "$example"/model-00002* "$work/m"
expect 2 "11 more: 11 of model.layers.*.mlp.experts.*.up_proj.weight" "$ingot" convert "$work/m" "$work/none" --rule '*.experts.*.up_proj.weight=nvfp4' --dialect deepseek
[ "$(lines)" -le 2 ] || fail "a wrong rule: $(lines) lines"
json "$ingot" convert "$work/m" "$work/none" --rule '*.experts.*.up_proj.weight=nvfp4' --dialect deepseek
holds "len(d['errors']) == 16 and d['errors'][7]['code'] == 'unsupported'"

# A rule to BF16 dequantizes, and spares plain F32 unless it names the tensor or its role.
plan() { "$ingot" convert "$work/m" "$work/none" --dry-run --json "$@" >"$work/json" 2>"$work/stderr" || fail "plan $*: $(cat "$work/stderr")"; }
plan --rule 're:model\.layers\.[0-2]\.=bf16'
holds "not any(a['from'] == 'f32' and a['to'] == 'bf16' for a in d['actions'])"
holds "any(a['from'] == 'fp8-block' and a['to'] == 'bf16' for a in d['actions'])"
holds "'leaves 8 plain tensors' in d['warnings'][0]['message']"
plan --rule 'role:indexer-k-norm=bf16'
holds "sum(a['tensors'] for a in d['actions'] if a['from'] == 'f32' and a['to'] == 'bf16') == 6 and 'narrows 6' in d['warnings'][0]['message']"
plan --rule 'model.layers.1.mlp.gate.e_score_correction_bias=bf16'
holds "'narrows 1 plain tensor' in d['warnings'][0]['message']"
"$ingot" convert "$work/m" "$work/part" --rule 're:model\.layers\.[0-2]\.=bf16' --progress never >/dev/null 2>"$work/stderr" || fail "part"
grep -q "^warning: rule 're:" "$work/stderr" || fail "no warning of what the rule spared: $(cat "$work/stderr")"

plan --rule 'role:experts=nvfp4' --rule '*.experts.0.*=fp8'
holds "any('selects nothing new' in w['message'] and 'experts.0' in w['message'] for w in d['warnings'])"
plan --rule 'layers:0-99=bf16'
holds "any('gives layers up to 99, and the last one is 2' in w['message'] for w in d['warnings'])"
expect 0 "warning: pattern 'layers:1-99' gives layers up to 99" "$ingot" inspect "$work/m" 'layers:1-99'

# Options without effect.
"$ingot" calibrate "$work/m" --text "$work/text.txt" --out "$work/ranges" >/dev/null 2>&1 || fail "calibrate"
idle() { expect 2 "$1" "$ingot" convert "$work/m" "$work/none" "${@:2}"; }
idle "--activation-scales belongs to --activations static" --to int8 --activation-scales "$work/ranges"
idle "--input-scale belongs to --activations static" --to int8 --input-scale 1
idle "--activations belongs to quantized tensors" --to bf16 --activations static
idle "--search chooses between scales" --to mxfp8 --search mse
idle "--search chooses between scales" --to fp8 --dialect compressed-tensors --fp8-grid ue8m0 --search mse
idle "--quantize-attention belongs to --to nvfp4" --to bf16 --quantize-attention
idle "--fp8-grid belongs to FP8" --to int8 --fp8-grid amax
idle "--via names the dtype to which" --to bf16 --via bf16
idle "--dialect says how quantized tensors" --to bf16 --dialect modelslim
idle "--scales-from gives the scales of fp8-block" --to int8 --scales-from "$example"
idle "--tp-fit has no effect here" --to bf16 --tp-fit pad
idle "--redundant-experts has no effect here" --to bf16 --ep 2 --redundant-experts
idle "give one of them" --to nvfp4 --dialect modelopt --activations static --input-scale 1 --activation-scales "$work/ranges"
printf 'to: mxfp8\nsearch: mse\n' >"$work/idle.yaml"
idle "--search" --recipe "$work/idle.yaml"
expect 2 "--sample has no effect here" "$ingot" verify "$work/m" "$work/copy" --levels structure --sample 0.5
expect 2 "--levels has no effect here" "$ingot" verify "$work/m" --text "$work/text.txt" --levels all
expect 2 "--temperature has no effect here" "$ingot" generate "$work/m" --prompt a --greedy --temperature 1
expect 2 "--chat-format has no effect here" "$ingot" generate "$work/m" --prompt a --raw --chat-format chatml
expect 2 "--context has no effect here" "$ingot" generate "$work/m" --prompt a --context 10
expect 2 "--config is for" "$ingot" inspect "$work/m" --config "$work/m/config.json"
expect 2 "--fp8-grid has no effect here" "$ingot" synth "$work/none" --family deepseek_v3 --like tiny --scheme bf16 --fp8-grid amax
[ ! -e "$work/none" ] || fail "a refused command wrote something"

# Words.
expect 2 "unexpected: --levle; did you mean --levels?" "$ingot" verify a b --levle all
expect 2 "unexpected: --one --two" "$ingot" inspect a --one --two
for word in BF16 Fp8-Block FP8 Int8 INT8-channel NVFP4; do expect 0 "plan for" "$ingot" convert "$work/m" "$work/none" --to "$word" --dry-run; done
expect 0 "plan for" "$ingot" convert "$work/m" "$work/none" --rule 'model.layers.1.*=BF16' --dry-run
expect 0 "int8-channel (or int8)" "$ingot" convert --help
expect 2 "5000 is not from 1 to 1024" "$ingot" generate "$work/m" --prompt a --threads 5000
expect 2 "threads: '-1' is no whole number" "$ingot" generate "$work/m" --prompt a --threads -1
expect 2 "there are the tables schemes" "$ingot" list
expect 2 "there is no table 'scheme'" "$ingot" list scheme
expect 0 "130" "$ingot" --help
bad() { printf "$1" >"$work/bad.yaml"; expect 2 "bad.yaml: line $2: " "$ingot" convert "$work/m" "$work/none" --recipe "$work/bad.yaml"; }
bad 'to: bf16\nactivations: lazy\n' 2
bad 'to: bf17\n' 1
bad 'to: bf16\n\ndialect: ascend\n' 3
bad 'rules:\n  - {match: "*", scheme: keep}\n  - {match: "re:(", scheme: keep}\n' 3
bad 'rules:\n  - {match: "nothing.*", scheme: keep}\n' 2
bad 'quantize-attention: perhaps\n' 1
bad 'to: bf16\ninput-scale: -1\n' 2
bad 'allow:\n  nan-code: ["re:("]\n' 2
bad 'to: bf16\nmtp: forget\n' 2
bad 'to: [\n' 2
bad 'to: bf16\n---\nto: bf16\n' 2
finish
