#include "formats/loader_rule_values.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "formats/base/parallel.h"
#include "formats/block_scales.h"

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::size_t kReadBytes = std::size_t{4} << 20;

std::uint32_t index_of(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return static_cast<std::uint32_t>(&tensor - checkpoint.stored().data());
}

std::size_t width_of(DType dtype) {
  return dtype_bits(dtype) / 8;
}

void widen(DType dtype, std::span<const std::byte> bytes, std::vector<float>& values) {
  values.resize(bytes.size() / width_of(dtype));
  widen_scales(dtype, bytes, std::nullopt, values);
}

}  // namespace

void scan_bytes(const Checkpoint& checkpoint, const StoredTensor& tensor,
                const std::function<void(std::span<const std::byte>, std::uint64_t)>& look) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kReadBytes, tensor.n_bytes));
  for (std::uint64_t offset = 0; offset < tensor.n_bytes; offset += buffer.size()) {
    const auto bytes = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), tensor.n_bytes - offset)));
    checkpoint.read(index_of(checkpoint, tensor), offset, bytes);
    look(bytes, offset);
  }
}

bool can_read_scales(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kU8:
    case DType::kI64:
      return checkpoint.has_data(tensor.file);
    default:
      return false;
  }
}

std::optional<OddValues> find_odd_scales(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                         bool (*is_odd)(float)) {
  OddValues odd;
  std::vector<float> values;
  scan_bytes(checkpoint, tensor, [&](std::span<const std::byte> bytes, std::uint64_t) {
    widen(tensor.dtype, bytes, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!is_odd(values[i])) continue;
      if (odd.n++ != 0) continue;
      odd.first = odd.total + i;
      odd.value = values[i];
    }
    odd.total += values.size();
  });
  if (odd.n == 0) return std::nullopt;
  return odd;
}

std::optional<float> first_scale(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  if (!can_read_scales(checkpoint, tensor) || tensor.n_bytes == 0) return std::nullopt;
  std::vector<std::byte> bytes(width_of(tensor.dtype));
  checkpoint.read(index_of(checkpoint, tensor), 0, bytes);
  std::vector<float> value;
  widen(tensor.dtype, bytes, value);
  return value.front();
}

bool is_bad_scale(float scale) {
  return !(scale > 0 && std::isfinite(scale));
}

void report_bad_scales(const Checkpoint& checkpoint, std::span<const StoredTensor* const> scales,
                       const RuleOptions& options, const Report& report) {
  report_in_order(
      scales, options.threads, report, [&](const StoredTensor& scale) -> std::optional<Finding> {
        if (!can_read_scales(checkpoint, scale)) return std::nullopt;
        const auto odd = find_odd_scales(checkpoint, scale, is_bad_scale);
        if (!odd) return std::nullopt;
        return at(checkpoint, scale, ErrorCode::kBadScale,
                  fmt::format("{} of {} scales are not finite and positive, the first is {} at "
                              "element {}",
                              odd->n, odd->total, odd->value, odd->first));
      });
}

void report_in_order(std::span<const StoredTensor* const> tensors, std::size_t threads,
                     const Report& report,
                     const std::function<std::optional<Finding>(const StoredTensor&)>& look) {
  std::vector<std::optional<Finding>> found(tensors.size());
  parallel_for(tensors.size(), threads, [&](std::size_t i) { found[i] = look(*tensors[i]); });
  for (std::optional<Finding>& finding : found) {
    if (finding) report(std::move(*finding));
  }
}

}  // namespace ingot::formats::rule_bodies
