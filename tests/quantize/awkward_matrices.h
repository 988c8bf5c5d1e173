#pragma once

#include "tests/quantize/coded_matrix.h"
#include "tests/support/test.h"

namespace ingot::quantize {

struct AwkwardMatrix {
  std::string name;
  Matrix matrix;
};

/// Finite data of every kind that has broken a quantizer, in one shape.
inline std::vector<AwkwardMatrix> awkward_matrices(std::size_t rows, std::size_t cols) {
  std::vector<AwkwardMatrix> all;
  std::mt19937 random(static_cast<std::uint32_t>(rows * 7919 + cols));
  const auto add = [&](const std::string& name, auto value) {
    Matrix matrix(rows, cols);
    for (std::size_t i = 0; i < matrix.values.size(); ++i) matrix.values[i] = value(i);
    all.push_back({name, std::move(matrix)});
  };
  std::normal_distribution<float> normal;
  const auto any_finite = [&] {
    for (;;) {
      const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (std::isfinite(value)) return value;
    }
  };
  add("normal", [&](std::size_t) { return normal(random); });
  add("small", [&](std::size_t) { return 1e-9F * normal(random); });
  add("any exponent", [&](std::size_t) { return any_finite(); });
  add("zeros", [](std::size_t) { return 0.0F; });
  add("negative zeros", [](std::size_t i) { return i % 3 == 0 ? 0.0F : -0.0F; });
  add("rows of zeros", [&](std::size_t i) { return i / cols % 2 == 0 ? 0.0F : normal(random); });
  add("mostly zeros", [&](std::size_t) { return random() % 40 == 0 ? normal(random) : -0.0F; });
  add("subnormals", [&](std::size_t) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x807FFFFFU);
  });
  add("smallest", [](std::size_t i) { return i % 2 == 0 ? 0x1p-149F : -0x1p-149F; });
  add("one huge outlier", [&](std::size_t i) { return i == cols / 2 ? 0x1p120F : normal(random); });
  add("largest bf16", [](std::size_t i) { return i % 2 == 0 ? 0x1.FEp127F : -0x1.FEp127F; });
  add("largest f32", [](std::size_t i) {
    return (i % 5 == 0 ? -1.0F : 1.0F) * std::numeric_limits<float>::max() /
           static_cast<float>(1 + i % 7);
  });
  // Multiples of a quarter, which are ties of every code.
  const auto tie = [&] { return static_cast<float>(static_cast<int>(random() % 97) - 48) / 4; };
  add("ties", [&](std::size_t) { return tie(); });
  // The numbers next to ties, and next to codes, some of which are powers of two.
  add("near ties", [&](std::size_t) {
    const auto units = static_cast<float>(static_cast<int>(random() % 9) - 4);
    return tie() * (1 + 0x1p-23F * units);
  });
  return all;
}

}  // namespace ingot::quantize
