#include "formats/records/manifest.h"
#include "inference/parallel/rank_view.h"
#include "inference/parallel/thread_comm.h"
#include "tests/convert/slicing/odd_vocabulary.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/convert/slicing/stacked_model.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"

// Ranks that have only their own directory of a sliced output, and meet only in collectives,
// compute the same as the whole model.

namespace ingot::testing {
namespace {

using namespace inference;

std::filesystem::path tiny_v32_example() {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "examples/tiny-v32";
}

struct SliceCase {
  const char* name;
  std::filesystem::path model;
  Cut cut;
  const char* expert_map = "";
  void (*edit)(Conversion& conversion) = [](Conversion&) {};

  friend std::ostream& operator<<(std::ostream& out, const SliceCase& of) { return out << of.name; }
};

std::string case_name(const ::testing::TestParamInfo<SliceCase>& suite) {
  return suite.param.name;
}

/// The results of a forward pass over a prompt and a greedy answer.
struct Outcome {
  explicit Outcome(const Model& model) : recording(run(model, prompt(model))) {
    answer = greedy(model, prompt(model), 6, -1);
  }

  // Longer than the choice of the fixtures' indexers.
  static std::vector<std::int64_t> prompt(const Model& model) {
    std::vector<std::int64_t> ids;
    for (std::size_t i = 0; i < 70; ++i)
      ids.push_back(static_cast<std::int64_t>((i * i * 31 + 7 * i + 3) % model.spec().vocab));
    return ids;
  }

  Recording recording;
  std::vector<std::int64_t> answer;
};

class RankDirectories : public ::testing::TestWithParam<SliceCase> {
 protected:
  RankDirectories() {
    Conversion conversion = slicing(GetParam().model, directory_ / "sliced", GetParam().cut);
    if (*GetParam().expert_map != '\0') {
      conversion.plan.slicing.expert_map = GetParam().expert_map;
      conversion.plan.slicing.expert_map_where = "map.json";
      conversion.plan.slicing.redundant_experts = true;
      conversion.plan.slicing.uneven_experts = true;
    }
    GetParam().edit(conversion);
    conversion.run();
    topology_ = conversion.plan.slicing.topology;
  }

  // Each rank's directory where no other one is to be seen.
  void scatter() {
    for (std::uint32_t rank = 0; rank < topology_.n_ranks(); ++rank) {
      std::filesystem::create_directory(node(rank));
      std::filesystem::rename(rank_directory(directory_ / "sliced", rank, GetParam().cut),
                              node(rank) / "own");
    }
    std::filesystem::remove_all(directory_ / "sliced");
  }
  [[nodiscard]] std::filesystem::path node(std::uint32_t rank) const {
    return directory_ / ("node-" + std::to_string(rank));
  }
  [[nodiscard]] formats::Checkpoint open(std::uint32_t rank) const {
    return formats::Checkpoint::open(node(rank) / "own");
  }
  void on_every_rank(const ModelOptions& options,
                     const std::function<void(std::uint32_t, const Model&)>& body) const {
    run_ranks(topology_, [&](std::uint32_t rank, Comm& comm) {
      const formats::Checkpoint source = open(rank);
      body(rank, Model(source, rank_view(source), comm, options));
    });
  }

