#include "convert/recipe/statistics.h"
#include "convert/run/actions.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Ranges of activations from a file, and how static weights use them.

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::Activations;
using formats::Part;
using formats::SchemeId;
using ingot::testing::expect_error;

TinyTensor number(const std::string& name, float value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return {name, "F32", {1}, bytes};
}

class ActivationFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::vector<TinyTensor>& tensors) {
    write_bytes(path(), safetensors_bytes(tensors));
    return path();
  }
  std::filesystem::path path() const { return directory_ / "activations.safetensors"; }
  void refuse(const std::vector<TinyTensor>& tensors, std::initializer_list<std::string> facts) {
    write(tensors);
    expect_error(ErrorCode::kCorrupt, facts, [&] { ActivationScales::read(path()); });
  }
  TempDir directory_;
};

TEST_F(ActivationFile, GivesRangesByModuleThatAlwaysHoldZero) {
  const auto scales = ActivationScales::read(
      write({number("a.input_min", -1), number("a.input_max", 3), number("b.input_amax", 5),
             number("c.input_min", 2), number("c.input_max", 4)}));
  EXPECT_EQ(scales.find("a")->min, -1);
  EXPECT_EQ(scales.find("a")->max, 3);
  EXPECT_EQ(scales.find("b")->min, -5);
  EXPECT_EQ(scales.find("b")->max, 5);
  EXPECT_EQ(scales.find("c")->min, 0);
  EXPECT_EQ(scales.find("c")->amax(), 4);
  EXPECT_FALSE(scales.find("d"));
}

TEST_F(ActivationFile, MayHoldEverythingThatACalibrationKnows) {
  const auto scales =
      ActivationScales::read(write({{"model.layers.1.expert_tokens",
                                     "I64",
                                     {2},
                                     std::string("\5\0\0\0\0\0\0\0", 8) + std::string(8, '\0')},
                                    number("a.input_amax", 3),
                                    number("a.input_min", -3),
                                    number("a.input_max", 1),
                                    {"a.input_mean_square", "F32", {4}},
                                    {"b.input_mean_square", "F32", {4}}}));
  EXPECT_EQ(scales.find("a")->min, -3);
  EXPECT_EQ(scales.find("a")->max, 1);
  EXPECT_FALSE(scales.find("b"));
  EXPECT_EQ(scales.filled(), (FilledExperts{{"model.layers.1", {1}}}));
  refuse({number("a.input_amax", 2), number("a.input_min", -3), number("a.input_max", 1)},
         {"a", "input_amax of 2", "from -3 to 1"});
}

TEST_F(ActivationFile, IsRefusedWhenItIsNotOne) {
  refuse({number("a.weight", 1)}, {"a.weight", "MODULE.input_amax"});
  refuse({number("a.input_min", -1)}, {"a", "needs both"});
  refuse({number("a.input_min", 2), number("a.input_max", 1)}, {"a", "from 2 to 1"});
  refuse({number("a.input_amax", -1)}, {"a", "input_amax of -1"});
  refuse({number("a.input_amax", INFINITY)}, {"a"});
  refuse({number("a.input_amax", NAN)}, {"a"});
  refuse({number("a.input_amax", 1), number("a.input_max", 1)}, {"a", "in addition"});
  refuse({{"a.input_amax", "BF16", {1}, "\x80\x3f"}}, {"a.input_amax", "must be one F32"});
  refuse({{"a.input_amax", "F32", {2}}}, {"a.input_amax", "must be one F32"});
  refuse({number("x.bad", 1), number("y.bad", 1)}, {"x.bad", "y.bad"});
  refuse({number("b.input_max", 1), number("a.input_min", 1)}, {"'a'", "'b'"});
}

