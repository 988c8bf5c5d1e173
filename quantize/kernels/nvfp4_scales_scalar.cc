#include <algorithm>
#include <array>
#include <cmath>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/kernels/e2m1.h"
#include "quantize/kernels/nvfp4_scales.h"

namespace ingot::quantize {

float nvfp4_effective_scale(std::uint8_t code, float global, bool divides) {
  return divides ? formats::kE4m3Values[code] / global : formats::kE4m3Values[code] * global;
}

std::uint8_t nvfp4_lowest_code(float global, bool divides) {
  std::uint8_t code = 1;
  while (code < formats::kE4m3Largest && nvfp4_effective_scale(code, global, divides) == 0) ++code;
  return code;
}

void nvfp4_weights(std::span<const float> importance, std::span<float> weights) {
  INGOT_CHECK(importance.size() == weights.size() && importance.size() % kNvfp4Block == 0);
  for (std::size_t first = 0; first < importance.size(); first += kNvfp4Block) {
    const auto block = importance.subspan(first, kNvfp4Block);
    const float largest = *std::max_element(block.begin(), block.end());
    for (std::size_t i = 0; i < kNvfp4Block; ++i) {
      INGOT_CHECK(block[i] >= 0 && std::isfinite(block[i]));
      weights[first + i] = largest > 0 ? block[i] / largest : 1.0F;
    }
  }
}

namespace {

using Block = std::array<float, kNvfp4Block>;

float error_of(const Block& w, const float* weights, int code) {
  const float v = formats::kE4m3Values[static_cast<std::size_t>(code)];
  const float reciprocal = 1.0F / v;
  std::array<float, 4> sums{};
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float q = kE2m1Magnitudes[e2m1_from_magnitude(w[i] * reciprocal)];
    const float rest = w[i] - q * v;
    float square = rest * rest;
    if (weights != nullptr) square *= weights[i];
    sums[i % 4] = i < 4 ? square : sums[i % 4] + square;
  }
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

int code_of(float raw, const Nvfp4Blocks& in) {
  return std::clamp<int>(formats::e4m3_from_float(raw), in.lowest_code, formats::kE4m3Largest);
}

int choose(const float* values, const float* weights, const Nvfp4Blocks& in) {
  float amax = 0;
  for (std::size_t i = 0; i < kNvfp4Block; ++i) amax = std::max(amax, std::fabs(values[i]));
  if (amax == 0) return formats::e4m3_from_float(1.0F);
  const float raw = in.divides ? in.global * (amax / 6.0F) : amax / (6.0F * in.global);
  const int amax_code = code_of(raw, in);
  if (in.search == Nvfp4Search::kAmax) return amax_code;

  Block w;
  for (std::size_t i = 0; i < kNvfp4Block; ++i) {
    const float magnitude = std::fabs(values[i]);
    w[i] = in.divides ? magnitude * in.global : magnitude / in.global;
  }
  int best = amax_code;
  float least = error_of(w, weights, amax_code);
  const auto consider = [&](int code) {
    const float error = error_of(w, weights, code);
    if (error < least) {
      least = error;
      best = code;
    }
  };
  if (in.search == Nvfp4Search::kMse) {
    const int above = amax_code < 16 ? in.window.above_small : in.window.above;
    const int first = std::max<int>(amax_code - in.window.below, in.lowest_code);
    const int last = std::min<int>(amax_code + above, formats::kE4m3Largest);
    for (int code = first; code <= last; ++code) consider(code);
  }
  // Not below the window, since it is at least the amax code; tried last, it keeps the order.
  consider(code_of(raw * 1.5F, in));
  return best;
}

}  // namespace

void scalar::choose_nvfp4_scales(const Nvfp4Blocks& in, std::uint8_t* codes, float* effective) {
  for (std::size_t b = 0; b < in.n_blocks; ++b) {
    const float* weights = in.weights == nullptr ? nullptr : in.weights + b * kNvfp4Block;
    codes[b] = static_cast<std::uint8_t>(choose(in.values + b * kNvfp4Block, weights, in));
    effective[b] = nvfp4_effective_scale(codes[b], in.global, in.divides);
  }
}

}  // namespace ingot::quantize
