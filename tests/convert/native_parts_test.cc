#include "check/check.h"
#include "engines/verdicts.h"
#include "formats/json/json.h"
#include "tests/check/findings.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/test.h"

// DeepSeek-V4 under its native names: one spelling of scales, experts in FP4, NVFP4 or FP8 with FP8
// blocks, and the keys of config.json. Values are those of tests/golden/PROVENANCE.md.

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::DType;
using formats::Json;
using formats::SchemeId;

const std::string kMain = "layers.0.ffn.experts.0.w1";
const std::string kDraft = "mtp.0.ffn.experts.0.w1";

Json config_of(const std::filesystem::path& directory) {
  return formats::read_json_file(directory / "config.json", 1 << 20);
}

/// A conversion of a V4 fixture, made.
struct Made {
  Made(const std::filesystem::path& from, std::optional<SchemeId> to,
       const std::vector<std::string>& rules = {}) {
    Conversion conversion(from, path);
    conversion.recipe.to = to;
    conversion.recipe.choices.input_scale =
        to == SchemeId::kNvfp4 ? std::optional(1.0F) : std::nullopt;
    for (const std::string& rule : rules) conversion.recipe.rules.push_back(parse_rule(rule));
    conversion.run();
    tensors = read_output(path);
    config = config_of(path);
  }
  TempDir directory;
  std::filesystem::path path = directory / "out";
  OutputTensors tensors;
  Json config;
};

std::string errors_of(const std::filesystem::path& directory) {
  check::CheckOptions options;
  options.deep = true;
  std::vector<check::Finding> findings = check::check_checkpoint(directory, options).findings;
  std::erase_if(findings, [](const check::Finding& finding) {
    return finding.severity != check::Severity::kError;
  });
  return ingot::testing::text_of(findings);
}

std::set<std::string> suffixes_of_scales(const OutputTensors& tensors) {
  std::set<std::string> suffixes;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos || name.find("hc_") != std::string::npos) continue;
    if (name.find("scale", dot) != std::string::npos) suffixes.insert(name.substr(dot));
  }
  return suffixes;
}

TEST(NativeParts, OfFp8HaveOneSpelling) {
  const Made fp8(fixture("deepseek_v4"), SchemeId::kFp8Block);
  EXPECT_EQ(suffixes_of_scales(fp8.tensors), std::set<std::string>{".scale"});
  EXPECT_EQ(fp8.tensors.at(kMain + ".scale").dtype, DType::kF8E8M0);
  EXPECT_EQ(fp8.config.at("expert_dtype"), "fp8");
  EXPECT_EQ(errors_of(fp8.path), "");
}

TEST(NativeParts, HoldTheValuesThatF32ScalesHold) {
  const TempDir directory;
  // Under --scales of any size, E8M0 has no room for them.
  Conversion conversion(fixture("deepseek_v4"), directory / "out");
  conversion.recipe.to = SchemeId::kFp8Block;
  conversion.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
  conversion.run();
  const OutputTensors amax = read_output(directory / "out");
  EXPECT_EQ(amax.at(kMain + ".scale").dtype, DType::kF32);
  const Made narrow(fixture("deepseek_v4"), SchemeId::kFp8Block);
  const Made plain(narrow.path, SchemeId::kF32);
  const Made source(fixture("deepseek_v4"), SchemeId::kF32);
  // E2M1 under powers of two that differ little: every value is an E4M3 code under the block's.
  EXPECT_EQ(plain.tensors.at(kMain + ".weight"), source.tensors.at(kMain + ".weight"));
}

TEST(NativeParts, KeysOfExpertsGoWithThem) {
  const Made fp8(fixture("deepseek_v4_nvfp4"), SchemeId::kFp8Block);
  const Json& block = fp8.config.at("quantization_config");
  std::set<std::string> keys;
  for (const auto& [key, value] : block.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"activation_scheme", "fmt", "quant_method", "scale_fmt",
                                         "weight_block_size"}));
  EXPECT_EQ(suffixes_of_scales(fp8.tensors), std::set<std::string>{".scale"});
  EXPECT_EQ(errors_of(fp8.path), "");
}

TEST(NativeParts, Nvfp4ExpertsAreWrittenAsNvidiaDoes) {
  const Made nvfp4(fixture("deepseek_v4"), SchemeId::kNvfp4);
  EXPECT_EQ(nvfp4.tensors.at(kMain + ".weight").dtype, DType::kU8);
  EXPECT_EQ(nvfp4.tensors.at(kMain + ".weight_scale").dtype, DType::kF8E4M3);
  for (const char* number : {".weight_scale_2", ".input_scale"}) {
    EXPECT_EQ(nvfp4.tensors.at(kMain + number).dtype, DType::kF32);
    EXPECT_EQ(nvfp4.tensors.at(kMain + number).shape, formats::Shape{});
  }
  // Draft layers stay as they are.
  EXPECT_EQ(nvfp4.tensors.at(kDraft + ".weight").dtype, DType::kI8);
  EXPECT_EQ(nvfp4.tensors.at("layers.0.attn.wq_a.scale").dtype, DType::kF8E8M0);
  EXPECT_EQ(nvfp4.config.at("expert_dtype"), "fp4");
  // NVIDIA's own block, but for the number of layers.
  Json said = config_of(fixture("deepseek_v4_nvfp4")).at("quantization_config");
  for (const char* layer : {"1", "2", "3"})
    said["quantized_layers"][std::string("layers.") + layer + ".ffn.experts"] =
        said["quantized_layers"]["layers.0.ffn.experts"];
  EXPECT_EQ(nlohmann::json(nvfp4.config.at("quantization_config")), nlohmann::json(said));
  EXPECT_EQ(errors_of(nvfp4.path), "");
}

