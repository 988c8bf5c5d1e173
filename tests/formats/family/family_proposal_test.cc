#include "formats/family/proposal/family_proposal.h"

#include <deque>

#include "formats/family/families.h"
#include "formats/family/family_yaml.h"
#include "formats/family/proposal/family_proof.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

std::string propose_family(const ModelConfig& config, std::span<const UnknownWeight> weights) {
  return learn_family(config, weights).yaml;
}

std::string other_share(std::span<const UnknownWeight> weights, const ModelConfig& config) {
  return learn_family(config, weights).share;
}

/// Names and shapes of a checkpoint, as tests/golden/arch has them.
struct Listed {
  std::deque<std::string> names;
  std::deque<Shape> shapes;
  std::vector<UnknownWeight> weights;
  ModelConfig config;

  void add(const std::string& name, Shape shape) {
    weights.push_back({.name = names.emplace_back(name),
                       .shape = &shapes.emplace_back(std::move(shape)),
                       .dtype = DType::kBf16});
  }
};

Listed list_of(const std::string& family) {
  const std::string folder = std::string(INGOT_SOURCE_DIR) + "/tests/golden/arch/" + family;
  Listed found;
  std::ifstream config(folder + "/config.json");
  std::stringstream text;
  text << config.rdbuf();
  found.config = parse_model_config(text.str(), "config.json");
  std::ifstream list(folder + "/names.txt");
  for (std::string name, dtype, shape; list >> name >> dtype >> shape;) {
    std::stringstream sides(shape);
    Shape all;
    for (std::string side; std::getline(sides, side, 'x');) all.push_back(std::stoull(side));
    found.add(name, all);
  }
  return found;
}

TEST(ProposeFamily, LeavesOutRowsThatContradictOthers) {
  Listed model;
  model.config = parse_model_config(
      R"({"model_type": "odd", "hidden_size": 8, "num_hidden_layers": 2})", "config.json");
  // A number behind `blocks` is that of a layer in two names, and of nothing in the third.
  for (const char* name :
       {"blocks.0.q_proj.weight", "blocks.1.q_proj.weight", "9.blocks.3.weight", "norm.weight"})
    model.add(name, {8, 8});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_NO_THROW(static_cast<void>(parse_family(yaml, "proposed"))) << yaml;
  EXPECT_NE(yaml.find("# left out, '"), std::string::npos) << yaml;
}

class Proposed : public ::testing::TestWithParam<const char*> {};

// The families that names and shapes tell, against the family's own table.
TEST_P(Proposed, FamilyIsThatOfTheTable) {
  const Listed model = list_of(GetParam());
  ASSERT_FALSE(model.weights.empty());
  const std::string yaml = propose_family(model.config, model.weights);
  const auto table = parse_family(yaml, "proposed");
  const NameGrammar proposed(table->family(), model.config);
  const NameGrammar known(*find_family(GetParam()), model.config);
  for (const UnknownWeight& weight : model.weights) {
    const auto a = proposed.match(weight.name);
    const auto b = known.match(weight.name);
    ASSERT_TRUE(a) << weight.name << "\n" << yaml;
    ASSERT_TRUE(b) << weight.name;
    EXPECT_EQ(a->layer, b->layer);
    EXPECT_EQ(a->expert, b->expert);
    EXPECT_EQ(rule_shape(*a->rule, model.config, a->layer), *weight.shape) << weight.name;
    if (a->rule->role == Role::kOther) continue;
    EXPECT_EQ(role_name(a->rule->role), role_name(b->rule->role)) << weight.name;
    EXPECT_EQ(a->rule->fp8_by_default, b->rule->fp8_by_default) << weight.name;
    EXPECT_EQ(a->rule->cut, b->rule->cut) << weight.name;
    EXPECT_EQ(a->rule->fuse, b->rule->fuse) << weight.name;
    EXPECT_EQ(a->rule->shape[0]->times("hidden_size"), b->rule->shape[0]->times("hidden_size"))
        << weight.name;
  }
  const auto n_other = std::ranges::count(table->family().rules, Role::kOther, &TensorRule::role);
  EXPECT_LE(n_other, 5) << yaml;
}

INSTANTIATE_TEST_SUITE_P(Arch, Proposed,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "glm_moe_dsa",
                                           "qwen3_moe"),
                         [](const auto& family) { return std::string(family.param); });

/// The rows proposed for stacks of these shapes in a model 64 wide; a line each.
std::string stacks_of(const char* widths, const Shape& gate_up, const Shape& down) {
  Listed model;
  model.config = parse_model_config(
      std::string(R"({"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 1,
                      "num_experts": 4, )") +
          widths + "}",
      "config.json");
  model.add("model.layers.0.mlp.experts.gate_up_proj", gate_up);
  model.add("model.layers.0.mlp.experts.down_proj", down);
  return propose_family(model.config, model.weights);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
  return n;
}

