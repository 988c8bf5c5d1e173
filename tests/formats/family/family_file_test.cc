#include "formats/config/model_config.h"
#include "formats/family/families.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"
#include "tests/support/listed.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using ingot::testing::expect_error;
using ingot::testing::listed;

constexpr std::string_view kFileHead = "family: mine\nmodel_types: [mine]\n";

void expect_refused(const std::string& yaml, std::initializer_list<std::string> words) {
  SCOPED_TRACE(yaml.substr(0, 200));
  expect_error(ErrorCode::kInvalidArgument, words, [&] { (void)parse_family(yaml, "my.yaml"); });
}

/// The same with the lines that every family has before those given.
void expect_rows_refused(const std::string& rows, std::initializer_list<std::string> words) {
  expect_refused(std::string(kFileHead) + rows, words);
}

ModelConfig config_of(std::string_view json) {
  return parse_model_config(json, "config.json");
}

std::string all_of(const TensorRule& rule, const ModelConfig& config) {
  std::string text =
      fmt::format("{} {} {}", rule.pattern, role_name(rule.role), static_cast<int>(rule.scope));
  for (const LayerCondition& condition : rule.layers) text += " " + condition.key;
  for (const std::uint64_t side : rule_shape(rule, config, std::nullopt))
    text += fmt::format(" {}", side);
  return text + fmt::format(" {} {} {} {} {} {} {} {} {} {}", rule.fp8_by_default,
                            static_cast<int>(rule.silence), rule.may_be_quantized,
                            static_cast<int>(rule.cut), static_cast<int>(rule.fuse),
                            static_cast<int>(rule.presence), static_cast<int>(rule.synth_dtype),
                            rule.any_shape, static_cast<int>(rule.stack),
                            static_cast<int>(rule.gate_up));
}

TEST(FamilyFile, PrintedFamilyHasTheSameRows) {
  for (const Family* family : families()) {
    if (family->yaml.empty()) continue;
    SCOPED_TRACE(family->name);
    const auto again = parse_family(std::string(family->yaml) + "# copied\n", "copy.yaml");
    const Family& copy = again->family();
    const ModelConfig config =
        config_of(family->reference_config.empty() ? "{}" : family->reference_config);
    ASSERT_EQ(copy.rules.size(), family->rules.size());
    for (std::size_t i = 0; i < copy.rules.size(); ++i)
      EXPECT_EQ(all_of(copy.rules[i], config), all_of(family->rules[i], config));
    EXPECT_EQ(copy.mtp_layers, family->mtp_layers);
    EXPECT_EQ(copy.dialect, family->dialect);
    EXPECT_EQ(copy.architecture, family->architecture);
  }
}

TEST(FamilyFile, BuiltInTextIsTheBuiltInFamily) {
  const testing::TempDir directory;
  const Family& family = *find_family("qwen3_moe");
  const auto path = directory.path() / "f.yaml";
  std::ofstream(path) << family.yaml;
  EXPECT_EQ(find_family("file:" + path.string()), &family);
  std::ofstream(path, std::ios::app) << "# mine\n";
  const Family* changed = find_family("file:" + path.string());
  ASSERT_NE(changed, &family);
  EXPECT_EQ(changed->name, "qwen3_moe");
  EXPECT_EQ(changed->spec, "file:" + path.string());
  EXPECT_EQ(changed->file_hash.size(), 32U);
  EXPECT_EQ(find_family("file:" + path.string()), changed) << "read once";
}

