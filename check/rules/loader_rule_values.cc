#include "check/rules/loader_rule_values.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "formats/base/chunks.h"
#include "formats/storage/block_scales.h"

namespace ingot::formats::rule_bodies {
namespace {

// Whole numbers of any dtype in a piece.
static_assert(kPieceBytes % 8 == 0 && kHashChunkBytes % kPieceBytes == 0);

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

// What stands behind what was looked at so far.
void append(OddValues& odd, const OddValues& next) {
  if (odd.n == 0 && next.n != 0) {
    odd.first = odd.total + next.first;
    odd.value = next.value;
  }
  odd.n += next.n;
  odd.total += next.total;
}

}  // namespace

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

Look odd_scales(bool (*is_odd)(float)) {
  return [is_odd](const StoredTensor& tensor, std::span<const std::byte> bytes) {
    OddValues odd;
    std::vector<float> values;
    widen(tensor.dtype, bytes, values);
    odd.total = values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!is_odd(values[i]) || odd.n++ != 0) continue;
      odd.first = i;
      odd.value = values[i];
    }
    return odd;
  };
}

void report_odd(const Checkpoint& checkpoint, std::span<const StoredTensor* const> tensors,
                const RuleOptions& options, const Look& look,
                const std::function<Finding(const StoredTensor&, const OddValues&)>& tell,
                const Report& report) {
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<OddValues>> chunks;
  for (const StoredTensor* tensor : tensors) {
    sizes.push_back(tensor->n_bytes);
    chunks.emplace_back(count_chunks(tensor->n_bytes));
  }
  for_each_chunk(sizes, options.threads, [&](const Chunk& chunk, std::span<std::byte> memory) {
    const StoredTensor& tensor = *tensors[chunk.run];
    OddValues& odd = chunks[chunk.run][chunk.index()];
    for_each_piece(
        chunk, memory,
        [&](std::uint64_t offset, std::span<std::byte> out) {
          if (options.stop_requested && options.stop_requested())
            throw Error(ErrorCode::kInterrupted, "stopped while weights were read");
          checkpoint.read(index_of(checkpoint, tensor), offset, out);
        },
        [&](std::span<const std::byte> bytes, std::uint64_t) { append(odd, look(tensor, bytes)); });
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    OddValues odd;
    for (const OddValues& chunk : chunks[i]) append(odd, chunk);
    if (odd.n != 0) report(tell(*tensors[i], odd));
  }
}

std::vector<const StoredTensor*> readable_scales(const Checkpoint& checkpoint,
                                                 std::span<const StoredTensor* const> scales) {
  std::vector<const StoredTensor*> readable;
  for (const StoredTensor* scale : scales)
    if (can_read_scales(checkpoint, *scale)) readable.push_back(scale);
  return readable;
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
  report_odd(
      checkpoint, readable_scales(checkpoint, scales), options, odd_scales(is_bad_scale),
      [&](const StoredTensor& scale, const OddValues& odd) {
        return at(checkpoint, scale, ErrorCode::kBadScale,
                  fmt::format("{} of {} scales are not finite and positive, the first is {} at "
                              "element {}",
                              odd.n, odd.total, odd.value, odd.first));
      },
      report);
}

}  // namespace ingot::formats::rule_bodies
