#include <gtest/gtest.h>

#include "tests/inference/model/edited_copy.h"
#include "tests/inference/model/runner.h"

// tie_word_embeddings with a stored head that is another matrix: vLLM and transformers 5 compute
// with the stored one.

namespace ingot::testing {
namespace {

TEST(TiedHead, IsTheStoredOneWhereThereIsOne) {
  const std::filesystem::path untied = INGOT_SOURCE_DIR "/tests/golden/arch/qwen3_moe/checkpoint";
  const EditedCopy tied(untied);
  tied.config({{"/tie_word_embeddings", true}});
  const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const OpenedModel wanted(untied), is(tied.path());
  EXPECT_EQ(run(is.model, ids).logits, run(wanted.model, ids).logits);
}

}  // namespace
}  // namespace ingot::testing
