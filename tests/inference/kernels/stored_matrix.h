#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/container/float8.h"
#include "formats/storage/encoding.h"
#include "quantize/coded_matrix.h"

namespace ingot::inference {

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// The matrix to make.
struct StoredShape {
  formats::SchemeId scheme{};
  std::size_t rows = 0, cols = 0;
  std::size_t block_rows = 1, block_cols = 1;  ///< of schemes with scales
  std::size_t first_row = 0, first_col = 0;
};

/// How its bytes are drawn: codes and scales of ordinary numbers, or anything that bits can say.
enum class Contents { kOrdinary, kAnything };

inline bool has_four_bits(formats::SchemeId scheme) {
  return formats::scheme_facts(scheme).code_bits == 4;
}

inline bool has_scale_codes(formats::SchemeId scheme) {
  using formats::SchemeId;
  return scheme == SchemeId::kNvfp4 || scheme == SchemeId::kMxfp4 || scheme == SchemeId::kMxfp8;
}

/// A matrix as a checkpoint would hold it, of random codes, with room between its rows.
struct StoredMatrix {
  StoredShape shape;
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<std::uint8_t> scale_codes;
  std::vector<float> scale_values;
  std::vector<std::uint8_t> zeros;
  std::vector<std::uint32_t> group_order;
  quantize::CodedMatrix view;

  StoredMatrix(const StoredShape& wanted, Contents contents, std::mt19937& random) : shape(wanted) {
    const formats::SchemeFacts& facts = formats::scheme_facts(shape.scheme);
    view.scheme = shape.scheme;
    view.rows = shape.rows;
    view.cols = shape.cols;
    view.row_bytes = (shape.cols * facts.code_bits + 7) / 8 + 4 * (random() % 3);
    // No padding behind the last row: reads past the end are for the sanitizers to find.
    codes.resize(shape.rows == 0
                     ? 0
                     : (shape.rows - 1) * view.row_bytes + (shape.cols * facts.code_bits + 7) / 8);
    for (std::byte& code : codes) code = static_cast<std::byte>(random());
    if (!facts.quantized) fill_plain(contents, random);
    if (facts.code == formats::CodeKind::kE4m3 && contents == Contents::kOrdinary) {
      for (std::byte& code : codes) {
        if ((std::to_integer<unsigned>(code) & 0x7FU) == 0x7F) code = std::byte{0x40};
      }
    }
    view.codes = codes.data();
    if (facts.quantized) fill_scales(contents, random);
  }
  StoredMatrix(const StoredMatrix&) = delete;
  StoredMatrix& operator=(const StoredMatrix&) = delete;

  [[nodiscard]] std::string name() const {
    return std::string(formats::scheme_facts(shape.scheme).name) + " " +
           std::to_string(shape.rows) + "x" + std::to_string(shape.cols) + " in blocks of " +
           std::to_string(shape.block_rows) + "x" + std::to_string(shape.block_cols) + " from " +
           std::to_string(shape.first_row) + ", " + std::to_string(shape.first_col);
  }

 private:
  void fill_plain(Contents contents, std::mt19937& random) {
    if (contents == Contents::kAnything && random() % 2 == 0) return;
    const std::size_t width = formats::scheme_facts(shape.scheme).code_bits / 8;
    for (std::size_t i = 0; i + width <= codes.size(); i += width) {
      // The exponents around 1 of each type.
      const auto word = static_cast<std::uint32_t>(random());
      std::uint32_t value = (word & 0x80FFFFFFU) | 0x3F000000U;
      if (shape.scheme == formats::SchemeId::kBf16) value >>= 16;
      if (shape.scheme == formats::SchemeId::kF16) value = (word & 0x8BFFU) | 0x3000U;
      std::memcpy(codes.data() + i, &value, width);
    }
  }

  void fill_scales(Contents contents, std::mt19937& random) {
    view.block_rows = shape.block_rows;
    view.block_cols = shape.block_cols;
    view.first_row = shape.first_row;
    view.first_col = shape.first_col;
    view.scale_cols = (shape.first_col + shape.cols + shape.block_cols - 1) / shape.block_cols + 1;
    const std::size_t n =
        ((shape.first_row + shape.rows + shape.block_rows - 1) / shape.block_rows + 1) *
        view.scale_cols;
    const auto draw = [&]() -> float {
      const auto word = static_cast<std::uint32_t>(random());
      const float ordinary = std::bit_cast<float>((word & 0x03FFFFFFU) + 0x3C000000U);
      if (contents == Contents::kOrdinary || word % 4 != 0) return ordinary;
      switch (random() % 6) {
        case 0:
          return std::numeric_limits<float>::infinity();
        case 1:
          return std::bit_cast<float>(0xFFFFFFFFU);
        case 2:
          return std::bit_cast<float>(word & 0x807FFFFFU);
        case 3:
          return std::bit_cast<float>((word & 0x807FFFFFU) | 0x7F000000U);
        case 4:
          return 0.0F;
        default:
          return std::bit_cast<float>(word);
      }
    };
    if (has_scale_codes(shape.scheme)) {
      scale_codes.resize(n);
      for (std::uint8_t& code : scale_codes) code = static_cast<std::uint8_t>(random());
      scale_values.resize(256);
      for (float& value : scale_values) value = draw();
      view.scale_codes = scale_codes.data();
      view.scale_values = scale_values.data();
    } else {
      scales.resize(n);
      for (float& scale : scales) scale = draw();
      view.scales = scales;
    }
    if (shape.scheme == formats::SchemeId::kInt4Group) fill_int4(random);
  }

