#include "convert/plan/passes.h"
#include "convert/recipe/statistics.h"
#include "convert/run/moments_factors.h"
#include "formats/experts/expert_views.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "formats/records/calibration.h"
#include "synth/synth.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Statistics of the inputs of experts that an output stores as stacks: each expert has its own, and
// the codes and scales that it has where experts are one by one.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using quantize::ScaleSearch;
using namespace ingot::testing;

constexpr std::uint32_t kWithoutMoments = 2;  // no token chose this expert

struct Stored {
  const char* family;
  const char* config;      // of a small model
  bool is_single = false;  // its experts are one by one
};
// Both orders of sides, gate and up alternating, in halves and in stacks of their own.
constexpr std::array kStored = {Stored{"gpt_oss", "gpt_oss_bf16/config.json"},
                                Stored{"llama4", "llama4/config.json"},
                                Stored{"step3p7", "headers/step3p7.config.json"},
                                Stored{"qwen3_5_moe", "qwen3_5_moe/config.json"},
                                Stored{"qwen3_5_moe", "qwen3_5_moe/config.json", true}};

/// Moments X^T X of random inputs, of which neighbours go together.
std::vector<float> random_moments(std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(2 * n * n), moments(n * n);
  for (std::size_t t = 0; t < 2 * n; ++t) {
    float shared = 0;
    for (std::size_t i = 0; i < n; ++i) {
      shared = 0.7F * shared + normal(random);
      x[t * n + i] = shared * (i % 5 == 0 ? 3.0F : 1.0F);
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t t = 0; t < 2 * n; ++t) {
      const float value = x[t * n + i];
      for (std::size_t k = 0; k <= i; ++k) moments[i * n + k] += value * x[t * n + k];
    }
    for (std::size_t k = 0; k < i; ++k) moments[k * n + i] = moments[i * n + k];
  }
  return moments;
}

/// Statistics of every routed expert of a model: gate and up of one have a block of moments
/// together, those of a layer one whole matrix, and down projections one each.
class StackedInputs : public ::testing::TestWithParam<Stored> {
 protected:
  StackedInputs() {
    formats::Json config = formats::read_json_file(fixture(GetParam().config), 1 << 20);
    formats::Json& text = config.contains("text_config") ? config["text_config"] : config;
    // Groups of 32 fill a row.
    text["hidden_size"] = 96;
    for (const char* width : {"intermediate_size", "moe_intermediate_size", "share_expert_dim",
                              "share_expert_dims", "shared_expert_intermediate_size"}) {
      if (text.contains(width)) text[width] = 64;
    }
    formats::write_synthetic_checkpoint(source(),
                                        {.family = formats::find_family(GetParam().family),
                                         .config = formats::json_text(config),
                                         .stacked = !GetParam().is_single});
  }
  [[nodiscard]] std::filesystem::path source() const { return directory_ / "in"; }

  std::shared_ptr<const Importance> write() {
    auto single =
        std::make_shared<const formats::Checkpoint>(formats::Checkpoint::open(source(), {}));
    if (!GetParam().is_single)
      single = std::make_shared<const formats::Checkpoint>(
          formats::with_single_experts(std::move(single)));
    std::map<std::string, std::vector<TinyTensor>> files;
    formats::CalibrationRecord record{.tool_version = "1.2.3",
                                      .source = {},
                                      .text = {},
                                      .documents = 1,
                                      .tokens = 2,
                                      .files = {}};
    std::mt19937 random(7);
    std::map<std::string, std::vector<float>> made;  // by owner
    for (const formats::LogicalTensor& tensor : single->tensors()) {
      if (!tensor.expert || tensor.shape.size() != 2) continue;
      const std::string module = module_of(tensor.name);
      const std::uint64_t n = tensor.shape[1];
      const std::string expert = module.substr(0, module.rfind('.'));
      const bool is_down = role_of(tensor) == formats::Role::kExpertDown;
      const std::string owner = is_down ? module : expert + "/";
      if (!made.contains(owner)) made[owner] = random_moments(n, random);
      add(files, record.shared_blocks, module, owner, n, made[owner]);
      const std::string layer = fmt::format("model.layers.{}", tensor.layer.value());
      const std::string mixture = is_down ? module : layer + ".mlp.experts";
      if (is_down && *tensor.expert == kWithoutMoments) continue;
      if (made.contains(mixture) && !is_down) {
        record.shared_moments[shared_.at(mixture)].push_back(module);
        continue;
      }
      if (!is_down) {
        made[mixture] = random_moments(n, random);
        shared_[mixture] = record.shared_moments.size();
        record.shared_moments.push_back({mixture, module});
      }
      files["moments/" + layer + ".safetensors"].push_back(
          {mixture + ".input_moments", "F32", {n, n}, bytes_of(made[mixture])});
    }
    for (const auto& [name, tensors] : files) {
      const std::string bytes = safetensors_bytes(tensors);
      write_bytes(directory_ / "stats" / name, bytes);
      record.files.push_back({.name = name, .n_bytes = bytes.size(), .hash = hash_of(bytes)});
    }
    write_bytes(directory_ / "stats" / "calibration.json", formats::calibration_text(record));
    return std::make_shared<const Importance>(Importance::read(directory_ / "stats"));
  }

  /// Converts with experts in stacks, or one by one.
  OutputTensors converted(const std::string& name, SchemeId to, ScaleSearch search, bool carries,
                          ExpertChoice experts, std::shared_ptr<const Importance> importance) {
    Conversion run(source(), directory_ / name);
    run.recipe.to = to;
    run.recipe.choices.dialect = "compressed-tensors";
    run.recipe.choices.experts = experts;
    run.recipe.choices.search = search;
    run.recipe.choices.gptq = carries;
    run.recipe.choices.importance = std::move(importance);
    run.recipe.allow.add("engine-refuses=*");
    run.execute.threads = 2;
    run.run();
    return read_output(run.output);
  }