TEST(ProposedStack, StandsAsTheOneBesideItTells) {
  constexpr const char* kWidths = R"("moe_intermediate_size": 32)";
  const std::string turned = stacks_of(kWidths, {4, 64, 64}, {4, 32, 64});
  EXPECT_EQ(count_of(turned, "\n- {"), 5U) << turned;
  EXPECT_EQ(count_of(turned, "stack: input-major"), 2U) << turned;
  const std::string usual = stacks_of(kWidths, {4, 64, 64}, {4, 64, 32});
  EXPECT_EQ(count_of(usual, "stack: output-major"), 2U) << usual;
}

TEST(ProposedStack, IsLeftOutWhereShapesDoNotTell) {
  // Nothing says how wide experts are.
  const std::string untold = stacks_of(R"("width": 3)", {4, 64, 64}, {4, 32, 64});
  // Gate and up have one orientation, down the other.
  const std::string contrary =
      stacks_of(R"("moe_intermediate_size": 24)", {4, 48, 64}, {4, 24, 64});
  for (const std::string& yaml : {untold, contrary}) {
    EXPECT_EQ(count_of(yaml, "\n- {"), 0U) << yaml;
    EXPECT_EQ(count_of(yaml, "# left out: shapes do not tell the order of the stack"), 2U) << yaml;
  }
}

/// The family of a model of one layer, 64 wide with 4 heads of 16, with one matrix.
LearnedFamily learn_matrix(const char* name, Shape shape, const char* planned) {
  Listed model;
  model.config = parse_model_config(
      R"({"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 1, "head_dim": 16,
          "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 160})",
      "config.json");
  model.add(std::string("model.layers.0.") + name, std::move(shape));
  FamilyEvidence evidence;
  if (planned != nullptr) evidence.of_class.plan.emplace(model.names.front(), planned);
  return learn_family(model.config, model.weights, evidence);
}

TEST(ProposedCut, FollowsThePlanOfTransformers) {
  // A width that no role has: ranks share it, unless the plan cuts it and heads divide it.
  const auto is_shared = [](const LearnedFamily& learned) {
    return learned.yaml.find("cut: replicated") != std::string::npos;
  };
  EXPECT_TRUE(is_shared(learn_matrix("self_attn.q_proj.weight", {96, 64}, nullptr)));
  EXPECT_TRUE(
      is_shared(learn_matrix("self_attn.q_proj.weight", {96, 64}, "colwise_gather_output")));
  EXPECT_TRUE(is_shared(learn_matrix("self_attn.q_proj.weight", {98, 64}, "colwise")));
  const LearnedFamily cut = learn_matrix("self_attn.q_proj.weight", {96, 64}, "colwise");
  EXPECT_FALSE(is_shared(cut)) << cut.yaml;
  EXPECT_NE(cut.yaml.find("cut as planned"), std::string::npos) << cut.yaml;
  EXPECT_NE(cut.yaml.find("; transformers' tp_plan: colwise"), std::string::npos) << cut.yaml;
}

TEST(ProposedCut, IgnoresFamiliesWithWholeAttention) {
  // Some have it whole on each rank for a mixer of their own: no question, it is cut.
  for (const char* planned : {static_cast<const char*>(nullptr), "rowwise"}) {
    const LearnedFamily learned = learn_matrix("self_attn.o_proj.weight", {64, 64}, planned);
    EXPECT_TRUE(learned.questions.empty());
    EXPECT_EQ(learned.yaml.find("cut: replicated"), std::string::npos) << learned.yaml;
  }
}

TEST(ProposedCut, AsksWhereThePlanContradictsFamilies) {
  const auto n_questions = [](const char* planned) {
    return learn_matrix("mlp.down_proj.weight", {64, 160}, planned).questions.size();
  };
  EXPECT_EQ(n_questions(nullptr), 0U);
  EXPECT_EQ(n_questions("rowwise"), 0U);
  EXPECT_EQ(n_questions("colwise"), 1U);
}

