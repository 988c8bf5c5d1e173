#include "formats/storage/block_scales.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "formats/container/float8.h"

namespace ingot::formats {
namespace {

float e4m3_value(std::uint8_t code) {
  return kE4m3Values[code];
}

float float_in_low_half(std::uint64_t word) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(word));
}

template <typename Word, float (*ValueOf)(Word)>
void widen(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Word word = 0;
    std::memcpy(&word, &bytes[i * sizeof word], sizeof word);
    out[i] = ValueOf(word);
  }
}

Error number_for_each(const TensorSource& source, std::uint32_t index) {
  const StoredTensor& stored = source.stored()[index];
  return Error(ErrorCode::kUnsupported,
               "has shape {}, a number for each expert of a stack, which is taken over only expert "
               "by expert (--experts separate)",
               shape_text(stored.shape))
      .in_file(source.files()[stored.file].name)
      .in_tensor(stored.name);
}

std::vector<float> read_numbers(const TensorSource& source, std::uint32_t index) {
  const StoredTensor& stored = source.stored()[index];
  std::vector<std::byte> bytes(stored.n_bytes);
  source.read(index, 0, bytes);
  std::vector<float> values(element_count(stored.shape).value_or(0));
  widen_scales(stored.dtype, bytes, std::nullopt, values);
  return values;
}

// A per-tensor part that is one number.
float read_one(const TensorSource& source, std::uint32_t index) {
  if (element_count(source.stored()[index].shape) != 1) throw number_for_each(source, index);
  return read_numbers(source, index).front();
}

template <typename... Args>
Error bad_scale(const TensorSource& source, const LogicalTensor& tensor, std::uint32_t stored,
                fmt::format_string<Args...> fact, Args&&... args) {
  const StoredTensor& scale = source.stored()[stored];
  return Error(ErrorCode::kBadScale, "scale {} {}", scale.name,
               fmt::format(fact, std::forward<Args>(args)...))
      .in_file(source.files()[scale.file].name)
      .in_tensor(tensor.name);
}

void multiply_or_divide(const GlobalScale& global, std::span<float> scales) {
  for (float& scale : scales) scale = global.divides ? scale / global.value : scale * global.value;
}

bool is_good(float scale, const ScalePolicy& policy, bool may_be_negative = false) {
  return std::isfinite(scale) &&
         (scale > 0 || (scale == 0 && policy.allow_zero) || (scale < 0 && may_be_negative));
}

// True if a good scale and a second one make a number that codes can be multiplied with: with
// infinity 0 decodes to NaN, with zero all codes decode to 0.
bool is_effective(float scale, float effective, const ScalePolicy& policy) {
  return std::isfinite(effective) && (effective != 0 || scale == 0 || policy.allow_zero);
}

// Integers of 4 or 8 bytes.
std::vector<std::int64_t> integers(DType dtype, std::span<const std::byte> bytes) {
  const std::size_t width = dtype_bits(dtype) / 8;
  std::vector<std::int64_t> values(bytes.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int32_t narrow = 0;
    if (dtype == DType::kI64) {
      std::memcpy(&values[i], &bytes[i * width], sizeof values[i]);
    } else {
      std::memcpy(&narrow, &bytes[i * width], sizeof narrow);
      values[i] = narrow;
    }
  }
  return values;
}

// Ascend's weight_offset is zero for symmetric codes, which are all that is read here.
void require_zero_offset(const TensorSource& source, const LogicalTensor& tensor) {
  const std::uint32_t index = tensor.encoding.stored[Part::kOffset];
  std::vector<std::byte> bytes(source.stored()[index].n_bytes);
  source.read(index, 0, bytes);
  const DType dtype = source.stored()[index].dtype;
  const std::size_t width = dtype_bits(dtype) / 8;
  const bool is_float = plain_scheme(dtype) != SchemeId::kRaw;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    // Minus zero is zero: the sign is the top bit of the last byte of a float of any width. All
    // bits of an integer count.
    const bool is_sign_byte = is_float && i % width == width - 1;
    const auto byte = std::to_integer<unsigned>(bytes[i]);
    if ((is_sign_byte ? byte & 0x7FU : byte) == 0) continue;
    throw Error(ErrorCode::kUnsupported,
                "offset {} is not zero in row {}: asymmetric codes cannot be decoded",
                source.stored()[index].name, i / width)
        .in_file(source.files()[source.stored()[index].file].name)
        .in_tensor(tensor.name);
  }
}

}  // namespace

