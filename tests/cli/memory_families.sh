#!/usr/bin/env bash
# memory_families.sh INGOT FORWARD [DOUBLINGS]: peak RSS stays under the least --mem-limit for every kind of attention, mixer
# and gate; without DOUBLINGS for the four kinds whose caches differ most. FORWARD has small checkpoints of these families;
# they are made again, sixteen times as wide, and answer 86 tokens, doubled DOUBLINGS times (2).
source "$(dirname "$0")/expect.sh"
source "$(dirname "$0")/peak.sh"
ingot=$1 forward=$2
prompt=$(seq -s, 5 90)
for ((i = 0; i < ${3:-2}; i++)); do prompt="$prompt,$prompt"; done
families=(qwen3_next glm5_next longcat_flash minimax_m3_vl)
[ -z "${3:-}" ] || families+=(kimi_linear bailing_hybrid mimo_v2_flash step3p7 glm4_moe_lite inkling mistral_large4)
for family in "${families[@]}"; do
  rm -rf "$work/in"
  python3 - "$forward/$family/checkpoint/config.json" "$work/config.json" <<'P'
import json, sys
WIDTHS = {"hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size",
          "expert_ffn_hidden_size", "dense_intermediate_size"}
config = json.load(open(sys.argv[1]))
config.pop("quantization_config", None)
for keys in (config, config.get("text_config", {})):
    for key, value in keys.items():
        if key in WIDTHS and isinstance(value, int):
            keys[key] = 16 * value
        if key == "max_position_embeddings":
            keys[key] = 4096
json.dump(config, open(sys.argv[2], "w"))
P
  "$ingot" synth "$work/in" --config "$work/config.json" --quiet >/dev/null || fail "synth $family"
  run=("$ingot" generate "$work/in" --tokens "$prompt" --max-new-tokens 4 --greedy)
  "${run[@]}" --mem-limit 1MB >/dev/null 2>"$work/stderr"
  least=$(sed -n 's/.*--mem-limit \([0-9]*\)MB would be enough.*/\1/p' "$work/stderr")
  [ -n "$least" ] || fail "$family: no least limit: $(cat "$work/stderr")"
  peak=$(peak_kb "${run[@]}" --mem-limit "${least}MB")
  echo "$family: $(du -sm "$work/in" | cut -f1) MB, --mem-limit ${least}MB: peak RSS $((peak / 1024)) MiB"
  [ $((peak * 1024)) -le $((least * 1000000)) ] || fail "$family: peak RSS of $peak KiB is above $least MB"
done
finish
