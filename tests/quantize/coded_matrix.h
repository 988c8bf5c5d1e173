#pragma once

#include "formats/container/dtype.h"
#include "formats/storage/encoding.h"
#include "quantize/scheme.h"
#include "tests/support/test.h"

namespace ingot::quantize {

/// A dense matrix of values.
struct Matrix {
  std::size_t rows = 0, cols = 0;
  std::vector<float> values{};

  Matrix(std::size_t n_rows, std::size_t n_cols)
      : rows(n_rows), cols(n_cols), values(n_rows * n_cols) {}
  [[nodiscard]] formats::MatrixView<const float> view() const {
    return {.data = values.data(), .rows = rows, .cols = cols, .stride = cols};
  }
  [[nodiscard]] formats::MatrixView<float> mutable_view() {
    return {.data = values.data(), .rows = rows, .cols = cols, .stride = cols};
  }
};

inline float largest_magnitude(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

inline double sum_of(const std::vector<double>& terms) {
  double sum = 0;
  for (const double term : terms) sum += term;
  return sum;
}

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

/// One encoded matrix as a file would hold it: codes, stored scales, global scale.
struct Coded {
  formats::SchemeId id{};
  std::size_t rows = 0, cols = 0, block_rows = 0, block_cols = 0, scale_cols = 0;
  std::vector<std::byte> weight{}, scales{};
  float global = 0;
  bool divides = false;
  EncodeFaults faults{};
  std::vector<float> effective{};  ///< computed here, from the stored form
  std::vector<std::uint8_t> zeros{};

  [[nodiscard]] CodedMatrix run() const {
    return {.scheme = id,
            .codes = weight.data(),
            .rows = rows,
            .cols = cols,
            .row_bytes = cols * formats::scheme_facts(id).code_bits / 8,
            .scales = effective,
            .rows_per_matrix = rows,
            .scale_cols = scale_cols,
            .block_rows = block_rows,
            .block_cols = block_cols,
            .zeros = zeros};
  }
  [[nodiscard]] int byte(std::size_t i) const { return std::to_integer<int>(weight[i]); }
  /// E4M3, INT8, E2M1 or INT4 code of an element, as it is stored.
  [[nodiscard]] int code(std::size_t row, std::size_t col) const {
    const std::size_t at = row * cols + col;
    if (formats::scheme_facts(id).code_bits == 4) return byte(at / 2) >> (at % 2 * 4) & 15;
    return byte(at);
  }
};

/// Widens a stored scale by the definition of its dtype, in double.
inline double stored_scale(formats::DType dtype, const std::byte* at) {
  if (dtype == formats::DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  }
  if (dtype == formats::DType::kBf16) {
    std::uint16_t word;
    std::memcpy(&word, at, sizeof word);
    return static_cast<double>(std::bit_cast<float>(std::uint32_t{word} << 16));
  }
  const int code = std::to_integer<int>(*at);
  if (dtype == formats::DType::kF8E8M0) {
    return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127);
  }
  EXPECT_EQ(dtype, formats::DType::kF8E4M3);
  if ((code & 0x7F) == 0x7F) return std::nan("");
  const int exponent = code >> 3 & 15;
  const double magnitude =
      exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
  return code >= 128 ? -magnitude : magnitude;
}

struct EncodeSetup {
  EncodeOptions options{};
  bool divides = false;
  std::size_t block = 0;  ///< side of the blocks of schemes that let one choose; 0: a usual one
  float global = 0;       ///< instead of the computed one, if not 0
  std::vector<float> given_scales{};
  std::vector<float> importance{};
  std::vector<float> moments{};  ///< of kHessian, [cols / 16, 16, 16]
  bool has_zeros = false;        ///< zero points are chosen, too
};

/// Encodes a matrix as a whole, with canaries between and after the rows.
inline Coded encode(formats::SchemeId id, const Matrix& matrix, const EncodeSetup& setup = {}) {
  const formats::SchemeFacts& facts = formats::scheme_facts(id);
  const Scheme& scheme = *find_scheme(id);
  Coded coded{.id = id, .rows = matrix.rows, .cols = matrix.cols, .divides = setup.divides};
  // Rows of the tests are not all multiples of 128.
  const std::size_t usual = facts.chooses_cols ? 32 : 128;
  const std::size_t block = setup.block == 0 ? usual : setup.block;
  const auto group = formats::scale_group(id, {matrix.rows, matrix.cols}, {block, block});
  coded.block_rows = group[0];
  coded.block_cols = group[1];
  const bool scaled = facts.quantized;
  const std::size_t scale_bytes = formats::dtype_bits(facts.scale_dtype) / 8;
  const std::size_t scale_rows = scaled ? (matrix.rows + group[0] - 1) / group[0] : 0;
  coded.scale_cols = scaled ? (matrix.cols + group[1] - 1) / group[1] : 0;
  if (scheme.global != nullptr) {
    coded.global = setup.global != 0 ? setup.global
                                     : scheme.global(largest_magnitude(matrix.values),
                                                     setup.options, setup.divides);
  }
  const std::vector<MomentBlock> moments =
      factor_moments(setup.moments, std::max<std::size_t>(1, coded.block_cols / kMomentBlock));
  constexpr std::size_t kGap = 3;
  const std::size_t row_bytes = matrix.cols * facts.code_bits / 8;
  const std::size_t scale_row_bytes = coded.scale_cols * scale_bytes;
  std::vector<std::byte> weight(matrix.rows * (row_bytes + kGap), std::byte{0xA5});
  std::vector<std::byte> scales(scale_rows * (scale_row_bytes + kGap), std::byte{0xA5});
  const bool stored = scaled && id != formats::SchemeId::kFp8Tensor;
  if (setup.has_zeros) coded.zeros.assign(scale_rows * coded.scale_cols, 0xA5);
  coded.faults = scheme.encode({.values = matrix.view(),
                                .block_rows = group[0],
                                .block_cols = group[1],
                                .global = coded.global,
                                .global_divides = setup.divides,
                                .given_scales = setup.given_scales,
                                .importance = setup.importance,
                                .moments = moments,
                                .options = setup.options},
                               {.weight = weight.data(),
                                .weight_stride = row_bytes + kGap,
                                .scales = stored ? scales.data() : nullptr,
                                .scale_stride = scale_row_bytes + kGap,
                                .zeros = setup.has_zeros ? coded.zeros.data() : nullptr,
                                .zero_stride = coded.scale_cols});
  const auto close_gaps = [](const std::vector<std::byte>& from, std::size_t row) {
    std::vector<std::byte> to;
    for (std::size_t at = 0; at < from.size(); at += row + kGap) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(at);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(row));
      for (std::size_t i = 0; i < kGap; ++i) {
        EXPECT_EQ(from[at + row + i], std::byte{0xA5}) << "written beyond the end of a row";
      }
    }
    return to;
  };
  coded.weight = close_gaps(weight, row_bytes);
  if (id == formats::SchemeId::kFp8Tensor) {
    coded.effective = {coded.global};
  } else if (scaled) {
    coded.scales = close_gaps(scales, scale_row_bytes);
    for (std::size_t i = 0; i < scale_rows * coded.scale_cols; ++i) {
      const auto scale = static_cast<float>(
          stored_scale(facts.scale_dtype, coded.scales.data() + i * scale_bytes));
      const bool has_global = id == formats::SchemeId::kNvfp4;
      coded.effective.push_back(!has_global     ? scale
                                : setup.divides ? scale / coded.global
                                                : scale * coded.global);
    }
  }
  return coded;
}

inline Matrix decode(const Coded& coded) {
  Matrix out(coded.rows, coded.cols);
  const DecodeFaults faults = decode(coded.run(), out.mutable_view());
  EXPECT_EQ(faults.nan_codes, 0U);
  return out;
}

inline double sqnr_db(const Matrix& values, const Matrix& decoded) {
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    const double value = values.values[i];
    const double error = value - static_cast<double>(decoded.values[i]);
    signal += value * value;
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

/// Unit variance, except kHeavy: Student's t with three degrees of freedom.
enum class Shape { kNormal, kHeavy, kBimodal };

inline Matrix random_matrix(std::size_t rows, std::size_t cols, Shape shape, std::uint32_t seed,
                            float scale = 1) {
  Matrix matrix(rows, cols);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> student(3);
  for (float& value : matrix.values) {
    if (shape == Shape::kNormal) value = normal(random);
    if (shape == Shape::kHeavy) value = student(random);
    if (shape == Shape::kBimodal)
      value = (random() % 2 != 0 ? 1.0F : -1.0F) + 0.15F * normal(random);
    value *= scale;
  }
  return matrix;
}

}  // namespace ingot::quantize