TEST(NativeParts, Nvfp4WithoutInputScalesIsWeightOnlyElsewhere) {
  const formats::Checkpoint source = formats::Checkpoint::open(fixture("deepseek_v4"), {});
  Recipe recipe;
  recipe.to = SchemeId::kNvfp4;
  EXPECT_EQ(target_dialect(recipe, source).name, "compressed-tensors");
  recipe.choices.input_scale = 1.0F;
  EXPECT_EQ(target_dialect(recipe, source).name, "deepseek");
  recipe.to = SchemeId::kMxfp4;
  EXPECT_EQ(target_dialect(recipe, source).name, "deepseek");
}

TEST(NativeParts, Nvfp4OfFp4LosesNothing) {
  const Made nvfp4(fixture("deepseek_v4"), SchemeId::kNvfp4);
  const Made back(nvfp4.path, SchemeId::kF32), source(fixture("deepseek_v4"), SchemeId::kF32);
  for (const char* weight : {".weight", "3.weight"}) {
    const std::string name = weight[0] == '.' ? kMain + weight : "layers.0.ffn.experts.0.w3.weight";
    EXPECT_EQ(back.tensors.at(name), source.tensors.at(name)) << name;
  }
}

TEST(NativeParts, Fp4ExpertsReturnToTheReleasedForm) {
  const Made fp8(fixture("deepseek_v4"), SchemeId::kFp8Block);
  const Made fp4(fp8.path, SchemeId::kMxfp4);
  EXPECT_EQ(fp4.tensors.at(kMain + ".weight").dtype, DType::kI8);
  EXPECT_EQ(fp4.tensors.at(kMain + ".scale").dtype, DType::kF8E8M0);
  EXPECT_EQ(fp4.config.at("expert_dtype"), "fp4");
  EXPECT_EQ(errors_of(fp4.path), "");
}

TEST(NativeParts, StandBesidePlainWeightsToo) {
  const Made plain(fixture("deepseek_v4_nvfp4"), SchemeId::kBf16);
  EXPECT_FALSE(plain.config.contains("expert_dtype"));
  for (const auto& [to, word] : {std::pair{SchemeId::kMxfp4, "fp4"},
                                 {SchemeId::kNvfp4, "fp4"},
                                 {SchemeId::kFp8Block, "fp8"}}) {
    const Made made(plain.path, to);
    // vLLM takes experts for FP4 without the key.
    EXPECT_EQ(made.config.at("expert_dtype"), word);
    EXPECT_EQ(errors_of(made.path), "");
  }
}

TEST(NativeParts, HaveOneSchemeForAllMainExperts) {
  expect_error(ErrorCode::kUnsupported, {"one scheme for all routed experts"},
               [] { Made(fixture("deepseek_v4"), std::nullopt, {"layers.1.ffn.experts.*=fp8"}); });
  expect_error(ErrorCode::kUnsupported, {"wq_b", "no routed expert"}, [] {
    Made(fixture("deepseek_v4"), SchemeId::kNvfp4, {"layers.*.wq_b.weight=nvfp4"});
  });
}

TEST(NativeParts, AreKnownToVllmAndSglang) {
  for (const char* name : {"deepseek_v4", "deepseek_v4_nvfp4"}) {
    const formats::Checkpoint source = formats::Checkpoint::open(fixture(name), {});
    for (const engines::EngineRow* engine : {&engines::kVllmRow, &engines::kSglangRow}) {
      const engines::EngineView view = engines::engine_view(source, *engine);
      // These widths are cut within a block of FP8.
      EXPECT_THAT(view.verdict.reason, ::testing::HasSubstr("multiple of the block's"));
      for (const engines::BelievedModules& row : view.modules) {
        // vLLM knows one word for the experts of main and draft layers.
        const bool is_draft = row.name.starts_with("mtp");
        EXPECT_TRUE(row.agrees() || is_draft) << row.name << ": " << row.believed;
      }
    }
  }
}

TEST(NativeParts, ExpertsAreWhatTheConfigSays) {
  const TempDir directory;
  const auto copy = [&](const std::string& name, const auto& change) {
    const std::filesystem::path to = directory / name;
    std::filesystem::copy(fixture("deepseek_v4_nvfp4"), to);
    Json config = config_of(to);
    change(config["quantization_config"]);
    std::ofstream(to / "config.json") << formats::json_text(config);
    return errors_of(to);
  };
  EXPECT_EQ(copy("said", [](Json&) {}), "");
  EXPECT_THAT(copy("unsaid", [](Json& block) { block.erase("moe_quant_algo"); }),
              ::testing::HasSubstr("native.experts-said"));
}

}  // namespace
}  // namespace ingot::convert