TEST(ProposedStack, HasTheOrderOfItsClass) {
  Listed model;
  model.config = parse_model_config(
      R"({"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 1, "num_experts": 4})",
      "config.json");
  model.add("model.layers.0.mlp.experts.gate_up_proj", {4, 64, 64});
  FamilyEvidence evidence;
  EXPECT_EQ(learn_family(model.config, model.weights, evidence).questions.size(), 2U);
  evidence.of_class = {.stacks = {model.names.front()},
                       .order = StackOrder::kInputMajor,
                       .gate_up = GateUpOrder::kInterleaved};
  const LearnedFamily learned = learn_family(model.config, model.weights, evidence);
  EXPECT_TRUE(learned.questions.empty());
  EXPECT_NE(learned.yaml.find("stack: input-major, gate_up: interleaved"), std::string::npos)
      << learned.yaml;
  EXPECT_NE(learned.yaml.find("in turn, as transformers' class has them"), std::string::npos);
}

TEST(ProposedStack, HasRowsForItsExpertsOneByOne) {
  for (const bool is_turned : {false, true}) {
    const Shape gate_up = is_turned ? Shape{4, 64, 96} : Shape{4, 96, 64};
    const Shape down = is_turned ? Shape{4, 48, 64} : Shape{4, 64, 48};
    const std::string yaml = stacks_of(R"("moe_intermediate_size": 48)", gate_up, down);
    const auto table = parse_family(yaml, "proposed");
    const ModelConfig config = parse_model_config(R"({"hidden_size": 64, "num_hidden_layers": 1,
        "num_experts": 4, "moe_intermediate_size": 48})",
                                                  "config.json");
    const NameGrammar grammar(table->family(), config);
    for (const auto& [word, role, shape] : {std::tuple{"gate", Role::kExpertGate, Shape{48, 64}},
                                            {"up", Role::kExpertUp, Shape{48, 64}},
                                            {"down", Role::kExpertDown, Shape{64, 48}}}) {
      const auto match =
          grammar.match("model.layers.0.mlp.experts.3." + std::string(word) + "_proj.weight");
      ASSERT_TRUE(match) << yaml;
      EXPECT_EQ(match->rule->role, role) << yaml;
      EXPECT_EQ(rule_shape(*match->rule, config, 0), shape) << yaml;
      EXPECT_TRUE(match->rule->fp8_by_default);
    }
  }
}

TEST(ProposedStack, MayBeCalledAsGraniteDoes) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "granitemoe", "hidden_size": 64,
      "num_hidden_layers": 1, "num_local_experts": 4, "intermediate_size": 32})",
                                    "config.json");
  const std::string moe = "model.layers.0.block_sparse_moe.";
  model.add(moe + "input_linear.weight", {4, 64, 64});
  model.add(moe + "output_linear.weight", {4, 64, 32});
  model.add(moe + "router.layer.weight", {4, 64});
  model.add("model.layers.0.shared_mlp.input_linear.weight", {64, 64});
  const std::string yaml = propose_family(model.config, model.weights);
  const auto table = parse_family(yaml, "proposed");
  const NameGrammar grammar(table->family(), model.config);
  for (const auto& [name, role] : {std::pair{"input_linear.weight", Role::kExpertsGateUp},
                                   {"output_linear.weight", Role::kExpertsDown},
                                   {"router.layer.weight", Role::kRouter},
                                   {"experts.1.w1.weight", Role::kExpertGate},
                                   {"experts.1.w3.weight", Role::kExpertUp},
                                   {"experts.1.w2.weight", Role::kExpertDown}}) {
    const auto match = grammar.match(moe + name);
    ASSERT_TRUE(match) << name << yaml;
    EXPECT_EQ(match->rule->role, role) << name;
  }
  EXPECT_EQ(grammar.match("model.layers.0.shared_mlp.input_linear.weight")->rule->role,
            Role::kOther)
      << "no stack, though it is called as one";
}

TEST(Proposal, KnowsNamesOfTheTables) {
  Listed model;
  model.config = parse_model_config(
      R"({"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 1})", "config.json");
  model.add("blocks.0.linear_attn.A_log", {64});
  model.add("blocks.0.linear_attn.in_proj_qkvz.weight", {64, 64});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_EQ(count_of(yaml, "no usual name"), 0U) << yaml;
  EXPECT_EQ(count_of(yaml, "role: linear-attention-in"), 1U) << yaml;
}

