#include "shard/cut/slicing.h"

#include <fmt/format.h>

#include "formats/family/families.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"
#include "tests/shard/model_tensors.h"
#include "tests/support/test.h"

namespace ingot::shard {
namespace {

using formats::Json;
using formats::LogicalTensor;
using namespace ingot::testing;
using ::testing::ElementsAre;

/// Four main layers, the first dense, and an MTP layer; 128 heads, 8 experts.
ModelTensors deepseek(const Json& changes = Json::object(), bool stacked = false) {
  Json keys = {{"num_hidden_layers", 4}, {"first_k_dense_replace", 1}, {"n_routed_experts", 8}};
  keys.update(changes);
  return {"deepseek_v3", keys, stacked};
}

/// 32 heads, 4 KV heads.
ModelTensors qwen(const Json& changes = Json::object()) {
  Json keys = {{"num_hidden_layers", 2}, {"num_experts", 8}};
  keys.update(changes);
  return {"qwen3_moe", keys};
}

Slicing sliced(std::uint32_t tp, std::uint32_t ep = 1, std::optional<std::uint32_t> etp = {},
               std::uint32_t pp = 1) {
  Slicing slicing;
  slicing.topology = make_topology(tp, ep, etp, pp);
  slicing.experts = ExpertMap::contiguous(8, ep);
  return slicing;
}

TensorCut cut(const ModelTensors& model, std::string_view name, const Slicing& slicing) {
  ErrorList faults;
  const TensorCut result = cut_of(model.named(name), model.config(), slicing, faults);
  EXPECT_TRUE(faults.empty()) << faults.errors().front().what();
  return result;
}

void expect_cut(const ModelTensors& model, const std::string& name, const Slicing& slicing,
                Owner owner, Axis axis, std::uint32_t n) {
  const TensorCut found = cut(model, name, slicing);
  EXPECT_EQ(found.owner, owner) << name;
  EXPECT_EQ(found.axis, axis) << name;
  EXPECT_EQ(found.n, n) << name;
}

void expect_replicated(const ModelTensors& model, const std::string& name, const Slicing& slicing) {
  expect_cut(model, name, slicing, Owner::kAll, Axis::kNone, 1);
}

TEST(CutOf, FollowsTheFamilyTableUnderTensorParallelism) {
  const ModelTensors model = deepseek();
  const Slicing slicing = sliced(4);
  for (const char* name :
       {"model.layers.1.self_attn.q_b_proj.weight", "model.layers.1.self_attn.kv_b_proj.weight",
        "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.shared_experts.gate_proj.weight",
        "model.layers.4.mlp.shared_experts.up_proj.weight", "model.embed_tokens.weight",
        "lm_head.weight", "model.layers.4.embed_tokens.weight",
        "model.layers.4.shared_head.head.weight"}) {
    expect_cut(model, name, slicing, Owner::kTp, Axis::kRows, 4);
  }
  for (const char* name :
       {"model.layers.3.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight",
        "model.layers.2.mlp.shared_experts.down_proj.weight"}) {
    expect_cut(model, name, slicing, Owner::kTp, Axis::kCols, 4);
  }
  for (const char* name :
       {"model.layers.1.self_attn.q_a_proj.weight", "model.layers.1.self_attn.q_a_layernorm.weight",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.0.input_layernorm.weight", "model.layers.1.mlp.gate.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias", "model.norm.weight",
        "model.layers.4.eh_proj.weight", "model.layers.4.enorm.weight"}) {
    expect_replicated(model, name, slicing);
  }
}

TEST(CutOf, ReplicatesTheIndexer) {
  const ModelTensors model("deepseek_v32", {{"num_hidden_layers", 2}, {"n_routed_experts", 8}});
  for (const char* part : {"wq_b.weight", "wk.weight", "k_norm.weight", "weights_proj.weight"}) {
    expect_replicated(model, std::string("model.layers.1.self_attn.indexer.") + part, sliced(4));
  }
}

TEST(CutOf, CutsTablesAlongASideThatRanksDivide) {
  // Parts of 46 rows with 12 values.
  const ModelTensors model("qwen4_exp", {{"num_hidden_layers", 1},
                                         {"layer_types", {"linear_attention"}},
                                         {"ple_layer_ids", {1}},
                                         {"ple_embed_dim", 48},
                                         {"ngram_size", 3},
                                         {"heads_per_ngram", 2},
                                         {"ngram_vocab_size_base", 41},
                                         {"make_ngram_vocab_size_divisible_by", 8},
                                         {"split_ngram_parts", 4}});
  const std::string last = "model.layers.0.ple.ple_embedding.ngram_embedding.shard_3.weight";
  expect_cut(model, last, sliced(2), Owner::kTp, Axis::kRows, 2);
  expect_cut(model, last, sliced(4), Owner::kTp, Axis::kCols, 4);
  expect_replicated(model, last, sliced(5));
}

TEST(CutOf, CutsExpertsByEtp) {
  const ModelTensors model = deepseek();
  const std::string expert = "model.layers.1.mlp.experts.7.";
  const Slicing by_tp = sliced(4);
  expect_cut(model, expert + "gate_proj.weight", by_tp, Owner::kExpert, Axis::kRows, 4);
  expect_cut(model, expert + "up_proj.weight", by_tp, Owner::kExpert, Axis::kRows, 4);
  expect_cut(model, expert + "down_proj.weight", by_tp, Owner::kExpert, Axis::kCols, 4);
  const Slicing whole = sliced(4, 8);
  expect_cut(model, expert + "gate_proj.weight", whole, Owner::kExpert, Axis::kNone, 1);
  expect_cut(model, expert + "down_proj.weight", whole, Owner::kExpert, Axis::kNone, 1);
  const Slicing both = sliced(4, 2, 2);
  expect_cut(model, expert + "gate_proj.weight", both, Owner::kExpert, Axis::kRows, 2);
  expect_cut(model, expert + "down_proj.weight", both, Owner::kExpert, Axis::kCols, 2);
}

TEST(CutOf, CutsStackedGateAndUpEach) {
  const ModelTensors model = deepseek(Json::object(), true);
  const TensorCut gate_up = cut(model, "model.layers.1.mlp.experts.gate_up_proj", sliced(4));
  EXPECT_EQ(gate_up.axis, Axis::kRows);
  EXPECT_EQ(gate_up.n, 4U);
  EXPECT_EQ(gate_up.sections, formats::Sections::equal(2));
  const TensorCut down = cut(model, "model.layers.1.mlp.experts.down_proj", sliced(4));
  EXPECT_EQ(down.axis, Axis::kCols);
  EXPECT_EQ(down.sections, formats::Sections());
}

/// Linear attention with 4 key heads of 16 and 8 value heads of 32 in its one layer.
ModelTensors delta_net(const std::string& family) {
  return {family,
          {{"model_type", family},
           {"num_hidden_layers", 1},
           {"layer_types", {"linear_attention"}},
           {"hidden_size", 64},
           {"vocab_size", 64},
           {"num_attention_heads", 4},
           {"num_key_value_heads", 2},
           {"head_dim", 16},
           {"num_experts", 8},
           {"num_experts_per_tok", 2},
           {"moe_intermediate_size", 32},
           {"shared_expert_intermediate_size", 32},
           {"linear_num_key_heads", 4},
           {"linear_num_value_heads", 8},
           {"linear_key_head_dim", 16},
           {"linear_value_head_dim", 32},
           {"linear_conv_kernel_dim", 4}}};
}

TEST(CutOf, CutsQueriesKeysAndValuesEach) {
  const ModelTensors model = delta_net("qwen3_5_moe");
  const std::string layer = "model.layers.0.linear_attn.";
  const auto sections = *formats::Sections::of_lengths(std::array<std::uint64_t, 3>{64, 64, 256});
  for (const char* name : {"in_proj_qkv.weight", "conv1d.weight"}) {
    expect_cut(model, layer + name, sliced(2), Owner::kTp, Axis::kRows, 2);
    EXPECT_EQ(cut(model, layer + name, sliced(2)).sections, sections) << name;
  }
  EXPECT_EQ(cut_dimension(model.named(layer + "conv1d.weight").shape, Axis::kRows), 0U);
  for (const char* name : {"in_proj_z.weight", "in_proj_a.weight", "A_log", "dt_bias"})
    expect_cut(model, layer + name, sliced(4), Owner::kTp, Axis::kRows, 4);
  expect_cut(model, layer + "out_proj.weight", sliced(4), Owner::kTp, Axis::kCols, 4);
  expect_replicated(model, layer + "norm.weight", sliced(4));
}

TEST(CutOf, KeepsInterleavedKeyHeadsTogether) {
  const ModelTensors model = delta_net("qwen3_next");
  const std::string name = "model.layers.0.linear_attn.in_proj_qkvz.weight";
  EXPECT_EQ(cut(model, name, sliced(4)).sections, formats::Sections());
  ErrorList faults;
  static_cast<void>(cut_of(model.named(name), model.config(), sliced(8), faults));
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_EQ(faults.errors()[0].message(),
            "4 linear_num_key_heads cannot be cut for --tp 8 (choose a divisor of 4)");
}

TEST(CutOf, CountsTheHeadsOfEachKindOfLayer) {
  const ModelTensors model("mimo_v2_flash", {{"model_type", "mimo_v2_flash"},
                                             {"num_hidden_layers", 2},
                                             {"hybrid_layer_pattern", {0, 1}},
                                             {"moe_layer_freq", {1, 1}},
                                             {"hidden_size", 64},
                                             {"vocab_size", 64},
                                             {"num_attention_heads", 8},
                                             {"num_key_value_heads", 2},
                                             {"swa_num_attention_heads", 8},
                                             {"swa_num_key_value_heads", 4},
                                             {"head_dim", 16},
                                             {"v_head_dim", 8},
                                             {"n_routed_experts", 8},
                                             {"num_experts_per_tok", 2},
                                             {"moe_intermediate_size", 32}});
  const std::string key = ".self_attn.k_proj.weight";
  expect_cut(model, "model.layers.0" + key, sliced(4), Owner::kKvHeads, Axis::kRows, 2);
  expect_cut(model, "model.layers.1" + key, sliced(4), Owner::kTp, Axis::kRows, 4);
}

TEST(CutOf, RefusesSectionsThatAreNotTheTensor) {
  const ModelTensors model = delta_net("qwen3_5_moe");
  LogicalTensor tensor = model.named("model.layers.0.linear_attn.conv1d.weight");
  tensor.shape = {380, 1, 4};
  ErrorList faults;
  static_cast<void>(cut_of(tensor, model.config(), sliced(2), faults));
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_EQ(faults.errors()[0].code(), ErrorCode::kShapeMismatch);
}

TEST(CutOf, PlacesSharedExpertsAsAsked) {
  const ModelTensors model = deepseek();
  const std::string shared = "model.layers.1.mlp.shared_experts.";
  Slicing slicing = sliced(4, 2, 2);
  expect_cut(model, shared + "gate_proj.weight", slicing, Owner::kTp, Axis::kRows, 4);
  slicing.shared = SharedExperts::kReplicated;
  expect_replicated(model, shared + "gate_proj.weight", slicing);
  expect_replicated(model, shared + "down_proj.weight", slicing);
  slicing.experts =
      ExpertMap::parse("[0,1,2,3,8,4,5,6,7,8]", "map",
                       {.n_experts = 8, .has_shared = true, .ep = 2, .allow_redundant = true});
  expect_cut(model, shared + "gate_proj.weight", slicing, Owner::kExpert, Axis::kRows, 2);
  expect_cut(model, shared + "down_proj.weight", slicing, Owner::kExpert, Axis::kCols, 2);
}

TEST(CutOf, LeavesEverythingWholeForOneRank) {
  const ModelTensors model = deepseek();
  for (const LogicalTensor& tensor : model.tensors()) {
    ErrorList faults;
    const TensorCut found = cut_of(tensor, model.config(), sliced(1), faults);
    EXPECT_EQ(found.axis, Axis::kNone) << tensor.name;
    EXPECT_EQ(found.n, 1U) << tensor.name;
    EXPECT_EQ(found.owner == Owner::kExpert, tensor.expert.has_value()) << tensor.name;
  }
}

TEST(CutOf, ReplicatesKvHeadsThatAreFewerThanRanks) {
  ModelTensors model = qwen();
  const std::string attention = "model.layers.0.self_attn.";
  for (const char* part : {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"})
    model.add(attention + part);
  for (const char* part : {"k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias"}) {
    expect_cut(model, attention + part, sliced(4), Owner::kTp, Axis::kRows, 4);
    expect_cut(model, attention + part, sliced(2), Owner::kTp, Axis::kRows, 2);
    expect_cut(model, attention + part, sliced(16), Owner::kKvHeads, Axis::kRows, 4);
  }
  expect_cut(model, attention + "q_proj.weight", sliced(16), Owner::kTp, Axis::kRows, 16);
  expect_cut(model, attention + "q_proj.bias", sliced(16), Owner::kTp, Axis::kRows, 16);
  expect_cut(model, attention + "o_proj.weight", sliced(16), Owner::kTp, Axis::kCols, 16);
  expect_replicated(model, attention + "o_proj.bias", sliced(16));
  expect_replicated(model, attention + "q_norm.weight", sliced(16));
  const ModelTensors one_head = qwen({{"num_key_value_heads", 1}});
  expect_replicated(one_head, attention + "k_proj.weight", sliced(16));
}

TEST(CutOf, KvHeadsAreSharedByNeighbouringRanks) {
  const Topology topology = make_topology(8, 1, std::nullopt, 1);
  const TensorCut kv = {.axis = Axis::kRows, .owner = Owner::kKvHeads, .n = 4};
  const std::vector<std::uint32_t> expected = {0, 0, 1, 1, 2, 2, 3, 3};
  for (std::uint32_t rank = 0; rank < 8; ++rank)
    EXPECT_EQ(kv.slice_of(topology.position(rank), topology), expected[rank]);
}

TEST(CutOf, SlicesFollowTheCoordinateOfTheirOwner) {
  const Topology topology = make_topology(4, 3, 2, 1);
  for (std::uint32_t rank = 0; rank < 12; ++rank) {
    const RankPosition at = topology.position(rank);
    const auto slice = [&](Owner owner, std::uint32_t n) {
      return TensorCut{.axis = Axis::kRows, .owner = owner, .n = n}.slice_of(at, topology);
    };
    EXPECT_EQ(slice(Owner::kTp, 4), rank % 4);
    EXPECT_EQ(slice(Owner::kExpert, 2), rank % 2);
    EXPECT_EQ((TensorCut{.owner = Owner::kExpert}.slice_of(at, topology)), 0U);
    EXPECT_EQ(TensorCut{}.slice_of(at, topology), 0U);
  }
}

TEST(CutOf, IgnoresKvHeadsUnderMla) {
  const ModelTensors model = deepseek({{"num_key_value_heads", 3}});
  expect_cut(model, "model.layers.1.self_attn.kv_b_proj.weight", sliced(4), Owner::kTp, Axis::kRows,
             4);
}

TEST(CutOf, TellsHeadsThatCannotBeCutOnce) {
  const ModelTensors model = deepseek({{"num_attention_heads", 64}});
  ErrorList faults;
  for (const LogicalTensor& tensor : model.tensors())
    cut_of(tensor, model.config(), sliced(3), faults);
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_EQ(faults.errors().front().code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(faults.errors().front().what(),
               "64 attention heads cannot be cut for --tp 3 (choose a divisor of 64)");
}

TEST(CutOf, TellsKvHeadsThatCannotBeCut) {
  const ModelTensors model = qwen({{"num_attention_heads", 24}, {"num_key_value_heads", 4}});
  ErrorList faults;
  for (const LogicalTensor& tensor : model.tensors())
    cut_of(tensor, model.config(), sliced(6), faults);
  ASSERT_EQ(faults.errors().size(), 1U) << "24 heads are divisible by 6";
  EXPECT_STREQ(
      faults.errors().front().what(),
      "4 KV heads can neither be cut nor replicated evenly for --tp 6 (choose a divisor or "
      "a multiple of 4)");
}

TEST(CutOf, ReplicatesAllowedUnknownTensors) {
  ModelTensors model = deepseek();
  model.add_unknown("extra.weight", {8, 8});
  expect_replicated(model, "extra.weight", sliced(4));
}

TEST(StagesOf, RefusesTensorsOfWhichNothingIsKnown) {
  ModelTensors model("generic", Json::object());
  model.add_unknown("h.0.weight", {8, 8});
  expect_error(ErrorCode::kUnsupported, {"generic"},
               [&] { stages_of(model.named("h.0.weight"), model, sliced(1, 1, 1, 2)); });
}

/// A family of an attention, with the cuts of its projections, and an expert.
std::unique_ptr<const formats::FamilyTable> attention_of(std::string_view q, std::string_view o) {
  return formats::parse_family(fmt::format(R"(
family: own
tensors:
- {{name: "layers.{{layer}}.wq.weight", role: q-proj, shape: [64, 8], cut: {}}}
- {{name: "layers.{{layer}}.wo.weight", role: o-proj, shape: [8, 64], cut: {}}}
- {{name: "layers.{{layer}}.experts.{{expert}}.w1.weight", role: expert-gate, shape: [8, 8], cut: replicated}}
)",
                                           q, o),
                               "own.yaml");
}

LogicalTensor tensor_of(const formats::TensorRule& rule) {
  return {.name = std::string(rule.pattern),
          .shape = {8, 8},
          .encoding = {},
          .rule = &rule,
          .layer = 0};
}

TEST(CutOf, LeavesAttentionWholeAsItsRowsSay) {
  const auto table = attention_of("replicated", "replicated");
  formats::ModelConfig config;
  config.num_attention_heads = 5;  // which nothing divides
  ErrorList faults;
  for (const formats::TensorRule& rule : table->family().rules.first(2)) {
    const TensorCut whole = cut_of(tensor_of(rule), config, sliced(2), faults);
    EXPECT_EQ(whole.n, 1U);
    EXPECT_EQ(whole.owner, Owner::kAll);
  }
  EXPECT_TRUE(faults.empty());
}

/// A layer of these rows.
class OneLayer : public ModelTensors {
 public:
  explicit OneLayer(const formats::Family& family) : ModelTensors("qwen3_moe", {}), family_(family) {
    for (const formats::TensorRule& rule : family.rules.first(2))
      tensors_.push_back(tensor_of(rule));
  }
  [[nodiscard]] const formats::Family& family() const override { return family_; }
  [[nodiscard]] std::span<const LogicalTensor> tensors() const override { return tensors_; }

 private:
  const formats::Family& family_;
  std::vector<LogicalTensor> tensors_;
};

TEST(CutOf, RefusesAttentionThatIsHalfCut) {
  for (const auto& [q, o, is_sound] : {std::tuple("column", "row", true),
                                       std::tuple("replicated", "replicated", true),
                                       std::tuple("replicated", "row", false),
                                       std::tuple("column", "replicated", false)}) {
    const auto table = attention_of(q, o);
    ErrorList faults;
    require_one_way(OneLayer(table->family()), faults);
    EXPECT_EQ(faults.empty(), is_sound) << q << " " << o;
    for (const Error& fault : faults.errors()) {
      EXPECT_EQ(fault.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(fault.what(), ::testing::HasSubstr("wo.weight"));
    }
  }
}

TEST(CutOf, RefusesExpertsWithoutACut) {
  const auto table = attention_of("column", "row");
  formats::ModelConfig config;
  config.model_type = "own";
  const LogicalTensor expert = tensor_of(table->family().rules[2]);
  ErrorList faults;
  const TensorCut whole = cut_of(expert, config, sliced(1, 8), faults);
  EXPECT_EQ(whole.n, 1U);
  EXPECT_EQ(whole.owner, Owner::kExpert);
  EXPECT_TRUE(faults.empty()) << "expert parallelism needs no cuts";
  cut_of(expert, config, sliced(2), faults);
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_THAT(faults.errors().front().what(), ::testing::HasSubstr("'own'"));
}

Slicing staged(std::vector<std::uint32_t> first) {
  Slicing slicing = sliced(1, 1, 1, static_cast<std::uint32_t>(first.size()) - 1);
  slicing.stages.first = std::move(first);
  return slicing;
}

TEST(StagesOf, TensorsStandWhereTheirLayerIs) {
  ModelTensors model = deepseek();
  model.add_unknown("extra.weight", {8, 8});
  const Slicing slicing = staged({0, 1, 3, 4});
  const auto stages = [&](std::string_view name) {
    return stages_of(model.named(name), model, slicing);
  };
  EXPECT_THAT(stages("model.layers.0.input_layernorm.weight"), ElementsAre(0));
  EXPECT_THAT(stages("model.layers.2.mlp.experts.3.up_proj.weight"), ElementsAre(1));
  EXPECT_THAT(stages("model.layers.3.input_layernorm.weight"), ElementsAre(2));
  EXPECT_THAT(stages("model.layers.4.eh_proj.weight"), ElementsAre(2)) << "MTP";
  EXPECT_THAT(stages("model.embed_tokens.weight"), ElementsAre(0)) << "the MTP layer has its own";
  EXPECT_THAT(stages("model.norm.weight"), ElementsAre(2));
  EXPECT_THAT(stages("lm_head.weight"), ElementsAre(2));
  EXPECT_THAT(stages("extra.weight"), ElementsAre(0, 1, 2));
}

TEST(StagesOf, LastStageHasEmbeddingsItNeeds) {
  const Slicing slicing = staged({0, 1, 3, 4});
  ModelTensors mtp_shares = deepseek();
  mtp_shares.remove(formats::Role::kMtpEmbedding);
  EXPECT_THAT(stages_of(mtp_shares.named("model.embed_tokens.weight"), mtp_shares, slicing),
              ElementsAre(0, 2));
  const ModelTensors tied = deepseek({{"tie_word_embeddings", true}});
  EXPECT_THAT(stages_of(tied.named("model.embed_tokens.weight"), tied, slicing), ElementsAre(0, 2));
  const ModelTensors plain = deepseek({{"num_nextn_predict_layers", 0}});
  EXPECT_THAT(stages_of(plain.named("model.embed_tokens.weight"), plain, slicing), ElementsAre(0));
}

TEST(StagesOf, OneStageHoldsEverything) {
  const ModelTensors model = deepseek();
  for (const LogicalTensor& tensor : model.tensors())
    EXPECT_THAT(stages_of(tensor, model, sliced(4)), ElementsAre(0));
}

TEST(Slicing, ReadsItsWords) {
  for (const TpFit fit : {TpFit::kRefuse, TpFit::kRetile, TpFit::kPad, TpFit::kBf16})
    EXPECT_EQ(parse_tp_fit(tp_fit_name(fit)), fit);
  EXPECT_EQ(parse_tp_fit("pad"), TpFit::kPad);
  expect_error(ErrorCode::kInvalidArgument, {"'squeeze'", "refuse, retile, pad, bf16"},
               [] { parse_tp_fit("squeeze"); });
  EXPECT_EQ(parse_shared_experts("tp"), SharedExperts::kTp);
  EXPECT_EQ(parse_shared_experts("replicated"), SharedExperts::kReplicated);
  EXPECT_EQ(shared_experts_name(SharedExperts::kReplicated), "replicated");
  expect_error(ErrorCode::kInvalidArgument, {"'both'", "tp, replicated"},
               [] { parse_shared_experts("both"); });
}

}  // namespace
}  // namespace ingot::shard
