// Perplexity over documents that the model was not trained on, against the result of an independent
// program, and the effect of quantized weights and caches.

#include "tests/inference/generate/perplexity.h"

#include <iostream>

#include "tests/convert/conversion.h"
#include "tests/support/test.h"

namespace ingot::testing {
namespace {

using inference::KvFormat;

double golden_perplexity(const char* name, double& nll, std::size_t& tokens) {
  const formats::Json json = formats::read_json_file(
      std::string(INGOT_SOURCE_DIR) + "/tests/golden/tiny-v32/forward_" + name + ".json", 1U << 20);
  const formats::Json& all = json["perplexity_100_docs"];
  nll = all["nll_sum"].get<double>();
  tokens = all["tokens"].get<std::size_t>();
  return all["ppl"].get<double>();
}

void expect_golden(const char* name, const std::string& directory) {
  double nll = 0;
  std::size_t tokens = 0;
  const double wanted = golden_perplexity(name, nll, tokens);
  const OpenedModel opened(std::string(INGOT_SOURCE_DIR) + directory);
  const Likelihood is = likelihood(opened.model, validation_documents());
  EXPECT_EQ(is.tokens, tokens);
  EXPECT_NEAR(is.perplexity(), wanted, wanted * 1e-4);
  EXPECT_NEAR(is.nll, nll, nll * 1e-4);
}

// By default LikelihoodCheck in tests/verify/outputs reads the recorded losses of the prompts.
TEST(Perplexity, EqualsTheRecordForFp8Slow) {
  expect_golden("fp8", "/examples/tiny-v32");
}

// Its layers and logits are held against their record in model/forward_golden_test.cc.
TEST(Perplexity, EqualsTheRecordForBf16Slow) {
  expect_golden("bf16", "/tests/golden/tiny-v32/bf16");
}

TEST(Perplexity, QuantizedCachesBarelyMoveTheDistribution) {
  const OpenedModel opened(std::string(INGOT_SOURCE_DIR) + "/examples/tiny-v32");
  const auto documents = validation_documents(50);
  const double exact = likelihood(opened.model, documents).perplexity();
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kInt8}) {
    const Likelihood is = likelihood(opened.model, documents, format, &opened.model);
    const std::string name(inference::kv_format_name(format));
    std::cout << fmt::format("kv-cache {}: perplexity {:.6f} (f32 {:.6f}), mean KL {:.2e}\n", name,
                             is.perplexity(), exact, is.divergence);
    EXPECT_LE(is.divergence, 1e-4) << name;
    EXPECT_GT(is.divergence, 0) << name << " changes something";
    EXPECT_NEAR(is.perplexity(), exact, exact * 1e-2) << name;
  }
}

// The cost of each scheme over all documents, weights exact and native: printed, and within a bound
// far above it.
TEST(Perplexity, StaysCloseForQuantizedModelsSlow) {
  const auto documents = validation_documents();
  const std::filesystem::path example =
      std::filesystem::path(INGOT_SOURCE_DIR) / "examples/tiny-v32";
  const OpenedModel exact(example);
  const double wanted = likelihood(exact.model, documents).perplexity();
  const TempDir directory;
  for (const auto scheme :
       {formats::SchemeId::kInt8Channel, formats::SchemeId::kNvfp4, formats::SchemeId::kMxfp4}) {
    const std::string name(formats::scheme_facts(scheme).name);
    Conversion conversion(example, directory / name);
    conversion.recipe.to = scheme;
    conversion.run();
    for (const auto profile : {inference::Profile::kF32, inference::Profile::kNative}) {
      const OpenedModel opened(directory / name, {.profile = profile});
      const Likelihood is = likelihood(opened.model, documents, KvFormat::kF32, &exact.model);
      std::cout << fmt::format("{} in {}: perplexity {:.6f} (fp8 in f32 {:.6f}), mean KL {:.2e}\n",
                               name, inference::profile_name(profile), is.perplexity(), wanted,
                               is.divergence);
      EXPECT_LT(std::abs(std::log(is.perplexity() / wanted)), 0.05) << name;
    }
  }
  for (const auto format : {KvFormat::kFp8, KvFormat::kInt8}) {
    const Likelihood is = likelihood(exact.model, documents, format, &exact.model);
    std::cout << fmt::format("kv-cache {}: perplexity {:.6f}, mean KL {:.2e}\n",
                             inference::kv_format_name(format), is.perplexity(), is.divergence);
    EXPECT_LE(is.divergence, 1e-4);
  }
}

}  // namespace
}  // namespace ingot::testing
