#include "convert/recipe/statistics.h"
#include "tests/convert/plain_decode.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/inference/weights/variants.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Profile native against the stored bytes, in double, by the formulas of the model reference: the
// rules of quantization are written here a second time.

namespace ingot::inference {
namespace {

using namespace formats;
using namespace ingot::testing;

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
    case SchemeId::kInt4Group:
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
INSTANTIATE_TEST_SUITE_P(Dialects, NativeLinear, ::testing::ValuesIn(first_targets()), target_name);
INSTANTIATE_TEST_SUITE_P(SlowDialects, NativeLinear,
                         ::testing::ValuesIn(all_targets_but(first_targets())), target_name);

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
    const bool is_chosen = tensor.layer && (*tensor.layer == 0 || *tensor.layer == 2 ||
                                            (*tensor.layer == 1 && tensor.expert == 3U));
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
  EXPECT_GE(n_compared, 7U);
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

// Ascend's static W8A8 with a range that is not symmetric: codes have an offset, which quant_bias
// takes away again, once.

class AsymmetricInput : public ::testing::Test {
 protected:
  static constexpr std::size_t kRows = 4, kN = 256, kK = 640;
  const std::string name_ = "model.layers.0.mlp.down_proj.weight";

  // Every module's input reaches from -1 to 3.
  void SetUp() override {
    const formats::Checkpoint example = formats::Checkpoint::open(ingot::testing::tiny_v32());
    std::vector<ingot::testing::TinyTensor> ranges;
    const auto number = [](float value) {
      return std::string(reinterpret_cast<const char*>(&value), sizeof value);
    };
    for (const auto& tensor : example.tensors()) {
      const std::string module = ingot::testing::module_of(tensor.name);
      ranges.push_back({module + ".input_min", "F32", {1}, number(-1)});
      ranges.push_back({module + ".input_max", "F32", {1}, number(3)});
    }
    ingot::testing::write_bytes(directory_ / "ranges.safetensors",
                                ingot::testing::safetensors_bytes(ranges));
    Conversion conversion(ingot::testing::tiny_v32(), directory_ / "out");
    conversion.recipe.to = formats::SchemeId::kInt8Channel;
    conversion.recipe.choices.dialect = "modelslim";
    conversion.recipe.choices.activations = formats::Activations::kStatic;
    conversion.recipe.choices.activation_scales = std::make_shared<convert::ActivationScales>(
        convert::ActivationScales::read(directory_ / "ranges.safetensors"));
    conversion.run();
    x_ = ingot::testing::normal_values(kRows * kK, 3);
    for (float& value : x_) value += 1;  // some beyond the range
  }

  Linear part(const WeightStore& store, Range cols) const {
    return store.linear(name_, kN, kK, all(kN), cols);
  }

  // The model reference's formula, from the stored tensors.
  std::vector<double> expected() const {
    const OutputTensors stored = ingot::testing::read_output(directory_ / "out");
    const std::string module = ingot::testing::module_of(name_);
    const auto codes = stored.at(module + ".weight").as<std::int8_t>();
    const auto bias = stored.at(module + ".quant_bias").as<std::int32_t>();
    const auto deq = stored.at(module + ".deq_scale").as<float>();
    const float scale = stored.at(module + ".input_scale").as<float>().front();
    const float offset = stored.at(module + ".input_offset").as<float>().front();
    EXPECT_NE(offset, 0.0F);
    std::vector<double> y;
    for (std::size_t m = 0; m < kRows; ++m) {
      for (std::size_t n = 0; n < kN; ++n) {
        std::int64_t sum = bias[n];
        for (std::size_t k = 0; k < kK; ++k) {
          const float code = std::nearbyint(x_[m * kK + k] / scale) + offset;
          sum += static_cast<std::int64_t>(std::clamp(code, -128.0F, 127.0F)) * codes[n * kK + k];
        }
        y.push_back(static_cast<double>(sum) * double{deq[n]});
      }
    }
    return y;
  }

  TempDir directory_;
  std::vector<float> x_;
};

TEST_F(AsymmetricInput, IsTakenAwayByTheQuantBias) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore store(source, Profile::kNative, 1);
  const auto y = applied(part(store, all(kK)), x_, kRows);
  const auto formula = expected();
  for (std::size_t i = 0; i < y.size(); ++i)
    ASSERT_NEAR(double{y[i]}, formula[i], std::abs(formula[i]) * 2e-7 + 1e-30) << i;
}

TEST_F(AsymmetricInput, IsSubtractedByTheFirstPartOnly) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore store(source, Profile::kNative, 1);
  std::vector<double> sums(kRows * kN);
  for (const Range cols : {Range{.first = 0, .count = 208}, Range{.first = 208, .count = 432}}) {
    std::vector<float> x;
    for (std::size_t m = 0; m < kRows; ++m) {
      const auto first = x_.begin() + static_cast<std::ptrdiff_t>(m * kK + cols.first);
      x.insert(x.end(), first, first + static_cast<std::ptrdiff_t>(cols.count));
    }
    const auto y = applied(part(store, cols), x, kRows);
    for (std::size_t i = 0; i < y.size(); ++i) sums[i] += double{y[i]};
  }
  const auto formula = expected();
  double largest = 0;
  for (const double value : formula) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < sums.size(); ++i)
    ASSERT_NEAR(sums[i], formula[i], largest * 1e-6) << i;
}

