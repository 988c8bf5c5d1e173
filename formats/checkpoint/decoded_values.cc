#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "formats/base/checked.h"
#include "formats/checkpoint/passes.h"
#include "formats/container/other_float8.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/scale_shapes.h"

// Codes that no scheme writes, seen as their values in F32, and scales as schemes have them.

namespace ingot::formats {
namespace {

/// A stored part, with its number in the source.
struct Part8 {
  std::uint32_t index = 0;
  StoredTensor tensor;
};

/// A weight whose codes have 8 bits each.
struct CodedWeight {
  Part8 codes, scales;
  std::optional<Part8> zeros, order;
  std::uint64_t rows_per_matrix = 0, cols = 0;
  std::uint64_t block_rows = 0, block_cols = 0;

  [[nodiscard]] std::uint64_t scale_cols() const { return ceil_div(cols, block_cols); }
  /// True if scales may be negative, as those of INT8 and not those of FP8.
  [[nodiscard]] bool has_signed_scales() const { return codes.tensor.dtype == DType::kI8; }
  /// The row of scales of a row of the flattened weight.
  [[nodiscard]] std::uint64_t scale_row(std::uint64_t row) const {
    return row / rows_per_matrix * ceil_div(rows_per_matrix, block_rows) +
           row % rows_per_matrix / block_rows;
  }
};

/// The values of INT8 codes, in two's complement, and of each kind of FP8.
const std::array<float, 256>& values_of(DType dtype) {
  static const auto tables = [] {
    std::array<std::array<float, 256>, kFloat8Kinds.size()> all;
    std::ranges::transform(kFloat8Kinds, all.begin(), float8_values);
    return all;
  }();
  static const auto integers = [] {
    std::array<float, 256> all;
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<float>(static_cast<std::int8_t>(i));
    return all;
  }();
  const auto* const kind = std::ranges::find(kFloat8Kinds, dtype, &Float8Kind::dtype);
  if (kind == kFloat8Kinds.end()) return integers;
  return tables[static_cast<std::size_t>(kind - kFloat8Kinds.begin())];
}

/// Numbers that are seen otherwise than they are stored.
struct SeenNumbers {
  StoredTensor stored;
  /// Times that each stored number is viewed, one after the other; empty: only the greatest is
  /// viewed.
  std::vector<std::uint64_t> counts;
};

class DecodedBytes final : public ForwardedBytes {
 public:
  DecodedBytes(std::unique_ptr<StoredBytes> bytes, std::map<std::uint32_t, CodedWeight> weights,
               std::map<std::uint32_t, SeenNumbers> numbers)
      : ForwardedBytes(std::move(bytes)),
        weights_(std::move(weights)),
        numbers_(std::move(numbers)) {}

  [[nodiscard]] bool is_whole() const override { return bytes_->is_whole(); }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return bytes_->home_file(index);
  }

  void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    if (const auto number = numbers_.find(index); number != numbers_.end()) {
      return read_seen(index, number->second, offset, out);
    }
    const auto weight = weights_.find(index);
    if (weight == weights_.end()) return bytes_->read(index, tensor, offset, out);
    if (out.empty()) return;
    // Whole values, of which the first and the last may be wanted in part.
    const std::uint64_t first = offset / sizeof(float);
    const std::uint64_t end = ceil_div(offset + out.size(), sizeof(float));
    std::vector<float> values(end - first);
    decode(weight->second, first, values);
    std::memcpy(out.data(), std::as_bytes(std::span(values)).data() + offset % sizeof(float),
                out.size());
  }

