#include "check/facts/odd_values.h"

#include <cmath>

#include "formats/base/chunks.h"
#include "formats/storage/block_scales.h"

namespace ingot::check {

using formats::Checkpoint;
using formats::DType;
using formats::StoredTensor;

namespace {

// Whole numbers of any dtype in a piece.
static_assert(kPieceBytes % 8 == 0 && kHashChunkBytes % kPieceBytes == 0);

std::uint32_t index_of(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return static_cast<std::uint32_t>(&tensor - checkpoint.stored().data());
}

void widen(DType dtype, std::span<const std::byte> bytes, std::vector<float>& values) {
  values.resize(bytes.size() / (dtype_bits(dtype) / 8));
  formats::widen_scales(dtype, bytes, std::nullopt, values);
}

// True if the numbers of a stored tensor can be read as scales: a dtype that widen_scales knows
// (I64 too: Ascend's F32 bits), and data that are here.
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

// Adds what follows on it.
void append(OddValues& odd, const OddValues& next) {
  if (odd.n == 0 && next.n != 0) {
    odd.first = odd.total + next.first;
    odd.value = next.value;
  }
  odd.n += next.n;
  odd.total += next.total;
}

}  // namespace

std::vector<std::pair<const StoredTensor*, OddValues>> find_odd(
    const OddSearch& search, std::span<const StoredTensor* const> tensors, const Look& look) {
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<OddValues>> chunks;
  for (const StoredTensor* tensor : tensors) {
    sizes.push_back(tensor->n_bytes);
    chunks.emplace_back(count_chunks(tensor->n_bytes));
  }
  const auto look_at = [&](const Chunk& chunk, std::span<std::byte> memory) {
    const StoredTensor& tensor = *tensors[chunk.run];
    OddValues& odd = chunks[chunk.run][chunk.index()];
    for_each_piece(
        chunk, memory,
        [&](std::uint64_t offset, std::span<std::byte> out) {
          search.check_stop();
          search.checkpoint.read(index_of(search.checkpoint, tensor), offset, out);
        },
        [&](std::span<const std::byte> bytes, std::uint64_t) { append(odd, look(tensor, bytes)); });
  };
  for_each_chunk(sizes, search.threads, look_at);
  std::vector<std::pair<const StoredTensor*, OddValues>> found;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    OddValues odd;
    for (const OddValues& chunk : chunks[i]) append(odd, chunk);
    if (odd.n != 0) found.emplace_back(tensors[i], odd);
  }
  return found;
}

std::vector<std::pair<const StoredTensor*, OddValues>> find_odd_scales(
    const OddSearch& search, std::span<const StoredTensor* const> scales, bool (*is_odd)(float)) {
  std::vector<const StoredTensor*> readable;
  for (const StoredTensor* scale : scales) {
    if (can_read_scales(search.checkpoint, *scale)) readable.push_back(scale);
  }
  return find_odd(search, readable,
                  [is_odd](const StoredTensor& tensor, std::span<const std::byte> bytes) {
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
                  });
}

std::optional<float> first_scale(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  if (!can_read_scales(checkpoint, tensor) || tensor.n_bytes == 0) return std::nullopt;
  std::vector<std::byte> bytes(dtype_bits(tensor.dtype) / 8);
  checkpoint.read(index_of(checkpoint, tensor), 0, bytes);
  std::vector<float> value;
  widen(tensor.dtype, bytes, value);
  return value.front();
}

bool is_bad_scale(float scale) {
  return !(scale > 0 && std::isfinite(scale));
}

}  // namespace ingot::check