void widen_scales(DType dtype, std::span<const std::byte> bytes,
                  const std::optional<GlobalScale>& global, std::span<float> out) {
  INGOT_CHECK(bytes.size() * 8 == out.size() * dtype_bits(dtype));
  switch (dtype) {
    case DType::kF32:
      if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      break;
    case DType::kBf16:
      widen<std::uint16_t, float_from_bf16>(bytes, out);
      break;
    case DType::kF16:
      widen<std::uint16_t, float_from_f16>(bytes, out);
      break;
    case DType::kF8E4M3:
      widen<std::uint8_t, e4m3_value>(bytes, out);
      break;
    case DType::kF8E8M0:
    case DType::kU8:
      widen<std::uint8_t, float_from_e8m0>(bytes, out);
      break;
    case DType::kI64:
      // Ascend for FP16 models: the bits of an F32 in the low half of a sign-extended integer.
      widen<std::uint64_t, float_in_low_half>(bytes, out);
      break;
    default:
      throw Error(ErrorCode::kDtypeMismatch,
                  "a scale of dtype {} (F32, F16, BF16, F8_E4M3 and F8_E8M0 are known)",
                  dtype_name(dtype));
  }
  if (global) multiply_or_divide(*global, out);
}

ScaleReader::ScaleReader(const TensorSource& source, const LogicalTensor& tensor,
                         const ScalePolicy& policy)
    : source_(source), tensor_(tensor), policy_(policy) {
  const Encoding& encoding = tensor.encoding;
  if (encoding.block_cols == 0) return;
  const Shape grid = block_scale_shape(tensor.shape, encoding.block_rows, encoding.block_cols);
  rows_per_matrix_ = tensor.shape[tensor.shape.size() - 2];
  scale_rows_per_matrix_ = grid[grid.size() - 2];
  cols_ = grid.back();
  rows_ = cols_ == 0 ? 0 : element_count(grid).value_or(0) / cols_;
  if (encoding.stored.has(Part::kGlobal)) {
    const std::uint32_t index = encoding.stored[Part::kGlobal];
    for (const float value : read_numbers(source, index)) {
      if (!is_good(value, {})) {
        throw bad_scale(source, tensor, index,
                        "is {}; it must be finite and above zero (fetch the file again)", value);
      }
      globals_.push_back({.value = value, .divides = encoding.global_divides});
    }
    if (globals_.size() == 1) global_ = globals_.front();
  }
  if (encoding.stored.has(Part::kOffset)) require_zero_offset(source, tensor);
  if (encoding.stored.has(Part::kDimensions)) require_dimensions();
  if (encoding.stored.has(Part::kGroupOrder)) read_group_order();
  if (encoding.stored.has(Part::kColumnFactor)) read_column_factors();
  if (!encoding.stored.has(Part::kScale) && encoding.stored.has(Part::kInputScale)) {
    input_scale_ = read_input_scale(source, tensor);
  }
}

const std::optional<GlobalScale>& ScaleReader::global() const {
  if (globals_.size() > 1) throw number_for_each(source_, tensor_.encoding.stored[Part::kGlobal]);
  return global_;
}

float read_input_scale(const TensorSource& source, const LogicalTensor& tensor) {
  const std::uint32_t index = tensor.encoding.stored[Part::kInputScale];
  const float scale = read_one(source, index);
  if (is_good(scale, {})) return scale;
  throw bad_scale(source, tensor, index, "is {}; it must be finite and above zero", scale);
}

ScaleReader::Range ScaleReader::range_of(std::uint64_t first_row, std::uint64_t n_rows) const {
  if (!has_scales() || n_rows == 0) return {};
  const auto scale_row = [&](std::uint64_t row) {
    return row / rows_per_matrix_ * scale_rows_per_matrix_ +
           row % rows_per_matrix_ / tensor_.encoding.block_rows;
  };
  const std::uint64_t first = scale_row(first_row);
  return {.first = first, .n = scale_row(first_row + n_rows - 1) - first + 1};
}

std::vector<float> ScaleReader::read(Range range) const {
  std::vector<float> scales(range.n * cols_);
  if (scales.empty()) return scales;
  const std::uint32_t index = stored_scale();
  const StoredTensor& stored = source_.stored()[index];
  const std::uint64_t width = dtype_bits(stored.dtype) / 8;
  std::vector<std::byte> bytes(scales.size() * width);
  source_.read(index, range.first * cols_ * width, bytes);
  widen_scales(stored.dtype, bytes, std::nullopt, scales);
  require_good(scales, range.first);
  if (!input_scale_ && globals_.empty()) return scales;
  const std::vector<float> own = scales;
  // One number for all rows, or one for each matrix of a stack.
  const std::uint64_t rows_of_each = rows_ / std::max<std::uint64_t>(globals_.size(), 1);
  for (std::uint64_t row = 0; row < range.n; ++row) {
    const GlobalScale second = input_scale_ ? GlobalScale{.value = *input_scale_, .divides = true}
                                            : globals_.at((range.first + row) / rows_of_each);
    const auto of_row = std::span(scales).subspan(row * cols_, cols_);
    multiply_or_divide(second, of_row);
    for (std::uint64_t col = 0; col < cols_; ++col) {
      if (is_effective(own[row * cols_ + col], of_row[col], policy_)) continue;
      throw bad_scale(source_, tensor_, stored_scale(),
                      "at row {}, column {} is {}, and {} {} by {}; the two must make a finite "
                      "number above zero (fetch the file again)",
                      range.first + row, col, own[row * cols_ + col], of_row[col],
                      second.divides ? "divided" : "multiplied", second.value);
    }
  }
  return scales;
}