TEST(FamilyFile, RowsMayShareWhatAGroupSays) {
  const auto table = parse_family(std::string(kFileHead) + R"(
widths: {heads: num_attention_heads * head_dim}
tensors:
- {name: tok.weight, role: embedding, shape: [vocab_size, hidden_size]}
- under: ["blocks.{layer}.", "extra.{mtp}."]
  quantized: true
  tensors:
  - {name: q.weight, role: q-proj, shape: [heads, hidden_size], cut: column, fuse: qkv}
  - {name: norm.weight, role: input-norm, shape: [hidden_size], quantized: false, dtype: F32}
  - {name: "moe.{expert}.up.weight", role: expert-up, shape: [ffn.width, hidden_size]}
)",
                                  "my.yaml");
  const Family& family = table->family();
  ASSERT_EQ(family.rules.size(), 7U);
  EXPECT_EQ(family.rules[1].pattern, "blocks.{layer}.q.weight");
  EXPECT_EQ(family.rules[1].scope, Scope::kMainLayer) << "MTP layers have names of their own";
  EXPECT_TRUE(family.rules[1].fp8_by_default);
  EXPECT_FALSE(family.rules[2].fp8_by_default);
  EXPECT_EQ(family.rules[2].synth_dtype, DType::kF32);
  EXPECT_EQ(family.rules[3].presence, Presence::kPerExpert);
  EXPECT_EQ(family.rules[4].pattern, "extra.{mtp}.q.weight");
  EXPECT_EQ(family.rules[4].scope, Scope::kMtpLayer);
  const ModelConfig config = config_of(R"({"hidden_size": 64, "num_attention_heads": 4,
      "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "num_experts": 3, "vocab_size": 10,
      "ffn": {"width": 96}})");
  const NameGrammar grammar(family, config);
  const auto up = grammar.match("blocks.1.moe.2.up.weight");
  ASSERT_TRUE(up);
  EXPECT_EQ(rule_shape(*up->rule, config, up->layer), (Shape{96, 64}));
  EXPECT_EQ(up->layer, 1U);
  EXPECT_EQ(up->expert, 2U);
  EXPECT_FALSE(grammar.match("blocks.1.moe.3.up.weight")) << "one expert too many";
  EXPECT_FALSE(grammar.match("blocks.2.q.weight")) << "one layer too many";
  const auto mtp = grammar.match("extra.0.q.weight");
  ASSERT_TRUE(mtp);
  EXPECT_EQ(mtp->layer, 2U);
  EXPECT_EQ(rule_shape(*mtp->rule, config, mtp->layer), (Shape{64, 64}));
}

TEST(FamilyFile, NumbersMayBeBelowAKeyOfTheConfig) {
  const auto table = parse_family(std::string(kFileHead) + R"(
widths: {pieces: n_pieces * 2}
tensors:
- {name: "blocks.{layer}.table.shard_{pieces}.weight", role: lookup-table, shape: [rows / pieces, hidden_size]}
- {name: "head.part_{n_pieces}.weight", role: other, shape: [hidden_size]}
)",
                                  "my.yaml");
  const ModelConfig config =
      config_of(R"({"hidden_size": 8, "num_hidden_layers": 1, "n_pieces": 2, "rows": 20})");
  std::vector<std::string> names;
  for_each_expected(table->family(), config, false,
                    [&](const ExpectedTensor& tensor) { names.push_back(tensor.name); });
  EXPECT_EQ(names, (std::vector<std::string>{
                       "head.part_0.weight", "head.part_1.weight", "blocks.0.table.shard_0.weight",
                       "blocks.0.table.shard_1.weight", "blocks.0.table.shard_2.weight",
                       "blocks.0.table.shard_3.weight"}));
  const NameGrammar grammar(table->family(), config);
  for (const std::string& name : names) EXPECT_TRUE(grammar.match(name)) << name;
  const auto last = grammar.match("blocks.0.table.shard_3.weight");
  EXPECT_EQ(last->layer, 0U);
  EXPECT_EQ(rule_shape(*last->rule, config, last->layer), (Shape{5, 8}));
  for (const char* name :
       {"blocks.0.table.shard_4.weight", "blocks.0.table.shard_.weight",
        "blocks.0.table.shard_03.weight", "blocks.1.table.shard_0.weight", "head.part_2.weight"})
    EXPECT_FALSE(grammar.match(name)) << name;
  EXPECT_TRUE(grammar.knows("blocks.0.table.shard_4.weight"));
  const ModelConfig without =
      config_of(R"({"hidden_size": 8, "num_hidden_layers": 1, "rows": 20})");
  expect_error(ErrorCode::kCorrupt, {"needs n_pieces"},
               [&] { require_widths(table->family(), without); });
}