TEST(InputScales, FollowTheFormulasOfTheirDialects) {
  const InputRange range{.min = -1, .max = 3};
  using formats::CodeKind;
  EXPECT_EQ(symmetric_input_scale(CodeKind::kE4m3, range, false).scale, 3.0F / 448.0F);
  EXPECT_EQ(symmetric_input_scale(CodeKind::kInt8, range, false).scale, 3.0F / 127.0F);
  EXPECT_EQ(symmetric_input_scale(CodeKind::kE2m1, range, false).scale, 3.0F / 2688.0F);
  EXPECT_EQ(symmetric_input_scale(CodeKind::kE2m1, range, true).scale, 2688.0F / 3.0F);
  EXPECT_EQ(symmetric_input_scale(CodeKind::kInt8, {}, false).scale, 1.0F);
  EXPECT_EQ(symmetric_input_scale(CodeKind::kE2m1, {}, true).scale, 1.0F);
  EXPECT_EQ(asymmetric_input_scale(range).scale, 4.0F / 255.0F);
  EXPECT_EQ(asymmetric_input_scale(range).offset, -64.0F);
  EXPECT_EQ(asymmetric_input_scale({}).scale, 0x1p-23F);
  EXPECT_EQ(asymmetric_input_scale({.min = 0, .max = 255}).offset, -128.0F);
  EXPECT_EQ(asymmetric_input_scale({.min = -255, .max = 0}).offset, 127.0F);
}

// The range that the test gives to the input of a module: another one for each.
InputRange range_of(const std::string& module) {
  const auto salt = static_cast<float>(std::hash<std::string>()(module) % 1000);
  return {.min = -1.0F - salt / 700, .max = 2.0F + salt / 300};
}

class StaticOutput : public ActivationFile {
 protected:
  static const std::filesystem::path& source() { return synth_model(); }

  // Ranges for every FP8 module of the source but those that are left out.
  std::filesystem::path write_ranges(const std::set<std::string>& without = {}) {
    std::vector<TinyTensor> tensors;
    for (const auto& [name, tensor] : read_output(source())) {
      const std::string module = module_of(name);
      if (tensor.dtype != formats::DType::kF8E4M3 || without.contains(module)) continue;
      tensors.push_back(number(module + ".input_min", range_of(module).min));
      tensors.push_back(number(module + ".input_max", range_of(module).max));
    }
    return write(tensors);
  }

  OutputTensors run(SchemeId scheme, const std::string& dialect) {
    Conversion conversion(source(), directory_ / dialect);
    conversion.recipe.to = scheme;
    conversion.recipe.choices.dialect = dialect;
    conversion.recipe.choices.activations = Activations::kStatic;
    conversion.recipe.choices.activation_scales =
        std::make_shared<ActivationScales>(ActivationScales::read(path()));
    conversion.recipe.allow.add("engine-refuses=*");
    conversion.run();
    return read_output(conversion.output);
  }

  // Fused modules see one input, whose range is that of both.
  static InputRange fused_range(const std::string& module) {
    InputRange range = range_of(module);
    const std::pair<std::string, std::string> pairs[] = {{"gate_proj", "up_proj"},
                                                         {"q_a_proj", "kv_a_proj_with_mqa"}};
    for (const auto& [a, b] : pairs) {
      for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
        if (module.ends_with("." + one))
          range.include(range_of(module.substr(0, module.size() - one.size()) + other));
      }
    }
    return range;
  }

  // Calls `expect(module, scale)` for every part with this suffix.
  static void each(const OutputTensors& output, const std::string& suffix,
                   const std::function<void(const std::string& module, float scale)>& expect) {
    std::size_t n = 0;
    for (const auto& [name, tensor] : output) {
      if (!name.ends_with(suffix)) continue;
      ASSERT_EQ(tensor.bytes.size(), sizeof(float)) << name;
      expect(name.substr(0, name.size() - suffix.size()), tensor.as<float>().front());
      ++n;
    }
    EXPECT_GE(n, 18U);
  }
};

TEST_F(StaticOutput, HasSymmetricScalesSharedByFusedModules) {
  write_ranges();
  const struct {
    SchemeId scheme;
    const char* dialect;
    float largest;
  } rows[] = {{SchemeId::kFp8Tensor, "compressed-tensors", 448},
              {SchemeId::kInt8Channel, "compressed-tensors", 127}};
  for (const auto& row : rows) {
    each(run(row.scheme, row.dialect), ".input_scale", [&](const std::string& module, float scale) {
      EXPECT_EQ(scale, fused_range(module).amax() / row.largest) << module;
    });
    std::filesystem::remove_all(directory_ / row.dialect);
  }
  each(run(SchemeId::kNvfp4, "modelopt"), ".input_scale",
       [&](const std::string& module, float scale) {
         EXPECT_EQ(scale, fused_range(module).amax() / 2688.0F) << module;
       });
}

TEST_F(StaticOutput, IsADivisorForNvfp4InCompressedTensors) {
  write_ranges();
  each(run(SchemeId::kNvfp4, "compressed-tensors"), ".input_global_scale",
       [&](const std::string& module, float scale) {
         EXPECT_EQ(scale, 2688.0F / fused_range(module).amax()) << module;
       });
}

