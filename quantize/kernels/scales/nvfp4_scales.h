#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quantize/scheme.h"

namespace ingot::quantize {

/// Columns that share an E4M3 scale.
inline constexpr std::size_t kNvfp4Block = 16;

/// Consecutive blocks of one row, and all that decides their scales.
struct Nvfp4Blocks {
  const float* values = nullptr;  ///< finite, n_blocks x kNvfp4Block
  std::size_t n_blocks = 0;
  float global = 1;  ///< tensor-wide scale, or divisor if `divides`; above zero
  bool divides = false;
  /// Codes below this one are not used: 1, or more where the effective scale would be zero.
  std::uint8_t lowest_code = 1;
  ScaleSearch search = ScaleSearch::kMse;
  EncodeOptions::Window window;
  /// Weight of each value's squared error, within [0, 1], n_blocks x kNvfp4Block; null: 1.
  const float* weights = nullptr;
};

/// The number that E2M1 codes are multiplied by: F32(code) x global, or / global.
float nvfp4_effective_scale(std::uint8_t code, float global, bool divides);

/// The smallest code, at least 1, whose effective scale is not zero.
std::uint8_t nvfp4_lowest_code(float global, bool divides);

/// Chooses an E4M3 scale code per block, between lowest_code and 0x7E; 0x38 (1.0) for a block of
/// zeros. All arithmetic is FP32.
///
/// raw = amax / (6 x global), or global x (amax / 6); the amax code is E4M3(raw). kFourOverSix
/// takes E4M3(1.5 x raw) instead where that has the smaller error; kMse takes the code of smallest
/// error among the window and both of these. On a tie the amax code wins, then the lowest.
///
/// The error of a code with value v is the sum of (w - q x v)^2 over the block, with w = |x| /
/// global (or x global) and q = E2M1(w x (1 / v)): in units of the global scale, so that it
/// underflows for no tensor, however small. Each term is multiplied by the value's weight, if there
/// are weights. Terms i, i+4, i+8 and i+12 are added in this order into sum i; the result is
/// (0 + 2) + (1 + 3).
///
/// Writes one code per block, and its effective scale.
void choose_nvfp4_scales(const Nvfp4Blocks& in, std::uint8_t* codes, float* effective);

namespace scalar {
void choose_nvfp4_scales(const Nvfp4Blocks& in, std::uint8_t* codes, float* effective);
}

}  // namespace ingot::quantize
