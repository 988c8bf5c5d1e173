#!/usr/bin/env bash
# `convert --bits`: schemes by role and layer for an average of so many bits, as a recipe that can be edited.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
golden=$(dirname "$0")/../golden/tiny-v32
python3 -c 'import json,sys; json.dump({"docs": json.load(open(sys.argv[1]))["docs"][:3]}, open(sys.argv[2], "w"))' \
  "$golden/val_docs.json" "$work/text.json" || fail "text"
stats=$work/stats.safetensors
"$ingot" calibrate "$example" --text "$work/text.json" --out "$stats" --progress never >/dev/null 2>&1 || fail "calibrate"

# The average stored bits of the linear layers that are quantized, by the files.
bits_of() {
  python3 - "$1" <<'PY'
import sys
from container import read_checkpoint
tensors = read_checkpoint(sys.argv[1])
bits = elements = 0
for name, t in tensors.items():
    if not name.endswith((".weight_packed", ".weight_scale")) or t.dtype == "BF16":
        continue
    module = name.rsplit(".", 1)[0]
    weight = tensors.get(module + ".weight_packed") or tensors[module + ".weight"]
    if name.endswith(".weight_packed") or module + ".weight_packed" not in tensors:
        parts = [t for n, t in tensors.items() if n.startswith(module + ".weight")]
        bits += 8 * sum(len(part.data) for part in parts)
        elements += len(weight.data) * (2 if weight.name.endswith("packed") else 1)
print(bits / elements)
PY
}
within() { python3 -c 'import sys; sys.exit(not abs(float(sys.argv[1]) - float(sys.argv[2])) <= 0.05)' "$1" "$2"; }

# With these two schemes the files tell the bits of every layer that counts.
two=(--bits-from nvfp4,fp8)
for bits in 5 6.2; do
  "$ingot" convert "$example" "$work/$bits" --bits $bits "${two[@]}" --importance "$stats" --progress never >/dev/null 2>&1 || fail "--bits $bits"
  is=$(bits_of "$work/$bits")
  within "$is" $bits || fail "--bits $bits gives $is"
done

# The dry run prints the recipe, which gives the same bytes; more threads choose the same.
"$ingot" convert "$example" "$work/none" --bits 5 "${two[@]}" --importance "$stats" --dry-run --json >"$work/json" 2>/dev/null || fail "dry run"
"$ingot" convert "$example" "$work/none" --bits 5 "${two[@]}" --importance "$stats" --dry-run --json --threads 1 >"$work/one" 2>/dev/null || fail "dry run"
facts='b = d.get("budget")'
holds "abs(b['bits'] - 5) <= 0.05 and b['least'] < 5 < b['most'] and b['recipe'].count('match')"
holds "b == json.load(open('$work/one'))['budget']"
python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["budget"]["recipe"])' "$work/json" >"$work/recipe.yaml"
"$ingot" convert "$example" "$work/again" --recipe "$work/recipe.yaml" --importance "$stats" --progress never >/dev/null 2>&1 || fail "--recipe"
for file in "$work"/5/*.safetensors; do cmp -s "$file" "$work/again/$(basename "$file")" || fail "$file is another one"; done
expect 0 "to: nvfp4" "$ingot" convert "$example" "$work/none" --bits 5 --importance "$stats" --dry-run
# As for other recipes: slices, a source in BF16, rules, MTP layers.
expect 0 "" "$ingot" convert "$example" "$work/ranks" --bits 5 "${two[@]}" --importance "$stats" --tp 2 --ep 4 --tp-fit retile --progress never
expect 0 "" "$ingot" merge "$work/ranks" "$work/merged" --progress never
"$ingot" compare "$work/5" "$work/merged" --levels weights --json >"$work/json" 2>/dev/null
holds "d['difference']['weights']['by_scheme_and_role'] and all(g['exact'] == g['elements'] for g in d['difference']['weights']['by_scheme_and_role'])"
expect 0 "" "$ingot" convert "$golden/bf16" "$work/bf16" --bits 6 "${two[@]}" --importance "$stats" --mtp convert --rule 'role:shared-experts=bf16' --progress never
within "$(bits_of "$work/bf16")" 6 || fail "of BF16: $(bits_of "$work/bf16")"

# Plain layers, and other schemes where they are asked for: the average by the groups of the document.
average="sum(g['bits'][b['schemes'].index(g['scheme'])] for g in b['groups']) / sum(g['elements'] for g in b['groups'])"
"$ingot" convert "$golden/bf16" "$work/plain" --bits 11 --importance "$stats" --json --verify structure,weights --progress never >"$work/json" 2>/dev/null || fail "--bits 11"
holds "b['schemes'] == ['nvfp4', 'fp8-block', 'bf16'] and b['most'] == 16 and abs($average - 11) <= 0.05"
holds "{g['scheme'] for g in b['groups']} >= {'fp8-block', 'bf16'} and b['recipe'].count('scheme: bf16')"
"$ingot" convert "$golden/bf16" "$work/many" --bits 6 --bits-from nvfp4,int4,mxfp4,int8,bf16 --importance "$stats" --json --verify structure,weights --progress never >"$work/json" 2>/dev/null || fail "--bits-from"
holds "b['schemes'] == ['nvfp4', 'int4-group', 'mxfp4', 'int8-channel', 'bf16'] and abs($average - 6) <= 0.05 and b['least'] < 4.5"
holds "'int8-channel' in {g['scheme'] for g in b['groups']}"
expect 0 "bits a weight" "$ingot" convert "$example" "$work/none" --bits 5.5 --bits-from nvfp4,int8,fp8,bf16 --search 4over6 --importance "$stats" --dry-run
expect 0 "int4-group" "$ingot" convert "$golden/bf16" "$work/none" --bits 4.3 --bits-from nvfp4,int4 --importance "$stats" --dry-run
expect 2 "does not choose mxfp8" "$ingot" convert "$example" "$work/none" --bits 5 --bits-from nvfp4,mxfp8 --importance "$stats"
expect 2 "nvfp4, int4-group give from 4." "$ingot" convert "$example" "$work/none" --bits 8 --bits-from nvfp4,int4 --importance "$stats"
expect 2 "bits for this model" "$ingot" convert "$example" "$work/none" --bits 3 --importance "$stats"
expect 2 "--to" "$ingot" convert "$example" "$work/none" --bits 5 --to nvfp4 --importance "$stats"
expect 2 "--importance" "$ingot" convert "$example" "$work/none" --bits 5
finish
