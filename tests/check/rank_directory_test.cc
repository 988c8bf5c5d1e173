#include "tests/check/rank_directory.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/check.h"
#include "formats/family/families.h"
#include "formats/records/manifest.h"
#include "tests/support/expect_error.h"

// A single rank's directory: read as the slices that it is, and accepted as such.

namespace ingot::formats {

using namespace check;

namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using namespace ::testing;

struct Topology {
  const char* name;
  CutPlan plan;
};

std::vector<Topology> topologies() {
  return {{"Tp2Etp2", {.tp = 2, .etp = 2}},
          {"Tp2Ep2", {.tp = 2, .ep = 2}},
          {"Tp2Ep4", {.tp = 2, .ep = 4}},
          {"Ep2Etp2", {.ep = 2, .etp = 2}},
          {"Pp2", {.stage_layers = {0, 1, 2}}},
          {"Tp2Ep2Pp2", {.tp = 2, .ep = 2, .stage_layers = {0, 1, 2}}}};
}

struct Model {
  const char* name;
  Spelled spelled;
  friend void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }
};

std::vector<Model> models() {
  return {
      {"Bf16", {}},
      {"DeepseekFp8", {"deepseek", SchemeId::kFp8Block, Activations::kDynamic}},
      {"DeepseekInt8", {"deepseek", SchemeId::kInt8Block, Activations::kDynamic}},
      {"CtFp8Block", {"compressed-tensors", SchemeId::kFp8Block, Activations::kDynamic}},
      {"CtFp8Channel", {"compressed-tensors", SchemeId::kFp8Channel, Activations::kDynamic}},
      {"CtInt8Channel", {"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic}},
      {"CtNvfp4", {"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly}},
      {"CtMxfp4", {"compressed-tensors", SchemeId::kMxfp4, Activations::kWeightOnly}},
      {"CtMxfp8", {"compressed-tensors", SchemeId::kMxfp8, Activations::kDynamic}},
      {"ModeloptNvfp4", {"modelopt", SchemeId::kNvfp4, Activations::kStatic}},
      {"ModeloptFp8", {"modelopt", SchemeId::kFp8Tensor, Activations::kStatic}},
      {"ModelslimDynamic", {"modelslim", SchemeId::kInt8Channel, Activations::kDynamic}},
      {"ModelslimStatic", {"modelslim", SchemeId::kInt8Channel, Activations::kStatic}},
  };
}

class EveryModel : public ::testing::TestWithParam<Model> {};

std::set<std::string_view> rules_of(const CheckResult& result) {
  std::set<std::string_view> rules;
  for (const Finding& finding : result.findings) rules.insert(finding.rule);
  return rules;
}

TEST_P(EveryModel, IsAcceptedRankByRank) {
  const Spelled& spelled = GetParam().spelled;
  const EditableCheckpoint whole = spelled.dialect.empty() ? plain_model() : spelled_model(spelled);
  const TempDir unsliced;
  whole.write(unsliced.path());
  std::set<std::string_view> inherited = rules_of(check_checkpoint(unsliced.path(), {}));
  // Engines load no rank's directory, so their refusals are not among the findings.
  std::erase_if(inherited, [](std::string_view rule) { return rule.starts_with("engine."); });
  EXPECT_THAT(inherited, ::testing::Each("modelopt.algo-of-sglang"));

  // Every topology for plain weights; for a scheme those that cut each of its parts.
  std::vector<Topology> cuts = topologies();
  if (!spelled.dialect.empty()) cuts.resize(2);
  for (const Topology& topology : cuts) {
    for (std::uint32_t rank = 0; rank < topology.plan.n_ranks(); ++rank) {
      SCOPED_TRACE(topology.name + (" rank " + std::to_string(rank)));
      const CheckResult result = check_rank(cut_for_rank(whole, topology.plan, rank));
      EXPECT_EQ(rules_of(result), inherited) << text_of(result.findings);
      EXPECT_EQ(result.n_hashed, result.n_tensors);
      EXPECT_GT(result.n_hashed, 10U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RankDirectory, EveryModel, ::testing::ValuesIn(models()),
                         [](const auto& row) { return row.param.name; });

TEST(RankDirectory, HasTensorsInTheShapeOfTheirSlices) {
  const TempDir dir;
  const EditableCheckpoint whole =
      spelled_model({"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly});
  cut_for_rank(whole, {.tp = 2, .etp = 2}, 1).write(dir / "rank");
  const Checkpoint checkpoint = Checkpoint::open(dir / "rank");
  EXPECT_EQ(logical(checkpoint, kGateOfDense).shape, (Shape{256, 256}));
  EXPECT_EQ(logical(checkpoint, kDownOfDense).shape, (Shape{256, 256}));
  EXPECT_EQ(logical(checkpoint, kUpOfExpert3).shape, (Shape{128, 256}));
  EXPECT_EQ(logical(checkpoint, kUpOfExpert3).expert, 3U);
  ASSERT_NE(checkpoint.slicing(), nullptr);
  EXPECT_EQ(checkpoint.slicing()->rank->tp_rank, 1U);
  EXPECT_TRUE(checkpoint.is_whole());
}

TEST(RankDirectory, IsNoneWithoutASlicingInItsManifest) {
  const TempDir dir;
  RankDirectory rank = cut_for_rank(fp8_model(), {}, 0);
  rank.write(dir / "rank");
  EXPECT_NE(Checkpoint::open(dir / "rank").slicing(), nullptr);
  fs::remove(dir / "rank/ingot.json");
  EXPECT_EQ(Checkpoint::open(dir / "rank").slicing(), nullptr);
}

TEST(RankDirectory, KeepsStaticBiasOnTheFirstRankAlone) {
  const EditableCheckpoint whole =
      spelled_model({"modelslim", SchemeId::kInt8Channel, Activations::kStatic});
  const std::string bias = "model.layers.0.mlp.down_proj.quant_bias";
  const CutPlan plan = {.tp = 2, .etp = 2};
  ASSERT_TRUE(cut_for_rank(whole, plan, 1).slices.at(bias).is_zeroed);

  RankDirectory first = cut_for_rank(whole, plan, 0);
  ASSERT_FALSE(first.slices.contains(bias));
  SliceRecord zeroed;
  zeroed.whole = {256};
  zeroed.is_zeroed = true;
  first.slices[bias] = zeroed;
  expect_finding(first, ErrorCode::kMismatch, bias, {"zeroed", "rank 0"});
}

// Blocks of 64 x 64 in place of 128 x 128, so that 4 ranks can cut experts 256 wide: each scale is
// repeated four times.
TEST(RankDirectory, MayBeRetiled) {
  EditableCheckpoint whole = fp8_model();
  std::vector<std::string> scales;
  for (auto& [name, tensor] : whole.tensors) {
    if (!name.ends_with("_scale_inv")) continue;
    const Shape& weight = whole.at(name.substr(0, name.size() - 10)).shape;
    EditableCheckpoint::Tensor finer{
        tensor.dtype, {(weight[0] + 63) / 64, (weight[1] + 63) / 64}, {}};
    for (std::uint64_t r = 0; r < finer.shape[0]; ++r) {
      for (std::uint64_t c = 0; c < finer.shape[1]; ++c) {
        const auto parent =
            tensor.bytes.begin() +
            static_cast<std::ptrdiff_t>((r / 2 * tensor.shape[1] + c / 2) * sizeof(float));
        finer.bytes.insert(finer.bytes.end(), parent, parent + sizeof(float));
      }
    }
    tensor = finer;
    scales.push_back(name);
  }
  ASSERT_FALSE(scales.empty());
  whole.config["quantization_config"]["weight_block_size"] = {64, 64};
  const CutPlan plan = {.tp = 4, .etp = 4};
  for (std::uint32_t rank = 0; rank < plan.n_ranks(); ++rank) {
    SCOPED_TRACE(rank);
    RankDirectory cut = cut_for_rank(whole, plan, rank);
    for (const std::string& name : scales) {
      SliceRecord& slice = cut.slices[name];
      slice.whole = whole.at(name).shape;
      slice.original = fp8_model().tensors.at(name).shape;
      slice.repeat = {2, 2};
    }
    cut.slicing.tp_fit = "retile";
    cut.slicing.rank->whole_config = fp8_model().config;
    const CheckResult result = check_rank(cut);
    EXPECT_EQ(rules_of(result), (std::set<std::string_view>{"fp8.block-128"}))
        << text_of(result.findings);
  }
}

// Experts of 192 columns, padded to 256 and cut by 2.
class PaddedRank : public ::testing::Test {
 protected:
  PaddedRank() {
    whole_ = testing::make_synthetic([](SynthOptions& options) {
      even_widths(options);
      options.fp8 = false;
      options.moe_intermediate = 192;
    });
    EditableCheckpoint padded = whole_;
    padded.config["moe_intermediate_size"] = 256;
    for (auto& [name, tensor] : padded.tensors) {
      if (name.find("experts.") == std::string::npos) continue;
      const Shape before = tensor.shape;
      const std::size_t axis = name.find("down_proj") == std::string::npos ? 0 : 1;
      padded_.emplace_back(name, before);
      Shape after = before;
      after[axis] = 256;
      padded.put_zeros(name, DType::kBf16, after);
    }
    rank_ = cut_for_rank(padded, {.tp = 2, .etp = 2}, 1);
    for (const auto& [name, before] : padded_) rank_.slices.at(name).original = before;
    rank_.slicing.tp_fit = "pad";
    rank_.slicing.rank->whole_config = whole_.config;
  }

  EditableCheckpoint whole_;
  std::vector<std::pair<std::string, Shape>> padded_;
  RankDirectory rank_;
};

TEST_F(PaddedRank, IsAccepted) {
  ASSERT_EQ(padded_.size(), 30U);
  EXPECT_THAT(check_rank(rank_).findings, IsEmpty());
}

TEST_F(PaddedRank, MustHaveHadTheWholeConfigsShape) {
  rank_.slices.at(kUpOfExpert3).original = {128, 256};
  expect_finding(rank_, ErrorCode::kShapeMismatch, kUpOfExpert3,
                 {"[128, 256] before it was padded", "[192, 256]"});
}

TEST_F(PaddedRank, MustSayPaddedWidthsInItsOwnConfig) {
  rank_.model.config["moe_intermediate_size"] = 192;
  const CheckResult result = check_rank(rank_);
  ASSERT_EQ(result.findings.size(), 30U);
  EXPECT_THAT(result.findings[0].message, HasSubstr("by config.json it has"));
}

// Experts in one tensor, as transformers 5 saves them: gate rows, then up rows.
class StackedRank : public ::testing::Test {
 protected:
  static constexpr const char* kGateUp = "model.layers.1.mlp.experts.gate_up_proj";
  static EditableCheckpoint stacked() {
    EditableCheckpoint model = plain_model();
    for (const std::string layer : {"model.layers.1.", "model.layers.2."}) {
      model.erase_prefix(layer + "mlp.experts.");
      model.put_zeros(layer + "mlp.experts.gate_up_proj", DType::kBf16, {4, 512, 256});
      model.put_zeros(layer + "mlp.experts.down_proj", DType::kBf16, {4, 256, 256});
    }
    return model;
  }
};

TEST_F(StackedRank, HoldsTheStackOfItsExperts) {
  const CutPlan plan = {.tp = 4, .ep = 2, .etp = 2};
  const TempDir dir;
  for (std::uint32_t rank = 0; rank < plan.n_ranks(); ++rank) {
    SCOPED_TRACE(rank);
    const RankDirectory cut = cut_for_rank(stacked(), plan, rank);
    EXPECT_THAT(check_rank(cut).findings, IsEmpty());
    const fs::path path = dir / std::to_string(rank);
    cut.write(path);
    EXPECT_EQ(logical(Checkpoint::open(path), kGateUp).shape, (Shape{2, 256, 256}));
  }
}

TEST_F(StackedRank, RefusesAStackOfOtherExperts) {
  RankDirectory rank = cut_for_rank(stacked(), {.ep = 2}, 1);
  rank.slices.at(kGateUp).experts = {0, 1};
  expect_finding(rank, ErrorCode::kMismatch, kGateUp, {"2 experts", "rank 1 holds in layer 1"});
}

TEST_F(StackedRank, RefusesAStackOfMoreThanItHolds) {
  RankDirectory rank = cut_for_rank(stacked(), {.ep = 2}, 1);
  rank.slices.erase(kGateUp);
  rank.model.put_zeros(kGateUp, DType::kBf16, {4, 512, 256});
  expect_finding(rank, ErrorCode::kMismatch, kGateUp, {"4 experts", "not the 2 that rank 1"});
}

TEST_F(StackedRank, MissesTheStack) {
  RankDirectory rank = cut_for_rank(stacked(), {.ep = 2}, 1);
  rank.model.tensors.erase(kGateUp);
  rank.slices.erase(kGateUp);
  const Finding finding = only(check_rank(rank).findings);
  EXPECT_EQ(finding.rule, "moe.expert-ids");
  EXPECT_EQ(finding.tensor, kGateUp);
}

// Expert 4 is the shared one: in a slot of the first rank and of no other.
TEST(RankDirectory, HoldsSharedExpertsOfItsSlots) {
  const CutPlan plan = {.tp = 2, .ep = 2, .slots = {{0, 1, 4}, {3, 2, 0}}, .places_shared = true};
  RankDirectory with = cut_for_rank(plain_model(), plan, 0);
  const RankDirectory without = cut_for_rank(plain_model(), plan, 1);
  const std::string shared = "model.layers.1.mlp.shared_experts.up_proj.weight";
  ASSERT_TRUE(with.model.tensors.contains(shared));
  ASSERT_FALSE(without.model.tensors.contains(shared));
  EXPECT_THAT(check_rank(with).findings, IsEmpty());
  EXPECT_THAT(check_rank(without).findings, IsEmpty());

  with.model.tensors.erase(shared);
  const Finding finding = only(check_rank(with).findings);
  EXPECT_EQ(finding.rule, "model.complete");
}

TEST(RankDirectory, SharesHeadsOfKeysAndValuesBetweenRanks) {
  const EditableCheckpoint whole = testing::make_synthetic([](SynthOptions& options) {
    options.family = find_family("qwen3_moe");
    options.heads = 16;
    options.experts = 4;
    options.fp8 = false;
  });
  const std::uint64_t kv_heads = whole.config.at("num_key_value_heads").get<std::uint64_t>();
  ASSERT_EQ(kv_heads, 2U);
  CutPlan plan = {.tp = 4, .kv_heads = 2};
  plan.n_layers = whole.config.at("num_hidden_layers").get<std::uint32_t>();
  plan.stage_layers = {0, plan.n_layers};
  plan.ep = 2;
  const std::string key = "model.layers.0.self_attn.k_proj.weight";
  const TempDir dir;
  for (std::uint32_t rank = 0; rank < plan.n_ranks(); ++rank) {
    SCOPED_TRACE(rank);
    RankDirectory cut = cut_for_rank(whole, plan, rank);
    const fs::path path = dir / std::to_string(rank);
    cut.write(path);
    const Checkpoint checkpoint = Checkpoint::open(path);
    EXPECT_EQ(logical(checkpoint, key).shape[0] * 2, whole.tensors.at(key).shape[0]);
    // Ranks 0 and 1 share the first head, 2 and 3 the second.
    const std::uint64_t offset = rank < 2 ? 0 : whole.tensors.at(key).shape[0] / 2;
    EXPECT_EQ(cut.slices.at(key).offset, offset);

    cut.slices.at(key).offset = whole.tensors.at(key).shape[0] / 2 - offset;
    cut.write(path);
    expect_error(ErrorCode::kMismatch, {key, "begins at"}, [&] { Checkpoint::open(path); });
  }
}

// Only the second of two stages has quantized weights; config.json is that of the whole.
TEST(RankDirectory, MayHoldNoQuantizedWeight) {
  for (const char* dialect : {"deepseek", "compressed-tensors"}) {
    SCOPED_TRACE(dialect);
    const Spelled spelled = {dialect, SchemeId::kFp8Block, Activations::kDynamic};
    EditableCheckpoint whole = spelled_model(spelled);
    const EditableCheckpoint plain = plain_model();
    Json ignored = Json::array();
    for (const auto& [name, tensor] : plain.tensors) {
      if (!name.starts_with("model.layers.0.")) continue;
      const std::string stem = name.substr(0, name.rfind('.'));
      whole.tensors.erase(stem + ".weight_scale_inv");
      whole.tensors.erase(stem + ".weight_scale");
      whole.tensors[name] = tensor;
      ignored.push_back(stem);
    }
    Json& block = whole.config["quantization_config"];
    if (block.contains("ignore")) {
      for (const Json& module : ignored) block["ignore"].push_back(module);
    } else {
      block["modules_to_not_convert"] = ignored;
    }
    EXPECT_THAT(check_rank(cut_for_rank(whole, {.stage_layers = {0, 1, 2}}, 0)).findings,
                IsEmpty());
    // One stage that holds it all must keep the promise.
    RankDirectory all = cut_for_rank(plain, {}, 0);
    all.model.config = whole.config;
    const std::set<std::string_view> rules = rules_of(check_rank(all));
    EXPECT_TRUE(rules.contains("fp8.config-without-weights") ||
                rules.contains("quantized.config-without-weights"));
  }
}

TEST(RankDirectory, IsNotAskedToBeCutAgain) {
  const TempDir dir;
  cut_for_rank(fp8_model(), {.tp = 2, .etp = 2}, 0).write(dir / "rank");
  EXPECT_THAT(check_checkpoint(dir / "rank", {.tensor_parallel = 16}).findings, IsEmpty());
  fp8_model().write(dir.path());
  EXPECT_FALSE(check_checkpoint(dir.path(), {.tensor_parallel = 16}).findings.empty());
}

}  // namespace
}  // namespace ingot::formats