TEST_F(AsymmetricInput, ChangesNothingInOtherProfiles) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore native(source, Profile::kNative, 1);
  const WeightStore f32(source, Profile::kF32, 1);
  const auto exact = applied(part(f32, all(kK)), x_, kRows);
  const auto quantized = applied(part(native, all(kK)), x_, kRows);
  // Inputs beyond the range are cut off, so only the bulk of the error is small.
  double error = 0, reference = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(double{exact[i]} - double{quantized[i]}, 2);
    reference += std::pow(double{exact[i]}, 2);
  }
  EXPECT_LT(std::sqrt(error / reference), 0.2);
  EXPECT_NE(exact, quantized);
  // The memory of static parts is held only in profile native.
  EXPECT_EQ(part(native, all(kK)).n_bytes(), part(f32, all(kK)).n_bytes() + 2 * 4 * kN);
}

TEST_F(AsymmetricInput, RefusesAFractionalOffset) {
  const formats::Checkpoint before = formats::Checkpoint::open(directory_ / "out");
  const auto& stored = before.stored();
  const auto offset = std::find_if(stored.begin(), stored.end(), [](const auto& tensor) {
    return tensor.name == "model.layers.0.mlp.down_proj.input_offset";
  });
  ASSERT_NE(offset, stored.end());
  const auto path = directory_ / "out" / before.files()[offset->file].name;
  std::string bytes = read_text_file(path, 1 << 28);
  const float half = 0.5F;
  std::memcpy(bytes.data() + offset->offset, &half, sizeof half);
  ingot::testing::write_bytes(path, bytes);
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore store(source, Profile::kNative, 1);
  try {
    static_cast<void>(part(store, all(kK)));
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("input_offset is 0.5"));
    EXPECT_EQ(error.tensor(), name_);
  }
  const WeightStore bf16(source, Profile::kBf16, 1);
  EXPECT_EQ(part(bf16, all(kK)).rows(), kN);
}

// By transformers' code in BF16 (tests/golden/gemma_steps). The order of FP32 sums may move an output
// by one step where the sum is between two.
TEST(NativeLinear, RoundsToStepsOfGemma) {
  const std::filesystem::path folder =
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/gemma_steps";
  const GoldenFile golden(folder / "golden.safetensors");
  const formats::Checkpoint source =
      formats::Checkpoint::open(folder / "checkpoint", {.family = "generic"});
  for (const Profile profile : {Profile::kNative, Profile::kF32}) {
    const WeightStore store(source, profile, 1);
    for (const auto& [name, step_in, step_out] :
         {std::tuple("mlp.gate_proj", 0.031F, 0.0F), std::tuple("mlp.up_proj", 0.017F, 0.043F),
          std::tuple("mlp.down_proj", 0.0F, 0.037F), std::tuple("self_attn.q_proj", 0.0F, 0.0F),
          std::tuple("self_attn.k_proj", 0.023F, 0.05F)}) {
      const std::string stem(name);
      const std::string weight = "model.layers.0." + stem + ".weight";
      const auto tensor = std::ranges::find(source.tensors(), weight, &LogicalTensor::name);
      ASSERT_NE(tensor, source.tensors().end()) << weight;
      const std::size_t n_rows = golden.shape(stem + ".x").at(0);
      const std::vector<float> wanted = golden.floats(stem + ".y");
      const std::vector<float> found =
          applied(whole(store, *tensor), golden.floats(stem + ".x"), n_rows);
      ASSERT_EQ(found.size(), wanted.size());
      const bool is_rounded = step_in > 0 || step_out > 0;
      if (profile == Profile::kF32) {
        EXPECT_EQ(relative_error(found, wanted) > 1e-3, is_rounded) << name;
        continue;
      }
      if (step_out == 0) {
        EXPECT_LE(relative_error(found, wanted), 1e-6) << name;
        continue;
      }
      std::size_t n_equal = 0;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (found[i] == wanted[i]) ++n_equal;
        EXPECT_NEAR(found[i], wanted[i], 1.02F * step_out) << name << " " << i;
      }
      EXPECT_GE(n_equal * 100, wanted.size() * 98) << name;
    }
  }
}

TEST(NativeLinear, NeedsWholeRowsForStepsOfOutputs) {
  const formats::Checkpoint source = formats::Checkpoint::open(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/gemma_steps/checkpoint",
      {.family = "generic"});
  const WeightStore store(source, Profile::kNative, 1);
  expect_error(ErrorCode::kUnsupported, {"mlp.down_proj.weight", "--tp"}, [&] {
    (void)store.linear("model.layers.0.mlp.down_proj.weight", 40, 24, all(40), {0, 8});
  });
}

}  // namespace
}  // namespace ingot::inference
