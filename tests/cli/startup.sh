#!/usr/bin/env bash
# Faults for which a server ends before it reads a weight: check finds each, check --engine says that the engine does not
# load such a checkpoint, and so does the report of a conversion. Code that a checkpoint brings, and the command to serve.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
# Links are to a copy: another test converts the example meanwhile, and a link more and one less look like a write.
mkdir "$work/weights" && cp "$example"/*.safetensors "$work/weights"

# copy NAME [CODE]: the model under another name, with its config c or its directory d changed.
copy() {
  mkdir "$work/$1"
  cp -r "$example"/*.json "$work/$1"
  chmod -R u+w "$work/$1"
  ln "$work/weights"/*.safetensors "$work/$1"
  python3 - "$work/$1" "${2:-}" <<'P'
import json, pathlib, sys
d = pathlib.Path(sys.argv[1])
c = json.loads((d / "config.json").read_text())
exec(sys.argv[2])
(d / "config.json").write_text(json.dumps(c))
P
}

# broken NAME RULE CODE: one fault, in every command that judges.
broken() {
  copy "$1" "$3"
  expect 2 "[$2; refused by" "$ingot" check "$work/$1"
  expect 1 "vLLM 0.33 does not load this checkpoint" "$ingot" check "$work/$1" --engine vllm
  grep -qF "[$2; refused by" "$work/stdout" || fail "$1: check --engine does not name $2"
  expect 0 "$2" "$ingot" convert "$work/$1" "$work/none" --to bf16 --for vllm --dry-run
  grep -E "^(loaded by|serve with) .*(vLLM|vllm)" "$work/stdout" && fail "$1: said to be loaded by vLLM"
}

# unreadable NAME TEXT CODE: a value that no reader of config.json takes.
unreadable() {
  copy "$1" "$3"
  expect 2 "$2" "$ingot" check "$work/$1"
  expect 1 "$2" "$ingot" check "$work/$1" --engine vllm
}

copy good 'c["rope_scaling"] = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 1024}'
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/good"
expect 0 "vLLM 0.33 loads this checkpoint" "$ingot" check "$work/good" --engine vllm
expect 0 "serve with   vllm serve" "$ingot" convert "$work/good" "$work/none" --to bf16 --for vllm --dry-run
grep -q "trust.remote.code" "$work/stdout" && fail "code of a checkpoint that has none"

broken absent-class config.class 'del c["architectures"]'
broken empty-class config.class 'c["architectures"] = []'
broken wrong-class config.class 'c["architectures"] = ["Qwen3MoeForCausalLM"]'
broken no-factor config.rope-factor 'c["rope_scaling"] = {"rope_type": "yarn"}'
broken factor-0 config.rope-factor 'c["rope_scaling"] = {"type": "yarn", "factor": 0}'
broken context-0 config.context-length 'c["max_position_embeddings"] = 0'
broken experts-99 moe.routing 'c["num_experts_per_tok"] = 99'
broken groups-3 moe.routing 'c["n_group"] = 3'
broken no-code config.code-present 'c["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig"}'
broken no-json tokenizer.readable '(d / "tokenizer.json").write_text("{")'
broken no-model tokenizer.readable '(d / "tokenizer.json").write_text("{\"version\": \"1.0\"}")'
broken other-config tokenizer.readable '(d / "tokenizer_config.json").write_text("")'
unreadable factor-negative "rope_scaling.factor" 'c["rope_scaling"] = {"type": "yarn", "factor": -2}'
unreadable factor-word "rope_scaling.factor" 'c["rope_scaling"] = {"type": "yarn", "factor": "four"}'
unreadable context-negative "max_position_embeddings" 'c["max_position_embeddings"] = -1'

# Weights without a tokenizer are no fault of theirs: servers that have an option for it start.
copy no-tokenizer '[p.unlink() for p in d.glob("tokenizer*")]'
expect 0 "0 errors, 1 warning" "$ingot" check "$work/no-tokenizer"
for engine in vllm sglang; do
  expect 0 "loads this checkpoint, with --skip-tokenizer-init" "$ingot" check "$work/no-tokenizer" --engine "$engine"
  expect 0 "--skip-tokenizer-init" "$ingot" convert "$work/no-tokenizer" "$work/none" --to bf16 --for "$engine" --dry-run
  grep "^serve with" "$work/stdout" | grep -q -- "--skip-tokenizer-init" || fail "$engine: the command lacks the option"
done
expect 1 "does not load this checkpoint" "$ingot" check "$work/no-tokenizer" --engine trtllm
copy slow '[p.unlink() for p in d.glob("tokenizer*")]; (d / "vocab.json").write_text("{}"); (d / "merges.txt").write_text("#")'
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/slow"

# Code that is here, or in another repository: the command says that it may run.
copy code 'c["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "org/name--modeling_own.Own"}; (d / "configuration_own.py").write_text("pass")'
expect 0 "0 errors, 0 warnings" "$ingot" check "$work/code"
expect 0 "vLLM 0.33 loads this checkpoint" "$ingot" check "$work/code" --engine vllm
copy tokenizer-code '(d / "tokenizer_config.json").write_text("{\"model_max_length\": 1000000000000000019884624838656, \"auto_map\": {\"AutoTokenizer\": [\"org/name--own.Own\", null]}}")'
for name in code tokenizer-code; do
  for engine in vllm sglang; do
    expect 0 " --trust-remote-code" "$ingot" convert "$work/$name" "$work/none" --to bf16 --for "$engine" --dry-run
  done
  expect 0 " --trust_remote_code" "$ingot" convert "$work/$name" "$work/none" --to fp8 --for trtllm --dry-run
done
finish
