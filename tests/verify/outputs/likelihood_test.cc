#include "verify/outputs/likelihood.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/enough_memory.h"
#include "tests/support/expect_error.h"
#include "tests/verify/layers/example.h"

namespace ingot::testing {
namespace {

using verify::Likelihood;
using verify::Prompt;
using verify::RunOptions;

constexpr const char* kTiny = INGOT_SOURCE_DIR "/tests/golden/tiny-v32/";

// As they were recorded: the first 512 tokens of each.
std::vector<Prompt> recorded_documents(const Example& example) {
  auto documents = verify::read_documents(std::string(kTiny) + "val_docs.json", example.model,
                                          example.tokenizer);
  for (Prompt& document : documents) {
    document.ids.resize(std::min<std::size_t>(document.ids.size(), 512));
  }
  return documents;
}

RunOptions exact(std::size_t threads = 1) {
  return {.output_profile = inference::Profile::kF32, .threads = threads};
}

TEST(LikelihoodCheck, FindsThePerplexityThatWasRecorded) {
  const Example example;
  const formats::Json golden =
      formats::read_json_file(std::string(kTiny) + "forward_fp8.json", 1U << 20U);
  const formats::Json& wanted = golden["perplexity_100_docs"];
  const Likelihood is =
      verify::measure_likelihood(example.model, recorded_documents(example), exact(2));
  EXPECT_EQ(is.documents, 100U);
  EXPECT_EQ(is.tokens, wanted["tokens"].get<std::uint64_t>());
  const double perplexity = wanted["ppl"].get<double>();
  EXPECT_NEAR(is.perplexity(), perplexity, perplexity * 1e-4);
  EXPECT_NEAR(is.nll, wanted["nll_sum"].get<double>(), wanted["nll_sum"].get<double>() * 1e-4);
}

TEST(LikelihoodCheck, IgnoresBatchesAndThreads) {
  const Example example;
  auto documents = recorded_documents(example);
  documents.resize(6);
  RunOptions roomy = exact(), tight = exact(2);
  std::uint64_t roomy_layers = 0, tight_layers = 0;
  roomy.progress = [&](std::uint64_t, std::uint64_t all) { roomy_layers = all; };
  tight.progress = [&](std::uint64_t, std::uint64_t all) { tight_layers = all; };
  const Likelihood wanted = verify::measure_likelihood(example.model, documents, roomy);

  tight.mem_limit = 1'000'000;
  try {
    verify::measure_likelihood(example.model, documents, tight);
    FAIL() << "1 MB is not enough";
  } catch (const Error& error) {
    tight.mem_limit = enough_memory(error);
  }
  const Likelihood is = verify::measure_likelihood(example.model, documents, tight);
  EXPECT_EQ(is.nll, wanted.nll);
  EXPECT_EQ(is.tokens, wanted.tokens);
  EXPECT_EQ(roomy_layers, 5U);
  EXPECT_GT(tight_layers, roomy_layers);
}

TEST(LikelihoodCheck, PredictsNothingOfOneToken) {
  const Example example;
  const std::vector<Prompt> one = {{.ids = {0}}};
  const Likelihood is = verify::measure_likelihood(example.model, one, exact());
  EXPECT_EQ(is.tokens, 0U);
  EXPECT_TRUE(std::isnan(is.perplexity()));
}

}  // namespace
}  // namespace ingot::testing
