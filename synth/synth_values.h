#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ingot::formats {

/// The kind of values of a synthetic tensor.
enum class SynthKind : std::uint8_t {
  kE4m3,           ///< codes of a normal distribution whose largest draw is 448; never a NaN code
  kBf16Weight,     ///< normal, deviation 1/64
  kF32Weight,      ///< values as kBf16Weight
  kBf16Norm,       ///< normal around 1, deviation 1/8
  kF32Norm,        ///< values as kBf16Norm
  kF32Scale,       ///< any F32 in [2^-13, 2^-11)
  kF32PowerScale,  ///< 2^-13, 2^-12 or 2^-11
  kF32TinyScale,   ///< subnormal F32
  kI64Zero,        ///< 0: a number of an expert, a token or a layer that all models have
  kI32Zero,        ///< 0, as kI64Zero
  kF32TinyPowerScale  ///< 2^-127: the only power of two that is subnormal and still has an E8M0
                      ///< code
};

/// Bytes of an element.
std::size_t synth_element_bytes(SynthKind kind);

/// A stream of values by position: any part of a tensor can be made without the rest, so the bytes
/// do not depend on threads, windows or the order of files. Everything is exact arithmetic, hence
/// the same on every machine.
class SynthStream {
 public:
  SynthStream(std::uint64_t seed, std::string_view tensor, SynthKind kind);

  /// Fills `out` (a whole number of elements) with the elements from `first` on. Threads: pure.
  void fill(std::uint64_t first, std::span<std::byte> out) const;

 private:
  std::uint64_t base_;
  SynthKind kind_;
};

}  // namespace ingot::formats