  TempDir directory_;
  shard::Topology topology_;
};

void expect_close(std::span<const float> is, std::span<const float> wanted, bool is_exact,
                  const std::string& what) {
  EXPECT_LE(relative_error(is, wanted), 1e-5) << what;
  EXPECT_TRUE(!is_exact || same_bits(is, wanted)) << what;
}

TEST_P(RankDirectories, ComputeWhatTheWholeModelComputes) {
  const Outcome whole(OpenedModel(directory_ / "sliced").model);
  scatter();
  std::vector<std::optional<Outcome>> runs(topology_.n_ranks()), again(topology_.n_ranks());
  on_every_rank(f32_options(), [&](std::uint32_t rank, const Model& model) {
    runs[rank].emplace(model);
    again[rank].emplace(model);
  });
  const bool is_exact = topology_.tp == 1 && topology_.etp == 1;
  std::set<std::size_t> layers;
  for (std::uint32_t rank = 0; rank < topology_.n_ranks(); ++rank) {
    const Recording& recording = runs[rank]->recording;
    const std::string at = "rank " + std::to_string(rank);
    for (const auto& [layer, hidden] : recording.hidden) {
      layers.insert(layer);
      expect_close(hidden, whole.recording.hidden.at(layer), is_exact,
                   at + " layer " + std::to_string(layer));
    }
    expect_close(recording.logits, whole.recording.logits, is_exact, at);
    EXPECT_EQ(runs[rank]->answer, whole.answer) << at;
    EXPECT_TRUE(same_bits(recording, again[rank]->recording)) << at;
    EXPECT_TRUE(same_bits(recording.logits, runs[0]->recording.logits)) << at;
  }
  EXPECT_EQ(layers.size(), whole.recording.hidden.size());
}

TEST_P(RankDirectories, HoldTheirExpertsAlone) {
  scatter();
  on_every_rank(f32_options(), [&](std::uint32_t rank, const Model& model) {
    const formats::Checkpoint source = open(rank);
    const formats::RankRecord& record = *source.slicing()->rank;
    const ModelSpec& spec = model.spec();
    std::size_t n_experts = 0;
    for (std::uint32_t layer = record.first_layer; layer < record.end_layer; ++layer) {
      if (layer < spec.n_main ? !spec.is_moe(layer) : !model.has_mtp()) continue;
      n_experts += static_cast<std::size_t>(std::ranges::count_if(
          *record.experts_in(layer),
          [&](std::uint32_t expert) { return expert < spec.router()->experts; }));
    }
    EXPECT_EQ(model.expert_counters().reads, n_experts);
    std::uint64_t n_bytes = 0;
    for (const formats::StoredTensor& tensor : source.stored()) n_bytes += tensor.n_bytes;
    EXPECT_LE(model.bytes_read(), n_bytes);
  });
}

// Heads cannot be padded, so that they must not fall into blocks.
void with_attention_in_bf16(Conversion& conversion) {
  spare_attention(conversion.recipe);
}
void as_int8(Conversion& conversion) {
  conversion.recipe.to = formats::SchemeId::kInt8Channel;
}
void as_nvfp4(Conversion& conversion) {
  conversion.recipe.to = formats::SchemeId::kNvfp4;
}
void with_whole_shared_experts(Conversion& conversion) {
  conversion.plan.slicing.shared = shard::SharedExperts::kReplicated;
}
void in_given_stages(Conversion& conversion) {
  conversion.plan.slicing.stages = "0-0,1-2";
}
void in_halves(Conversion& conversion) {
  conversion.plan.slicing.stages = "0-1,2-3";
}

// Small checkpoints as their makers write them.
std::filesystem::path released(const std::string& name) {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / name;
}

// The indexer of the first layer chooses for the next two.
std::filesystem::path shared_indexer() {
  return std::filesystem::path(INGOT_SOURCE_DIR) /
         "tests/golden/arch_variants/glm_shared_indexer/checkpoint";
}

// Expert 1 in three slots, the shared one (8) in two; ranks with 4 and 8 slots.
constexpr const char* kMap =
    R"({"slots": [1, 0, 8, 5, 7, 6, 4, 3, 2, 1, 1, 8], "slots_per_rank": [4, 8]})";

INSTANTIATE_TEST_SUITE_P(
    Cuts, RankDirectories,
    ::testing::Values(
        SliceCase{
            "v32_retiled_tp2_ep4", small_v32(), {.tp = 2, .ep = 4, .fit = shard::TpFit::kRetile}},
        SliceCase{"v32_padded_tp2_etp2",
                  small_v32(),
                  {.tp = 2, .fit = shard::TpFit::kPad},
                  "",
                  with_attention_in_bf16},
        SliceCase{"v32_ep4_pp2", small_v32(), {.ep = 4, .pp = 2}},
        SliceCase{"v3_tp2_ep2_etp2", arch_fixture("deepseek_v3"), {.tp = 2, .ep = 2, .etp = 2}},
        SliceCase{"v3_ep2_whole_shared",
                  arch_fixture("deepseek_v3"),
                  {.tp = 2, .ep = 4},
                  "",
                  with_whole_shared_experts},
        SliceCase{
            "v3_map_tp2_etp2", arch_fixture("deepseek_v3"), {.tp = 2, .ep = 2, .etp = 2}, kMap},
        SliceCase{"v3_nvfp4_tp2", arch_fixture("deepseek_v3"), {.tp = 2, .ep = 2}, "", as_nvfp4},
        SliceCase{
            "v2_tp2_pp2", arch_fixture("deepseek_v2"), {.tp = 2, .pp = 2}, "", in_given_stages},
        SliceCase{"glm_choice_handed_on", shared_indexer(), {.ep = 2, .pp = 2}, "", in_halves},
        SliceCase{
            "kimi_nested_tp2_map", released("kimi_k25"), {.tp = 2, .ep = 2}, "[4, 3, 2, 1, 0]"},
        SliceCase{"awq_tp2_ep2", released("qwen3_moe_awq"), {.tp = 2, .ep = 2}},
        SliceCase{
            "gptq_in_any_order_ep2_pp2", released("qwen3_moe_gptq_actorder"), {.ep = 2, .pp = 2}},
        SliceCase{"qwen3_tp4", arch_fixture("qwen3_moe"), {.tp = 4}}),
    case_name);

// The same models and kinds of cuts, with less in each.
INSTANTIATE_TEST_SUITE_P(
    SlowCuts, RankDirectories,
    ::testing::Values(
        SliceCase{"v3_tp2", arch_fixture("deepseek_v3"), {.tp = 2}},
        SliceCase{"v3_tp4_ep2", arch_fixture("deepseek_v3"), {.tp = 4, .ep = 2}},
        SliceCase{"v3_map", arch_fixture("deepseek_v3"), {.ep = 2}, kMap},
        SliceCase{"v3_map_tp2", arch_fixture("deepseek_v3"), {.tp = 2, .ep = 2}, kMap},
        SliceCase{"v3_int8_tp2", arch_fixture("deepseek_v3"), {.tp = 2, .ep = 2}, "", as_int8},
        SliceCase{"glm_ep2_pp3", arch_fixture("glm_moe_dsa"), {.ep = 2, .pp = 3}},
        SliceCase{"kimi_int4_tp2_pp2", released("kimi_k2_thinking"), {.tp = 2, .pp = 2}},
        SliceCase{"qwen3_tp2_ep4", arch_fixture("qwen3_moe"), {.tp = 2, .ep = 4}}),
    case_name);

// Sizes of a cluster: 16 and 32 ranks.
constexpr const char* kTwice =
    "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "
    "15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]";

void as_bf16(Conversion& conversion) {
  conversion.recipe.to = formats::SchemeId::kBf16;
}

INSTANTIATE_TEST_SUITE_P(
    SlowClusters, RankDirectories,
    ::testing::Values(
        SliceCase{"bf16_tp8_ep16", tiny_v32_example(), {.tp = 8, .ep = 16}, "", as_bf16},
        SliceCase{"int8_tp8_ep16", tiny_v32_example(), {.tp = 8, .ep = 16}, "", as_int8},
        SliceCase{
            "fp8_tp8_ep16", tiny_v32_example(), {.tp = 8, .ep = 16, .fit = shard::TpFit::kRetile}},
        SliceCase{"fp8_ep32_by_map", tiny_v32_example(), {.ep = 32}, kTwice}),
    case_name);

/// Every row of every dialect: the decoded codes and scales of a slice.
class RankDirectoriesOf : public ::testing::TestWithParam<Target> {};

TEST_P(RankDirectoriesOf, AreTheirPartOfTheWhole) {
  const TempDir directory;
  const std::filesystem::path top = directory / "sliced";
  Cut cut = {.tp = 2, .ep = 2};
  for (const shard::TpFit fit :
       {shard::TpFit::kRefuse, shard::TpFit::kRetile, shard::TpFit::kBf16}) {
    cut.fit = fit;
    std::filesystem::remove_all(top);
    Conversion conversion = slicing(arch_fixture("deepseek_v3"), top, cut);
    GetParam().apply(conversion.recipe);
    conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
    try {
      conversion.run();
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      ASSERT_NE(fit, shard::TpFit::kBf16) << error.what();
    }
  }
  const ModelOptions native = {.profile = Profile::kNative};
  const auto logits_of = [](const Model& model) {
    return run(model, Outcome::prompt(model)).logits;
  };
  const std::vector<float> exact = logits_of(OpenedModel(top).model);
  const double usual = relative_error(logits_of(OpenedModel(top, native).model), exact);
  std::vector<std::vector<float>> in_f32(2), as_deployed(2);
  run_ranks(cut.options().slicing.topology, [&](std::uint32_t rank, Comm& comm) {
    const formats::Checkpoint source = formats::Checkpoint::open(rank_directory(top, rank, cut));
    const RankView view = rank_view(source);
    in_f32[rank] = logits_of(Model(source, view, comm, f32_options()));
    as_deployed[rank] = logits_of(Model(source, view, comm, native));
  });
  expect_close(in_f32[0], exact, false, "f32");
  EXPECT_LE(relative_error(as_deployed[0], exact), 1.5 * usual);
  EXPECT_TRUE(same_bits(as_deployed[0], as_deployed[1]));
}

INSTANTIATE_TEST_SUITE_P(Dialects, RankDirectoriesOf, ::testing::ValuesIn(first_targets()),
                         target_name);
INSTANTIATE_TEST_SUITE_P(SlowDialects, RankDirectoriesOf,
                         ::testing::ValuesIn(all_targets_but(first_targets())), target_name);

TEST(RankDirectory, OfOtherRanksIsNotMixedIn) {
  const TempDir directory;
  const Cut cut = {.tp = 2};
  slicing(arch_fixture("qwen3_moe"), directory / "sliced", cut).run();
  const formats::Checkpoint source =
      formats::Checkpoint::open(rank_directory(directory / "sliced", 0, cut));
  OneRank comm;
  // Without its place in the cut a slice is no model.
  expect_error(ErrorCode::kShapeMismatch, {"has shape", "the model needs"},
               [&] { Model(source, {}, comm, f32_options()); });
}

/// The ranks of a cut answer as the model does.
void expect_the_same_answer(const std::filesystem::path& model, const Cut& cut) {
  const TempDir directory;
  slicing(model, directory / "sliced", cut).run();
  const Outcome whole(OpenedModel(model).model);
  run_ranks(cut.options().slicing.topology, [&](std::uint32_t rank, Comm& comm) {
    const formats::Checkpoint source =
        formats::Checkpoint::open(rank_directory(directory / "sliced", rank, cut));
    const Outcome is(Model(source, rank_view(source), comm, f32_options()));
    expect_close(is.recording.logits, whole.recording.logits, false, "logits");
    EXPECT_EQ(is.answer, whole.answer);
  });
}

TEST(RankDirectory, MayHoldStacksOfExperts) {
  const TempDir directory;
  expect_the_same_answer(write_stacked(arch_fixture("qwen3_moe"), directory / "stacked"),
                         {.tp = 2, .ep = 2, .etp = 2});
}

TEST(RankDirectory, KnowsNoTokenThatWasPadded) {
  const TempDir directory;
  expect_the_same_answer(write_odd_vocabulary(directory / "model"),
                         {.tp = 4, .fit = shard::TpFit::kPad});
}

}  // namespace
}  // namespace ingot::testing