TEST(Proposal, OnlyCopiesTowersWithLayersOfTheirOwn) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 2, "vocab_size": 96})",
                                    "config.json");
  const std::string tower = "model.aux_model.model.layers.";
  for (const char* layer : {"0", "1", "2", "3"}) {
    model.add(tower + layer + ".self_attn.q_proj.weight", {32, 32});
    model.add(tower + layer + ".self_attn.k_proj.weight", {32, 32});
  }
  model.add("model.aux_model.model.norm.weight", {32});
  for (const char* layer : {"0", "1"})
    model.add(std::string("model.layers.") + layer + ".self_attn.q_proj.weight", {64, 64});
  model.add("model.norm.weight", {64});
  const std::string yaml = propose_family(model.config, model.weights);
  const auto table = parse_family(yaml, "proposed");
  const NameGrammar grammar(table->family(), model.config);
  for (const UnknownWeight& weight : model.weights) {
    const auto match = grammar.match(weight.name);
    ASSERT_TRUE(match) << weight.name << "\n" << yaml;
    const bool is_of_tower = weight.name.find("aux_model") != std::string_view::npos;
    EXPECT_EQ(match->rule->role == Role::kOtherModality, is_of_tower) << weight.name;
    EXPECT_NE(match->layer.has_value(), is_of_tower || weight.name == "model.norm.weight");
  }
  EXPECT_FALSE(grammar.match("model.layers.2.self_attn.q_proj.weight"));
}

TEST(ProposedMatrix, IsNotQuantizedAlongItsInputs) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "intermediate_size": 96, "num_experts": 4})",
                                    "config.json");
  model.add("model.layers.0.mlp.up_proj.weight", {64, 96});
  model.add("model.layers.0.mlp.experts.gate_proj", {4, 96, 64});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_EQ(count_of(yaml, "# left out: its shape says that inputs come before outputs"), 1U)
      << yaml;
  EXPECT_EQ(count_of(yaml, "role: other"), 1U) << "single matrices in a stack of no known kind";
  EXPECT_EQ(count_of(yaml, "\n- {"), 1U) << yaml;
}

TEST(Proposal, MarksWhatItGuessed) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "My-Moe", "num_hidden_layers": 3,
      "hidden_size": 64, "vocab_size": 64, "num_attention_heads": 4, "layer_kinds": ["a", "b", "a"],
      "width": 96, "num_nextn_predict_layers": 1})",
                                    "config.json");
  model.add("emb.weight", {64, 64});
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    model.add(prefix + "attn.q_proj.weight", {64, 64});
    if (layer != 1) model.add(prefix + "attn.window.weight", {96});
    if (layer == 2) model.add(prefix + "attn.last", {33});
  }
  model.add("mtp.blocks.0.attn.q_proj.weight", {64, 64});
  const std::size_t n_good = model.weights.size();
  model.add("a\"}\n- {name: injected, role: head", {64});
  model.add("a..b", {64});
  const std::string yaml = propose_family(model.config, model.weights);
  const auto table = parse_family(yaml, "proposed");
  EXPECT_EQ(table->family().name, "my_moe");
  EXPECT_EQ(table->family().mtp_layers, "mtp.blocks.");
  const auto line_of = [&](const std::string& name) {
    const std::size_t at = yaml.find(name);
    return at == std::string::npos ? std::string() : yaml.substr(at, yaml.find('\n', at) - at);
  };
  EXPECT_NE(line_of("emb.weight").find("# guessed"), std::string::npos) << "no usual name";
  EXPECT_EQ(line_of("q_proj").find("# guessed"), std::string::npos) << yaml;
  EXPECT_NE(line_of("window").find(R"(layers: {layer_kinds: ["a"]}, shape: [width])"),
            std::string::npos)
      << yaml;
  EXPECT_NE(line_of("last").find("present: optional"), std::string::npos) << yaml;
  EXPECT_NE(line_of("last").find("no width of the config is 33"), std::string::npos) << yaml;
  const NameGrammar grammar(table->family(), model.config);
  for (std::size_t i = 0; i < n_good; ++i)
    EXPECT_TRUE(grammar.match(model.weights[i].name)) << model.weights[i].name;
  EXPECT_FALSE(grammar.match("injected"));
}

/// The line of the proposal for a pattern that ends so.
std::string line_of(const std::string& yaml, const std::string& name) {
  const std::size_t at = yaml.find(name + "\"");
  return at == std::string::npos ? std::string() : yaml.substr(at, yaml.find('\n', at) - at);
}

TEST(Proposal, TakesNoWordForAListByLayer) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 4, "hidden_act": "silu", "kinds_pattern": "MEEM"})",
                                    "config.json");
  for (const int layer : {0, 1}) model.add(fmt::format("layers.{}.a.weight", layer), {64});
  for (const int layer : {1, 2}) model.add(fmt::format("layers.{}.b.weight", layer), {64});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_EQ(yaml.find("hidden_act"), std::string::npos) << yaml;
  EXPECT_NE(line_of(yaml, "a.weight").find("present: optional"), std::string::npos) << yaml;
  EXPECT_NE(line_of(yaml, "b.weight").find(R"(layers: {kinds_pattern: ["E"]})"), std::string::npos)
      << yaml;
}