 private:
  void read_seen(std::uint32_t index, const SeenNumbers& numbers, std::uint64_t offset,
                 std::span<std::byte> out) const {
    const StoredTensor& stored = numbers.stored;
    const std::vector<std::byte> bytes =
        read_bytes({.index = index, .tensor = stored}, 0, stored.n_bytes);
    const std::uint64_t width = dtype_bits(stored.dtype) / 8;
    if (numbers.counts.empty()) {
      std::vector<float> values(bytes.size() / width);
      widen_scales(stored.dtype, bytes, std::nullopt, values);
      const auto greatest = std::ranges::max_element(values) - values.begin();
      std::memcpy(out.data(), bytes.data() + static_cast<std::size_t>(greatest) * width + offset,
                  out.size());
      return;
    }
    std::uint64_t end = 0;  // end of the rows that have a number
    std::size_t number = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t row = (offset + i) / width;
      while (number == 0 || row >= end) end += numbers.counts[number++];
      out[i] = bytes[(number - 1) * width + (offset + i) % width];
    }
  }

  std::vector<std::byte> read_bytes(const Part8& part, std::uint64_t offset,
                                    std::uint64_t n_bytes) const {
    std::vector<std::byte> bytes(n_bytes);
    bytes_->read(part.index, part.tensor, offset, bytes);
    return bytes;
  }

  template <typename Number>
  std::vector<Number> read_numbers(const Part8& part, std::uint64_t first,
                                   std::uint64_t count) const {
    std::vector<Number> numbers(count);
    bytes_->read(part.index, part.tensor, first * sizeof(Number),
                 std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }

  /// Rows of scales, widened.
  std::vector<float> scales_of(const CodedWeight& weight, std::uint64_t first,
                               std::uint64_t n) const {
    const std::uint64_t width = dtype_bits(weight.scales.tensor.dtype) / 8,
                        cols = weight.scale_cols();
    std::vector<float> scales(n * cols);
    widen_scales(weight.scales.tensor.dtype,
                 read_bytes(weight.scales, first * cols * width, n * cols * width), std::nullopt,
                 scales);
    const bool is_signed = weight.has_signed_scales();
    for (std::size_t i = 0; i < scales.size(); ++i) {
      if (std::isfinite(scales[i]) && (scales[i] > 0 || (is_signed && scales[i] < 0))) continue;
      throw fault_of(files(), weight.scales.tensor, ErrorCode::kBadScale,
                     "holds {} at {} (a scale must be finite and {}; fetch the file again)",
                     scales[i], first * cols + i, is_signed ? "not zero" : "above zero");
    }
    return scales;
  }

  /// The zero points that go with rows of scales, less 128 where codes are.
  std::vector<float> zeros_of(const CodedWeight& weight, std::uint64_t first,
                              std::uint64_t n) const {
    const std::uint64_t across = weight.scale_cols();
    std::vector<float> zeros(n * across);
    if (weight.zeros->tensor.dtype == DType::kI8) {  // one for each scale
      std::ranges::copy(read_numbers<std::int8_t>(*weight.zeros, first * across, n * across),
                        zeros.begin());
      return zeros;
    }
    // Zero points of each row; four to a word.
    constexpr std::uint64_t kPerWord = 4;
    const std::uint64_t first_word = first / kPerWord;
    const auto words = read_numbers<std::uint32_t>(
        *weight.zeros, first_word * across, ((first + n - 1) / kPerWord - first_word + 1) * across);
    for (std::uint64_t i = 0; i < zeros.size(); ++i) {
      const std::uint64_t row = first + i / across;
      const std::uint32_t word = words[(row / kPerWord - first_word) * across + i % across];
      zeros[i] = static_cast<float>(word >> (8 * (row % kPerWord)) & 0xFFU) - 128.0F;
    }
    return zeros;
  }

  /// The group of each column of a row.
  std::vector<std::uint64_t> groups_of(const CodedWeight& weight) const {
    std::vector<std::uint64_t> groups(weight.cols);
    for (std::uint64_t c = 0; c < weight.cols; ++c) groups[c] = c / weight.block_cols;
    if (!weight.order) return groups;
    const auto order = read_numbers<std::int32_t>(*weight.order, 0, weight.cols);
    for (std::uint64_t c = 0; c < weight.cols; ++c) {
      if (order[c] < 0 || std::cmp_greater_equal(order[c], weight.scale_cols())) {
        throw fault_of(files(), weight.order->tensor, ErrorCode::kCorrupt,
                       "puts column {} into group {}, of {} (fetch the file again)", c, order[c],
                       weight.scale_cols());
      }
      groups[c] = static_cast<std::uint64_t>(order[c]);
    }
    return groups;
  }

  /// Values from number `first` of the flattened weight on.
  void decode(const CodedWeight& weight, std::uint64_t first, std::span<float> out) const {
    const std::vector<std::byte> codes = read_bytes(weight.codes, first, out.size());
    const std::array<float, 256>& values = values_of(weight.codes.tensor.dtype);
    const std::vector<std::uint64_t> groups = groups_of(weight);
    const std::uint64_t cols = weight.cols, across = weight.scale_cols();
    const std::uint64_t first_row = first / cols, last_row = (first + out.size() - 1) / cols;
    const std::uint64_t first_scale = weight.scale_row(first_row);
    const std::vector<float> scales =
        scales_of(weight, first_scale, weight.scale_row(last_row) - first_scale + 1);
    const std::vector<float> zeros =
        weight.zeros ? zeros_of(weight, first_scale, scales.size() / across) : std::vector<float>();
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t row = (first + i) / cols, group = groups[(first + i) % cols];
      const std::uint64_t at = (weight.scale_row(row) - first_scale) * across + group;
      const float code = values[std::to_integer<std::uint8_t>(codes[i])];
      out[i] = (zeros.empty() ? code : code - zeros[at]) * scales[at];
    }
  }

  const std::map<std::uint32_t, CodedWeight> weights_;  // weights by the number of the codes
  const std::map<std::uint32_t, SeenNumbers> numbers_;  // viewed numbers by stored tensor
};

}  // namespace

