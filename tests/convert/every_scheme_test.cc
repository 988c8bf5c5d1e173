#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/stored_values.h"
#include "tests/convert/targets.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

// Claims for every scheme in every dialect, from FP8 and from BF16.

namespace ingot::convert {
namespace {

using namespace formats;
using namespace ingot::testing;
using formats::SchemeId;
using ingot::testing::Target;

class EveryScheme : public ::testing::TestWithParam<std::tuple<Target, bool>> {
 protected:
  void SetUp() override {
    Conversion conversion(source(), directory_ / "out");
    target().apply(conversion.recipe);
    conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
    conversion.run();
    output_ = read_output(directory_ / "out");
  }
  static const Target& target() { return std::get<0>(GetParam()); }
  static std::filesystem::path source() {
    return std::get<1>(GetParam()) ? tiny_bf16() : tiny_v32();
  }
  // Each of the two, opened and read once per process.
  static const formats::Checkpoint& opened_source() {
    static const auto fp8 = formats::Checkpoint::open(tiny_v32());
    static const auto bf16 = formats::Checkpoint::open(tiny_bf16());
    return std::get<1>(GetParam()) ? bf16 : fp8;
  }
  static const OutputTensors& read_source() {
    static const OutputTensors fp8 = read_output(tiny_v32());
    static const OutputTensors bf16 = read_output(tiny_bf16());
    return std::get<1>(GetParam()) ? bf16 : fp8;
  }
  static std::string name_of(const formats::PartRow& part, const std::string& weight) {
    return module_of(weight).append(part.suffix);
  }
  formats::Checkpoint open() const { return formats::Checkpoint::open(directory_ / "out"); }
  formats::Json json(const std::string& file) const {
    return formats::read_json_file(directory_ / "out" / file, 1 << 20);
  }

  void expect_parts() const;
  void expect_numbers() const;
  void expect_untouched() const;
  void expect_json() const;
  void expect_description() const;

