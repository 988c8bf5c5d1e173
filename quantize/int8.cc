// INT8 codes -127 to 127 under F32 scales, one per row or per block.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "quantize/group_encoder.h"
#include "quantize/kernels/scales/scale_errors.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

/// The F32 machine epsilon, which the tools use as floor (docs/formats.md, "Quantized schemes").
constexpr float kFloor = 0x1p-23F;

/// The code that the largest magnitude becomes; it is cut off where the number is above 127.
/// Nearly all that is to be gained in rows of 256 to 7168 columns (docs/formats.md, "Scale
/// search").
constexpr std::array kTops = {127.0F, 126.0F, 128.0F, 130.0F};

float scale_of(float amax, std::size_t candidate, const EncodeOptions& /*options*/) {
  return std::max(amax / kTops.at(candidate), kFloor);
}

/// The largest number that all values are multiples of, if the largest is at most 127 of it. A
/// value is an odd integer times a power of two; two of them are multiples of the greatest common
/// divisor of the integers times the lesser power.
float common_step(formats::MatrixView<const float> group, float amax,
                  const EncodeOptions& /*options*/) {
  constexpr int kMantissaBits = 24;
  std::uint32_t divisor = 0;
  int least_power = 0;
  float step = 0;
  for (std::size_t r = 0; r < group.rows; ++r) {
    for (std::size_t c = 0; c < group.cols; ++c) {
      const float value = group.row(r)[c];
      if (value == 0 || value == step) continue;
      int power = 0;
      auto odd = static_cast<std::uint32_t>(
          std::ldexp(std::frexp(std::fabs(value), &power), kMantissaBits));
      const int zeros = std::countr_zero(odd);
      odd >>= static_cast<unsigned>(zeros);
      power += zeros - kMantissaBits;
      least_power = divisor == 0 ? power : std::min(least_power, power);
      divisor = std::gcd(divisor, odd);
      step = std::ldexp(static_cast<float>(divisor), least_power);
      if (amax > 127.0 * step) return 0;
    }
  }
  return step;
}

constexpr GroupEncoding kGroups{.scale = scale_of,
                                .store = store_f32_scale,
                                .stored_bytes = sizeof(float),
                                .code = formats::CodeKind::kInt8,
                                .exact_scale = common_step,
                                .n_candidates = kTops.size(),
                                .errors = int8_errors};

constexpr std::array kSearches = {ScaleSearch::kAmax, ScaleSearch::kMse, ScaleSearch::kHessian};

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kInt8Channel,
           .encode = encode_by_groups<kGroups>,
           .searches = kSearches},
    Scheme{.id = formats::SchemeId::kInt8Block,
           .encode = encode_by_groups<kGroups>,
           .searches = kSearches},
};

}  // namespace

constinit const std::span<const Scheme> kInt8Schemes = kRows;

}  // namespace ingot::quantize
