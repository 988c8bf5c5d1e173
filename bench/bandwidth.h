#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "formats/base/aligned_buffer.h"
#include "formats/base/parallel.h"

namespace ingot::bench {

inline constexpr std::size_t kBandwidthBytes = std::size_t{512} << 20U;

/// Reads memory, eight words at a time, and returns their sum so that the compiler cannot leave it
/// out.
inline std::uint64_t sum_of_words(const std::byte* from, std::size_t n_bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + sizeof(sums) <= n_bytes; i += sizeof(sums)) {
    std::uint64_t words[8];
    std::memcpy(words, from + i, sizeof(words));
    for (std::size_t j = 0; j < 8; ++j) sums[j] += words[j];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum += part;
  return sum;
}

/// Bytes per second at which `threads` threads read 512 MiB: the best of three.
inline double read_bandwidth(std::size_t threads) {
  static const AlignedBuffer memory = [] {
    AlignedBuffer buffer(kBandwidthBytes);
    std::memset(buffer.data(), 1, buffer.size());
    return buffer;
  }();
  const std::size_t n_pieces = 8 * threads, piece = kBandwidthBytes / n_pieces / 64 * 64;
  std::vector<std::uint64_t> sums(n_pieces);
  double best = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(n_pieces, threads,
                 [&](std::size_t i) { sums[i] = sum_of_words(memory.data() + i * piece, piece); });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(n_pieces * piece) / elapsed.count());
  }
  return best;
}

}  // namespace ingot::bench
