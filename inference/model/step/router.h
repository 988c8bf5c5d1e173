#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

/// Experts of every token, `topk` each, ascending, with the weights of their outputs.
struct Routing {
  std::size_t topk = 0;
  std::vector<std::uint32_t> experts;  ///< [tokens, topk]
  std::vector<float> weights;          ///< [tokens, topk]
  std::vector<float> shared_weights;   ///< [tokens, RouterSpec::weighed_shared]
  std::size_t n_near_ties = 0;         ///< tokens with a near tie of experts or of groups
};

/// Chooses experts from router logits [tokens, spec.scored()]: scores by `spec.score`; selection by
/// score + `bias` (empty: none) within the best `topk_groups` groups, judged by their two best with
/// a bias and by their best without; ties go to the lower index. Weights are scores without bias,
/// normalized if `spec.normalize` (sum over ascending experts, and then over the shared ones that
/// are weighed, + 1e-20), then scaled. All in FP32. Where experts are `given` [tokens, topk], in
/// any order, they are weighed and none is chosen. Throws kNonFinite for a logit that is NaN.
Routing route(const RouterSpec& spec, formats::MatrixView<const float> logits,
              std::span<const float> bias, std::span<const std::uint32_t> given = {});

}  // namespace ingot::inference
