#include "inference/model/step/norm.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/container/bfloat16.h"
#include "inference/base/matrix.h"

namespace ingot::inference {
namespace {

float bf16(float value) {
  return formats::float_from_bf16(formats::bf16_from_float(value));
}

Matrix random_matrix(std::size_t rows, std::size_t cols, float mean, float spread) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(rows * 1000 + cols));
  std::normal_distribution<float> normal(mean, spread);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(random);
  return matrix;
}

std::vector<float> random_vector(std::size_t n) {
  const Matrix matrix = random_matrix(1, n, 1.0F, 0.5F);
  return {matrix.values().begin(), matrix.values().end()};
}

TEST(RmsNorm, AgreesWithDouble) {
  for (const float spread : {1.0F, 1e-3F}) {  // with the second eps is as large as the squares
    for (const std::size_t width : {1U, 7U, 128U, 300U}) {
      const Matrix x = random_matrix(5, width, 0.2F * spread, spread);
      const std::vector<float> weight = random_vector(width);
      Matrix y(x.rows(), width);
      rms_norm(Profile::kF32, x.view(), weight, 1e-6F, y.view());
      for (std::size_t r = 0; r < x.rows(); ++r) {
        double squares = 0;
        for (const float value : x.row(r)) squares += double{value} * double{value};
        const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
        for (std::size_t i = 0; i < width; ++i) {
          const double wanted = double{weight[i]} * double{x.row(r)[i]} * factor;
          EXPECT_NEAR(y.row(r)[i], wanted, 1e-6 * std::abs(wanted) + 1e-12) << width;
        }
      }
    }
  }
}

TEST(RmsNorm, LeavesOtherColumnsAlone) {
  Matrix x = random_matrix(3, 10, 0, 1);
  const Matrix before = x;
  const std::vector<float> weight(6, 1.0F);
  rms_norm(Profile::kF32, x.columns(2, 6), weight, 1e-6F, x.columns(2, 6));
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (const std::size_t c : {0U, 1U, 8U, 9U}) EXPECT_EQ(x.row(r)[c], before.row(r)[c]);
    double squares = 0;
    for (std::size_t c = 2; c < 8; ++c) squares += double{x.row(r)[c]} * double{x.row(r)[c]};
    EXPECT_NEAR(squares, 6, 1e-4);
  }
}

// The mean of these squares is 9 in any order of summation.
TEST(RmsNorm, RoundsValueAndProductInBf16) {
  Matrix x(1, 4), y(1, 4);
  const std::vector<float> values = {1, 1, 3, 5}, weight = {1.5F, 1.0078125F, 0.75F, 1.9921875F};
  std::copy(values.begin(), values.end(), x.values().begin());
  const float factor = 1.0F / 3.0F;
  rms_norm(Profile::kF32, x.view(), weight, 0.0F, y.view());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(y.values()[i], weight[i] * (values[i] * factor));
  }
  for (const Profile profile : {Profile::kBf16, Profile::kNative}) {
    rms_norm(profile, x.view(), weight, 0.0F, y.view());
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(y.values()[i], bf16(weight[i] * bf16(values[i] * factor))) << i;
    }
  }
  EXPECT_NE(y.values()[3], bf16(weight[3] * (values[3] * factor))) << "two roundings, not one";
}

TEST(LayerNorm, AgreesWithDouble) {
  for (const float spread : {1.0F, 1e-3F}) {
    for (const std::size_t width : {2U, 7U, 128U}) {
      const Matrix x = random_matrix(5, width, 3 * spread, spread);
      const std::vector<float> weight = random_vector(width), bias = random_vector(width + 1);
      Matrix y(x.rows(), width);
      layer_norm(Profile::kF32, x.view(), weight, std::span(bias).first(width), 1e-6F, y.view());
      for (std::size_t r = 0; r < x.rows(); ++r) {
        double mean = 0, variance = 0;
        for (const float value : x.row(r)) mean += double{value} / static_cast<double>(width);
        for (const float value : x.row(r)) {
          variance += (double{value} - mean) * (double{value} - mean) / static_cast<double>(width);
        }
        for (std::size_t i = 0; i < width; ++i) {
          const double wanted =
              (double{x.row(r)[i]} - mean) / std::sqrt(variance + 1e-6) * double{weight[i]} +
              double{bias[i]};
          EXPECT_NEAR(y.row(r)[i], wanted, 1e-5) << width << ' ' << spread;
        }
      }
    }
  }
}

TEST(LayerNorm, RoundsOnceInBf16) {
  const Matrix x = random_matrix(4, 128, 1, 2);
  const std::vector<float> weight = random_vector(128), bias = random_vector(128);
  Matrix exact(4, 128), rounded(4, 128);
  layer_norm(Profile::kF32, x.view(), weight, bias, 1e-6F, exact.view());
  layer_norm(Profile::kBf16, x.view(), weight, bias, 1e-6F, rounded.view());
  for (std::size_t i = 0; i < exact.values().size(); ++i) {
    EXPECT_EQ(rounded.values()[i], bf16(exact.values()[i]));
  }
}

}  // namespace
}  // namespace ingot::inference
