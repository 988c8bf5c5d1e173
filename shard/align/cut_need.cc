#include "shard/align/cut_need.h"

#include "formats/base/error.h"

namespace ingot::shard {

using formats::Dim;

std::array<std::uint64_t, 2> indivisible(formats::SchemeId scheme,
                                         std::array<std::uint64_t, 2> group) {
  const formats::SchemeFacts& facts = formats::scheme_facts(scheme);
  INGOT_CHECK((facts.group_rows <= 1 || group[0] > 0) && (facts.group_cols <= 1 || group[1] > 0));
  return {facts.group_rows > 1 ? group[0] : 1, facts.group_cols > 1 ? group[1] : 1};
}

CutNeed need_of(const TensorToAlign& tensor) {
  const formats::Shape& shape = tensor.tensor->shape;
  const TensorCut& cut = tensor.cut;
  if (cut.axis == Axis::kNone || cut.n == 1) return {};
  const bool along_rows = cut.axis == Axis::kRows;
  // A tensor of one dimension has a number per row.
  INGOT_CHECK(shape.size() >= (along_rows ? 1U : 2U));
  const std::size_t axis = shape.size() == 1 ? 0 : shape.size() - (along_rows ? 2 : 1);
  const std::uint64_t sections = along_rows ? cut.sections : 1;
  INGOT_CHECK(sections > 0 && shape[axis] % sections == 0);
  return {.along_rows = along_rows,
          .width = shape[axis] / sections,
          .n = cut.n,
          .unit = indivisible(tensor.scheme, tensor.group)[along_rows ? 0 : 1]};
}

std::optional<PaddableSide> paddable_side(const TensorToAlign& tensor,
                                          const formats::ModelConfig& config) {
  const formats::TensorRule* rule = tensor.tensor->rule;
  const std::size_t n_dimensions = tensor.tensor->shape.size();
  if (rule == nullptr || n_dimensions < 2) return std::nullopt;
  for (std::size_t d = n_dimensions - 2; d < n_dimensions && d < rule->shape.size(); ++d) {
    const bool is_rows = d + 2 == n_dimensions;
    switch (rule->shape[d]) {
      case Dim::kVocab:
        return PaddableSide{.width = PaddableWidth::kVocab, .is_rows = is_rows};
      case Dim::kIntermediate:
        return PaddableSide{.width = PaddableWidth::kIntermediate, .is_rows = is_rows};
      case Dim::kMoeIntermediate:
        return PaddableSide{.width = PaddableWidth::kMoeIntermediate, .is_rows = is_rows};
      case Dim::kTwoMoeIntermediate:
        return PaddableSide{
            .width = PaddableWidth::kMoeIntermediate, .is_rows = is_rows, .sections = 2};
      case Dim::kSharedIntermediate:
        return PaddableSide{.width = PaddableWidth::kMoeIntermediate,
                            .is_rows = is_rows,
                            .times = config.n_shared_experts};
      default:
        break;
    }
  }
  return std::nullopt;
}

bool block_joins_sections(const TensorToAlign& tensor, const PaddableSide& side) {
  if (side.sections == 1) return false;
  const formats::Shape& shape = tensor.tensor->shape;
  const std::uint64_t rows = shape[shape.size() - 2] / side.sections;
  return rows % indivisible(tensor.scheme, tensor.group)[0] != 0;
}

std::uint64_t halved_to_fit(std::uint64_t block, std::uint64_t part) {
  while (part % block != 0) {
    if (block % 2 != 0) return 0;
    block /= 2;
  }
  return block;
}

}  // namespace ingot::shard