TEST(Proposal, TakesNoWidthOfTheQuantization) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 8,
      "num_hidden_layers": 2, "quantization_config": {"quant_method": "gptq", "group_size": 32}})",
                                    "config.json");
  for (const int layer : {0, 1}) model.add(fmt::format("layers.{}.a.weight", layer), {32, 8});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_EQ(yaml.find("quantization_config"), std::string::npos) << yaml;
}

TEST(Proposal, KnowsSeveralMatricesInOne) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "d_model": 64, "n_layers": 1,
      "n_heads": 4, "attn_config": {"kv_n_heads": 2}, "intermediate_size": 96,
      "shared_intermediate_size": 48})",
                                    "config.json");
  const std::string layer = "blocks.0.";
  model.add(layer + "attn.Wqkv.weight", {128, 64});
  model.add(layer + "attn.qkv_proj.weight", {130, 64});
  model.add(layer + "ffn.gate_up_proj.weight", {192, 64});
  model.add(layer + "shared_ffn_mlp.shared_mlp.gate_up_proj.weight", {96, 64});
  model.add(layer + "shared_mlp.output_linear.weight", {64, 48});
  const std::string yaml = propose_family(model.config, model.weights);
  for (const auto& [name, role] : {std::pair{"Wqkv.weight", "q-proj"},
                                   {"ffn.gate_up_proj.weight", "dense-gate"},
                                   {"shared_mlp.gate_up_proj.weight", "shared-gate"}}) {
    const std::string line = line_of(yaml, name);
    EXPECT_NE(line.find(std::string("role: ") + role + ","), std::string::npos) << yaml;
    EXPECT_EQ(line.find("quantized:"), std::string::npos) << "as usual: " << line;
    EXPECT_NE(line.find("cut: replicated"), std::string::npos) << "the order is not known";
    EXPECT_NE(line.find("fuse: none"), std::string::npos) << line;
  }
  EXPECT_NE(line_of(yaml, "output_linear.weight").find("role: shared-down"), std::string::npos);
  EXPECT_NE(line_of(yaml, "qkv_proj.weight").find("role: other"), std::string::npos)
      << "no width of queries, keys and values is 130";
}

/// The rows of a model of one layer with joined matrices, and how many questions are open.
std::pair<std::string, std::size_t> learn_joined(FamilyEvidence evidence) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64, "head_dim": 16,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
      "intermediate_size": 96})",
                                    "config.json");
  model.add("h.0.attn.Wqkv.weight", {128, 64});
  model.add("h.0.attn.Wqkv.bias", {128});
  model.add("h.0.ffn.gate_up_proj.weight", {192, 64});
  const LearnedFamily learned = learn_family(model.config, model.weights, evidence);
  return {learned.yaml, learned.questions.size()};
}

TEST(Proposal, JoinsMatricesAsTheClassOrTheAnswer) {
  EXPECT_EQ(learn_joined({}).second, 1U) << "one question for all";
  const FamilyEvidence of_class{.of_class = {.joined = {{"h.0.attn.Wqkv.weight", "parts"},
                                                        {"h.0.ffn.gate_up_proj.weight", "parts"}}}};
  for (const FamilyEvidence& evidence :
       {FamilyEvidence{.answers = {{"joined", "parts"}}}, of_class}) {
    const auto [yaml, n_open] = learn_joined(evidence);
    EXPECT_EQ(n_open, 0U);
    const std::string heads =
        "sections: [num_attention_heads * head_dim, num_key_value_heads * head_dim, "
        "num_key_value_heads * head_dim], heads: num_key_value_heads";
    EXPECT_NE(line_of(yaml, "Wqkv.weight").find("role: qkv-proj"), std::string::npos) << yaml;
    EXPECT_NE(line_of(yaml, "Wqkv.weight").find("cut: column, " + heads), std::string::npos);
    EXPECT_NE(line_of(yaml, "Wqkv.bias").find("role: qkv-bias"), std::string::npos) << yaml;
    EXPECT_NE(line_of(yaml, "Wqkv.bias").find(heads), std::string::npos) << yaml;
    EXPECT_NE(line_of(yaml, "gate_up_proj.weight").find("role: dense-gate-up"), std::string::npos);
    EXPECT_NE(line_of(yaml, "gate_up_proj.weight")
                  .find("sections: [intermediate_size, intermediate_size]"),
              std::string::npos)
        << yaml;
  }
  const std::string turns = learn_joined({.answers = {{"joined", "turns"}}}).first;
  EXPECT_NE(line_of(turns, "Wqkv.weight").find("role: q-proj"), std::string::npos) << turns;
  EXPECT_NE(line_of(turns, "Wqkv.weight").find("heads: num_key_value_heads"), std::string::npos);
  EXPECT_EQ(turns.find("sections"), std::string::npos) << turns;
}

