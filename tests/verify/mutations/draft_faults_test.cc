#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/verify/layers/example.h"
#include "tests/verify/mutations/fault.h"
#include "tests/verify/mutations/good_conversions.h"
#include "verify/gates/gate.h"
#include "verify/gates/report.h"
#include "verify/outputs/draft_check.h"
#include "verify/verification.h"

// Faults of a spoiled MTP layer that the level draft finds, and those that it is too blunt for:
// there the levels weights and layers must find them.

namespace ingot::testing {
namespace {

using namespace verify;

const std::string kMtp = "model.layers.5.";

const VerificationOptions kOptions = {.levels = {Level::kWeights, Level::kLayers},
                                      .output_profile = inference::Profile::kF32,
                                      .threads = 2};

/// The level draft for an output, with the source's side run once per process.
DraftReport drafts_of(const std::filesystem::path& output) {
  static const RunOptions run = {.output_profile = kOptions.output_profile,
                                 .threads = kOptions.threads};
  static const Example source;
  static const std::vector<DraftText> texts = answered_text(source.model, source.prompts, run);
  static const DraftOutcomes drafts = measure_drafts(source.model, texts, run);
  return compare_drafts(drafts, measure_drafts(shard::open_source(output), texts, run));
}

/// Levels of a conversion to INT8 in which one tensor was changed.
Report report_of(const std::function<void(const Pair&)>& spoil) {
  const TempDir directory;
  const Pair pair = copy_of_good(Good::kInt8, directory.path());
  spoil(pair);
  Report report = verify_pair(pair.source, pair.output, kOptions);
  report.draft = drafts_of(pair.output);
  report.gates = judge(report, default_thresholds(""));
  return report;
}

bool fails(const Report& report, std::string_view metric) {
  return std::ranges::any_of(report.gates, [&](const GateResult& result) {
    return result.gate.metric == metric && !result.passed;
  });
}

bool fails_weights(const Report& report) {
  return std::ranges::any_of(report.gates, [](const GateResult& result) {
    return result.gate.metric.starts_with("weights.") && !result.passed;
  });
}

TEST(DraftFaults, GoodConversionPasses) {
  const Report report = report_of([](const Pair&) {});
  EXPECT_TRUE(report.passed());
  EXPECT_GE(report.draft->tokens, kDraftTokens);
  EXPECT_GT(report.draft->source_acceptance(), 0.9);
  EXPECT_LT(report.draft->sure_loss(), 1);
}

// The state and the embedding change places: each by itself is a plausible matrix.
TEST(DraftFaults, ExchangedHalvesOfTheProjectionFailTheDrafts) {
  const Report report = report_of([](const Pair& pair) {
    edit_tensor(pair.output, kMtp + "eh_proj.weight", [](EditedTensor& tensor) {
      const std::size_t row = tensor.bytes.size() / tensor.shape.at(0);
      for (std::size_t at = 0; at < tensor.bytes.size(); at += row)
        std::rotate(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    tensor.bytes.begin() + static_cast<std::ptrdiff_t>(at + row / 2),
                    tensor.bytes.begin() + static_cast<std::ptrdiff_t>(at + row));
    });
  });
  EXPECT_TRUE(fails(report, "draft.acceptance"));
  EXPECT_LT(report.draft->output_acceptance(), 0.1);
  EXPECT_GT(report.draft->sure_loss(), 80);
  EXPECT_TRUE(fails(report, "mtp.cosine"));
  EXPECT_TRUE(fails_weights(report));
}

// A few points at most: not this level's business.
TEST(SlowDraftFaults, WrongScaleFailsWeightsAndLayers) {
  const Report report = report_of([](const Pair& pair) {
    edit_tensor(pair.output, kMtp + "self_attn.o_proj.weight_scale", [](EditedTensor& scale) {
      scale.map<float>([](float value) { return 1.5F * value; });
    });
  });
  EXPECT_TRUE(fails(report, "mtp.cosine"));
  EXPECT_TRUE(fails_weights(report));
  EXPECT_LT(report.draft->loss(), 5);
}

TEST(SlowDraftFaults, SwappedNormsFailWeightsAndLayers) {
  const Report report = report_of([](const Pair& pair) {
    EditedWeights weights(pair.output);
    weights.exchange(kMtp + "enorm.weight", kMtp + "hnorm.weight");
    weights.save();
  });
  EXPECT_TRUE(fails(report, "mtp.cosine"));
  EXPECT_TRUE(fails_weights(report));
  EXPECT_LT(report.draft->loss(), 5);
}

}  // namespace
}  // namespace ingot::testing