std::vector<std::uint8_t> ScaleReader::read_zeros(Range range) const {
  const std::uint32_t index = tensor_.encoding.stored[Part::kZeroPoint];
  const SchemeFacts& facts = scheme_facts(tensor_.encoding.scheme);
  const bool is_int8 = facts.code == CodeKind::kInt8Zero;
  if (index == StoredParts::kAbsent || range.n == 0 ||
      source_.stored()[index].dtype == DType::kI8) {
    std::vector<std::uint8_t> zeros(is_int8 ? range.n * cols_ : 0);
    if (index != StoredParts::kAbsent && range.n > 0)
      source_.read(index, range.first * cols_, std::as_writable_bytes(std::span(zeros)));
    return zeros;
  }
  // Zero points of several rows share a word; those of 8 bits have 128 added.
  const std::uint64_t per_word = 32 / facts.code_bits;
  const std::uint64_t first_word = range.first / per_word;
  const std::uint64_t end_word = ceil_div(range.first + range.n, per_word);
  std::vector<std::uint32_t> words((end_word - first_word) * cols_);
  source_.read(index, first_word * cols_ * sizeof words[0],
               std::as_writable_bytes(std::span(words)));
  std::vector<std::uint8_t> zeros;
  zeros.reserve(range.n * cols_);
  for (std::uint64_t row = range.first; row < range.first + range.n; ++row) {
    const std::uint32_t* of_row = &words[(row / per_word - first_word) * cols_];
    const auto shift = static_cast<unsigned>(row % per_word * facts.code_bits);
    for (std::uint64_t col = 0; col < cols_; ++col) {
      const std::uint32_t zero = of_row[col] >> shift;
      zeros.push_back(static_cast<std::uint8_t>(is_int8 ? zero ^ 0x80U : zero & 15U));
    }
  }
  return zeros;
}

std::vector<std::byte> ScaleReader::read_part(Part part) const {
  const std::uint32_t index = tensor_.encoding.stored[part];
  std::vector<std::byte> bytes(source_.stored()[index].n_bytes);
  source_.read(index, 0, bytes);
  return bytes;
}

void ScaleReader::require_dimensions() const {
  const StoredTensor& stored = source_.stored()[tensor_.encoding.stored[Part::kDimensions]];
  const std::vector<std::int64_t> sides = integers(stored.dtype, read_part(Part::kDimensions));
  const bool agrees = std::equal(sides.begin(), sides.end(), tensor_.shape.begin(),
                                 tensor_.shape.end(), [](std::int64_t said, std::uint64_t side) {
                                   return said >= 0 && static_cast<std::uint64_t>(said) == side;
                                 });
  if (agrees) return;
  throw Error(ErrorCode::kCorrupt,
              "{} says [{}], but the codes and their scales make {} (fetch the file again; of a "
              "slice it is the slice's own shape; columns that are no multiple of 8 are not read)",
              stored.name, fmt::join(sides, ", "), shape_text(tensor_.shape))
      .in_file(source_.files()[stored.file].name)
      .in_tensor(tensor_.name);
}

void ScaleReader::read_group_order() {
  const StoredTensor& stored = source_.stored()[tensor_.encoding.stored[Part::kGroupOrder]];
  const std::vector<std::int64_t> groups = integers(stored.dtype, read_part(Part::kGroupOrder));
  bool is_plain = true;
  for (std::size_t col = 0; col < groups.size(); ++col) {
    if (groups[col] < 0 || static_cast<std::uint64_t>(groups[col]) >= cols_) {
      throw Error(ErrorCode::kCorrupt,
                  "{} puts column {} into group {}, of {} (fetch the file again)", stored.name, col,
                  groups[col], cols_)
          .in_file(source_.files()[stored.file].name)
          .in_tensor(tensor_.name);
    }
    is_plain =
        is_plain && static_cast<std::uint64_t>(groups[col]) == col / tensor_.encoding.block_cols;
  }
  if (!is_plain) group_order_.assign(groups.begin(), groups.end());
}

