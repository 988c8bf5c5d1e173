#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "formats/checkpoint/passes.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/scale_shapes.h"

// Scales that are seen otherwise than they are stored: one for several rows is seen for each of
// them.

namespace ingot::formats {
namespace {

/// Numbers that are seen otherwise than they are stored.
struct SeenNumbers {
  StoredTensor stored;
  /// Times that each stored number is viewed, one after the other; empty: only the greatest is
  /// viewed.
  std::vector<std::uint64_t> counts;
};

class RepeatedScales final : public ForwardedBytes {
 public:
  RepeatedScales(std::unique_ptr<StoredBytes> bytes, std::map<std::uint32_t, SeenNumbers> numbers)
      : ForwardedBytes(std::move(bytes)), numbers_(std::move(numbers)) {}

  [[nodiscard]] bool is_whole() const override { return bytes_->is_whole(); }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return bytes_->home_file(index);
  }

  void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    const auto number = numbers_.find(index);
    if (number == numbers_.end()) return bytes_->read(index, tensor, offset, out);
    const auto& [stored, counts] = number->second;
    std::vector<std::byte> bytes(stored.n_bytes);
    bytes_->read(index, stored, 0, bytes);
    const std::uint64_t width = dtype_bits(stored.dtype) / 8;
    if (counts.empty()) {
      std::vector<float> values(bytes.size() / width);
      widen_scales(stored.dtype, bytes, std::nullopt, values);
      const auto greatest = std::ranges::max_element(values) - values.begin();
      std::memcpy(out.data(), bytes.data() + static_cast<std::size_t>(greatest) * width + offset,
                  out.size());
      return;
    }
    std::uint64_t end = 0;  // end of the rows that have a number
    std::size_t seen = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t row = (offset + i) / width;
      while (seen == 0 || row >= end) end += counts[seen++];
      out[i] = bytes[(seen - 1) * width + (offset + i) % width];
    }
  }

 private:
  const std::map<std::uint32_t, SeenNumbers> numbers_;  // viewed numbers by stored tensor
};

}  // namespace

void repeat_scales(Draft& draft) {
  std::map<std::uint32_t, SeenNumbers> numbers;
  for (const LogicalTensor& tensor : draft.tensors) {
    const Encoding& encoding = tensor.encoding;
    if (encoding.rows_of_scales.empty()) continue;
    const auto see_as = [&](Part part, Shape shape, std::vector<std::uint64_t> counts) {
      StoredTensor& seen = draft.stored[encoding.stored[part]];
      numbers.emplace(encoding.stored[part], SeenNumbers{seen, std::move(counts)});
      seen.shape = std::move(shape);
      seen.n_bytes = byte_count(seen.dtype, seen.shape).value();
    };
    see_as(Part::kScale, per_row(tensor.shape), encoding.rows_of_scales);
    const bool has_inputs = encoding.stored.has(Part::kInputScale) &&
                            !is_one_value(draft.stored[encoding.stored[Part::kInputScale]].shape);
    if (has_inputs) see_as(Part::kInputScale, {1}, {});
  }
  if (!numbers.empty())
    draft.bytes = std::make_unique<RepeatedScales>(std::move(draft.bytes), std::move(numbers));
}

}  // namespace ingot::formats
