#include "inference/model/recurrent/whole_layer.h"

#include <algorithm>

#include "formats/base/error.h"

namespace ingot::inference {

void require_one_tensor_rank(const RankView& rank, std::uint32_t layer) {
  if (rank.tp_size() == 1) return;
  throw Error(ErrorCode::kUnsupported,
              "layer {} keeps a recurrent state, which is not divided over the {} ranks of a "
              "tensor group (use --ranks joined, or expert and pipeline ranks)",
              layer, rank.tp_size());
}

std::vector<float> any_shape(const BlockWeights& weights, WeightRole role, std::size_t n) {
  const formats::Shape& shape = weights.store().shape_of(weights.name(role));
  const bool is_run =
      std::ranges::count(shape, n) >= 1 &&
      std::ranges::count(shape, 1U) + 1 >= static_cast<std::ptrdiff_t>(shape.size());
  return weights.vector(role, is_run ? shape : formats::Shape{n});
}

std::vector<float> bias_of(const BlockWeights& weights, bool is_promised, WeightRole role,
                           std::size_t n) {
  return is_promised || weights.has(role) ? weights.vector(role, {n}) : std::vector<float>();
}

}  // namespace ingot::inference