  TempDir directory_;
  OutputTensors output_;
};

std::string case_name(const ::testing::TestParamInfo<std::tuple<Target, bool>>& row) {
  return test_name(std::get<0>(row.param).name() +
                   (std::get<1>(row.param) ? "_from_bf16" : "_from_fp8"));
}

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

INSTANTIATE_TEST_SUITE_P(FirstTargets, EveryScheme,
                         Combine(ValuesIn(first_targets()), Values(false)), case_name);
INSTANTIATE_TEST_SUITE_P(Schemes, EveryScheme, Combine(ValuesIn(scheme_targets()), Values(true)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(SlowTargets, EveryScheme,
                         Combine(ValuesIn(all_targets_but(first_targets())), Values(false)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(SlowSchemes, EveryScheme,
                         Combine(ValuesIn(all_targets_but(scheme_targets())), Values(true)),
                         case_name);

// Shapes of parts, from docs/formats.md.
Shape shape_of(PartShape kind, SchemeId scheme, const Shape& weight) {
  const std::uint64_t n = weight[0], k = weight[1];
  switch (kind) {
    case PartShape::kCodes:
      if (scheme == SchemeId::kInt4Group) return {n, k / 8};
      return scheme == SchemeId::kNvfp4 || scheme == SchemeId::kMxfp4 ? Shape{n, k / 2} : weight;
    case PartShape::kScalar:
      return {};
    case PartShape::kOne:
      return {1};
    case PartShape::kPerRow:
      return {n};
    case PartShape::kColumn:
      return {n, 1};
    case PartShape::kGrid:
      if (scheme == SchemeId::kNvfp4) return {n, k / 16};
      if (scheme == SchemeId::kMxfp4 || scheme == SchemeId::kMxfp8) return {n, k / 32};
      if (scheme == SchemeId::kInt4Group) return {n, k / 32};
      return {(n + 127) / 128, (k + 127) / 128};
    case PartShape::kSpread:
      return {(n + 127) / 128, 1, (k + 127) / 128, 1};
    case PartShape::kTwo:
      return {2};
    case PartShape::kZeros:
    case PartShape::kPerCol:
    case PartShape::kBlocks:
      break;  // of nothing that we encode
  }
  return {};
}

void expect_no_nan(const std::string& name, const OutputTensor& tensor) {
  bool is_good = true;
  if (tensor.dtype == DType::kF8E4M3) {
    for (const char code : tensor.bytes) is_good = is_good && (code & 0x7F) != 0x7F;
  } else if (tensor.dtype == DType::kF32) {
    for (const float value : tensor.as<float>()) is_good = is_good && std::isfinite(value);
  } else if (name.ends_with("_scale") && tensor.dtype == DType::kU8) {
    is_good = tensor.bytes.find('\xFF') == std::string::npos;
  }
  EXPECT_TRUE(is_good) << name;
}

std::string strategy_of(SchemeId scheme) {
  switch (scheme) {
    case SchemeId::kFp8Block:
      return "block";
    case SchemeId::kFp8Channel:
    case SchemeId::kInt8Channel:
      return "channel";
    case SchemeId::kFp8Tensor:
      return "tensor";
    case SchemeId::kNvfp4:
      return "tensor_group";
    default:
      return "group";
  }
}

// Parts, dtypes and shapes are those of the table.
void EveryScheme::expect_parts() const {
  const formats::Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.dialect().name, target().dialect->name);
  ASSERT_EQ(checkpoint.tensors().size(), opened_source().tensors().size());
  std::set<std::string> seen;
  std::size_t n_target = 0;
  for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
    if (!formats::scheme_facts(tensor.encoding.scheme).quantized) {
      seen.insert(tensor.name);
      continue;
    }
    const bool is_target = tensor.encoding.scheme == target().storage->scheme;
    if (is_target) ++n_target;
    const auto* row = is_target ? target().storage
                                : formats::find_storage(*target().dialect, tensor.encoding.scheme);
    ASSERT_NE(row, nullptr) << tensor.name;
    for (const formats::PartRow& part : row->parts) {
      if (part.is_optional) continue;
      const std::string name = name_of(part, tensor.name);
      ASSERT_TRUE(output_.contains(name)) << name;
      EXPECT_EQ(output_.at(name).dtype, part.dtype) << name;
      // SGLang joins those of q_a_proj and kv_a_proj, where two of [1] would make a [2].
      const bool is_joined =
          part.shape == PartShape::kOne &&
          (name.find("q_a_proj.") != name.npos || name.find("kv_a_proj_with_mqa.") != name.npos);
      EXPECT_EQ(output_.at(name).shape,
                is_joined ? Shape{} : shape_of(part.shape, tensor.encoding.scheme, tensor.shape))
          << name;
      seen.insert(name);
    }
  }
  EXPECT_GT(n_target, 190U);
  EXPECT_EQ(seen.size(), output_.size()) << "nothing else is written";
}

// No value is NaN, and no scale is zero.
void EveryScheme::expect_numbers() const {
  for (const auto& [name, tensor] : output_) {
    expect_no_nan(name, tensor);
    if (!name.ends_with("scale") && !name.ends_with("scale_inv") && !name.ends_with("scale_2"))
      continue;
    const std::vector<float> scales = scale_values(tensor);
    EXPECT_GT(*std::min_element(scales.begin(), scales.end()), 0) << name;
  }
}

// Tensors that no rule selects keep their bytes.
void EveryScheme::expect_untouched() const {
  std::size_t n_same = 0;
  for (const auto& [name, tensor] : read_source()) {
    const bool is_part = tensor.dtype == DType::kF8E4M3 || name.ends_with("_scale_inv");
    if (is_part) continue;
    const auto after = output_.find(name);
    const bool is_quantized = after == output_.end() || after->second.dtype != tensor.dtype;
    if (is_quantized) {
      EXPECT_TRUE(std::get<1>(GetParam())) << name << " was not FP8 before";
      continue;
    }
    ++n_same;
    EXPECT_TRUE(after->second == tensor) << name;
  }
  EXPECT_GT(n_same, 50U);
}

// The JSON around it names the form of every module.
void EveryScheme::expect_json() const {
  const formats::Json config = json("config.json");
  const formats::Json block = config.value("quantization_config", formats::Json());
  const std::string_view dialect = target().dialect->name;
  std::set<std::string> formats_seen;
  bool has_int4_experts = false;
  const formats::Checkpoint checkpoint = open();
  for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
    const SchemeId scheme = tensor.encoding.scheme;
    const bool is_quantized = formats::scheme_facts(scheme).quantized;
    const std::string module = module_of(tensor.name);
    const bool is_linear = tensor.shape.size() == 2 && tensor.name.ends_with(".weight");
    if (!is_linear) continue;
    // INT8 lists do not name embeddings, which are of no class that the groups are for.
    const bool is_embedding =
        tensor.rule != nullptr && (tensor.rule->role == formats::Role::kEmbedding ||
                                   tensor.rule->role == formats::Role::kMtpEmbedding);
    if (is_embedding && target().storage->scheme == SchemeId::kInt8Channel) {
      EXPECT_FALSE(is_quantized) << module;
      continue;
    }
    if (dialect == "compressed-tensors") {
      const auto group = ct_group(block, module);
      ASSERT_EQ(group.has_value(), is_quantized) << module;
      if (!group) continue;
      const formats::Json& weights = group->at("weights");
      has_int4_experts = has_int4_experts || (scheme == SchemeId::kInt4Group && tensor.expert);
      EXPECT_EQ(weights.at("strategy"), strategy_of(scheme)) << module;
      const bool is_int = scheme == SchemeId::kInt8Channel || scheme == SchemeId::kInt4Group;
      EXPECT_EQ(weights.at("type"), is_int ? "int" : "float") << module;
      EXPECT_EQ(weights.at("num_bits"), formats::scheme_facts(scheme).code_bits) << module;
      formats_seen.insert(group->at("format").get<std::string>());
      if (scheme != target().storage->scheme) continue;
      const formats::Json inputs = group->value("input_activations", formats::Json());
      EXPECT_EQ(inputs.is_null(), target().storage->activations == Activations::kWeightOnly);
      if (inputs.is_null()) continue;
      EXPECT_EQ(inputs.at("dynamic") == true,
                target().storage->activations == Activations::kDynamic);
    } else if (dialect == "deepseek") {
      const bool is_built_quantized = tensor.rule != nullptr && tensor.rule->fp8_by_default;
      EXPECT_EQ(is_quantized, is_built_quantized && !lists(block, "modules_to_not_convert", module))
          << module;
    } else if (dialect == "modelopt") {
      const formats::Json described =
          json("hf_quant_config.json").at("quantization").at("exclude_modules");
      ASSERT_FALSE(described.empty());
      EXPECT_EQ(block.at("ignore"), described);
      EXPECT_EQ(is_quantized, !modelopt_excludes(described, module)) << module;
    }
  }
  if (dialect == "modelslim") {
    EXPECT_TRUE(block.is_null());
    expect_description();
  }
  if (dialect == "compressed-tensors") {
    // SGLang reads INT4 experts by it.
    const std::string several = has_int4_experts ? "pack-quantized" : "mixed-precision";
    EXPECT_EQ(block.at("format"), formats_seen.size() == 1 ? *formats_seen.begin() : several);
  }
}

// Ascend's: every stored tensor by name.
void EveryScheme::expect_description() const {
  const formats::Json description = json("quant_model_description.json");
  const bool is_static = target().storage->activations == Activations::kStatic;
  for (const auto& [name, tensor] : output_) {
    const bool is_part = name.find("scale") != name.npos || name.find("offset") != name.npos;
    const bool is_float = tensor.dtype == DType::kBf16 || (tensor.dtype == DType::kF32 && !is_part);
    EXPECT_EQ(description.at(name), is_float    ? "FLOAT"
                                    : is_static ? "W8A8"
                                                : "W8A8_DYNAMIC")
        << name;
  }
}

TEST_P(EveryScheme, OpensAgainAsWhatItWasWrittenAs) {
  expect_parts();
  expect_numbers();
  expect_untouched();
  expect_json();
}

// The example quantized, against hashes from a program that shares no code with this one
// (tests/golden/PROVENANCE.md).

TEST(GoldenQuantized, Int8AndFp8RowsEqualIndependentResults) {
  const std::pair<SchemeId, const char*> rows[] = {
      {SchemeId::kInt8Channel, "int8.sha256.json"},
      {SchemeId::kFp8Channel, "fp8_channel.sha256.json"}};
  for (const auto& [scheme, file] : rows) {
    const TempDir directory;
    Conversion conversion(ingot::testing::tiny_v32(), directory / "out");
    conversion.recipe.to = scheme;
    conversion.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
    conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
    conversion.run();
    const auto golden = formats::read_json_file(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/tiny-v32" / file, 1 << 20);
    const auto output = ingot::testing::read_output(directory / "out");
    ASSERT_EQ(output.size(), golden.size()) << file;
    for (const auto& [name, facts] : golden.items()) {
      ASSERT_TRUE(output.contains(name)) << name;
      const auto& tensor = output.at(name);
      EXPECT_EQ(formats::dtype_name(tensor.dtype), facts.at("dtype").get<std::string>()) << name;
      EXPECT_EQ(tensor.shape, facts.at("shape").get<formats::Shape>()) << name;
      EXPECT_EQ(sha256(tensor.bytes), facts.at("sha256").get<std::string>()) << name;
    }
  }
}

}  // namespace
}  // namespace ingot::convert
