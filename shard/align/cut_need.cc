#include "shard/align/cut_need.h"

#include <numeric>

#include "formats/base/error.h"

namespace ingot::shard {
namespace {

constexpr std::uint64_t kCodesPerWord = 8;  // codes of INT4

}  // namespace

std::array<std::uint64_t, 2> indivisible(const TensorToAlign& tensor) {
  const formats::SchemeFacts& facts = formats::scheme_facts(tensor.scheme);
  const auto& group = tensor.group;
  INGOT_CHECK((facts.group_rows <= 1 || group[0] > 0) &&
              (facts.group_cols <= 1 || facts.chooses_cols || group[1] > 0));
  std::array<std::uint64_t, 2> unit = {facts.group_rows > 1 ? group[0] : 1,
                                       facts.group_cols > 1 ? group[1] : 1};
  // Codes of a row that all share a scale may be parted between words.
  if (unit[1] == 0) unit[1] = kCodesPerWord;
  if (tensor.has_zero_points) unit[0] = formats::kZerosPerWord;
  // The columns of any group may be at any place.
  if (tensor.has_group_order) unit[1] = tensor.tensor->shape.back();
  return unit;
}

bool is_interleaved(const TensorToAlign& tensor) {
  const formats::TensorRule* rule = tensor.tensor->rule;
  return rule != nullptr && rule->gate_up == formats::GateUpOrder::kInterleaved;
}

CutNeed need_of(const TensorToAlign& tensor) {
  const formats::Shape& shape = tensor.tensor->shape;
  const TensorCut& cut = tensor.cut;
  if (cut.axis == Axis::kNone || cut.n == 1) return {};
  const bool along_rows = cut.axis == Axis::kRows;
  INGOT_CHECK(shape.size() >= (along_rows ? 1U : 2U));
  const std::uint64_t side = shape[cut_dimension(shape, cut.axis)];
  INGOT_CHECK(cut.sections.divide(side));
  CutNeed need{.along_rows = along_rows,
               .width = cut.sections.step(side),
               .n = cut.n,
               .unit = indivisible(tensor)[along_rows ? 0 : 1]};
  // Gate and up in turn: both of a pair stay together.
  if (is_interleaved(tensor)) need.unit = std::lcm(need.unit, std::uint64_t{2});
  return need;
}

}  // namespace ingot::shard
