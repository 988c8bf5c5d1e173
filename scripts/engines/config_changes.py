"""Changes of a checkpoint's configs, in the ways in which tools describe linear layers.

A change is a name and a function that edits config.json and, where there is one, the file of
ModelOpt with it. Lists of modules get each single entry of ENTRIES, in one form of each dialect,
and some entries at random in all forms; the seed is the name of the change, so every run makes the
same changes. Further changes are of one dialect.
"""

import copy
import json
import random

MODELS = ("deepseek_v3", "qwen3_moe", "deepseek_v32")
# Forms in which each entry is tried without others.
EACH = {
    "fp8-block, deepseek", "fp8-channel, compressed-tensors", "fp8-tensor static, modelopt", "nvfp4 static, modelopt",
}
N_RANDOM = 6
SIDE = "hf_quant_config.json"

ENTRIES = [
    # Short names, and those of parents.
    "lm_head", "gate", "mlp.gate", "o_proj", "down_proj", "up_proj", "gate_up_proj", "qkv_proj", "kv_b_proj", "q_a_proj", "self_attn",
    "experts", "mlp.experts", "shared_experts", "mlp", "model", "layers.1", "eh_proj", "shared_head.head", "embed_tokens",
    "model.layers.1", "model.layers.1.", "model.layers.1.mlp", "model.layers.0.self_attn", "layers.1.mlp", "layers.0.self_attn.o_proj",
    # Modules, modules that engines build from several, and one of several.
    "model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.gate_up_proj",
    "model.layers.0.self_attn.q_a_proj", "model.layers.0.self_attn.kv_a_proj_with_mqa", "model.layers.0.self_attn.fused_qkv_a_proj",
    "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa", "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.qkv_proj",
    "model.layers.1.mlp.gate", "model.layers.1.mlp.shared_experts.gate_up_proj", "model.layers.1.mlp.shared_experts.up_proj",
    "model.layers.1.mlp.experts", "model.layers.1.mlp.experts.0", "model.layers.1.mlp.experts.0.gate_proj", "model.layers.1.mlp.experts.3.up_proj",
    "model.layers.1.mlp.experts.0.down_proj", "layers.1.mlp.experts",
    # Layers for multi-token prediction, under the names of engines too.
    "model.layers.2", "model.layers.2.mlp", "model.layers.2.self_attn.o_proj", "model.layers.2.mtp_block.self_attn.o_proj",
    "model.decoder.self_attn.o_proj", "model.decoder.mlp", "model.layers.2.eh_proj", "model.layers.2.shared_head.head",
    "model.layers.2.mlp.experts",
    # Expressions.
    "re:.*mlp.gate$", "re:.*gate$", "re:.*self_attn.*", "re:.*lm_head", "re:lm_head", "re:mlp", "re:model.layers.1.mlp", "re:model\\.layers\\.2\\..*",
    "re:.*(gate_proj|up_proj)$", "re:.*gate_proj$", "re:.*gate_up_proj$", "re:.*experts.*", "re:.*shared_experts.*", "re:.*experts\\.0\\..*",
    "re:.*kv_b_proj", "re:.*q_a_proj$", "re:.*kv_a_proj_with_mqa$", "re:.*q_proj$", "re:.*[kv]_proj$", "re:.*qkv_proj", "re:.*down_proj$",
    "re:.*layers\\.[01]\\..*", "re:.*decoder.*", "re:.*mtp_block.*", "re:.*Layers.*",
    # Globs.
    "*", "model.layers.0*", "model.layers.1.*", "*.mlp.gate", "*self_attn*", "*.self_attn", "*lm_head", "model.layers.1.mlp.experts*",
    "*.gate_proj", "*.up_proj", "*gate_up_proj", "model.layers.2*", "model.layers.1.self_attn.?_proj", "model.layers.[01].self_attn*", "*.experts.*",
    "*.q_a_proj", "*kv_a_proj_with_mqa", "*mlp", "gate*", "o_*", "model.decoder.*", "*.shared_experts.*", "mtp*",
    # Indexers of sparse attention.
    "indexers_proj", "indexer.weights_proj", "re:.*indexer.*", "*indexer*", "model.layers.0.self_attn.indexer.wk", "model.layers.0.self_attn.indexer.wq_b",
    # All of what becomes one module.
    ("model.layers.0.self_attn.q_a_proj", "model.layers.0.self_attn.kv_a_proj_with_mqa"),
    ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"),
    ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"),
    ("model.layers.1.mlp.experts.0.gate_proj", "model.layers.1.mlp.experts.0.up_proj", "model.layers.1.mlp.experts.0.down_proj"),
    ("model.layers.1.mlp.experts.3.gate_proj", "model.layers.1.mlp.experts.3.up_proj", "model.layers.1.mlp.experts.3.down_proj"),
    ("re:.*q_a_proj", "re:.*kv_a_proj_with_mqa"),
    (), ("",),
]


