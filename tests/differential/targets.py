"""Random targets: what a conversion is asked for, as words of the command and as the judge has to know it."""

from dataclasses import dataclass

# Full names of the short words for schemes.
NAMES = {"fp8": "fp8-block", "int8": "int8-channel", "int4": "int4-group"}
# The dialects that hold a scheme, the default first, each with the activations that may be asked for.
HELD = {
    "fp8": [
        ("deepseek", ["dynamic"]),
        ("compressed-tensors", ["dynamic", "weight-only"]),
        ("modelopt", ["dynamic"]),
    ],
    "fp8-channel": [("compressed-tensors", ["dynamic", "weight-only"]), ("modelopt", ["dynamic"])],
    "fp8-tensor": [("deepseek", ["dynamic"]), ("compressed-tensors", ["dynamic", "static"]), ("modelopt", ["static"])],
    "int8": [("compressed-tensors", ["dynamic", "weight-only", "static"]), ("modelslim", ["dynamic", "static"])],
    "int8-block": [("deepseek", ["dynamic"])],
    "nvfp4": [("compressed-tensors", ["weight-only", "static"]), ("modelopt", ["weight-only", "static"])],
    "mxfp4": [("compressed-tensors", ["weight-only"])],
    "mxfp8": [("compressed-tensors", ["weight-only", "dynamic"]), ("modelopt", ["dynamic"])],
    "int4": [("compressed-tensors", ["weight-only"])],
}
# Their searches are judged; other schemes are judged with the scales of amax.
SEARCHED = ("nvfp4", "int4")
SEARCHED_ELSE = ("fp8", "fp8-channel", "int8", "int8-block", "mxfp4")
PLAIN = ["bf16", "f16", "f32"]
TARGETS = ["bf16"] * 3 + ["f16", "f32"] + list(HELD) + ["fp8", "nvfp4", "int4", "int8"] + ["reshard"] * 2
# Widths of fixtures are odd on purpose; these targets take any.
ANY_WIDTH = PLAIN + ["fp8", "fp8-channel", "fp8-tensor", "int8", "int8-block", "reshard"]
# Selectors with what they select among routed experts, by the names that all families share.
RULES = [
    ("role:experts", r"\.experts\.\d+\."),
    ("role:expert-down", r"\.experts\.\d+\.down_proj"),
    ("layers:0", r"(?<!mtp)\.layers\.0\."),
    ("layers:1 & role:experts", r"(?<!mtp)\.layers\.1\.(?:.*\.)?experts\.\d+\."),
    ("role:attention", r"\.self_attn\."),
    ("role:shared-experts", r"\.shared_experts\."),
    ("re:.*layers\\.[01]\\..*down_proj", r"\.layers\.[01]\..*down_proj"),
]
DENSE_RULES = [
    ("role:dense-mlp", r"\.layers\.\d+\.mlp\."),
    ("layers:0", r"\.layers\.0\."),
    ("layers:0 & role:dense-mlp", r"\.layers\.0\.mlp\."),
    ("role:attention", r"\.self_attn\.[^.]*_proj"),
    ("re:.*layers\\.[01]\\..*down_proj", r"\.layers\.[01]\..*down_proj"),
]
STATISTICS = "statistics.safetensors"


@dataclass
class Target:
    """A conversion: words of the command behind source and output, and what the judge has to know of it."""

    words: list
    choices: dict


def _rules(draw, to, choices, before):
    """Rules in front of the target, with the scheme that the judge demands of routed experts, or of a dense model.
    `before`: the target's own words; without --search amax scales of a rule's scheme are searched, and not judged."""
    words, known = [], []
    for selector, names in draw.sample(DENSE_RULES if choices["is_dense"] else RULES, draw.choice([1, 1, 2])):
        held = ["keep", "bf16", "bf16"]
        has_norms, searches = selector == "layers:0", "amax" not in before
        if to in HELD and HELD[to][0][0] == "compressed-tensors" and not has_norms and not searches:
            held += ["int8", "fp8", "fp8-channel"]
        scheme = draw.choice(held)
        words += ["--rule", f"{selector}={scheme}"]
        known.append({"selector": selector, "names": names, "scheme": NAMES.get(scheme, scheme)})
    return words, known