TEST(Proposal, KnowsTheNamesOfTheClass) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "intermediate_size": 96})",
                                    "config.json");
  model.add("h.0.mlp.fc_a.weight", {96, 64});
  model.add("h.0.mlp.fc_b.weight", {96, 64});
  model.add("h.0.norm.W_down.weight", {20, 64});
  FamilyEvidence evidence;
  EXPECT_EQ(learn_family(model.config, model.weights, evidence).questions.size(), 3U);
  evidence.of_class.names = {{"h.0.mlp.fc_a.weight", "model.layers.0.mlp.gate_proj.weight"},
                             {"h.0.mlp.fc_b.weight", "model.layers.0.mlp.up_proj.weight"},
                             // Called as a matrix of an MLP, whose widths it does not have.
                             {"h.0.norm.W_down.weight", "model.layers.0.norm.mlp.fc1.weight"}};
  const LearnedFamily learned = learn_family(model.config, model.weights, evidence);
  EXPECT_EQ(learned.questions.size(), 1U);
  EXPECT_NE(line_of(learned.yaml, "fc_a.weight").find("role: dense-gate"), std::string::npos)
      << learned.yaml;
  EXPECT_NE(line_of(learned.yaml, "fc_b.weight").find("role: dense-up"), std::string::npos);
}

TEST(Proposal, AsksAboutMlpsThatDoNotReadTheHiddenState) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "intermediate_size": 96, "router_width": 24})",
                                    "config.json");
  model.add("layers.0.mlp.gate.router_mlp.fc1.weight", {24, 24});
  model.add("layers.0.mlp.fc1.weight", {96, 64});
  const LearnedFamily learned = learn_family(model.config, model.weights, FamilyEvidence{});
  ASSERT_EQ(learned.questions.size(), 1U) << learned.yaml;
  EXPECT_NE(learned.questions[0].key.find("router_mlp"), std::string::npos);
}

TEST(Proposal, KnowsASecondSetOfWidths) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "swa_num_attention_heads": 6, "swa_num_key_value_heads": 3, "swa_head_dim": 10})",
                                    "config.json");
  model.add("layers.0.attn.wq.weight", {60, 64});
  model.add("layers.0.attn.wk.weight", {30, 64});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_NE(line_of(yaml, "wq.weight")
                .find("shape: [swa_num_attention_heads * swa_head_dim, hidden_size], heads: "
                      "swa_num_attention_heads"),
            std::string::npos)
      << yaml;
  EXPECT_NE(line_of(yaml, "wk.weight").find("heads: swa_num_key_value_heads"), std::string::npos)
      << yaml;
}

TEST(Proposal, TellsGatesOfAttentionFromThoseOfMlps) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "intermediate_size": 96, "num_attention_heads": 2, "head_dim": 24})",
                                    "config.json");
  model.add("layers.0.self_attn.linear_gate.weight", {48, 64});
  model.add("layers.0.mlp.up_proj.weight", {96, 64});
  model.add("layers.0.mlp.down_proj.weight", {64, 96});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_NE(line_of(yaml, "linear_gate.weight").find("role: attention-gate"), std::string::npos)
      << yaml;
  EXPECT_EQ(line_of(yaml, "linear_gate.weight").find("quantized"), std::string::npos) << yaml;
  EXPECT_NE(line_of(yaml, "up_proj.weight").find("fuse: none"), std::string::npos)
      << "there is no gate to fuse it with";
}

TEST(Proposal, CopiesExpertsThatAreRowsOfOneMatrix) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "d_model": 64, "n_layers": 1,
      "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4}})",
                                    "config.json");
  for (const char* word : {"w1", "v1", "w2"})
    model.add(std::string("blocks.0.ffn.experts.mlp.") + word, {128, 64});
  model.add("blocks.0.ffn.router.layer.weight", {4, 64});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_EQ(count_of(yaml, "the experts of a layer in one matrix, so it is only copied"), 3U)
      << yaml;
  EXPECT_NE(
      line_of(yaml, "layer.weight").find("role: router, shape: [n_routed_experts, hidden_size]"),
      std::string::npos)
      << yaml;
}

