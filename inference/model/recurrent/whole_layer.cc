#include "inference/model/recurrent/whole_layer.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference {

void require_one_tensor_rank(const RankView& rank, std::string_view prefix) {
  if (rank.tp_size() == 1) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}* keeps a recurrent state, which is not divided over the {} ranks of a "
                  "tensor group (use --ranks joined, or expert and pipeline ranks)",
                  prefix, rank.tp_size()));
}

std::string first_of(const WeightStore& weights, std::uint32_t layer, const std::string& prefix,
                     std::initializer_list<std::string_view> names) {
  const auto found = std::ranges::find_if(names, [&](std::string_view name) {
    return weights.expects(prefix + std::string(name), layer);
  });
  return prefix + std::string(found != names.end() ? *found : *names.begin());
}

std::vector<float> any_shape(const WeightStore& weights, const std::string& name, std::size_t n) {
  const formats::Shape& shape = weights.shape_of(name);
  const bool is_run =
      std::ranges::count(shape, n) >= 1 &&
      std::ranges::count(shape, 1U) + 1 >= static_cast<std::ptrdiff_t>(shape.size());
  return weights.vector(name, is_run ? shape : formats::Shape{n});
}

}  // namespace ingot::inference
