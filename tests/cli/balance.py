#!/usr/bin/env python3
"""`ingot balance` against DeepSeek's EPLB, and its map through `convert --expert-map`.

    balance.py INGOT EXAMPLE

EPLB is restated here from its description (https://github.com/deepseek-ai/EPLB): groups of experts are packed into
nodes, the busiest experts of each node get the spare slots, and slots are packed into the ranks of the node; each
packing takes the heaviest item first and puts it where the least weight is and room is left. On 100 random loads our
largest load of a rank must be at most EPLB's."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

ingot, example = sys.argv[1], sys.argv[2]
failures = []


def run(status, *words):
    done = subprocess.run([ingot, *words], capture_output=True, text=True)
    if done.returncode != status:
        failures.append(f"{' '.join(words)}: exit {done.returncode}, not {status}: {done.stderr or done.stdout}")
    return done.stdout + done.stderr


def pack(weights, n_packs):
    """The pack of each item."""
    room, packs = len(weights) // n_packs, [[0.0, 0] for _ in range(n_packs)]
    where = [0] * len(weights)
    if room == 1:
        return list(range(len(weights)))
    for item in sorted(range(len(weights)), key=lambda i: -weights[i]):
        best = min((p for p in range(n_packs) if packs[p][1] < room), key=lambda p: packs[p][0])
        where[item], packs[best] = best, [packs[best][0] + weights[item], packs[best][1] + 1]
    return where


def eplb(loads, slots, ep, nodes, groups):
    """The load of the fullest rank over the mean."""
    if groups % nodes:
        nodes = groups = 1
    size = len(loads) // groups
    node_of = pack([sum(loads[g * size:(g + 1) * size]) for g in range(groups)], nodes)
    ranks = []
    for node in range(nodes):
        experts = [e for e in range(len(loads)) if node_of[e // size] == node]
        copies, physical = dict.fromkeys(experts, 1), list(experts)
        while len(physical) < slots // nodes:
            busiest = max(experts, key=lambda e: loads[e] / copies[e])
            copies[busiest] += 1
            physical.append(busiest)
        weights = [loads[e] / copies[e] for e in physical]
        sums = [0.0] * (ep // nodes)
        for weight, rank in zip(weights, pack(weights, ep // nodes)):
            sums[rank] += weight
        ranks += sums
    return max(ranks) * len(ranks) / max(sum(loads), 1)


def config_of(n_layers, n_experts, groups):
    return {"model_type": "deepseek_v3", "hidden_size": 8, "intermediate_size": 8, "moe_intermediate_size": 8,
            "num_hidden_layers": n_layers, "first_k_dense_replace": 0, "num_attention_heads": 1, "q_lora_rank": 8,
            "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "vocab_size": 16,
            "n_routed_experts": n_experts, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": groups,
            "topk_group": 1, "num_nextn_predict_layers": 0, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
            "topk_method": "noaux_tc", "scoring_func": "sigmoid"}


def draw(chance, n_experts, skew):
    return [int(100 * chance.random() ** -skew) for _ in range(n_experts)]


with tempfile.TemporaryDirectory(prefix="ingot-balance-") as work:
    chance, better, worse = random.Random(7), 0, []
    for n_experts, groups, slots, ep, nodes in [(16, 4, 16, 4, 1), (32, 8, 40, 8, 2), (64, 8, 80, 16, 4),
                                                (48, 1, 64, 16, 2)]:
        model = os.path.join(work, f"model-{n_experts}")
        with open(model + ".json", "w") as file:
            json.dump(config_of(25, n_experts, groups), file)
        run(0, "synth", model, "--config", model + ".json")
        loads = {str(layer): draw(chance, n_experts, 0.15 * (layer % 8)) for layer in range(25)}
        with open(model + ".loads.json", "w") as file:
            json.dump({"layers": loads}, file)
        report = json.loads(run(0, "balance", model, "--loads", model + ".loads.json", "--ep", str(ep), "--slots",
                                str(slots), "--nodes", str(nodes), "--out", model + ".map.json", "--json"))
        layers = json.load(open(model + ".map.json"))["layers"]
        for layer in report["layers"]:
            held, counts = layers[str(layer["layer"])], loads[str(layer["layer"])]
            ranks = [sum(counts[e] / held.count(e) for e in held[r * slots // ep:(r + 1) * slots // ep])
                     for r in range(ep)]
            ours = max(ranks) * ep / sum(counts)
            if abs(ours - layer["after"]["largest_over_mean"]) > 1e-9:
                failures.append(f"{n_experts} experts, layer {layer['layer']}: {layer['after']}, the map has {ours}")
            theirs = eplb(counts, slots, ep, nodes, groups)
            better += ours < theirs - 1e-9
            if ours > theirs + 1e-9:
                worse.append((n_experts, layer["layer"], ours, theirs))
    if worse:
        failures.append(f"{len(worse)} of 100 loads are worse than EPLB's: {worse[:3]}")
    print(f"of 100 loads {better} are better than EPLB's, {len(worse)} worse")

    # A text is read, the map is taken, the ranks are sound, and a page shows them.
    text, expert_map, page = (os.path.join(work, name) for name in ["text.txt", "map.json", "load.html"])
    with open(text, "w") as file:
        file.write("There was once a small fox, and his name was Sam. One day he found a kite.")
    said = run(0, "balance", example, "--text", text, "--ep", "4", "--slots", "20", "--out", expert_map, "--html", page)
    for words in ["most here", f"--expert-map {expert_map} --redundant-experts"]:
        if words not in said:
            failures.append(f"the report lacks '{words}': {said}")
    if "rank 3" not in open(page).read():
        failures.append("the page has no row for rank 3")
    statistics = os.path.join(work, "statistics.safetensors")
    run(0, "calibrate", example, "--text", text, "--out", statistics)
    run(0, "balance", example, "--loads", statistics, "--ep", "4", "--slots", "20", "--out", expert_map + "2")
    if open(expert_map).read() != open(expert_map + "2").read():
        failures.append("counts of a calibration give another map than the text itself")
    said = run(0, "balance", example, "--loads", statistics, "--ep", "4", "--slots", "20", "--out", expert_map + "3",
               "--format", "sglang")
    if "--init-expert-location" not in said or "--ep-num-redundant-experts 4" not in said:
        failures.append(f"SGLang's options are not said: {said}")
    config = json.load(open(os.path.join(example, "config.json")))
    theirs = json.load(open(expert_map + "3"))
    by_layer = json.load(open(expert_map))["layers"]
    in_turn = [slot % config["n_routed_experts"] for slot in range(20)]
    rows = [by_layer.get(str(layer), in_turn) for layer in range(config["num_hidden_layers"])]
    if theirs != {"physical_to_logical_map": rows}:
        failures.append(f"SGLang's map has other rows: {theirs}")
    out = os.path.join(work, "out")
    run(0, "convert", example, out, "--ep", "4", "--expert-map", expert_map, "--redundant-experts", "--progress",
        "never")
    run(0, "check", out)

    # Counts of only some layers, as from an engine without drafts.
    layers = json.load(open(expert_map))["layers"]
    counted, expert_map = os.path.join(work, "counted.json"), os.path.join(work, "some.json")
    with open(counted, "w") as file:
        json.dump({"layers": {f"model.layers.{layer}": list(range(16)) for layer in list(layers)[:1]}}, file)
    said = run(0, "balance", example, "--loads", counted, "--ep", "4", "--slots", "20", "--out", expert_map)
    if "no tokens were counted in layer" not in said:
        failures.append(f"layers without counts are not named: {said}")
    run(0, "convert", example, out + "-some", "--ep", "4", "--expert-map", expert_map, "--redundant-experts",
        "--dry-run")

    # Wrong words and files.
    for words, expected in [(["--text", text, "--ep", "4", "--out", expert_map], "is there already"),
                            (["--ep", "4", "--out", "x"], "--text or --loads"),
                            (["--text", text, "--ep", "3", "--out", "x"], "--slots 18"),
                            (["--text", text, "--ep", "4", "--nodes", "3", "--out", "x"], "divisor of 4")]:
        if expected not in (said := run(2, "balance", example, *words)):
            failures.append(f"{words}: '{expected}' is not in {said}")
    for content, expected in [({"layers": {"9": [1] * 16}}, "'9' is no layer"), ({"layers": {"3": [1, 2]}}, "list of 16"),
                              ({"layers": {"3": [-1] * 16}}, "holds -1"), ({"layers": {}}, "no counts"),
                              ({"layers": {"3": [1] * 16, "model.layers.3": [2] * 16}}, "layer 3 a second time"),
                              ({"layers": {"0": [1] * 16}}, "'0' is no layer"), ({"layers": {"x.3": [1] * 16}}, "'x.3'"),
                              ([], "loads.json")]:
        bad = os.path.join(work, "loads.json")
        with open(bad, "w") as file:
            json.dump(content, file)
        if expected not in (said := run(2, "balance", example, "--loads", bad, "--ep", "4", "--out", "x")):
            failures.append(f"{content}: '{expected}' is not in {said}")

for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
