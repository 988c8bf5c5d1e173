// The microscaling formats: E2M1 or E4M3 codes under a power of two per 32 columns, stored as E8M0.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/group_encoder.h"
#include "quantize/kernels/row_scan.h"
#include "quantize/kernels/scales/scale_errors.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

constexpr std::size_t kGroup = 32;

/// 127 + e - c, with e the exponent of the largest magnitude after a mantissa of at least 1.75 has
/// been rounded up, and c the exponent of the largest code. Groups of zeros get 1.0. Subnormal
/// magnitudes need no care: whatever their exponent, the byte is clamped to 0.
float scale_of(float amax, std::uint32_t largest_exponent, std::size_t candidate) {
  if (amax == 0) return 1.0F;
  // Candidate 1 is not rounded up. The other way round no candidate is needed: up to the largest
  // code, every code under the higher exponent is one under the lower.
  const std::uint32_t half_step = candidate == 0 ? 0x200000U : 0;
  const std::uint32_t rounded = (std::bit_cast<std::uint32_t>(amax) + half_step) >> 23;
  const std::uint32_t byte = rounded > largest_exponent ? rounded - largest_exponent : 0;
  return formats::float_from_e8m0(static_cast<std::uint8_t>(std::min(byte, 254U)));
}

float fp4_scale(float amax, std::size_t candidate, const EncodeOptions& /*options*/) {
  return scale_of(amax, 2, candidate);
}

float fp8_scale(float amax, std::size_t candidate, const EncodeOptions& /*options*/) {
  return scale_of(amax, 8, candidate);
}

/// The exponent field is the byte, also of 2^-127, which is subnormal.
void store_e8m0(float scale, std::byte* out) {
  *out = static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
}

constexpr GroupEncoding kFp4{.scale = fp4_scale,
                             .store = store_e8m0,
                             .stored_bytes = 1,
                             .code = formats::CodeKind::kE2m1,
                             .n_candidates = 2,
                             .errors = e2m1_errors};
/// Codes of three mantissa bits err alike under either exponent, so there is only one candidate.
constexpr GroupEncoding kFp8{
    .scale = fp8_scale, .store = store_e8m0, .stored_bytes = 1, .code = formats::CodeKind::kE4m3};

/// The largest value of a group is at least 3 under scales that a search by moments tries.
constexpr float kLeastReach = 2.51F;

/// The scales of a run of E2M1 codes that lose least by moments.
std::vector<float> scales_by_moments(const EncodeInput& in) {
  const std::size_t across = in.values.cols / kGroup;
  std::vector<float> amaxes(across * in.values.rows), scales(amaxes.size());
  group_amax(in.values, 1, kGroup, amaxes);
  std::vector<std::uint8_t> codes(amaxes.size());
  for (std::size_t k = 0; k < codes.size(); ++k) {
    const float scale = fp4_scale(amaxes[k], 0, in.options);
    store_e8m0(scale, reinterpret_cast<std::byte*>(&codes[k]));
  }
  std::array<float, 255> effective;
  for (std::size_t code = 0; code < effective.size(); ++code)
    effective[code] = formats::float_from_e8m0(static_cast<std::uint8_t>(code));
  choose_hessian_codes({.values = in.values,
                        .moments = in.moments,
                        .group_cols = kGroup,
                        .scales = effective,
                        .least_reach = kLeastReach},
                       codes);
  std::ranges::transform(codes, scales.begin(), [&](std::uint8_t code) { return effective[code]; });
  return scales;
}

template <const GroupEncoding& Encoding>
EncodeFaults encode(const EncodeInput& in, const EncodeOutput& out) {
  if (in.values.rows == 0 || in.values.cols == 0) return {};
  INGOT_CHECK(in.block_rows == 1 && in.block_cols == kGroup && in.values.cols % kGroup == 0);
  INGOT_CHECK(in.given_scales.empty());
  if (Encoding.n_candidates == 1 || in.search() != ScaleSearch::kHessian)
    return encode_by_groups<Encoding>(in, out);
  const std::vector<float> scales = scales_by_moments(in);
  EncodeInput given = in;
  given.given_scales = scales;
  return encode_by_groups<Encoding>(given, out);
}

constexpr std::array kSearches = {ScaleSearch::kAmax, ScaleSearch::kMse, ScaleSearch::kHessian};

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kMxfp4, .encode = encode<kFp4>, .searches = kSearches},
    Scheme{.id = formats::SchemeId::kMxfp8, .encode = encode<kFp8>},
};

}  // namespace

constinit const std::span<const Scheme> kMxSchemes = kRows;

}  // namespace ingot::quantize