def block_of(config):
    return config["quantization_config"]


def listing(dialect, entries, is_more):
    """Puts entries into the lists of a dialect: more of them, or instead of those that are there."""

    def edit(config, side):
        block = block_of(config)
        lists = {
            "deepseek": [(block, "modules_to_not_convert"), (block, "ignored_layers")],
            "compressed-tensors": [(block, "ignore")],
            "modelopt": [(block, "ignore")] + ([(side["quantization"], "exclude_modules")] if side else []),
        }[dialect]
        for owner, key in lists:
            owner[key] = (owner.get(key) or []) * is_more + list(entries)

    return edit


def of_block(change):
    return lambda config, side: change(block_of(config))


def set_key(key, value):
    return of_block(lambda block: block.__setitem__(key, value))


def drop_key(key):
    return of_block(lambda block: block.pop(key, None))


DEEPSEEK = {
    "list null": set_key("modules_to_not_convert", None),
    "another list null": of_block(lambda b: b.update(modules_to_not_convert=["model.layers.0.self_attn.o_proj"], ignored_layers=None)),
    "another list empty": of_block(lambda b: b.update(modules_to_not_convert=["model.layers.0.self_attn.o_proj"], ignored_layers=[])),
    "two lists": of_block(lambda b: b.update(modules_to_not_convert=["model.layers.0.self_attn.o_proj"], ignored_layers=["model.layers.1.self_attn.o_proj"])),
    "ignored_layers alone": of_block(lambda b: (b.pop("modules_to_not_convert", 0), b.update(ignored_layers=["model.layers.1.self_attn.o_proj"]))),
    "the usual list alone": of_block(lambda b: (b.pop("ignored_layers", 0), b.update(modules_to_not_convert=["model.layers.1.self_attn.o_proj"]))),
    "no lists": of_block(lambda b: (b.pop("ignored_layers", 0), b.pop("modules_to_not_convert", 0))),
    "no activation_scheme": drop_key("activation_scheme"),
    "static activation_scheme": set_key("activation_scheme", "static"),
    "unknown activation_scheme": set_key("activation_scheme", "token"),
    "no weight_block_size": drop_key("weight_block_size"),
    "null weight_block_size": set_key("weight_block_size", None),
    "weight_block_size of three": set_key("weight_block_size", [128, 128, 1]),
    "no quant_method": drop_key("quant_method"),
    "unknown quant_method": set_key("quant_method", "fp9"),
    "no block": lambda config, side: config.pop("quantization_config"),
    "block null": lambda config, side: config.__setitem__("quantization_config", None),
    "list no list": set_key("modules_to_not_convert", "lm_head"),
}


def groups(change):
    """Changes config_groups, given those and the first of them."""

    def edit(config, side):
        all_groups = block_of(config)["config_groups"]
        change(all_groups, next(iter(all_groups.values())))

    return edit