TEST(Proposal, HasWidthsThatDifferByLayer) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64, "head_dim": 8,
      "num_hidden_layers": 4, "num_attention_heads": 4, "num_attention_heads_per_layer": [4, 6, 6, 4],
      "num_dense_layers": 2, "num_experts": 4, "moe_intermediate_size": 16})",
                                    "config.json");
  for (const int layer : {0, 1, 2, 3}) {
    const std::uint64_t heads = layer == 0 || layer == 3 ? 4 : 6;
    model.add(fmt::format("layers.{}.self_attn.q_proj.weight", layer), {heads * 8, 64});
    model.add(fmt::format("layers.{}.self_attn.g_proj.weight", layer), {heads, 64});
    if (layer > 1)
      model.add(fmt::format("layers.{}.mlp.experts.0.up_proj.weight", layer), {16, 64});
  }
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_NE(line_of(yaml, "q_proj.weight")
                .find("shape: [(num_attention_heads_per_layer or num_attention_heads) * head_dim, "
                      "hidden_size]"),
            std::string::npos)
      << yaml;
  EXPECT_NE(line_of(yaml, "q_proj.weight").find("heads: num_attention_heads_per_layer"),
            std::string::npos);
  EXPECT_NE(line_of(yaml, "g_proj.weight")
                .find("[num_attention_heads_per_layer or num_attention_heads, hidden_size]"),
            std::string::npos);
  EXPECT_NE(line_of(yaml, "up_proj.weight").find("layers: moe"), std::string::npos) << yaml;
  const auto table = parse_family(yaml, "proposed");
  const NameGrammar grammar(table->family(), model.config);
  for (const UnknownWeight& weight : model.weights) {
    const auto match = grammar.match(weight.name);
    ASSERT_TRUE(match) << weight.name;
    EXPECT_EQ(rule_shape(*match->rule, model.config, match->layer), *weight.shape) << weight.name;
  }
}

TEST(Proposal, LooksIntoTheThinker) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "omni", "thinker_config": {"text_config": {
      "model_type": "omni_text", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 96,
      "intermediate_size": 32}}})",
                                    "config.json");
  model.config.text.prefix = "thinker.";
  model.add("thinker.lm_head.weight", {96, 64});
  model.add("thinker.model.layers.0.mlp.up_proj.weight", {32, 64});
  model.add("thinker.audio_tower.conv.weight", {3, 64});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_EQ(yaml.find("thinker."), std::string::npos) << yaml;
  EXPECT_EQ(yaml.find("guessed:"), std::string::npos) << yaml;
  EXPECT_EQ(count_of(yaml, "\n- {"), 2U) << "no row for the tower";
}

TEST(Proposal, KnowsStateSpaces) {
  Listed model;
  model.config = parse_model_config(
      R"({"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 1})", "config.json");
  for (const char* word : {"in_proj.weight", "out_proj.weight", "x_proj.weight"})
    model.add(std::string("layers.0.mamba.") + word, {64, 64});
  model.add("layers.0.mamba.conv1d.weight", {64, 1, 4});
  const std::string yaml = propose_family(model.config, model.weights);
  EXPECT_NE(line_of(yaml, "in_proj.weight").find("role: linear-attention-in"), std::string::npos);
  EXPECT_NE(line_of(yaml, "out_proj.weight").find("role: linear-attention-out"), std::string::npos);
  EXPECT_EQ(yaml.find("quantized:"), std::string::npos) << "as usual: " << yaml;
  EXPECT_EQ(yaml.find("role: other"), std::string::npos) << yaml;
}

TEST(Proposal, SaysTheShareOfBytesThatItOnlyCopies) {
  Listed model;
  model.config = parse_model_config(
      R"({"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 1})", "config.json");
  model.add("layers.0.mystery.weight", {64, 64});
  model.add("layers.0.self_attn.q_proj.weight", {64, 64});
  model.weights[0].n_bytes = 300;
  model.weights[1].n_bytes = 100;
  const std::string text =
      "75.0% of the bytes are in rows that only copy, most of them in "
      "layers.{layer}.mystery.weight";
  EXPECT_EQ(other_share(model.weights, model.config), text);
  EXPECT_NE(propose_family(model.config, model.weights).find("# " + text), std::string::npos);
  model.weights[0].n_bytes = 1;
  EXPECT_EQ(other_share(model.weights, model.config), "");
}

/// The proposal for stacks whose shapes tell nothing, with this change of the first.
template <typename Change>
std::string square_stacks(const Change& change) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "num_experts": 4})",
                                    "config.json");
  model.add("layers.0.mlp.experts.gate_up_proj", {4, 96, 64});
  model.add("layers.0.mlp.experts.down_proj", {4, 64, 48});
  change(model);
  return propose_family(model.config, model.weights);
}

TEST(ProposedStack, IsToldByBiases) {
  const auto with_bias = [](std::uint64_t length) {
    return square_stacks([length](Listed& model) {
      model.add("layers.0.mlp.experts.gate_up_proj_bias", {4, length});
    });
  };
  EXPECT_EQ(count_of(with_bias(96), "stack: output-major"), 2U);
  EXPECT_EQ(count_of(with_bias(64), "stack: input-major"), 2U);
  EXPECT_EQ(count_of(with_bias(32), "# left out: shapes do not tell"), 2U);
}