def _form(draw, to, choices):
    """Dialect and activations."""
    dialect, kinds = draw.choice(HELD[to] + HELD[to][:1])
    activations, words = draw.choice(kinds), []
    choices.update(dialect=dialect, activations=activations)
    if dialect != HELD[to][0][0] or draw.random() < 0.2:
        words += ["--dialect", dialect]
        choices["dialect_is_asked"] = True
    if activations != kinds[0] or dialect == "modelopt" or draw.random() < 0.1:
        words += ["--activations", activations]
    if activations == "static" and draw.random() < 0.5:
        choices["input_scale"] = draw.choice([1.0, 0.5, 0.03125])
        words += ["--input-scale", str(choices["input_scale"])]
    elif activations == "static":
        words += ["--activation-scales", STATISTICS]
    return words


def _grid(draw, to, choices):
    """How scales are chosen."""
    words = []
    if to.startswith("fp8") and draw.random() < 0.3:
        choices["fp8_grid"] = draw.choice(["amax", "ue8m0"])
        words += ["--fp8-grid", choices["fp8_grid"]]
    if to in SEARCHED_ELSE and choices.get("fp8_grid") != "ue8m0":
        words += ["--search", "amax"]
    if to in SEARCHED and draw.random() < 0.5:
        choices["search"] = draw.choice(["amax", "mse", "4over6" if to == "nvfp4" else "signed"])
        words += ["--search", choices["search"]]
    if to in SEARCHED and choices.get("search") != "amax" and draw.random() < 0.3:
        choices["importance"] = True
        words += ["--importance", STATISTICS]
    if to == "int4":
        choices["group_size"] = draw.choice(["32", "32", "64", "row"])
        words += ["--group-size", choices["group_size"]]
        if choices.get("search") != "signed" and draw.random() < 0.4:
            choices["zero_points"] = True
            words += ["--zero-points"]
    return words


def draw_target(draw, source, has_codes):
    all_of = ANY_WIDTH if source["kind"] == "fixture" and draw.random() < 0.7 else TARGETS
    if not has_codes and not source.get("is_wide") and draw.random() < 0.9:  # a plain target has to change something
        all_of = [word for word in all_of if word not in PLAIN]
    to = draw.choice(all_of)
    words = list(source["family"])
    choices = {"is_generic": bool(source["family"]), "is_dense": source.get("is_dense", False)}
    if to == "reshard":
        words += ["--max-shard-size", draw.choice(["300KB", "1MB", "3MB"])]
        if draw.random() < 0.4 and has_codes:
            choices["dialect"] = draw.choice(["compressed-tensors", "modelopt", "deepseek"])
            words += ["--dialect", choices["dialect"]]
        return Target(words, choices)
    words += ["--to", to]
    choices["to"] = NAMES.get(to, to)
    if to in HELD:
        words += _form(draw, to, choices)
        words += _grid(draw, to, choices)
    if to in ("nvfp4", "mxfp4", "int4") and draw.random() < 0.3:
        words += ["--quantize-attention"]
    if to in HELD and draw.random() < 0.1:
        choices["via"] = "bf16"
        words += ["--via", "bf16"]
    if draw.random() < 0.25:
        choices["mtp"] = draw.choice(["convert", "bf16", "keep", "drop"])
        words += ["--mtp", choices["mtp"]]
    if draw.random() < 0.1 and not source["family"] and source.get("has_experts", True):
        words += ["--experts", draw.choice(["separate" if source.get("is_stacked") else "stacked", "stacked"])]
    if draw.random() < 0.3 and not source["family"]:
        rules, choices["rules"] = _rules(draw, to, choices, words)
        words += rules
    if draw.random() < 0.2:
        words += ["--max-shard-size", draw.choice(["500KB", "2MB"])]
    if to not in PLAIN and draw.random() < 0.8:
        words += ["--allow", "engine-refuses=*"]
    return Target(words, choices)


def back_to_release(to):
    """From the cast of a release back to its own scales."""
    choices = {"to": NAMES[to], "dialect": HELD[to][0][0], "activations": HELD[to][0][1][0], "released": "source"}
    return Target(["--to", to, "--scales-from", "source"], choices)
