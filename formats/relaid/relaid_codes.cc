#include "formats/relaid/relaid_codes.h"

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "formats/relaid/input_major_parts.h"
#include "formats/relaid/relaid_bytes.h"

namespace ingot::formats {
namespace {

/// Weights whose rows have one scale get no order: compressed-tensors would refuse it. Among
/// weights of several groups they get one as these do, since engines want one form of experts.
bool has_order(std::span<const InputMajorWeight> sources) {
  return std::ranges::any_of(sources, [](const InputMajorWeight& source) {
    return source.form.has_order && source.groups > 1 && source.form.bits <= 4;
  });
}

}  // namespace

void relay_codes(const InputMajorLayout& layout, const RelaidModel& model, ErrorList& faults) {
  const std::vector<StoredTensor> stored = std::move(model.stored);
  std::vector<InputMajorWeight> sources;
  InputMajorParts packed(layout, {.stored = stored,
                                  .files = model.bytes->files(),
                                  .is_complete = model.is_complete,
                                  .faults = faults});
  std::unordered_map<const InputMajorParts::OfWeight*, std::optional<std::uint32_t>> source_of;
  for (const StoredTensor& tensor : stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    if (parts == nullptr) continue;
    const auto [item, is_new] = source_of.try_emplace(parts);
    if (!is_new) continue;
    if (auto source = packed.weight_of(*parts)) {
      item->second = static_cast<std::uint32_t>(sources.size());
      sources.push_back(std::move(*source));
    }
  }
  const bool is_ordered = has_order(sources);
  std::vector<StoredTensor> seen;
  std::vector<RelaidView> views;
  for (const StoredTensor& tensor : stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    if (parts == nullptr) {
      seen.push_back(tensor);
      views.push_back({.made = RelaidAs::kAsStored, .source = 0, .original = tensor});
      continue;
    }
    if (!source_of.at(parts)) continue;
    const std::uint32_t index = *source_of.at(parts);
    const InputMajorWeight& source = sources[index];
    const bool is_int8 = source.form.bits == 8;
    const auto add = [&](std::string_view suffix, RelaidAs made, DType dtype, Shape shape) {
      seen.push_back(seen_as(tensor, suffix, dtype, std::move(shape)));
      packed.require_free(tensor, seen.back().name);
      views.push_back({.made = made, .source = index, .original = tensor});
    };
    if (&tensor == parts->at(InputMajorParts::kCodes) && is_int8) {
      add(".weight", RelaidAs::kBytes, DType::kI8, {source.rows, source.cols});
      add(".weight_shape", RelaidAs::kDimensions, DType::kI32, {2});
    } else if (&tensor == parts->at(InputMajorParts::kCodes)) {
      add(".weight_packed", RelaidAs::kCodes, DType::kI32,
          {source.rows, source.cols / kCodesPerWord});
      add(".weight_shape", RelaidAs::kDimensions, DType::kI32, {2});
    } else if (&tensor == parts->at(InputMajorParts::kScales)) {
      add(".weight_scale", RelaidAs::kScales, tensor.dtype, {source.rows, source.groups});
    } else if (&tensor == parts->at(InputMajorParts::kZeros) && !source.form.is_symmetric) {
      const std::uint64_t rows_per_word = is_int8 ? 4 : kCodesPerWord;
      add(".weight_zero_point", RelaidAs::kZeros, DType::kI32,
          {source.rows / rows_per_word, source.groups});
    } else if (&tensor == parts->at(InputMajorParts::kOrder) &&
               (is_int8 ? source.form.has_order && source.groups > 1 : is_ordered)) {
      add(".weight_g_idx", RelaidAs::kAsStored, DType::kI32, {source.cols});
    }
  }
  model.stored = std::move(seen);
  model.bytes =
      relaid_bytes(is_ordered, std::move(model.bytes), std::move(sources), std::move(views));
}

}  // namespace ingot::formats
