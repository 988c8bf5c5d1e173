#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/convert/plain_decode.h"
#include "tests/inference/weights/variants.h"

// Profile native against the stored bytes, in double, by the formulas of the model reference: what
// is quantized how is written here a second time.

namespace ingot::inference {
namespace {

using formats::Activations;
using formats::LogicalTensor;
using formats::SchemeId;
using ingot::testing::all;
using ingot::testing::all_targets;
using ingot::testing::applied;
using ingot::testing::code_values;
using ingot::testing::kInputScale;
using ingot::testing::module_of;
using ingot::testing::normal_values;
using ingot::testing::OutputTensors;
using ingot::testing::scale_values;
using ingot::testing::Target;
using ingot::testing::variant;
using ingot::testing::whole;

double nearest(double x, std::span<const double> magnitudes) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < magnitudes.size(); ++i) {
    const double is = std::abs(magnitudes[i] - std::abs(x));
    const double was = std::abs(magnitudes[best] - std::abs(x));
    if (is < was || (is == was && i % 2 == 0)) best = i;
  }
  return std::copysign(magnitudes[best], x);
}

double as_e4m3(float x) {
  static const std::vector<double> magnitudes = [] {
    std::vector<double> values;
    for (unsigned code = 0; code < 0x7F; ++code)
      values.push_back(double{ingot::testing::e4m3_value(static_cast<std::uint8_t>(code))});
    return values;
  }();
  return nearest(double{x}, magnitudes);
}

double as_e2m1(float x) {
  constexpr std::array<double, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return nearest(double{x}, kMagnitudes);
}

float power_of_two_above(float x) {
  float power = 0x1p-100F;
  while (power < x) power *= 2;
  return power;
}

float largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// 2^(e - top), one more from a mantissa of 1.75 on; 1 for zeros.
float mx_scale(float largest, int top) {
  if (largest == 0) return 1;
  int exponent = 0;
  const float mantissa = std::frexp(largest, &exponent) * 2;
  return std::ldexp(1.0F, exponent - 1 - top + (mantissa >= 1.75F ? 1 : 0));
}

// A row as the target multiplies it, decoded.
std::vector<double> quantized_input(const Target& target, std::span<const float> x) {
  const Activations activations = target.storage->activations;
  const SchemeId scheme = target.storage->scheme;
  std::vector<double> result(x.size());
  const auto by_group = [&](std::size_t size, const auto& quantize) {
    for (std::size_t begin = 0; begin < x.size(); begin += size) {
      const auto group = x.subspan(begin, std::min(size, x.size() - begin));
      for (std::size_t i = 0; i < group.size(); ++i)
        result[begin + i] = quantize(largest_of(group), group[i]);
    }
  };
  const auto int8 = [](float largest, float value) {
    const float scale = largest / 127.0F;
    return double{std::clamp(std::nearbyint(value / scale), -127.0F, 127.0F)} * double{scale};
  };
  const auto fp8 = [](float largest, float value) {
    const float scale = std::max(largest, 1e-4F) * (1.0F / 448.0F);
    return as_e4m3(value / scale) * double{scale};
  };
  if (activations == Activations::kWeightOnly) {
    std::copy(x.begin(), x.end(), result.begin());
    return result;
  }
  switch (scheme) {
    case SchemeId::kInt8Channel:
      if (activations == Activations::kDynamic) {
        by_group(x.size(), int8);
      } else {
        // Input scales given by hand have no offset.
        by_group(x.size(), [](float, float value) {
          const float code = std::clamp(std::nearbyint(value / kInputScale), -128.0F, 127.0F);
          return double{code} * double{kInputScale};
        });
      }
      break;
    case SchemeId::kInt8Block:
      by_group(128, int8);
      break;
    case SchemeId::kFp8Block:
      // The example says ue8m0, and only the deepseek dialect hands that on.
      if (target.dialect->name == "deepseek") {
        by_group(128, [](float largest, float value) {
          const float scale = power_of_two_above(std::max(largest, 1e-4F) * (1.0F / 448.0F));
          return as_e4m3(value / scale) * double{scale};
        });
      } else {
        by_group(128, fp8);
      }
      break;
    case SchemeId::kFp8Channel:
    case SchemeId::kFp8Tensor:
      if (activations == Activations::kDynamic) {
        by_group(x.size(), fp8);
      } else {
        by_group(x.size(), [](float, float value) {
          return as_e4m3(value / kInputScale) * double{kInputScale};
        });
      }
      break;
    case SchemeId::kNvfp4: {
      // Two reciprocals, where the dialect stores one.
      const float global =
          target.storage->global_divides ? 1.0F / (1.0F / kInputScale) : kInputScale;
      by_group(16, [&](float largest, float value) {
        const auto block = static_cast<float>(as_e4m3(largest / (6.0F * global)));
        const float scale = block * global;
        return as_e2m1(value / scale) * double{scale};
      });
      break;
    }
    case SchemeId::kMxfp4:
      by_group(32, [](float largest, float value) {
        const float scale = mx_scale(largest, 2);
        return as_e2m1(value / scale) * double{scale};
      });
      break;
    case SchemeId::kMxfp8:
      by_group(32, [](float largest, float value) {
        const float scale = mx_scale(largest, 8);
        return as_e4m3(value / scale) * double{scale};
      });
      break;
    default:
      ADD_FAILURE() << "no rule for " << target.name();
  }
  return result;
}

