#include "formats/relaid/input_major_parts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "formats/base/checked.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, InputMajorParts::kKinds> kSuffixes = {".qweight", ".scales",
                                                                             ".qzeros", ".g_idx"};
constexpr DTypeSet kScaleDtypes = {DType::kF16, DType::kBf16, DType::kF32};
/// weight_shape holds them as I32.
constexpr std::uint64_t kMaxSide = std::numeric_limits<std::int32_t>::max();

/// kKinds for a name that is of no part.
std::size_t kind_of(std::string_view name) {
  const std::string_view suffix = name.substr(module_stem(name).size());
  return static_cast<std::size_t>(std::ranges::find(kSuffixes, suffix) - kSuffixes.begin());
}

}  // namespace

std::string_view module_stem(std::string_view name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

InputMajorParts::InputMajorParts(const InputMajorLayout& layout, const Input& input)
    : layout_(layout), in_(input) {
  for (const StoredTensor& tensor : in_.stored) {
    if (const std::size_t kind = kind_of(tensor.name); kind < kKinds)
      parts_[module_stem(tensor.name)].at(kind) = &tensor;
  }
  std::erase_if(parts_, [&](const auto& item) { return !is_packed(item.second); });
}

const InputMajorParts::OfWeight* InputMajorParts::find(const StoredTensor& tensor) const {
  if (kind_of(tensor.name) == kKinds) return nullptr;
  const auto found = parts_.find(module_stem(tensor.name));
  return found == parts_.end() ? nullptr : &found->second;
}

std::optional<InputMajorWeight> InputMajorParts::weight_of(const OfWeight& parts) {
  if (const std::size_t lacks = lacking(parts); lacks < kKinds) {
    const StoredTensor& first =
        **std::ranges::find_if(parts, [](const auto* part) { return part; });
    if (in_.is_complete) {
      fault(first, ErrorCode::kMissingTensor,
            fmt::format("is {}, but there is no '{}{}' (a file missing? fetch it again)",
                        parts[kCodes] == nullptr ? "of a packed weight" : "packed",
                        module_stem(first.name), kSuffixes.at(lacks)));
    }
    return {};
  }
  InputMajorWeight weight{.codes = *parts[kCodes],
                          .scales = *parts[kScales],
                          .zeros = *parts[kZeros],
                          .order = std::nullopt,
                          .form = layout_.form_of(module_stem(parts[kCodes]->name))};
  if (parts[kOrder] != nullptr) weight.order = *parts[kOrder];
  if (!has_bits(weight) || !has_dtypes(weight) || !has_shapes(weight)) return {};
  return weight;
}

void InputMajorParts::require_free(const StoredTensor& made_of, const std::string& name) {
  if (names_.empty()) {
    for (const StoredTensor& tensor : in_.stored) names_.emplace(tensor.name, &tensor);
  }
  const auto found = names_.find(name);
  if (found == names_.end()) return;
  fault(*found->second, ErrorCode::kDuplicate,
        fmt::format("is here as well as '{}', which is the same part (which one is meant? remove "
                    "the other)",
                    made_of.name));
}

/// Scales without other parts may be a parameter of that name, unless the other parts may be
/// elsewhere.
bool InputMajorParts::is_packed(const OfWeight& parts) const {
  return !in_.is_complete || parts[kCodes] != nullptr || parts[kZeros] != nullptr ||
         parts[kOrder] != nullptr;
}

/// The first kind that is needed and not here; kKinds: none.
std::size_t InputMajorParts::lacking(const OfWeight& parts) const {
  std::size_t kind = 0;
  const bool needs_order =
      parts[kCodes] != nullptr && layout_.form_of(module_stem(parts[kCodes]->name)).has_order;
  while (kind < kKinds && (parts.at(kind) != nullptr || (kind == kOrder && !needs_order))) ++kind;
  return kind;
}

void InputMajorParts::fault(const StoredTensor& tensor, ErrorCode code, std::string message) {
  in_.faults.add(
      Error(code, std::move(message)).in_file(in_.files[tensor.file].name).in_tensor(tensor.name));
}

bool InputMajorParts::has_bits(const InputMajorWeight& weight) {
  const std::uint64_t bits = weight.form.bits;
  const InputMajorOverride* said = layout_.override_of(module_stem(weight.codes.name));
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    if (told_bits_.emplace(said, bits).second) {
      fault(weight.codes, ErrorCode::kUnsupported,
            fmt::format("is of {0} bits: quantization_config says bits {0} for '{1}', and this "
                        "version reads 2, 3, 4 and 8 (take the release that it was made from)",
                        bits, said == nullptr ? "" : said->key));
    }
    return false;
  }
  // Words of zero points hold rows, whose number the scales have.
  const Shape &zeros = weight.zeros->shape, &scales = weight.scales.shape;
  if (zeros.size() != 2 || scales.size() != 2 || scales.back() == 0) return true;
  for (const std::uint64_t other : {2UL, 3UL, 4UL, 8UL}) {
    if (other == bits || checked_mul(zeros.back(), 32) != checked_mul(scales.back(), other))
      continue;
    if (!told_bits_.emplace(said, other).second) return false;
    fault(weight.codes, ErrorCode::kMismatch,
          fmt::format("is of {} bits by '{}' of shape {} for {} rows, but quantization_config says "
                      "bits {} for it (is the config of these weights? GPTQModel has bits of "
                      "single modules under dynamic)",
                      other, weight.zeros->name, shape_text(zeros), scales.back(), bits));
    return false;
  }
  return true;
}