TEST(FamilyFile, AbsentKeysMeanWhatTheFileSays) {
  const Family& family = add_family(
      "family: mine\nmodel_types: [mine]\nlike: llama\ndefaults: {num_experts: 6, hidden_size: 12, "
      "num_hidden_layers: 3, sliding_window_pattern: 2, sparse.width: 5, hidden_act: gelu, "
      "tie_word_embeddings: true, kinds: [a, 2], eps: 1e-6}\n",
      "my.yaml");
  const ModelConfig bare = formats::config_of(family, config_of("{}"));
  EXPECT_EQ(bare.n_routed_experts, 6U);
  EXPECT_EQ(bare.hidden_size, 12U);
  EXPECT_TRUE(bare.tie_word_embeddings);
  EXPECT_EQ(config_value(bare, "sparse.width"), 5);
  EXPECT_EQ(config_value(bare, "kinds"), Json({"a", 2}));
  EXPECT_EQ(config_value(bare, "hidden_act"), "gelu");
  EXPECT_EQ(config_value(bare, "eps"), 1e-6);
  EXPECT_EQ(config_value(bare, "layer_types"),
            Json({"sliding_attention", "full_attention", "sliding_attention"}));
  EXPECT_EQ(bare.raw, Json::object()) << "what is written stays as it is";
  const Family& child = add_family(
      "family: my_child\nmodel_types: [my_child]\nlike: llama\ndefaults: {num_hidden_layers: 3, "
      "sources: \"each {layer}\", sides: each 0 left}\n",
      "my.yaml");
  const ModelConfig listed = formats::config_of(child, config_of("{}"));
  EXPECT_EQ(config_value(listed, "sources"), Json({0, 1, 2}));
  EXPECT_EQ(config_value(listed, "sides"), Json({0, "left", 0}));
  const ModelConfig said = formats::config_of(family, config_of(R"({"text_config": {
      "n_routed_experts": 4, "hidden_size": null, "num_hidden_layers": 1, "sparse": 7},
      "tie_word_embeddings": false})"));
  EXPECT_EQ(said.n_routed_experts, 4U) << "in another spelling";
  EXPECT_EQ(said.hidden_size, 0U) << "null is said";
  EXPECT_FALSE(said.tie_word_embeddings) << "said outside of the text model";
  EXPECT_EQ(config_value(said, "sparse"), 7);
  EXPECT_EQ(said.num_hidden_layers, 1U);
  EXPECT_EQ(said.text.key, "text_config");
}

// transformers takes the parameters of a release where both of their names are absent or null.
TEST(FamilyFile, AbsentObjectsAreTakenWhole) {
  const Family& family = add_family(
      "family: ropes\nmodel_types: [ropes]\nlike: llama\n"
      "defaults: {rope_parameters: {rope_type: llama3, factor: 8, inner: null}, sizes.first: 3}\n",
      "my.yaml");
  const Json whole = {{"rope_type", "llama3"}, {"factor", 8}, {"inner", nullptr}};
  for (const char* text :
       {"{}", R"({"rope_parameters": null, "rope_scaling": null})", R"({"rope_scaling": {}})"}) {
    const ModelConfig config = formats::config_of(family, config_of(text));
    EXPECT_EQ(config_value(config, "rope_parameters"), whole) << text;
    EXPECT_EQ(config.rope.type, "llama3") << text;
  }
  const ModelConfig scaled =
      formats::config_of(family, config_of(R"({"rope_scaling": {"rope_type": "linear"}})"));
  EXPECT_EQ(scaled.rope.type, "linear");
  const ModelConfig own =
      formats::config_of(family, config_of(R"({"rope_parameters": {"rope_theta": 5}})"));
  EXPECT_EQ(config_value(own, "rope_parameters"), Json({{"rope_theta", 5}}));
  const ModelConfig nothing = formats::config_of(family, config_of(R"({"sizes": null})"));
  EXPECT_EQ(config_value(nothing, "sizes.first"), 3);
}

