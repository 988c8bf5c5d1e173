#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "inference/generate/generate.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"

// MTP layers of small checkpoints in FP32 against recordings of vLLM's modules
// (tests/golden/PROVENANCE.md).

namespace ingot::testing {
namespace {

using namespace inference;
using inference::Matrix;

class FamilyDraft : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static std::filesystem::path recorded(const char* name) {
    return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/forward" / GetParam() / name;
  }

  OpenedModel opened_{recorded("checkpoint")};
  std::vector<std::int64_t> ids_ = GoldenFile(recorded("golden.safetensors")).integers("input_ids");

  [[nodiscard]] const inference::Model& model() const { return opened_.model; }
};

TEST_P(FamilyDraft, StatesAndLogitsAgree) {
  const GoldenFile golden(recorded("draft.safetensors"));
  ModelCache cache = model().make_cache(KvFormat::kF32, ids_.size());
  const SequenceId sequence = cache.add();
  Recording is;
  feed(model(), cache, sequence, ids_, ids_.size(), is);
  Matrix normed(ids_.size() - 1, model().spec().hidden);
  std::copy_n(is.normed.begin(), normed.values().size(), normed.values().begin());
  std::vector<Row> rows;
  for (std::size_t i = 0; i + 1 < ids_.size(); ++i) {
    rows.push_back({.sequence = sequence,
                    .position = static_cast<std::uint32_t>(i),
                    .token = static_cast<std::int32_t>(ids_[i + 1])});
  }
  const Matrix states = model().mtp(normed, rows, cache);
  EXPECT_LE(relative_error(states.values(), golden.floats("hidden")), 1e-5);
  EXPECT_LE(relative_error(model().head(states).values(), golden.floats("logits")), 1e-5);
}

TEST_P(FamilyDraft, AnswersAreThoseWithoutDrafts) {
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 12;
  const std::vector<std::vector<std::int32_t>> prompts = {{ids_.begin(), ids_.end()}};
  const GenerateResult without = generate(model(), prompts, options);
  options.drafts = 2;
  const GenerateResult with = generate(model(), prompts, options);
  EXPECT_EQ(with.answers[0].tokens, without.answers[0].tokens);
  EXPECT_EQ(with.drafts.proposed.size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FamilyDraft, ::testing::Values("hy_v3", "exaone_moe"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace ingot::testing