bool InputMajorParts::has_dtypes(const InputMajorWeight& weight) {
  bool fits = true;
  const auto require = [&](const StoredTensor& tensor, DTypeSet dtypes) {
    if (dtypes.has(tensor.dtype)) return;
    fits = false;
    fault(tensor, ErrorCode::kDtypeMismatch,
          fmt::format("is {}, must be {}", dtype_name(tensor.dtype), dtypes.text()));
  };
  require(weight.codes, {DType::kI32});
  require(*weight.zeros, {DType::kI32});
  require(weight.scales, kScaleDtypes);
  if (weight.order) require(*weight.order, {DType::kI32});
  return fits;
}

bool InputMajorParts::has_shapes(InputMajorWeight& weight) {
  bool fits = true;
  const auto require = [&](const StoredTensor& tensor, const Shape& wanted) {
    if (tensor.shape == wanted) return;
    fits = false;
    fault(tensor, ErrorCode::kShapeMismatch,
          fmt::format("has shape {}, with scales of {} it must have {}", shape_text(tensor.shape),
                      shape_text(weight.scales.shape), shape_text(wanted)));
  };
  const auto refuse_scales = [&](std::string message) {
    fault(weight.scales, ErrorCode::kShapeMismatch, std::move(message));
    return false;
  };
  if (weight.scales.shape.size() != 2 || weight.codes.shape.size() != 2)
    return refuse_scales(fmt::format("has shape {}, codes of {} need [groups, rows]",
                                     shape_text(weight.scales.shape),
                                     shape_text(weight.codes.shape)));
  weight.groups = weight.scales.shape[0];
  weight.rows = weight.scales.shape[1];
  const InputMajorForm& form = weight.form;
  const std::uint64_t front = weight.codes.shape[0];
  const std::uint64_t n = form.codes_per_unit(), words = form.words_per_unit();
  weight.cols = form.packs_rows ? front : checked_mul(front / words, n).value_or(0);
  const std::uint64_t claimed = form.group_size.value_or(0);
  if (claimed != 0 && claimed < weight.cols && weight.cols % claimed != 0 &&
      weight.groups == ceil_div(weight.cols, claimed)) {
    fault(weight.scales, ErrorCode::kUnsupported,
          fmt::format("has scales for {} groups of {} columns, and the last group has {} of the {} "
                      "columns only: this version reads whole groups (take the release that it was "
                      "made from, or quantize that with a group size that divides the columns)",
                      weight.groups, claimed, weight.cols % claimed, weight.cols));
    return false;
  }
  // Words of codes of less than 4 bits become several of INT4.
  const std::uint64_t step = std::min<std::uint64_t>(n, kCodesPerWord);
  if (weight.rows == 0 || weight.cols == 0 || weight.groups == 0 || weight.rows % n != 0 ||
      weight.cols % n != 0 || weight.rows > kMaxSide || weight.cols > kMaxSide ||
      weight.cols % (weight.groups * step) != 0) {
    return refuse_scales(
        fmt::format("has shape {}: {} columns are not {} equal groups of whole words for rows in "
                    "multiples of {}",
                    shape_text(weight.scales.shape), weight.cols, weight.groups, n));
  }
  require(weight.codes, form.packs_rows ? Shape{weight.cols, weight.rows / n}
                                        : Shape{weight.cols / n * words, weight.rows});
  require(*weight.zeros, {weight.groups, weight.rows / n * words});
  if (weight.order) require(*weight.order, {weight.cols});
  const std::uint64_t size = weight.cols / weight.groups;
  if (form.group_size && size != (claimed == 0 ? weight.cols : claimed)) {
    fault(weight.scales, ErrorCode::kMismatch,
          fmt::format("has a scale per {} columns, but config.json says group_size {} (correct "
                      "it)",
                      size, claimed));
    fits = false;
  }
  return fits;
}

std::vector<bool> parts_of_torn_weights(const InputMajorLayout& layout,
                                        std::span<const StoredTensor> stored) {
  ErrorList none;
  const InputMajorParts packed(
      layout, {.stored = stored, .files = {}, .is_complete = false, .faults = none});
  std::vector<bool> torn;
  for (const StoredTensor& tensor : stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    torn.push_back(parts != nullptr && !packed.is_whole(*parts));
  }
  return torn;
}

}  // namespace ingot::formats
