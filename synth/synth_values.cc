#include "synth/synth_values.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "formats/base/error.h"
#include "formats/base/hash.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float8.h"

// Gigabytes of these are made before every benchmark, so a value costs a table look-up and a fifth
// of a random word: one 64-bit word gives five draws of 12 bits, and a draw picks one of 4096
// quantiles of the normal distribution. Words come from a counter (the SplitMix64 finaliser over
// base + n * golden ratio), hence any element can be made without the others. The quantiles are
// found with basic operations only: exp() and log() of a C library may differ in the last bit
// between machines, and a rounding to E4M3 would show it.

namespace ingot::formats {
namespace {

constexpr std::size_t kDraws = 4096;
constexpr std::uint64_t kDrawsPerWord = 5;
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

double normal_density(double x) {
  // exp(-y) as (exp(-y/256))^256; the series has converged after 12 terms for y <= 8.
  const double y = x * x / 2 / 256;
  double term = 1, sum = 1;
  for (int n = 1; n <= 12; ++n) {
    term *= -y / n;
    sum += term;
  }
  for (int doubling = 0; doubling < 8; ++doubling) sum *= sum;
  return sum * 0.3989422804014327;
}

// Probability of a standard normal value in [0, x].
double normal_mass(double x) {
  double term = x, sum = x;
  for (int n = 1; n <= 80; ++n) {
    term *= x * x / (2 * n + 1);
    sum += term;
  }
  return normal_density(x) * sum;
}

using Quantiles = std::array<float, kDraws>;

// Entry i is the quantile of (i + 1/2) / 4096: symmetric, never zero, at most 3.67 away from it.
const Quantiles& quantiles() {
  static const Quantiles table = [] {
    Quantiles made{};
    double x = 0;
    for (std::size_t i = 0; i < kDraws / 2; ++i) {
      const double wanted = (static_cast<double>(i) + 0.5) / kDraws;
      for (int step = 0; step < 8; ++step) x += (wanted - normal_mass(x)) / normal_density(x);
      made[kDraws / 2 + i] = static_cast<float>(x);
      made[kDraws / 2 - 1 - i] = static_cast<float>(-x);
    }
    return made;
  }();
  return table;
}

template <typename T>
using DrawTable = std::array<T, kDraws>;

/// The element of each draw.
template <auto Convert>
const auto& draw_table() {
  static const auto table = [] {
    DrawTable<decltype(Convert(0.0F))> made{};
    std::transform(quantiles().begin(), quantiles().end(), made.begin(), Convert);
    return made;
  }();
  return table;
}

std::uint8_t e4m3_code(float quantile) {
  return e4m3_from_float(quantile / quantiles().back() * 448);
}
float weight_value(float quantile) {
  return quantile / 64;
}
float norm_value(float quantile) {
  return 1 + quantile / 8;
}
template <auto Value>
std::uint16_t bf16_word(float quantile) {
  return bf16_from_float(Value(quantile));
}

template <typename T>
void put(std::byte* out, T value) {
  std::memcpy(out, &value, sizeof value);
}

template <typename T>
void fill_draws(std::uint64_t base, std::uint64_t first, std::span<std::byte> out,
                const DrawTable<T>& table) {
  std::byte* to = out.data();
  std::uint64_t left = out.size() / sizeof(T);
  std::uint64_t n_word = first / kDrawsPerWord;
  // A run may begin or end inside a word.
  const auto some = [&](std::uint64_t skip, std::uint64_t count) {
    std::uint64_t word = mix(base + n_word++ * kGolden) >> (12 * skip);
    for (std::uint64_t i = 0; i < count; ++i, word >>= 12, to += sizeof(T)) {
      put(to, table[word & (kDraws - 1)]);
    }
    left -= count;
  };
  if (const std::uint64_t skip = first % kDrawsPerWord; skip != 0) {
    some(skip, std::min(left, kDrawsPerWord - skip));
  }
  for (; left >= kDrawsPerWord; left -= kDrawsPerWord, to += kDrawsPerWord * sizeof(T)) {
    const std::uint64_t word = mix(base + n_word++ * kGolden);
    put(to, table[word & (kDraws - 1)]);
    put(to + sizeof(T), table[(word >> 12) & (kDraws - 1)]);
    put(to + 2 * sizeof(T), table[(word >> 24) & (kDraws - 1)]);
    put(to + 3 * sizeof(T), table[(word >> 36) & (kDraws - 1)]);
    put(to + 4 * sizeof(T), table[(word >> 48) & (kDraws - 1)]);
  }
  if (left != 0) some(0, left);
}

std::uint32_t scale_bits(SynthKind kind, std::uint64_t word) {
  constexpr std::uint32_t kMantissa = 0x7FFFFF;
  const auto mantissa = static_cast<std::uint32_t>(word) & kMantissa;
  const auto pick = static_cast<std::uint32_t>(word >> 32);
  switch (kind) {
    case SynthKind::kF32PowerScale:
      return (127 - 13 + pick % 3) << 23;
    case SynthKind::kF32TinyScale:
      return std::max(mantissa, 1U);
    case SynthKind::kF32TinyPowerScale:
      return 0x00400000;
    default:
      return (127 - 13 + pick % 2) << 23 | mantissa;
  }
}

void fill_scales(std::uint64_t base, std::uint64_t first, std::span<std::byte> out,
                 SynthKind kind) {
  for (std::size_t i = 0; i < out.size() / 4; ++i) {
    put(out.data() + 4 * i, scale_bits(kind, mix(base + (first + i) * kGolden)));
  }
}

}  // namespace

std::size_t synth_element_bytes(SynthKind kind) {
  switch (kind) {
    case SynthKind::kE4m3:
      return 1;
    case SynthKind::kBf16Weight:
    case SynthKind::kBf16Norm:
      return 2;
    case SynthKind::kI64Zero:
      return 8;
    default:
      return 4;
  }
}

SynthStream::SynthStream(std::uint64_t seed, std::string_view tensor, SynthKind kind)
    : base_(mix(mix(seed + kGolden) ^ hash_bytes(std::as_bytes(std::span(tensor))).low)),
      kind_(kind) {}

void SynthStream::fill(std::uint64_t first, std::span<std::byte> out) const {
  INGOT_CHECK(out.size() % synth_element_bytes(kind_) == 0);
  switch (kind_) {
    case SynthKind::kE4m3:
      return fill_draws(base_, first, out, draw_table<e4m3_code>());
    case SynthKind::kBf16Weight:
      return fill_draws(base_, first, out, draw_table<bf16_word<weight_value>>());
    case SynthKind::kBf16Norm:
      return fill_draws(base_, first, out, draw_table<bf16_word<norm_value>>());
    case SynthKind::kF32Weight:
      return fill_draws(base_, first, out, draw_table<weight_value>());
    case SynthKind::kF32Norm:
      return fill_draws(base_, first, out, draw_table<norm_value>());
    case SynthKind::kI64Zero:
    case SynthKind::kI32Zero:
      std::ranges::fill(out, std::byte{0});
      return;
    default:
      return fill_scales(base_, first, out, kind_);
  }
}

}  // namespace ingot::formats