// Weights from the stored parts, in double.
std::vector<double> stored_weight(const Target& target, const OutputTensors& stored,
                                  const std::string& module, std::size_t n, std::size_t k) {
  const bool is_packed = stored.contains(module + ".weight_packed");
  const auto codes = code_values(stored.at(module + (is_packed ? ".weight_packed" : ".weight")));
  const auto numbers = [&](const char* suffix) { return scale_values(stored.at(module + suffix)); };
  std::vector<float> scales;
  double global = 1;
  if (stored.contains(module + ".deq_scale")) {
    scales = numbers(".deq_scale");
    global = 1.0 / double{kInputScale};
  } else {
    scales = numbers(stored.contains(module + ".weight_scale_inv") ? ".weight_scale_inv"
                                                                   : ".weight_scale");
  }
  if (stored.contains(module + ".weight_scale_2"))
    global = double{numbers(".weight_scale_2").front()};
  if (stored.contains(module + ".weight_global_scale"))
    global = 1.0 / double{numbers(".weight_global_scale").front()};
  std::size_t block_rows = 1, block_cols = k;
  switch (target.storage->scheme) {
    case SchemeId::kFp8Block:
    case SchemeId::kInt8Block:
      block_rows = block_cols = 128;
      break;
    case SchemeId::kFp8Tensor:
      block_rows = n;
      break;
    case SchemeId::kNvfp4:
      block_cols = 16;
      break;
    case SchemeId::kMxfp4:
    case SchemeId::kMxfp8:
      block_cols = 32;
      break;
    default:
      break;
  }
  const std::size_t across = (k + block_cols - 1) / block_cols;
  std::vector<double> values(n * k);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t group = i / k / block_rows * across + i % k / block_cols;
    values[i] = double{codes[i]} * double{scales[group]} * global;
  }
  return values;
}

class NativeLinear : public ::testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Dialects, NativeLinear, ::testing::ValuesIn(all_targets()),
                         [](const auto& row) {
                           return ingot::testing::test_name(row.param.name());
                         });

constexpr std::size_t kRows = 3;

// Inputs that the static scale covers, one row of another magnitude, one with a zero group.
std::vector<float> inputs(std::size_t k) {
  std::vector<float> x = normal_values(kRows * k, 7);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= i / k == 1 ? 0.01F : 0.4F;
  std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(2 * k), std::min<std::size_t>(k, 32), 0.0F);
  return x;
}