  /// The experts of an output with stacks, one by one.
  OutputTensors separated(const std::string& name) {
    Conversion run(directory_ / name, directory_ / (name + "-single"));
    run.recipe.to.reset();
    run.recipe.choices.experts = ExpertChoice::kSeparate;
    run.run();
    return read_output(run.output);
  }

  TempDir directory_;

 private:
  // Mean squares of a module, and its blocks of moments, which gate and up share.
  static void add(std::map<std::string, std::vector<TinyTensor>>& files,
                  formats::SharedInputs& shared, const std::string& module,
                  const std::string& owner, std::uint64_t n, const std::vector<float>& moments) {
    constexpr std::uint64_t kBlock = formats::kMomentBlock;
    std::vector<float> squares(n), blocks(n * kBlock);
    for (std::size_t i = 0; i < n; ++i) {
      squares[i] = moments[i * n + i];
      for (std::size_t k = 0; k < kBlock; ++k)
        blocks[i * kBlock + k] = moments[i * n + i / kBlock * kBlock + k];
    }
    files["inputs.safetensors"].push_back(
        {module + ".input_mean_square", "F32", {n}, bytes_of(squares)});
    for (std::vector<std::string>& names : shared) {
      if (names.front().starts_with(owner.substr(0, owner.size() - 1) + ".")) {
        names.push_back(module);
        return;
      }
    }
    files["blocks.safetensors"].push_back(
        {module + ".input_block_moments", "F32", {n / kBlock, kBlock, kBlock}, bytes_of(blocks)});
    if (owner.ends_with("/")) shared.push_back({module});
  }

  std::map<std::string, std::size_t> shared_;  // places of mixtures in the record
};

TEST_P(StackedInputs, GiveTheBytesOfSingleExperts) {
  struct Way {
    SchemeId to;
    ScaleSearch search;
    bool carries;
  };
  const auto importance = write();
  const auto single = GetParam().is_single ? ExpertChoice::kKeep : ExpertChoice::kSeparate;
  const auto stacked = GetParam().is_single ? ExpertChoice::kStacked : ExpertChoice::kKeep;
  int n = 0;
  for (const Way way : {Way{SchemeId::kMxfp4, ScaleSearch::kHessian, false},
                        Way{SchemeId::kMxfp4, ScaleSearch::kMse, true},
                        Way{SchemeId::kInt8Channel, ScaleSearch::kMse, false}}) {
    const std::string name = std::to_string(n++);
    converted(name, way.to, way.search, way.carries, stacked, importance);
    const OutputTensors of_stacks = separated(name);
    const OutputTensors wanted =
        converted(name + "-wanted", way.to, way.search, way.carries, single, importance);
    std::size_t n_compared = 0, n_parts = 0;
    for (const auto& [part, tensor] : wanted) {
      if (part.find("experts.") == part.npos || part.find("shared") != part.npos) continue;
      ASSERT_TRUE(of_stacks.contains(part)) << part;
      EXPECT_TRUE(of_stacks.at(part) == tensor) << part << " " << name;
      ++n_compared;
      if (part.find("weight_scale") != part.npos) ++n_parts;
    }
    EXPECT_GT(n_compared, 0U);
    EXPECT_GE(n_parts, 6U) << "experts are not quantized";
  }
}

TEST_P(StackedInputs, CountAndNameExpertsWithoutMoments) {
  const auto importance = write();
  Conversion run(source(), directory_ / "out");
  run.recipe.to = SchemeId::kMxfp4;
  run.recipe.choices.dialect = "compressed-tensors";
  run.recipe.choices.experts = GetParam().is_single ? ExpertChoice::kStacked : ExpertChoice::kKeep;
  run.recipe.choices.gptq = true;
  run.recipe.choices.importance = importance;
  run.recipe.allow.add("engine-refuses=*");
  const auto seen = as_written(
      std::make_shared<const formats::Checkpoint>(formats::Checkpoint::open(source(), {})),
      run.recipe, {});
  resolve(run.recipe, *seen);
  const Plan plan = plan_for(*seen, run.recipe);
  std::size_t n_stacks = 0, n_known = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.carries_errors) continue;
    const std::vector<const formats::StatisticTensor*> moments = moments_of(plan, planned);
    const bool is_down = role_of(plan.tensor_of(planned)) == formats::Role::kExpertsDown;
    EXPECT_EQ(std::ranges::count(moments, nullptr), is_down ? 1 : 0);
    EXPECT_TRUE(!is_down || moments.at(kWithoutMoments) == nullptr);
    ++n_stacks;
    n_known += is_down ? moments.size() - 1 : 0;
  }
  EXPECT_GT(n_stacks, 0U);
  EXPECT_EQ(plan.counts.carrying, n_stacks);
  // Gates and ups of a layer have one factor together.
  const FactorMemory memory = factor_memory(plan, 1);
  EXPECT_GT(memory.n_factors, n_known);
  EXPECT_EQ(memory.least, quantize::MomentsFactor::bytes_to_make(96));
}

INSTANTIATE_TEST_SUITE_P(Models, StackedInputs, ::testing::ValuesIn(kStored), [](const auto& of) {
  return fmt::format("{}{}", of.param.family, of.param.is_single ? "_single" : "");
});

}  // namespace
}  // namespace ingot::convert