void decode_values(Draft& draft) {
  std::vector<StoredTensor>& stored = draft.stored;
  std::map<std::uint32_t, CodedWeight> weights;
  std::map<std::uint32_t, SeenNumbers> numbers;
  for (LogicalTensor& tensor : draft.tensors) {
    Encoding& encoding = tensor.encoding;
    if (!encoding.rows_of_scales.empty()) {
      const auto see_as = [&](Part part, Shape shape, std::vector<std::uint64_t> counts) {
        StoredTensor& seen = stored[encoding.stored[part]];
        numbers.emplace(encoding.stored[part], SeenNumbers{seen, std::move(counts)});
        seen.shape = std::move(shape);
        seen.n_bytes = byte_count(seen.dtype, seen.shape).value();
      };
      see_as(Part::kScale, per_row(tensor.shape), encoding.rows_of_scales);
      const bool has_inputs = encoding.stored.has(Part::kInputScale) &&
                              !is_one_value(stored[encoding.stored[Part::kInputScale]].shape);
      if (has_inputs) see_as(Part::kInputScale, {1}, {});
    }
    if (!is_decoded(encoding)) continue;
    const auto part = [&](Part which) {
      const std::uint32_t index = encoding.stored[which];
      return Part8{.index = index, .tensor = stored[index]};
    };
    const auto part_if_there = [&](Part which) {
      return encoding.stored.has(which) ? std::optional(part(which)) : std::nullopt;
    };
    StoredTensor& codes = stored[encoding.stored.weight()];
    weights.emplace(encoding.stored.weight(),
                    CodedWeight{.codes = part(Part::kWeight),
                                .scales = part(Part::kScale),
                                .zeros = part_if_there(Part::kZeroPoint),
                                .order = part_if_there(Part::kGroupOrder),
                                .rows_per_matrix = tensor.shape[tensor.shape.size() - 2],
                                .cols = tensor.shape.back(),
                                .block_rows = encoding.block_rows,
                                .block_cols = encoding.block_cols});
    encoding.block_rows = encoding.block_cols = 0;
    codes.dtype = DType::kF32;
    codes.n_bytes = byte_count(DType::kF32, codes.shape).value();
  }
  if (weights.empty() && numbers.empty()) return;
  draft.bytes = std::make_unique<DecodedBytes>(std::move(draft.bytes), std::move(weights),
                                               std::move(numbers));
}

}  // namespace ingot::formats