TEST(ProposedStack, IsToldByScales) {
  const auto with_block = [](std::array<std::uint64_t, 2> block) {
    return square_stacks([block](Listed& model) {
      model.weights[0].is_quantized = true;
      model.weights[0].block = block;
    });
  };
  EXPECT_EQ(count_of(with_block({1, 32}), "stack: output-major"), 2U);
  EXPECT_EQ(count_of(with_block({32, 1}), "stack: input-major"), 2U);
  EXPECT_EQ(count_of(with_block({128, 128}), "# left out: shapes do not tell"), 2U)
      << "blocks have no direction";
}

TEST(ProposedStack, OfBlocksIsAsItsShapeSays) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "num_experts": 4, "moe_intermediate_size": 48})",
                                    "config.json");
  model.add("layers.0.mlp.experts.gate_up_proj", {4, 64, 96});
  model.add("layers.0.mlp.experts.down_proj", {4, 48, 64});
  for (UnknownWeight& weight : model.weights) {
    weight.is_quantized = true;
    weight.block = {128, 128};
  }
  EXPECT_EQ(count_of(propose_family(model.config, model.weights), "stack: input-major"), 2U);
}

TEST(LearnedFamily, IsProvenWhereNeighboursHaveEveryRow) {
  for (const char* name : {"qwen3_moe", "deepseek_v3"}) {
    const Listed model = list_of(name);
    const LearnedFamily learned = learn_family(model.config, model.weights, {.without = name});
    EXPECT_TRUE(learned.is_proven()) << learned.yaml;
    EXPECT_EQ(learned.yaml.find(fmt::format("as in {}", name)), std::string::npos);
    EXPECT_NE(learned.yaml.find("# as in "), std::string::npos) << "a reason";
  }
}

TEST(LearnedFamily, AsksAboutWhatNoFamilyHas) {
  Listed model = list_of("qwen3_moe");
  const std::string pattern = "model.layers.{layer}.self_attn.mystery.weight";
  for (std::uint64_t layer = 0; layer < model.config.num_hidden_layers; ++layer)
    model.add(fmt::format("model.layers.{}.self_attn.mystery.weight", layer), {64, 64});
  const LearnedFamily asked = learn_family(model.config, model.weights);
  ASSERT_EQ(asked.questions.size(), 1U);
  EXPECT_EQ(asked.questions[0].key, pattern);
  for (const char* key : {pattern.c_str(), "unknown"}) {
    const LearnedFamily learned =
        learn_family(model.config, model.weights, {.answers = {{key, "other"}}});
    EXPECT_TRUE(learned.is_proven()) << learned.yaml;
    EXPECT_NE(learned.yaml.find("as answered"), std::string::npos);
  }
  EXPECT_THROW(learn_family(model.config, model.weights, {.answers = {{"gate_up", "halves"}}}),
               Error)
      << "nothing asks";
}

TEST(FamilyProof, FindsFusedSetsThatAreNotWhole) {
  Listed model;
  model.config = parse_model_config(R"({"model_type": "odd", "hidden_size": 64,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 160})",
                                    "config.json");
  model.add("layers.0.q.weight", {64, 64});
  model.add("layers.0.k.weight", {64, 64});
  const auto faults = [&](const std::string& key_row) {
    return faults_of(
        "family: odd\ntensors:\n- {name: \"layers.{layer}.q.weight\", role: q-proj, "
        "shape: [64, 64]}\n- {name: \"layers.{layer}.k.weight\", role: " +
            key_row + "}\n",
        model.config, model.weights);
  };
  EXPECT_TRUE(faults("k-proj, shape: [64, 64]").empty());
  EXPECT_EQ(faults("k-proj, shape: [64, 64], quantized: false").size(), 1U);
  EXPECT_EQ(faults("k-proj, shape: [64, 64], fuse: none").size(), 1U);
  EXPECT_EQ(faults("k-proj, shape: [64, 32]").size(), 1U);
  EXPECT_EQ(faults("k-proj, shape: any").size(), 1U);
}

TEST(FamilyProof, IsThatOfAnUnchangedText) {
  const std::string yaml = with_proof("family: odd\ntensors: []\n", "all is there");
  EXPECT_EQ(proof_in(yaml), "all is there");
  EXPECT_EQ(proof_in("# mine\n" + yaml), "");
  EXPECT_EQ(proof_in(yaml + "# mine\n"), "");
  EXPECT_EQ(proof_in("family: odd\n"), "");
}

}  // namespace
}  // namespace ingot::formats