TEST(FamilyFile, LayersFollowKeysOfTheConfig) {
  const auto table = parse_family(std::string(kFileHead) + R"(
tensors:
- {name: "l.{layer}.a.weight", role: other, layers: {kinds: [sliding, 1]}}
- {name: "l.{layer}.b.weight", role: other, layers: {pattern: M}}
- {name: "l.{layer}.c.weight", role: other, layers: {listed_in: linear.layers, from: 1}}
- {name: "l.{layer}.d.weight", role: other, layers: [moe, {kinds: full}]}
- {name: "l.{layer}.e.bias", role: other, present: {when: has_bias}}
- {name: "l.{layer}.f.bias", role: other, present: {unless: has_bias}}
- {name: "l.{layer}.g.weight", role: other, layers: {sources: "{layer}"}}
- {name: "l.{layer}.h.weight", role: other, layers: {not_listed_in: linear.layers, from: 1}}
)",
                                  "my.yaml");
  const ModelConfig config = config_of(R"({"num_hidden_layers": 3, "num_experts": 2,
      "first_k_dense_replace": 1, "kinds": ["full", "sliding", 1], "pattern": "M*M",
      "linear": {"layers": [1, 3]}, "has_bias": true, "sources": [0, 0, 2]})");
  const NameGrammar grammar(table->family(), config);
  const auto layers_of = [&](const char* name) {
    std::string found;
    for (int layer = 0; layer < 3; ++layer) {
      if (grammar.match(fmt::format("l.{}.{}", layer, name))) found += std::to_string(layer);
    }
    return found;
  };
  EXPECT_EQ(layers_of("a.weight"), "12");
  EXPECT_EQ(layers_of("g.weight"), "02");
  EXPECT_EQ(layers_of("h.weight"), "1");
  EXPECT_EQ(layers_of("b.weight"), "02");
  EXPECT_EQ(layers_of("c.weight"), "02");
  EXPECT_EQ(layers_of("d.weight"), "") << "layer 0 is full, and dense";
  EXPECT_EQ(layers_of("e.bias"), "012");
  EXPECT_EQ(layers_of("f.bias"), "");
}

TEST(FamilyFile, RefusesListsOfMoreLayersThanModelsHave) {
  const auto table = parse_family(
      std::string(kFileHead) +
          "tensors:\n- {name: 'l.{layer}.a', role: other, layers: {listed_in: full}}\n",
      "my.yaml");
  std::string list;
  for (int i = 0; i < 4097; ++i) list += (i == 0 ? "[0" : ", 0");
  const ModelConfig config = config_of(R"({"num_hidden_layers": 3, "full": )" + list + "]}");
  const NameGrammar grammar(table->family(), config);
  expect_error(ErrorCode::kLimit, {"config.json", "lists 4097 layers under full", "4096"},
               [&] { (void)grammar.match("l.0.a"); });
}

TEST(FamilyFile, BeginsWithTheRowsOfAnother) {
  const auto table = parse_family(std::string(kFileHead) + R"(
like: qwen3_moe
without: ["*.self_attn.?_norm.weight"]
change:
- {roles: [router], silence: plain, dtype: F32}
tensors:
- {name: "model.layers.{layer}.self_attn.q_proj.weight", role: q-proj, shape: [1, 2]}
- {name: "model.layers.{layer}.gate.bias", role: router-bias, layers: moe, shape: [3]}
)",
                                  "my.yaml");
  const std::size_t n_before = find_family("qwen3_moe")->rules.size();
  const Family& family = table->family();
  EXPECT_EQ(family.rules.size(), n_before - 2 + 1);
  for (const TensorRule& rule : family.rules) {
    if (rule.role != Role::kRouter) continue;
    EXPECT_EQ(rule.silence, Silence::kPlain);
    EXPECT_EQ(rule.synth_dtype, DType::kF32);
  }
  const auto replaced = std::ranges::find(family.rules, Role::kQProj, &TensorRule::role);
  EXPECT_EQ(rule_shape(*replaced, {}, std::nullopt), (Shape{1, 2}));
  EXPECT_TRUE(replaced->fp8_by_default) << "usual for the role";
}

