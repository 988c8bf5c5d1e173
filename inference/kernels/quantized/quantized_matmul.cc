#include "inference/kernels/quantized/quantized_matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/container/float8.h"
#include "inference/kernels/quantized/quantized_task.h"
#include "quantize/kernels/codes.h"

namespace ingot::inference {

using formats::CodeKind;

namespace {

/// Products below which a second thread costs more than it saves.
constexpr std::size_t kQuantizedPerThread = std::size_t{1} << 18;
/// Columns that vector kernels take at once, at most.
constexpr std::size_t kPadding = 64;
// Rows of w between two looks at whether the work is to stop, for so many rows of x.
constexpr std::size_t kRowsAtOnce = 64, kManyRows = 128;

void lay_out(QuantizedTask& task) {
  const QuantizedRows& x = *task.x;
  task.padded = (x.cols + kPadding - 1) / kPadding * kPadding;
  if (x.code == CodeKind::kInt8) {
    task.integers.assign(x.rows * task.padded, 0);
  } else {
    task.values.assign(x.rows * task.padded, 0.0F);
  }
  for (std::size_t m = 0; m < x.rows; ++m) {
    const std::uint8_t* codes = x.codes.data() + m * x.cols;
    for (std::size_t k = 0; k < x.cols; ++k) {
      const std::size_t at = m * task.padded + k;
      if (x.code == CodeKind::kInt8) {
        task.integers[at] = static_cast<std::int8_t>(codes[k]);
      } else {
        task.values[at] = value_of(x.code, codes[k]);
      }
    }
  }
}

}  // namespace

std::vector<ScaledColumns> scaled_columns(const QuantizedRows& x, const CodedMatrix& w) {
  std::vector<ScaledColumns> columns;
  for (std::size_t k = 0; k < x.cols;) {
    const std::size_t x_group = k / x.group;
    const std::size_t end = std::min((x_group + 1) * x.group, w.group_end(k));
    columns.push_back({.begin = k,
                       .end = std::min(end, x.cols),
                       .x_group = x_group,
                       .w_group = (w.first_col + k) / w.block_cols});
    k = columns.back().end;
  }
  return columns;
}

void quantized_matmul(const QuantizedRows& x, const CodedMatrix& w, const StaticInt8& fixed,
                      MatrixView<float> y, std::size_t threads) {
  INGOT_CHECK(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows);
  INGOT_CHECK(formats::scheme_facts(w.scheme).code == x.code);
  if (x.rows == 0 || w.rows == 0) return;
  check_codes(w);
  QuantizedTask task{.w = w, .x = &x, .fixed = fixed, .y = y};
  task.columns = scaled_columns(x, w);
  // A bias is added once, to the sum over all columns.
  INGOT_CHECK((fixed.quant_bias == nullptr && fixed.deq_scale == nullptr) ||
              task.columns.size() <= 1);
  lay_out(task);
  threads = std::clamp<std::size_t>(x.rows * w.rows * w.cols / kQuantizedPerThread, 1, threads);
  const std::size_t n_chunks = threads == 1 ? 1 : 4 * threads;
  const std::size_t chunk = ((w.rows + n_chunks - 1) / n_chunks + 3) / 4 * 4;
  const std::size_t at_once = x.rows > kManyRows ? kRowsAtOnce : chunk;
  parallel_for((w.rows + chunk - 1) / chunk, threads, [&](std::size_t i) {
    const std::size_t end = std::min((i + 1) * chunk, w.rows);
    for (std::size_t row = i * chunk; row < end; row += at_once) {
      StopScope::check();
      run_quantized_matmul(task, row, std::min(row + at_once, end));
    }
  });
}

namespace {

float amax_of(std::span<const float> values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::abs(value));
  return amax;
}

// Up to a power of two: the exponent, plus one if any bit of the mantissa is set.
float power_of_two_from(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFFFFU) & 0x7F800000U);
}

// The scale of MX formats, as quantize's encoders choose it: 2^(exponent of amax - exponent of the
// largest code), one higher where amax would round beyond that code (a mantissa of 1.75 and more).
float mx_scale(float amax, std::uint32_t largest_exponent) {
  if (amax == 0) return 1.0F;
  const std::uint32_t rounded = (std::bit_cast<std::uint32_t>(amax) + 0x200000U) >> 23;
  const std::uint32_t byte = rounded > largest_exponent ? rounded - largest_exponent : 0;
  return formats::float_from_e8m0(static_cast<std::uint8_t>(std::min(byte, 254U)));
}

float int8_scale(float amax) {
  return amax == 0 ? 1.0F : amax / 127.0F;
}

float fp8_scale(float amax, const ActivationFormat& format) {
  constexpr float kLeast = 1e-4F, kStep = 1.0F / 448.0F;
  const float scale = std::max(amax, kLeast) * kStep;
  return format.power_of_two ? power_of_two_from(scale) : scale;
}

float fp4_scale(float amax, const ActivationFormat& format) {
  if (!format.input_scale) return mx_scale(amax, 2);
  const float global = *format.input_scale;
  return formats::float_from_e4m3(formats::e4m3_from_float(amax / (6.0F * global))) * global;
}

float scale_of(std::span<const float> values, const ActivationFormat& format) {
  if (format.input_scale && format.code != CodeKind::kE2m1) return *format.input_scale;
  const float amax = amax_of(values);
  if (format.code == CodeKind::kInt8) return int8_scale(amax);
  return format.code == CodeKind::kE4m3 ? fp8_scale(amax, format) : fp4_scale(amax, format);
}

std::uint8_t code_of(float quotient, const ActivationFormat& format) {
  if (format.code == CodeKind::kInt8) {
    const float least = format.input_scale ? -128.0F : -127.0F;
    const float code = std::nearbyint(quotient) + static_cast<float>(format.input_offset);
    return static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(code, least, 127.0F)));
  }
  if (format.code == CodeKind::kE4m3) return formats::e4m3_from_float(quotient);
  const std::uint8_t sign = std::signbit(quotient) ? 8 : 0;
  return static_cast<std::uint8_t>(quantize::e2m1_from_magnitude(std::abs(quotient)) | sign);
}

}  // namespace

QuantizedRows quantize_activations(MatrixView<const float> x, const ActivationFormat& format) {
  INGOT_CHECK(can_quantize_to(format.code));
  QuantizedRows out{.rows = x.rows, .cols = x.cols, .code = format.code};
  out.group = format.group == 0 ? std::max<std::size_t>(x.cols, 1) : format.group;
  out.groups = (x.cols + out.group - 1) / out.group;
  out.codes.resize(x.rows * x.cols);
  out.scales.resize(x.rows * out.groups);
  for (std::size_t r = 0; r < x.rows; ++r) {
    for (std::size_t g = 0; g < out.groups; ++g) {
      const std::size_t first = g * out.group, n = std::min(out.group, x.cols - first);
      const std::span values(x.row(r) + first, n);
      // A value that is not finite has no code: the group's products become NaN, which a later
      // check finds.
      const bool finite = std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
      const float scale =
          finite ? scale_of(values, format) : std::numeric_limits<float>::quiet_NaN();
      out.scales[r * out.groups + g] = scale;
      std::uint8_t* codes = out.codes.data() + r * x.cols + first;
      // A block whose scale rounds to 0 is one of zeros.
      for (std::size_t i = 0; i < n; ++i) {
        codes[i] = code_of(scale == 0 || !finite ? 0.0F : values[i] / scale, format);
      }
    }
  }
  return out;
}

}  // namespace ingot::inference