def second_group(targets, first_targets=None, is_before=False):
    """Another group, of FP8 per channel (in blocks where that is the first), with these targets."""

    def change(all_groups, first):
        other = {
            "format": "float-quantized", "targets": list(targets),
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True},
        }
        if first["weights"]["strategy"] == "channel" and first["weights"]["type"] == "float":
            other["weights"].update(strategy="block", block_structure=[128, 128])
            other["input_activations"].update(strategy="group", group_size=128)
        if first_targets is not None:
            first["targets"] = list(first_targets)
        usual = dict(all_groups)
        all_groups.clear()
        all_groups.update({"a": other, **usual} if is_before else {**usual, "z": other})

    return groups(change)


def targets(*wanted):
    return groups(lambda all_groups, first: first.__setitem__("targets", list(wanted)))


COMPRESSED = {
    "targets: expression": targets("re:.*"),
    "targets: expression of projections": targets("re:.*(proj|w[123])$"),
    "targets: attention alone": targets("re:.*self_attn.*"),
    "targets: attention and experts": targets("re:.*self_attn.*", "re:.*experts.*"),
    "targets: experts alone": targets("re:.*mlp.experts.*"),
    "targets: first expert alone": targets("re:.*experts\\.0\\..*", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*layers\\.0\\.mlp.*"),
    "targets: a class and a name": targets("Linear", "model.layers.0.self_attn.o_proj"),
    "targets: lower case": targets("linear"),
    "targets: part of a class": targets("Lin"),
    "targets: classes of experts": targets("FusedMoE", "RoutedExperts"),
    "targets: Linear and experts": targets("Linear", "FusedMoE", "RoutedExperts"),
    "targets: head by name": targets("Linear", "lm_head"),
    "targets: head by expression": targets("Linear", "re:.*lm_head"),
    "targets: unknown class": targets("Conv2d"),
    "targets: attention's class": targets("LlamaAttention"),
    "targets: empty": targets(),
    "targets: one of several": targets("re:.*gate_proj$"),
    "targets: all of several": targets("re:.*gate_proj$", "re:.*up_proj$"),
    "targets: parents": targets("model.layers.0.self_attn", "model.layers.1.mlp"),
    "targets: short names": targets("o_proj", "down_proj"),
    "targets: names of what is built": targets("re:.*gate_up_proj$", "re:.*qkv_proj$", "re:.*down_proj$"),
    "two groups: class and attention": second_group(["re:.*self_attn.*"]),
    "two groups: attention and class": second_group(["re:.*self_attn.*"], is_before=True),
    "two groups: class twice": second_group(["Linear"]),
    "two groups: class twice, before": second_group(["Linear"], is_before=True),
    "two groups: both match": second_group(["re:.*self_attn.*"], ["re:.*"]),
    "two groups: both match, before": second_group(["re:.*self_attn.*"], ["re:.*"], is_before=True),
    "two groups: a name in the second": second_group(["model.layers.0.self_attn.o_proj"], ["re:.*"]),
    "two groups: one of several": second_group(["re:.*up_proj$"]),
    "two groups: all of several": second_group(["re:.*up_proj$", "re:.*gate_proj$"]),
    "two groups: one of qkv": second_group(["re:.*v_proj$"]),
    "two groups: one of q_a and kv_a": second_group(["re:.*kv_a_proj_with_mqa$"]),
    "two groups: both of q_a and kv_a": second_group(["re:.*kv_a_proj_with_mqa$", "re:.*q_a_proj$"]),
    "two groups: experts": second_group(["re:.*mlp\\.experts.*"]),
    "two groups: downs of experts": second_group(["re:.*experts.*down_proj$"]),
    "two groups: later experts": second_group(["re:.*experts\\.[1-9].*"]),
    "two groups: draft layers": second_group(["re:model\\.layers\\.2\\..*"]),
    "two groups: SGLang's draft": second_group(["re:model\\.decoder\\..*"]),
    "two groups: head": second_group(["re:.*lm_head"]),
    "two groups: head, before": second_group(["lm_head"], is_before=True),
    "ignore missing": drop_key("ignore"),
    "ignore null": set_key("ignore", None),
    "ignore empty": set_key("ignore", []),
    "groups empty": set_key("config_groups", {}),
    "no groups": drop_key("config_groups"),
    "weights null": groups(lambda all_groups, first: first.__setitem__("weights", None)),
    "format missing": of_block(lambda b: (b.pop("format", 0), [group.pop("format", 0) for group in b["config_groups"].values()])),
    "format of the block missing": drop_key("format"),
    "format of groups missing": groups(lambda all_groups, first: first.pop("format", 0)),
    "format unlike": set_key("format", "dense"),
    "mixed format": set_key("format", "mixed-precision"),
    "scheme of caches": set_key("kv_cache_scheme", {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}),
    "activations missing": groups(lambda all_groups, first: first.__setitem__("input_activations", None)),
    "another key": set_key("packed_modules_mapping", {"o_proj": ["q_proj"]}),
}


def of_modelopt(change):
    """Changes the bodies of the block and of the file: the key of the list is another argument."""

    def edit(config, side):
        change(block_of(config), "ignore")
        if side:
            change(side["quantization"], "exclude_modules")

    return edit


def mixed(layers, excluded=()):
    def change(body, key):
        algo = body["quant_algo"]
        body.update({"quant_algo": "MIXED_PRECISION", key: list(excluded), "quantized_layers": {
            name: {"quant_algo": algo if other is None else other, **({"group_size": 16} if "NVFP4" in (other or algo) else {})}
            for name, other in layers.items()
        }})

    return of_modelopt(change)


def side_alone(change):
    return lambda config, side: change(side["quantization"])


O_PROJS = {f"model.layers.{layer}.self_attn.o_proj": None for layer in range(3)}
MODELOPT = {
    "file excludes more": side_alone(lambda body: body["exclude_modules"].append("model.layers.0.self_attn.o_proj")),
    "block ignores more": of_block(lambda b: b["ignore"].append("model.layers.0.self_attn.o_proj")),
    "another algorithm in the file": side_alone(lambda body: body.__setitem__("quant_algo", "FP8" if body["quant_algo"] != "FP8" else "NVFP4")),
    "no block": lambda config, side: config.pop("quantization_config"),
    "block has the form of the file": lambda config, side: config.__setitem__("quantization_config", {"quant_method": "modelopt", **copy.deepcopy(side)}),
    "no list": of_modelopt(lambda body, key: body.pop(key)),
    "null list": of_modelopt(lambda body, key: body.__setitem__(key, None)),
    "the other key": of_modelopt(lambda body, key: body.__setitem__("ignore" if key == "exclude_modules" else "exclude_modules", body.pop(key))),
    "modules_to_not_convert": of_modelopt(lambda body, key: body.__setitem__("modules_to_not_convert", body.pop(key))),
    "algorithm in lower case": of_modelopt(lambda body, key: body.__setitem__("quant_algo", body["quant_algo"].lower())),
    "unknown algorithm": of_modelopt(lambda body, key: body.__setitem__("quant_algo", "INT3")),
    "no algorithm": of_modelopt(lambda body, key: body.pop("quant_algo")),
    "weight-only algorithm": of_modelopt(lambda body, key: body.__setitem__("quant_algo", "W4A16_NVFP4")),
    "per-channel algorithm": of_modelopt(lambda body, key: body.__setitem__("quant_algo", "FP8_PER_CHANNEL_PER_TOKEN")),
    "no group_size": of_modelopt(lambda body, key: body.pop("group_size", 0)),
    "FP8 cache": of_modelopt(lambda body, key: body.__setitem__("kv_cache_quant_algo", "FP8") if key != "ignore" else body.__setitem__("kv_cache_scheme", {"type": "float", "num_bits": 8, "dynamic": False})),
    "no quant_method": drop_key("quant_method"),
    "mixed: o_proj": mixed(O_PROJS),
    "mixed: one of several": mixed({"model.layers.0.mlp.gate_proj": None, **O_PROJS}),
    "mixed: all of several": mixed({"model.layers.0.mlp.gate_proj": None, "model.layers.0.mlp.up_proj": None, "model.layers.0.self_attn.q_a_proj": None, "model.layers.0.self_attn.kv_a_proj_with_mqa": None}),
    "mixed: q, k and v": mixed({f"model.layers.0.self_attn.{name}_proj": None for name in "qkv"}),
    "mixed: two algorithms": mixed({"model.layers.0.self_attn.o_proj": "FP8", "model.layers.1.self_attn.o_proj": "NVFP4"}),
    "mixed: two algorithms in one module": mixed({"model.layers.0.mlp.gate_proj": "FP8", "model.layers.0.mlp.up_proj": "NVFP4"}),
    "mixed: experts": mixed({f"model.layers.1.mlp.experts.{e}.{name}_proj": None for e in range(16) for name in ("gate", "up", "down")}),
    "mixed: a parent of experts": mixed({"model.layers.1.mlp.experts": None}),
    "mixed: one expert": mixed({"model.layers.1.mlp.experts.3.up_proj": None}),
    "mixed: parents": mixed({"model.layers.1.mlp": None, "model.layers.0.self_attn": None}),
    "mixed: shared experts": mixed({f"model.layers.1.mlp.shared_experts.{name}_proj": None for name in ("gate", "up", "down")}),
    "mixed: head": mixed({"lm_head": None, **O_PROJS}),
    "mixed: nothing": mixed({}),
    "mixed: with a list": mixed(O_PROJS, ["model.layers.0.self_attn.o_proj"]),
    "mixed: names of what is built": mixed({"model.layers.0.mlp.gate_up_proj": None, "model.layers.0.self_attn.qkv_proj": None}),
    "mixed: an unknown algorithm": mixed({"model.layers.0.self_attn.o_proj": "INT3", "model.layers.1.self_attn.o_proj": None}),
    "mixed: per-channel": mixed({"model.layers.0.self_attn.o_proj": "FP8_PER_CHANNEL_PER_TOKEN", "model.layers.1.self_attn.o_proj": None}),
}
OWN = {"deepseek": DEEPSEEK, "compressed-tensors": COMPRESSED, "modelopt": MODELOPT}


def changes(model, form):
    """(name, function that edits) of everything that is tried with this output of ingot."""
    yield "as written", lambda config, side: None
    dialect = form.rsplit(", ", 1)[-1]
    if dialect not in OWN or form == "int8-block, deepseek":
        return
    for name, edit in OWN[dialect].items():
        yield name, edit
    as_tuple = lambda entry: entry if isinstance(entry, tuple) else (entry,)
    if form in EACH and (model, form) != ("deepseek_v32", "fp8-tensor static, modelopt"):
        for entry in ENTRIES:
            text = json.dumps(list(as_tuple(entry)))
            if model == "deepseek_v32" and "index" not in text:
                continue
            yield f"also {text}", listing(dialect, as_tuple(entry), True)
    for number in range(N_RANDOM):
        chance = random.Random(f"{model}; {form}; {number}")
        entries = [text for entry in chance.sample(ENTRIES, chance.randint(1, 5)) for text in as_tuple(entry)]
        is_more = chance.random() < 0.5
        yield f"{'also' if is_more else 'only'} {json.dumps(entries)} at random", listing(dialect, entries, is_more)


def apply(edit, directory):
    """Edits the configs of a directory whose files may be links: these get files of their own."""
    paths = [directory / "config.json", directory / SIDE]
    config, side = (json.loads(path.read_text()) if path.exists() else None for path in paths)
    edit(config, side)
    for path, content in zip(paths, (config, side)):
        if content is not None:
            path.unlink()
            path.write_text(json.dumps(content))