TEST(FamilyFile, RowsSayWhatIsNotUsualForTheirRole) {
  const auto table = parse_family(std::string(kFileHead) + R"(
tensors:
- {name: "l.{layer}.gate", role: dense-gate}
- {name: "l.{layer}.down", role: dense-down, quantized: false, cut: replicated, shape: any}
- {name: "l.{layer}.up", role: dense-up, fuse: none, shape: [hidden_size, 3]}
- {name: "l.{layer}.q", role: q-proj}
- {name: "l.{layer}.qkv", role: qkv-proj}
)",
                                  "my.yaml");
  const std::span<const TensorRule> rows = table->family().rules;
  const ModelConfig config = config_of(R"({"hidden_size": 8, "intermediate_size": 12})");
  EXPECT_TRUE(rows[0].fp8_by_default);
  EXPECT_EQ(rows[0].cut, Cut::kColumn);
  EXPECT_EQ(rows[0].fuse, Fuse::kGateUp);
  EXPECT_EQ(rule_shape(rows[0], config, 0), (Shape{12, 8}));
  EXPECT_FALSE(rows[1].fp8_by_default);
  EXPECT_EQ(rows[1].cut, Cut::kReplicated);
  EXPECT_TRUE(rows[1].any_shape);
  EXPECT_EQ(rows[2].fuse, Fuse::kNone);
  EXPECT_EQ(rule_shape(rows[2], config, 0), (Shape{8, 3}));
  EXPECT_TRUE(rows[3].any_shape) << "several shapes are usual";
  EXPECT_EQ(rows[4].cut, Cut::kReplicated) << "a fine role has no usual row";
}