TEST_F(StaticOutput, HasScaleOffsetBiasAndProductForAscend) {
  write_ranges();
  const OutputTensors output = run(SchemeId::kInt8Channel, "modelslim");
  each(output, ".input_scale", [&](const std::string& module, float scale) {
    const InputRange range = fused_range(module);
    EXPECT_EQ(scale, (range.max - range.min) / 255.0F) << module;
    const float offset = output.at(module + ".input_offset").as<float>().front();
    EXPECT_EQ(offset, std::nearbyint(-range.min / scale) - 128.0F) << module;
    const auto codes = output.at(module + ".weight").as<std::int8_t>();
    const auto biases = output.at(module + ".quant_bias").as<std::int32_t>();
    const auto& shape = output.at(module + ".weight").shape;
    ASSERT_EQ(biases.size(), shape[0]);
    for (std::size_t row = 0; row < shape[0]; ++row) {
      std::int64_t sum = 0;
      for (std::size_t k = 0; k < shape[1]; ++k) sum += codes[row * shape[1] + k];
      ASSERT_EQ(biases[row], -static_cast<std::int64_t>(offset) * sum) << module << " " << row;
    }
  });
  // The scale of each row of the same weights without static inputs.
  Conversion dynamic(source(), directory_ / "dynamic");
  dynamic.recipe.to = SchemeId::kInt8Channel;
  dynamic.recipe.choices.dialect = "modelslim";
  dynamic.run();
  const OutputTensors rows = read_output(dynamic.output);
  each(output, ".input_scale", [&](const std::string& module, float scale) {
    const auto weights = rows.at(module + ".weight_scale").as<float>();
    const auto products = output.at(module + ".deq_scale").as<float>();
    for (std::size_t row = 0; row < products.size(); ++row)
      ASSERT_EQ(products[row], scale * weights[row]) << module << " " << row;
    EXPECT_TRUE(rows.at(module + ".weight") == output.at(module + ".weight")) << module;
  });
}

TEST_F(StaticOutput, RefusalNamesModulesWithoutARange) {
  write_ranges({"model.layers.1.mlp.experts.2.down_proj", "model.layers.0.mlp.gate_proj"});
  expect_error(ErrorCode::kMissingTensor,
               {"model.layers.1.mlp.experts.2.down_proj", "model.layers.0.mlp.gate_proj",
                "--activation-scales"},
               [&] { run(SchemeId::kNvfp4, "modelopt"); });
  EXPECT_FALSE(std::filesystem::exists(directory_ / "modelopt"));
}

TEST(StaticAscend, RefusesALayerWithABias) {
  const TempDir work;
  auto model = tiny_deepseek_v3();
  const auto weight = tensor_of(model, "model.layers.0.self_attn.o_proj.weight");
  model.files.begin()->second.push_back(
      {"model.layers.0.self_attn.o_proj.bias", "BF16", {weight.shape[0]}, {}});
  model.write(work / "in");
  Conversion conversion(work / "in", work / "out");
  conversion.recipe.to = SchemeId::kInt8Channel;
  conversion.recipe.choices.dialect = "modelslim";
  conversion.recipe.choices.activations = Activations::kStatic;
  conversion.recipe.choices.input_scale = 1.0F;
  expect_error(ErrorCode::kUnsupported, {"model.layers.0.self_attn.o_proj", "bias", "dynamic"},
               [&] { conversion.run(); });
  EXPECT_FALSE(std::filesystem::exists(work / "out"));
  conversion.recipe.choices.activations = Activations::kDynamic;
  conversion.recipe.choices.input_scale.reset();
  EXPECT_NO_THROW(conversion.run());
}

TEST_F(StaticOutput, NeedsAFileOrAnExplicitScale) {
  Conversion conversion(source(), directory_ / "out");
  conversion.recipe.to = SchemeId::kNvfp4;
  conversion.recipe.choices.dialect = "modelopt";
  expect_error(ErrorCode::kInvalidArgument, {"--activations", "weight-only"},
               [&] { conversion.run(); });
  conversion.recipe.choices.activations = Activations::kStatic;
  expect_error(ErrorCode::kMissingTensor, {"--activation-scales", "--input-scale 1"},
               [&] { conversion.run(); });
  conversion.recipe.choices.input_scale = 1.0F;
  conversion.run();
  each(read_output(conversion.output), ".input_scale",
       [](const std::string& module, float scale) { EXPECT_EQ(scale, 1) << module; });
  const std::string manifest = read_text_file(conversion.output / "ingot.json", 1 << 20);
  EXPECT_THAT(manifest, ::testing::HasSubstr("\"input_scale\": 1")) << "it is recorded";
}

