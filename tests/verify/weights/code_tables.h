#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "formats/container/float8.h"
#include "formats/storage/encoding.h"

namespace ingot::verify {

/// Every value that a code of a scheme can have, ascending, without repetition; of INT8 without
/// -128, which no encoder uses.
inline std::vector<double> code_values(formats::SchemeId scheme) {
  std::vector<double> values;
  switch (formats::scheme_facts(scheme).code) {
    case formats::CodeKind::kInt8:
      for (int code = -127; code <= 127; ++code) values.push_back(code);
      break;
    case formats::CodeKind::kE4m3:
      for (const float value : formats::kE4m3Values) values.push_back(static_cast<double>(value));
      break;
    case formats::CodeKind::kE2m1:
      values = {-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6};
      break;
    case formats::CodeKind::kInt4:
      for (int code = -8; code <= 7; ++code) values.push_back(code);
      break;
    case formats::CodeKind::kPlain:
      for (std::uint32_t word = 0; word < 0x10000; ++word) {
        const auto bits = static_cast<std::uint16_t>(word);
        values.push_back(static_cast<double>(scheme == formats::SchemeId::kBf16
                                                 ? formats::float_from_bf16(bits)
                                                 : formats::float_from_f16(bits)));
      }
      break;
    default:  // only read
      break;
  }
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

enum class Verdict { kGood, kMisrounded, kSaturated };

/// By search: how far is code `index` x scale from the source, in steps to the neighbour on the
/// source's side? Beyond the last code a step is as long as the one before it. INT4's -7 is as far
/// as 7: encoders of symmetric scales stop there, though there is a -8.
inline Verdict judge(const std::vector<double>& codes, std::size_t index, double scale,
                     double source) {
  const double code = codes[index];
  const bool is_up = source > code * scale;
  const bool is_last = is_up ? code >= codes.back() : code <= -codes.back();
  const std::size_t from = is_up == is_last ? index - 1 : index;
  const double step = codes[from + 1] - codes[from];
  if (std::fabs(source - code * scale) <= (0.5 + 1e-4) * step * scale) return Verdict::kGood;
  return is_last ? Verdict::kSaturated : Verdict::kMisrounded;
}

}  // namespace ingot::verify
