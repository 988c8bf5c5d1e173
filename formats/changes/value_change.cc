#include "formats/changes/value_change.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kMostKept = 2;

template <typename Word, typename Convert>
void convert(std::span<const std::byte> bytes, std::uint64_t first, std::uint64_t step,
             std::span<float> out, Convert to_float) {
  const std::byte* at = bytes.data() + first * sizeof(Word);
  for (float& value : out) {
    Word word;
    std::memcpy(&word, at, sizeof word);
    value = to_float(word);
    at += step * sizeof(Word);
  }
}

/// Numbers `first`, `first` + `step` ... of these bytes.
void widen(DType dtype, std::span<const std::byte> bytes, std::uint64_t first, std::uint64_t step,
           std::span<float> out) {
  switch (dtype) {
    case DType::kBf16:
      return convert<std::uint16_t>(bytes, first, step, out, float_from_bf16);
    case DType::kF16:
      return convert<std::uint16_t>(bytes, first, step, out, float_from_f16);
    default:
      return convert<float>(bytes, first, step, out, [](float value) { return value; });
  }
}

}  // namespace

bool is_plain_number(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}

std::shared_ptr<const std::vector<std::byte>> PlainNumbers::whole(std::uint32_t stored) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, stored, &Kept::stored);
  if (found != kept_.end()) {
    std::rotate(found, found + 1, kept_.end());
    return kept_.back().bytes;
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(tensor(stored).n_bytes);
  source_->read(stored, 0, *bytes);
  if (kept_.size() == kMostKept) kept_.erase(kept_.begin());
  kept_.push_back({.stored = stored, .bytes = std::move(bytes)});
  return kept_.back().bytes;
}

std::vector<float> StoredMatrix::read(std::uint64_t row, std::uint64_t n_rows,
                                      std::uint64_t n_cols) const {
  std::vector<float> values(n_rows * n_cols);
  const StoredTensor& tensor = of->tensor(stored);
  const std::uint64_t width = dtype_bits(tensor.dtype) / 8;
  const std::span<float> all(values);
  if (!has_whole_rows()) {
    const auto bytes = of->whole(stored);
    for (std::uint64_t i = 0; i < n_rows; ++i)
      widen(tensor.dtype, *bytes, first + (row + i) * row_step, col_step,
            all.subspan(i * n_cols, n_cols));
  } else {
    const bool is_dense = row_step == n_cols;
    const std::uint64_t n_reads = is_dense ? 1 : n_rows,
                        n_values = is_dense ? n_rows * n_cols : n_cols;
    std::vector<std::byte> bytes(n_values * width);
    for (std::uint64_t i = 0; i < n_reads && n_values > 0; ++i) {
      of->source().read(stored, (first + (row + i) * row_step) * width, bytes);
      widen(tensor.dtype, bytes, 0, 1, all.subspan(i * n_values, n_values));
    }
  }
  if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return values;
  throw fault_of(of->source().files(), tensor, ErrorCode::kNonFinite,
                 "holds numbers that are NaN or infinite, and would make the model's weights so");
}

StoredMatrix StoredMatrix::turned() const {
  StoredMatrix other = *this;
  std::swap(other.row_step, other.col_step);
  return other;
}

std::vector<ValueChange> replacement(const LogicalTensor& tensor, std::uint32_t index,
                                     const StoredMatrix& values) {
  const std::size_t rank = tensor.shape.size();
  const std::uint64_t cols = rank == 0 ? 1 : tensor.shape[rank - 1];
  const std::uint64_t rows = rank < 2 ? 1 : tensor.shape[rank - 2];
  const std::uint64_t n_values = *element_count(tensor.shape);
  std::vector<ValueChange> changes;
  for (std::uint64_t at = 0; at < n_values; at += rows * cols) {
    StoredMatrix matrix = values;
    matrix.first += at;
    matrix.row_step = cols;
    changes.push_back({.tensor = index,
                       .matrix = at / (rows * cols),
                       .rows = {.n = rows},
                       .cols = {.n = cols},
                       .values = std::move(matrix)});
  }
  return changes;
}

}  // namespace ingot::formats
