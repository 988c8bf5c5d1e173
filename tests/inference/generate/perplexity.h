#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "inference/tokenizer/tokenizer.h"
#include "tests/inference/model/runner.h"

namespace ingot::testing {

/// A model's likelihood of some documents.
struct Likelihood {
  double nll = 0;
  std::size_t tokens = 0;
  double divergence = 0;  ///< mean KL(reference || this) per token, where a reference was given
  [[nodiscard]] double perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
};

/// Token ids of the recorded documents, each on its own, its first 512; every `stride`-th document.
inline std::vector<std::vector<std::int64_t>> validation_documents(std::size_t stride = 1) {
  const std::string root = INGOT_SOURCE_DIR;
  const auto tokenizer = inference::Tokenizer::open(root + "/examples/tiny-v32");
  const formats::Json json =
      formats::read_json_file(root + "/tests/golden/tiny-v32/val_docs.json", 1U << 20);
  std::vector<std::vector<std::int64_t>> documents;
  for (std::size_t i = 0; i < json["docs"].size(); i += stride) {
    const auto ids = tokenizer.encode(json["docs"][i].get<std::string>(), false);
    documents.emplace_back(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(
                                                          std::min<std::size_t>(ids.size(), 512)));
  }
  return documents;
}

/// Natural logarithms of the probabilities, in double.
inline std::vector<double> log_probabilities(std::span<const float> logits) {
  std::vector<double> values(logits.begin(), logits.end());
  const double shift = negative_log_likelihood(logits, 0) + double{logits[0]};
  for (double& value : values) value -= shift;
  return values;
}

/// Likelihood of the documents, with the divergence from `reference` when it is not null. Both run
/// with caches of their own format.
inline Likelihood likelihood(const inference::Model& model,
                             const std::vector<std::vector<std::int64_t>>& documents,
                             inference::KvFormat format = inference::KvFormat::kF32,
                             const inference::Model* reference = nullptr) {
  Likelihood sum;
  const std::size_t vocab = model.spec().vocab;
  for (const auto& ids : documents) {
    const Recording is = run(model, ids, ids.size(), format);
    Recording wanted;
    if (reference != nullptr) wanted = run(*reference, ids);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto logits = std::span(is.logits).subspan(i * vocab, vocab);
      sum.nll += negative_log_likelihood(logits, ids[i + 1]);
      ++sum.tokens;
      if (reference == nullptr) continue;
      const auto p = log_probabilities(std::span(wanted.logits).subspan(i * vocab, vocab));
      const auto q = log_probabilities(logits);
      for (std::size_t j = 0; j < vocab; ++j) sum.divergence += std::exp(p[j]) * (p[j] - q[j]);
    }
  }
  sum.divergence /= static_cast<double>(sum.tokens);
  return sum;
}

}  // namespace ingot::testing
