#pragma once

#include "inference/tokenizer/tokenizer.h"
#include "shard/join/source.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/prompts.h"

namespace ingot::testing {

/// The example with its tokenizer, and the prompts that a user gets.
struct Example {
  formats::Checkpoint model = shard::open_source(tiny_v32());
  inference::Tokenizer tokenizer = verify::open_tokenizer(model).value();
  std::vector<verify::Prompt> prompts = verify::built_in_prompts(model, &tokenizer);

  /// Two short ones, and one for which the indexer has to choose.
  [[nodiscard]] std::vector<verify::Prompt> few_prompts() const {
    std::vector<verify::Prompt> few = {prompts.at(3), prompts.at(0), prompts.at(4)};
    few[1].ids.resize(72);
    return few;
  }
};

inline verify::RunOptions exact_layers(std::size_t threads = 1) {
  return {.output_profile = inference::Profile::kF32, .threads = threads};
}

/// The least mean over the main layers, isolated.
inline double least_cosine(const verify::LayersReport& report) {
  double least = 1;
  for (const verify::LayerAgreement& layer : report.layers) {
    if (!layer.is_mtp) least = std::min(least, layer.isolated.mean);
  }
  return least;
}

}  // namespace ingot::testing