TEST_P(NativeLinear, IsTheFormulaOfItsSchemeAndActivations) {
  const Target& target = GetParam();
  const formats::Checkpoint source = formats::Checkpoint::open(variant(target));
  const OutputTensors stored = ingot::testing::read_output(variant(target));
  const WeightStore store(source, Profile::kNative, 1);
  std::size_t n_compared = 0;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.scheme != target.storage->scheme || tensor.shape.size() != 2) continue;
    // A layer of each kind: dense, mixture, MTP.
    const bool is_chosen = tensor.layer && (*tensor.layer == 0 || *tensor.layer == 5 ||
                                            (*tensor.layer == 2 && tensor.expert == 3U));
    if (!is_chosen) continue;
    const std::size_t n = tensor.shape[0], k = tensor.shape[1];
    const std::vector<float> x = inputs(k);
    const Linear linear = whole(store, tensor);
    const std::vector<float> y = applied(linear, x, kRows);
    const auto weight = stored_weight(target, stored, module_of(tensor.name), n, k);
    const bool is_weight_only = target.storage->activations == Activations::kWeightOnly;
    EXPECT_EQ(linear.rounding(), is_weight_only ? WeightRounding::kExact : WeightRounding::kBf16);
    for (std::size_t m = 0; m < kRows; ++m) {
      const auto input = quantized_input(target, std::span(x).subspan(m * k, k));
      for (std::size_t r = 0; r < n; ++r) {
        double sum = 0, magnitude = 0;
        for (std::size_t c = 0; c < k; ++c) {
          const double product = input[c] * weight[r * k + c];
          sum += product;
          magnitude += std::abs(product);
        }
        // Products and sums in FP32: an error of at most so many halves of a unit in each term.
        const double bound = magnitude * static_cast<double>(k / kDotLanes + 12) *
                             double{std::numeric_limits<float>::epsilon()};
        ASSERT_NEAR(double{y[m * n + r]}, sum, bound + 1e-30)
            << tensor.name << " row " << m << ", output " << r;
      }
    }
    ++n_compared;
  }
  EXPECT_GE(n_compared, 10U);
}

TEST_P(NativeLinear, DiffersFromOtherProfilesUnlessWeightOnly) {
  const Target& target = GetParam();
  const formats::Checkpoint source = formats::Checkpoint::open(variant(target));
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  const std::vector<float> x = inputs(256);
  const auto in = [&](Profile profile, bool unquantized) {
    const WeightStore store(source, profile, 1);
    return applied(store.linear(name, 640, 256, all(640), all(256)), x, kRows, unquantized);
  };
  const bool is_weight_only = target.storage->activations == Activations::kWeightOnly;
  const auto exact = in(Profile::kF32, false);
  EXPECT_EQ(in(Profile::kNative, false) == exact, is_weight_only);
  EXPECT_EQ(in(Profile::kF32, true), exact);
  EXPECT_EQ(in(Profile::kBf16, false), in(Profile::kBf16, true));
  if (!is_weight_only) {
    EXPECT_EQ(in(Profile::kNative, true), in(Profile::kBf16, true));
  }
}

TEST(NativeLinear, EqualsBf16ForPlainWeights) {
  const formats::Checkpoint source = formats::Checkpoint::open(ingot::testing::tiny_v32());
  const WeightStore native(source, Profile::kNative, 1);
  const WeightStore bf16(source, Profile::kBf16, 1);
  const std::vector<float> x = inputs(256);
  const auto head = [&](const WeightStore& store) {
    return store.linear("lm_head.weight", 2048, 256, all(2048), all(256));
  };
  EXPECT_EQ(head(native).rounding(), WeightRounding::kBf16);
  EXPECT_EQ(applied(head(native), x, kRows), applied(head(bf16), x, kRows));
}

TEST(NativeLinear, TakesNoRowsAndIsEmptyUntilRead) {
  const formats::Checkpoint source = formats::Checkpoint::open(ingot::testing::tiny_v32());
  const WeightStore store(source, Profile::kNative, 1);
  const Linear none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.n_bytes(), 0U);
  const Linear linear =
      store.linear("model.layers.0.mlp.gate_proj.weight", 640, 256, all(640), all(256));
  EXPECT_FALSE(linear.empty());
  float nothing = 0;
  linear.apply({&nothing, 0, 256, 256}, {&nothing, 0, 640, 640}, 2);
  const Linear no_rows =
      store.linear("model.layers.0.mlp.gate_proj.weight", 640, 256, {.first = 640}, all(256));
  EXPECT_EQ(no_rows.rows(), 0U);
  EXPECT_EQ(no_rows.cols(), 256U);
}

}  // namespace
}  // namespace ingot::inference