  // Half of them have zero points, a quarter an order of groups.
  void fill_int4(std::mt19937& random) {
    if (random() % 2 == 0) {
      zeros.resize(scales.size());
      for (std::uint8_t& zero : zeros) zero = static_cast<std::uint8_t>(random() % 16);
      view.zeros = zeros;
    }
    if (random() % 4 == 0) {
      group_order.resize(shape.first_col + shape.cols);
      for (std::uint32_t& group : group_order)
        group = static_cast<std::uint32_t>(random() % view.scale_cols);
      view.group_order = group_order;
    }
  }
};

/// Every scheme with its usual groups, with others, and as a part of a larger matrix.
inline std::vector<StoredShape> stored_shapes(std::size_t rows, std::size_t cols) {
  using formats::SchemeId;
  std::vector<StoredShape> all;
  for (const SchemeId plain : {SchemeId::kBf16, SchemeId::kF16, SchemeId::kF32}) {
    all.push_back({plain, rows, cols});
  }
  const auto add = [&](SchemeId scheme, std::size_t block_rows, std::size_t block_cols,
                       std::size_t first_row, std::size_t first_col) {
    all.push_back({scheme, rows, cols, block_rows, block_cols, first_row, first_col});
  };
  for (const SchemeId block : {SchemeId::kFp8Block, SchemeId::kInt8Block}) {
    add(block, 128, 128, 0, 0);
    add(block, 128, 128, 130, 48);
    add(block, 2, 64, 3, 64);
    add(block, 3, 48, 1, 96);
    add(block, 2, 20, 1, 0);
  }
  for (const SchemeId channel : {SchemeId::kFp8Channel, SchemeId::kInt8Channel}) {
    add(channel, 1, cols, 0, 0);
    add(channel, 1, cols + 64, 5, 32);
  }
  add(SchemeId::kFp8Tensor, rows + 7, cols + 32, 7, 16);
  add(SchemeId::kMxfp8, 1, 32, 0, 0);
  add(SchemeId::kMxfp8, 1, 32, 4, 64);
  if (cols % 2 == 0) {
    add(SchemeId::kNvfp4, 1, 16, 0, 0);
    add(SchemeId::kNvfp4, 1, 16, 9, 48);
    add(SchemeId::kMxfp4, 1, 32, 0, 0);
    add(SchemeId::kMxfp4, 1, 32, 2, 96);
    for (int i = 0; i < 3; ++i) {  // with and without zero points and an order of groups
      add(SchemeId::kInt4Group, 1, 32, 0, 0);
      add(SchemeId::kInt4Group, 1, 32, 2, 96);
      add(SchemeId::kInt4Group, 1, 64, 1, 64);
      add(SchemeId::kInt4Group, 1, 128, 0, 0);
      add(SchemeId::kInt4Group, 1, 128, 3, 48);
      add(SchemeId::kInt4Group, 1, 24, 1, 16);
      add(SchemeId::kInt4Group, 1, cols + 64, 5, 32);
    }
  }
  return all;
}

/// Values to multiply with, one row behind the other with a gap.
struct Activations {
  std::size_t rows, cols, stride;
  std::vector<float> values;

  Activations(std::size_t n_rows, std::size_t n_cols, Contents contents, std::mt19937& random)
      : rows(n_rows), cols(n_cols), stride(n_cols + random() % 3), values(n_rows * stride) {
    std::normal_distribution<float> normal;
    for (float& value : values) {
      value = normal(random);
      if (contents == Contents::kAnything && random() % 100 == 0) {
        value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      }
      if (contents == Contents::kAnything && random() % 50 == 0) value = -0.0F;
    }
  }
  [[nodiscard]] formats::MatrixView<const float> view() const {
    return {.data = values.data(), .rows = rows, .cols = cols, .stride = stride};
  }
};

}  // namespace ingot::inference