void ScaleReader::read_column_factors() {
  const std::uint32_t index = tensor_.encoding.stored[Part::kColumnFactor];
  column_factors_ = read_numbers(source_, index);
  const auto bad = std::ranges::find_if(
      column_factors_, [](float factor) { return !std::isfinite(factor) || factor == 0; });
  if (bad == column_factors_.end()) return;
  throw bad_scale(source_, tensor_, index,
                  "at column {} is {}; it must be finite and not zero (fetch the file again)",
                  bad - column_factors_.begin(), *bad);
}

void ScaleReader::require_good(std::span<const float> stored, std::uint64_t first_row) const {
  const bool may_be_negative = scheme_facts(tensor_.encoding.scheme).has_signed_scales;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (is_good(stored[i], policy_, may_be_negative)) continue;
    throw bad_scale(
        source_, tensor_, stored_scale(),
        "at row {}, column {} is {}; it must be finite and {} (fetch the file again{})",
        first_row + i / cols_, i % cols_, stored[i], may_be_negative ? "not zero" : "above zero",
        stored[i] == 0
            ? fmt::format("; ingot convert --allow 'zero-scale={}' accepts it", tensor_.name)
            : "");
  }
}

std::vector<float> read_block_scales(const TensorSource& source, const LogicalTensor& tensor,
                                     const ScalePolicy& policy) {
  const ScaleReader reader(source, tensor, policy);
  return reader.read({.first = 0, .n = reader.rows()});
}

namespace {

std::vector<float> stored_scales(const TensorSource& source, const LogicalTensor& tensor,
                                 Part part = Part::kScale) {
  const std::uint32_t index = tensor.encoding.stored[part];
  const StoredTensor& stored = source.stored()[index];
  std::vector<std::byte> bytes(stored.n_bytes);
  source.read(index, 0, bytes);
  std::vector<float> scales(bytes.size() * 8 / dtype_bits(stored.dtype));
  widen_scales(stored.dtype, bytes, std::nullopt, scales);
  return scales;
}

}  // namespace

void require_good_input_scales(const TensorSource& source, const LogicalTensor& tensor,
                               const ScalePolicy& policy) {
  const StoredParts& stored = tensor.encoding.stored;
  if (stored.has(Part::kInputOffset)) {
    for (const float offset : read_small_numbers(source, stored[Part::kInputOffset])) {
      if (std::isfinite(offset)) continue;
      throw bad_scale(source, tensor, stored[Part::kInputOffset],
                      "is {}; it must be finite (fetch the file again)", offset);
    }
  }
  if (!stored.has(Part::kInputScale)) return;
  for (const float scale : stored_scales(source, tensor, Part::kInputScale)) {
    if (is_good(scale, policy)) continue;
    throw bad_scale(
        source, tensor, stored[Part::kInputScale],
        "is {}; it must be finite and above zero (fetch the file again{})", scale,
        scale == 0 ? fmt::format("; ingot convert --allow 'zero-scale={}' accepts it", tensor.name)
                   : "");
  }
}

std::vector<float> read_small_numbers(const TensorSource& source, std::uint32_t stored) {
  constexpr std::uint64_t kMostBytes = 1 << 20;
  const StoredTensor& tensor = source.stored()[stored];
  const bool is_read = plain_scheme(tensor.dtype) != SchemeId::kRaw && tensor.n_bytes <= kMostBytes;
  return is_read ? read_numbers(source, stored) : std::vector<float>();
}

bool has_scale_beyond_powers_of_two(const TensorSource& source) {
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.scheme != SchemeId::kFp8Block) continue;
    const std::vector<float> scales = stored_scales(source, tensor);
    if (!std::ranges::all_of(scales, [](float scale) {
          return scale == 0 || !std::isfinite(scale) || is_e8m0_value(std::abs(scale));
        }))
      return true;
  }
  return false;
}

bool all_scales_are_powers_of_two(const TensorSource& source) {
  std::optional<float> first;
  bool has_others = false;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.scheme != SchemeId::kFp8Block) continue;
    const StoredTensor& stored = source.stored()[tensor.encoding.stored[Part::kScale]];
    if (stored.dtype != DType::kF32 && stored.dtype != DType::kBf16) return false;
    const std::vector<float> scales = stored_scales(source, tensor);
    if (!std::all_of(scales.begin(), scales.end(), is_e8m0_value)) return false;
    for (const float scale : scales) {
      has_others = has_others || scale != first.value_or(scale);
      first = scale;
    }
  }
  return has_others;
}

}  // namespace ingot::formats