template <typename T>
std::vector<T> numbers(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// docs/formats.md, "Test vectors": the row [1, -0.5] and inputs from -1 to 3.
class AscendVector : public ::testing::Test {
 protected:
  const std::vector<float> row_scales_ = {1.0F / 127.0F};
  const std::vector<std::int64_t> row_sums_ = {127 - 64};
  const ModelslimInputs inputs_{.input = asymmetric_input_scale({.min = -1, .max = 3}),
                                .row_scales = row_scales_,
                                .row_sums = row_sums_};
};

TEST_F(AscendVector, ScalesInputBy4Over255WithOffset) {
  EXPECT_THAT(numbers<float>(modelslim_part(Part::kInputScale, inputs_)),
              ::testing::ElementsAre(4.0F / 255.0F));
  EXPECT_THAT(numbers<float>(modelslim_part(Part::kInputOffset, inputs_)),
              ::testing::ElementsAre(-64.0F));
}

TEST_F(AscendVector, TheBiasIs4032) {
  EXPECT_THAT(numbers<std::int32_t>(modelslim_part(Part::kQuantBias, inputs_)),
              ::testing::ElementsAre(4032));
}

TEST_F(AscendVector, TheProductOfTheScalesIs1_2351397e_4) {
  const auto products = numbers<float>(modelslim_part(Part::kDeqScale, inputs_));
  ASSERT_EQ(products.size(), 1U);
  EXPECT_EQ(products[0], (4.0F / 255.0F) * (1.0F / 127.0F));
  EXPECT_NEAR(products[0], 1.2351397e-4, 1e-11);
}

// An engine's computation with them for the input [1, -1].
TEST_F(AscendVector, TheyGiveTheProductOfInputAndWeight) {
  const float scale = numbers<float>(modelslim_part(Part::kInputScale, inputs_)).front();
  const float offset = numbers<float>(modelslim_part(Part::kInputOffset, inputs_)).front();
  const auto code = [&](float x) { return std::nearbyint(x / scale + offset); };
  EXPECT_EQ(code(1), 0);
  EXPECT_EQ(code(-1), -128);
  const int sum = static_cast<int>(code(1)) * 127 + static_cast<int>(code(-1)) * -64 +
                  numbers<std::int32_t>(modelslim_part(Part::kQuantBias, inputs_)).front();
  EXPECT_EQ(sum, 12224);
  EXPECT_NEAR(
      static_cast<float>(sum) * numbers<float>(modelslim_part(Part::kDeqScale, inputs_)).front(),
      1.50984, 1e-5);
}

TEST(AscendParts, HaveOneNumberPerRow) {
  const std::vector<float> scales = {1, 2, 4};
  const std::vector<std::int64_t> sums = {5, -7, 0};
  const ModelslimInputs inputs{
      .input = {.scale = 0.5F, .offset = 3}, .row_scales = scales, .row_sums = sums};
  EXPECT_THAT(numbers<float>(modelslim_part(Part::kDeqScale, inputs)),
              ::testing::ElementsAre(0.5F, 1.0F, 2.0F));
  EXPECT_THAT(numbers<std::int32_t>(modelslim_part(Part::kQuantBias, inputs)),
              ::testing::ElementsAre(-15, 21, 0));
}

TEST(AscendParts, ABiasBeyond32BitsIsRefused) {
  const std::vector<float> scales = {1};
  const std::vector<std::int64_t> fits = {16'777'215}, too_large = {16'777'217};
  const InputScale input{.scale = 1, .offset = -128};
  EXPECT_THAT(numbers<std::int32_t>(modelslim_part(
                  Part::kQuantBias, {.input = input, .row_scales = scales, .row_sums = fits})),
              ::testing::ElementsAre(2'147'483'520));
  expect_error(ErrorCode::kUnsupported, {"quant_bias", "32 bits"}, [&] {
    modelslim_part(Part::kQuantBias, {.input = input, .row_scales = scales, .row_sums = too_large});
  });
}

}  // namespace
}  // namespace ingot::convert