TEST(FamilyFile, RefusesWhatIsNoFamily) {
  expect_refused("", {"my.yaml", "is empty"});
  expect_refused("- a\n", {"my.yaml", "line 1", "a family is a map"});
  expect_refused("summary: x\n", {"lacks the family's name"});
  expect_refused("family: generic\ntensors: []\n", {"line 1", "no name of a family"});
  expect_refused("family: My Model\n", {"no name of a family"});
  expect_refused("family: a\nfamily: b\n", {"line 2", "there twice"});
  expect_refused("family: &a b\n", {"line 1", "anchors"});
  expect_refused("family: !!str b\n", {"line 1", "tags"});
  expect_refused("family: a\n---\nfamily: b\n", {"more than one YAML document"});
  expect_refused(std::string(kFileHead), {"has no tensors"});
  expect_refused(std::string(kFileHead) + "tensor: []\n", {"line 3", "did you mean tensors"});
  expect_refused(std::string(kFileHead) + "#" + std::string(300'000, 'x'), {"longer than 256 KiB"});
  expect_rows_refused("tensors: [[[[[[[[a]]]]]]]]\n", {"line 3", "nested too deeply"});
  expect_rows_refused("like: qwen3_mo\n", {"line 3", "did you mean qwen3_moe"});
  expect_rows_refused("like: file:/etc/passwd\n", {"line 3", "no family"});
  expect_rows_refused("without: ['*']\n", {"line 3", "name it with like"});
  expect_rows_refused("like: qwen3_moe\nwithout: [nothing]\n", {"line 4", "matches no row"});
  expect_rows_refused("like: qwen3_moe\nwithout: ['re:(a+)+b']\n", {"line 4", "no glob"});
  expect_rows_refused("like: qwen3_moe\nchange: [{roles: [mtp-head], cut: row}]\n",
                      {"line 4", "no row of qwen3_moe"});
  expect_rows_refused("mtp_layers: mtp\n", {"line 3", "does not end with a dot"});
  expect_rows_refused("aliases: {a.b.: a}\n", {"line 3", "end with a dot"});
}

TEST(FamilyFile, RefusesRowsThatAreWrong) {
  const auto row = [](const std::string& text) { return "tensors:\n- {" + text + "}\n"; };
  expect_rows_refused("tensors: {a: b}\n", {"line 3", "tensors is not a list"});
  expect_rows_refused("tensors:\n- a\n", {"line 4", "a row is not a map"});
  expect_rows_refused(row("role: head"), {"line 4", "lacks the name"});
  expect_rows_refused(row("name: a"), {"line 4", "'a' lacks a role"});
  expect_rows_refused(row("name: a, role: q_proj"), {"line 4", "did you mean q-proj"});
  expect_rows_refused(row("name: a, role: head, shap: [1]"), {"did you mean shape"});
  expect_rows_refused(row("name: a, role: head, cut: rows"), {"line 4", "did you mean row"});
  expect_rows_refused(row("name: a, role: head, dtype: F33"), {"there is no dtype 'F33'"});
  expect_rows_refused(row("name: a, role: head, quantized: 2"), {"neither true nor false"});
  expect_rows_refused(row("name: a, role: head, shape: [1, 1, 1, 1, 1]"), {"at most 4 dimensions"});
  expect_rows_refused(row("name: a, role: head, shape: [1], quantized: true"), {"no matrix"});
  expect_rows_refused(row("name: a, role: head, shape: [1, 2], stack: input-major"),
                      {"three dimensions"});
  expect_rows_refused(row("name: a, role: other, shape: [6, 2], flat: true"),
                      {"flat and no stack"});
  expect_rows_refused(row("name: 'a.*', role: head"), {"line 4", "has '*'"});
  expect_rows_refused(row("name: 'a.{layer}x', role: head"), {"has '{layer}x'"});
  expect_rows_refused(row("name: 'a.{block}', role: head"), {"has '{block}'"});
  expect_rows_refused(row("name: 'a.b_{n}c', role: head"), {"has 'b_{n}c'"});
  expect_rows_refused(row("name: 'a.b_{}', role: head"), {"has 'b_{}'"});
  expect_rows_refused(row("name: 'a.b_{n}.c_{m}', role: head"), {"a number below a key twice"});
  expect_rows_refused(row("name: '{layer}.a', role: head"), {"begins with a number"});
  expect_rows_refused(row("name: 'a.{layer}.b.{layer}', role: head"), {"{layer} twice"});
  expect_rows_refused(row("name: 'a.{layer}.b.{mtp}', role: head"), {"one number"});
  expect_rows_refused(row("name: a..b, role: head"), {"nothing between two dots"});
  expect_rows_refused(row("name: " + std::string(300, 'a') + ", role: head"), {"256 characters"});
  expect_rows_refused(row("name: a, role: head, layers: moe"), {"lacks the number of one"});
  expect_rows_refused(row("name: 'a.{layer}', role: head, layers: model"), {"outside the layers"});
  expect_rows_refused(row("name: 'a.{mtp}', role: head, layers: moe"), {"of an MTP layer"});
  expect_rows_refused(row("name: 'a.{layer}', role: head, layers: [moe, mtp]"), {"two words"});
  expect_rows_refused(row("name: 'a.{layer}', role: head, layers: {}"), {"one key"});
  expect_rows_refused(row("name: 'a.{layer}', role: head, layers: {listed_in: a, from: 2}"),
                      {"no whole number from 0 to 1"});
  expect_rows_refused(row("name: 'a.{layer}', role: head, present: single"), {"its number"});
  expect_rows_refused(row("name: 'a.{layer}', role: head, present: {when: a, unless: b}"),
                      {"one of when and unless"});
  expect_rows_refused(row("name: 'a.{layer}.{expert}', role: experts-up, present: stacked"),
                      {"of one expert and not a stack"});
  expect_rows_refused(row("name: a, role: head, shape: [6, 2], sections: [6]"), {"2 to"});
  expect_rows_refused(row("name: 'a.{layer}', role: experts-up, shape: [2, 6, 2]"),
                      {"say how its matrices are stored"});
}

TEST(FamilyFile, RefusesListsBeyondTheirLimits) {
  const auto repeated = [](std::size_t n, const char* entry) {
    std::string text;
    for (std::size_t i = 0; i < n; ++i) text += fmt::format(fmt::runtime(entry), i);
    return text;
  };
  expect_rows_refused("widths:\n" + repeated(257, "  w{}: 1\n"), {"more than 256 widths"});
  expect_rows_refused("defaults:\n" + repeated(257, "  k{}: 1\n"), {"more than 256 defaults"});
  expect_rows_refused("aliases:\n" + repeated(17, "  a{0}.: b{0}.\n"), {"more than 16 aliases"});
  expect_rows_refused("aliases: {'a.{layer}.b': c.b}\n", {"has {layer}, and 'c.b' has none"});
  expect_rows_refused("like: qwen3_moe\nchange: [" + repeated(257, "{{roles: [head{}]}},") + "]\n",
                      {"more than 256 entries"});
  expect_rows_refused("forward:\n  mixer: [" + repeated(65, "{{kind: k{}}},") + "]\n",
                      {"more than 64 mixers"});
  expect_rows_refused("widths: {'2a': 1}\n", {"no name of a width"});
  const std::string values = repeated(257, "v{},");
  expect_rows_refused(
      "tensors:\n- {name: 'a.{layer}', role: head, layers: {k: [" + values + "]}}\n",
      {"more than 256 values"});
}

TEST(FamilyFile, RefusesRowsInEachOthersWay) {
  const auto rows = [](const std::string& a, const std::string& b) {
    return "tensors:\n- {role: other, " + a + "}\n- {role: other, " + b + "}\n";
  };
  expect_rows_refused(rows("name: 'b_{n}.a'", "name: 'b_{m}.c'"), {"{m} behind 'b_'", "{n}"});
  const std::string name = "name: 'l.{layer}.a'";
  expect_rows_refused(rows("name: a", "name: a"), {"line 5", "in line 4", "another row"});
  expect_rows_refused(rows(name, name + ", layers: moe"), {"another row in the same layers"});
  expect_rows_refused(rows(name + ", layers: mtp", name + ", layers: moe"), {"another row"});
  expect_rows_refused(rows(name + ", layers: {k: [a, b]}", name + ", layers: {k: [b, c]}"),
                      {"another row"});
  expect_rows_refused(rows(name + ", layers: {k: a}", name + ", layers: {j: b}"), {"another row"});
  expect_rows_refused(rows(name, "name: l.0.b"), {"line 5", "where other rows have {layer}"});
  expect_rows_refused(rows(name, "name: 'l.{mtp}.b'"), {"behind 'l'", "mtp_layers"});
  expect_rows_refused("mtp_layers: m.\n" + rows(name, "name: 'k.{mtp}.b'"), {"choose one"});
  expect_rows_refused("mtp_layers: m.\n" + rows(name, "name: 'k.{layer}.b'"),
                      {"line 6", "does not begin with l."});
  expect_rows_refused("mtp_layers: m.\n" + rows(name, "name: m.0.b"), {"under its own name"});
  expect_rows_refused(rows(name + ", layers: {k: '{layer}'}", name + ", layers: {k: a}"),
                      {"another row"});
  expect_rows_refused(
      rows(name + ", layers: {listed_in: j}", name + ", layers: {not_listed_in: k}"),
      {"another row"});
  for (const auto& [a, b] : {std::pair{"layers: dense", "layers: moe"},
                             {"layers: full_attention", "layers: linear_attention"},
                             {"layers: {k: a}", "layers: {k: [b, c]}"},
                             {"layers: {listed_in: k}", "layers: {listed_in: j}"},
                             {"layers: {listed_in: k}", "layers: {not_listed_in: k}"},
                             {"present: {when: k}", "present: {unless: k}"}}) {
    EXPECT_NO_THROW((void)parse_family(
        std::string(kFileHead) + rows(name + ", " + a, name + ", " + b), "my.yaml"))
        << a;
  }
}

TEST(Widths, ComputeWhatTheySay) {
  const ModelConfig config = config_of(R"({"hidden_size": 64, "num_attention_heads": 4,
      "inner": {"size": 7}, "flag": true, "off": false, "none": null})");
  for (const std::string& row : listed(R"(2 + 3 * 4 = 14; (2 + 3) * 4 = 20; hidden_size / 3 = 21;
      num_attention_heads * head_dim = 64; inner.size - 8 = 0; 5 / q_lora_rank = 0;
      q_lora_rank or inner.size = 7; 0 or 0 or 3 = 3; flag + off + none + lost = 1;
      10 - 2 - 3 = 5; organ or 2 = 2; lost default 3 = 3; none default 3 = 3; off default 3 = 0;
      inner.size default 3 * 2 = 14; 2 * (inner.lost default 3) = 6; defaults default 2 = 2)")) {
    const std::vector<std::string> sides = listed(row, "=");
    EXPECT_EQ(Width::parse(sides[0]).size(config), std::stoull(sides[1])) << row;
  }
  EXPECT_EQ(Width::parse("2 * hidden_size").times("hidden_size"), 2U);
  EXPECT_EQ(Width::parse("hidden_size").times("hidden_size"), 1U);
  EXPECT_EQ(Width::parse("hidden_size + 1").times("hidden_size"), std::nullopt);
  EXPECT_TRUE(Width::parse("2 * a.b").mentions("a.b"));
}

TEST(Widths, RefuseWhatIsNoExpression) {
  const std::vector<std::string> none = listed(
      R"(; +; 1 +; (1; 1); a b; 1.5; a.; .a; a..b; 4294967297; 99999999999999999999; a * -1; or;
      a or; 2x; a[0]; a % 2; default; default 1; a default; a default b; a default -1;
      1 default 2; (a) default 2; a default 4294967297)");
  for (const std::string& text : none) {
    expect_error(ErrorCode::kInvalidArgument, {}, [&] { (void)Width::parse(text); });
  }
  const auto refused = [](const std::string& text, const char* words) {
    expect_error(ErrorCode::kInvalidArgument, {words}, [&] { (void)Width::parse(text); });
  };
  refused("hidden_size default 2", "no key of config.json");
  refused(std::string(201, '1'), "longer than 200");
  refused(std::string(17, '(') + "1" + std::string(17, ')'), "parentheses inside");
  // Each width is the one before it twice: 2^n steps, were they ever put in.
  std::string doubling = std::string(kFileHead) + "widths:\n  w0: a + a\n";
  for (int i = 1; i < 40; ++i) doubling += fmt::format("  w{}: w{} + w{}\n", i, i - 1, i - 1);
  expect_refused(doubling, {"line 9", "more than 64 steps"});
  expect_rows_refused("widths: {hidden_size: a}\n", {"line 3", "width of every config"});
}

TEST(Widths, RefuseConfigsThatDoNotFit) {
  const ModelConfig config = config_of(
      R"({"hidden_size": 4294967296, "a": "x", "b": -1, "c": 1.5, "d": [1], "e": 4294967297})");
  expect_error(ErrorCode::kLimit, {"config.json", "does not fit 64 bits"},
               [&] { (void)Width::parse("hidden_size * hidden_size * hidden_size").size(config); });
  for (const char* key : {"a", "b", "c", "d", "e"}) {
    expect_error(ErrorCode::kCorrupt, {"config.json", key, "whole number"},
                 [&] { (void)Width::parse(key).size(config); });
  }
}

}  // namespace
}  // namespace ingot::formats
