#include "convert/plan/plan.h"

#include "formats/container/checkpoint_index.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using formats::SchemeId;
using namespace ingot::testing;

Recipe recipe_to(std::optional<SchemeId> to) {
  Recipe recipe;
  recipe.to = to;
  resolve(recipe, Checkpoint::open(tiny_v32()));
  return recipe;
}

class ExamplePlan : public ::testing::Test {
 protected:
  [[nodiscard]] Plan planned(std::optional<SchemeId> to = SchemeId::kBf16,
                             const PlanOptions& options = {}) const {
    return plan_for(source_, recipe_to(to), options);
  }
  Plan planned_by(std::initializer_list<const char*> rules) const {
    Recipe recipe;
    for (const char* rule : rules) recipe.rules.push_back(parse_rule(rule));
    resolve(recipe, source_);
    return plan_for(source_, recipe);
  }

  const Checkpoint source_ = Checkpoint::open(tiny_v32());
};

TEST_F(ExamplePlan, CastsExactlyTheQuantizedTensors) {
  const Plan plan = planned();
  EXPECT_EQ(plan.tensors.size(), 361U);
  EXPECT_EQ(plan.counts.dropped, 0U);
  for (const PlannedTensor& planned : plan.tensors) {
    const bool quantized = source_.tensors()[planned.tensor].encoding.scheme == SchemeId::kFp8Block;
    EXPECT_EQ(planned.action, quantized ? Action::kCast : Action::kCopy);
  }
  EXPECT_EQ(plan.counts.cast + plan.counts.copied, 361U);
}

TEST_F(ExamplePlan, PartsFillFilesInOrderWithoutHoles) {
  for (const auto to : {std::optional<SchemeId>(SchemeId::kBf16), std::optional<SchemeId>()}) {
    const Plan plan = planned(to);
    for (std::size_t f = 0; f < plan.files.size(); ++f) {
      const PlannedFile& file = plan.files[f];
      std::uint64_t next = file.header_bytes;
      for (std::size_t i = 0; i < file.parts.size(); ++i) {
        const auto& [item, part, place] = file.parts[i];
        const PlannedPart& planned = plan.tensors[item].parts[part];
        ASSERT_EQ(planned.n_places, 1U);
        EXPECT_EQ(planned.first_place, place);
        EXPECT_EQ(plan.places[place].file, f);
        EXPECT_EQ(plan.places[place].offset, next);
        next += planned.n_bytes;
        if (i == 0) continue;
        const auto& [before, before_part, unused] = file.parts[i - 1];
        EXPECT_TRUE(formats::writes_before(plan.tensors[before].parts[before_part].dtype,
                                           plan.part_name(plan.tensors[before], before_part),
                                           planned.dtype,
                                           plan.part_name(plan.tensors[item], part)));
      }
      EXPECT_EQ(next, file.n_bytes);
      // Our own reader accepts the derived header, byte for byte in agreement with the plan.
      const std::string header = plan.header(f);
      const auto parsed = formats::parse_safetensors_header(std::as_bytes(std::span(header)),
                                                            file.n_bytes, file.name);
      ASSERT_EQ(parsed.tensors.size(), file.parts.size());
      for (std::size_t i = 0; i < file.parts.size(); ++i) {
        const auto& [item, part, place] = file.parts[i];
        EXPECT_EQ(parsed.tensors[i].offset, plan.places[place].offset);
        EXPECT_EQ(parsed.tensors[i].n_bytes, plan.tensors[item].parts[part].n_bytes);
      }
    }
  }
}

TEST_F(ExamplePlan, KeepsTheFilesOfTheSourceByDefault) {
  const Plan plan = planned();
  ASSERT_EQ(plan.files.size(), source_.files().size());
  for (const PlannedTensor& planned : plan.tensors) {
    const auto& stored =
        source_.stored()[source_.tensors()[planned.tensor].encoding.stored.weight()];
    EXPECT_EQ(plan.files[plan.first_place(planned.parts[0]).file].name,
              source_.files()[stored.file].name);
  }
}

TEST_F(ExamplePlan, ShardsByTheHubsRule) {
  const std::uint64_t limit = 2'000'000;
  const Plan plan = planned(SchemeId::kBf16, {.shards = {.max_shard_bytes = limit}});
  ASSERT_GT(plan.files.size(), 5U);
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    EXPECT_EQ(plan.files[f].name, formats::shard_file_name(f + 1, plan.files.size()));
    const std::uint64_t data = plan.files[f].n_bytes - plan.files[f].header_bytes;
    EXPECT_TRUE(data <= limit || plan.files[f].parts.size() == 1);
  }
  EXPECT_FALSE(plan.json.index.empty());
}

TEST_F(ExamplePlan, OneFileNeedsNoIndex) {
  const Plan plan = planned(SchemeId::kBf16, {.shards = {.max_shard_bytes = 1ULL << 40}});
  ASSERT_EQ(plan.files.size(), 1U);
  EXPECT_EQ(plan.files[0].name, "model.safetensors");
  EXPECT_TRUE(plan.json.index.empty());
}

TEST_F(ExamplePlan, PartsOfATensorStayInOneShard) {
  const Plan plan = planned(std::nullopt, {.shards = {.max_shard_bytes = 500'000}});
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.n_parts == 2) {
      EXPECT_EQ(plan.first_place(planned.parts[0]).file, plan.first_place(planned.parts[1]).file);
    }
  }
}

TEST_F(ExamplePlan, IsAPureFunctionOfItsInput) {
  const Checkpoint one = Checkpoint::open(tiny_v32(), {.threads = 1});
  const Checkpoint two = Checkpoint::open(tiny_v32(), {.threads = 4});
  EXPECT_EQ(plan_hash(plan_for(one, recipe_to(SchemeId::kBf16))),
            plan_hash(plan_for(two, recipe_to(SchemeId::kBf16))));
  EXPECT_NE(plan_hash(plan_for(one, recipe_to(SchemeId::kBf16))),
            plan_hash(plan_for(one, recipe_to(std::nullopt))));
}

TEST_F(ExamplePlan, WritesAreSequentialPerFile) {
  const Plan plan = planned();
  for (std::size_t i = 1; i < plan.tensors.size(); ++i) {
    const PlannedPlace& before = plan.first_place(plan.tensors[i - 1].parts[0]);
    const PlannedPlace& here = plan.first_place(plan.tensors[i].parts[0]);
    EXPECT_LT(std::pair(before.file, before.offset), std::pair(here.file, here.offset));
  }
}

TEST_F(ExamplePlan, RefusesAllUncomputableSchemesTogether) {
  expect_error(ErrorCode::kUnsupported,
               {"nvfp4 needs a matrix", "fp8-block needs a matrix", "model.norm.weight"}, [&] {
                 planned_by({"model.norm.weight=nvfp4",
                             "model.layers.0.self_attn.indexer.k_norm.weight=fp8-block"});
               });
}

TEST(OddTensors, AreRefusedWhereARuleAsksForNumbers) {
  const TempDir dir;
  TinyCheckpoint{
      .config = R"({"model_type": "other", "num_hidden_layers": 1})",
      .files = {{"model.safetensors",
                 {{"layer.ids", "I64", {8, 8}}, {"layer.proj.weight", "BF16", {4, 12}}}}},
      .weight_map = {}}
      .write(dir / "model");
  const Checkpoint source = Checkpoint::open(dir / "model", {.family = "generic"});
  const auto refused = [&](Recipe recipe, std::string_view words) {
    resolve(recipe, source);
    expect_error(ErrorCode::kUnsupported, words, [&] { plan_for(source, recipe); });
  };
  refused({.rules = {parse_rule("layer.ids=bf16")}}, "layer.ids...cannot convert raw to bf16");
  refused({.rules = {parse_rule("layer.proj.weight=int4")}, .choices = {.group_size = 0}},
          "layer.proj.weight...packs 8 columns into a word, and 12 are no multiple");
}

TEST_F(ExamplePlan, ARuleThatMatchesNothingIsAnError) {
  expect_error(ErrorCode::kInvalidArgument, {"model.layers.99.*"},
               [&] { planned_by({"model.layers.99.*=bf16"}); });
}

TEST_F(ExamplePlan, ASchemeThatNoTensorTakesIsAnError) {
  for (const SchemeId to : {SchemeId::kNvfp4, SchemeId::kFp8Block}) {
    Recipe recipe;
    recipe.to = to;
    recipe.rules.push_back(parse_rule("*=bf16"));
    resolve(recipe, source_);
    expect_error(ErrorCode::kInvalidArgument, {"--to", "no weight takes it"},
                 [&] { static_cast<void>(plan_for(source_, recipe)); });
  }
}

TEST_F(ExamplePlan, TensorsThatHaveTheSchemeAlreadyTakeIt) {
  EXPECT_TRUE(planned(SchemeId::kFp8Block).is_copy());
  const Checkpoint plain =
      Checkpoint::open(std::string(INGOT_SOURCE_DIR) + "/tests/golden/arch/qwen3_moe/checkpoint");
  Recipe recipe;
  recipe.to = SchemeId::kBf16;
  resolve(recipe, plain);
  EXPECT_TRUE(plan_for(plain, recipe).is_copy());
}

TEST(PlainTargets, OfNoFamilyTakeEveryTensorOfNoMoreBits) {
  const Checkpoint plain =
      Checkpoint::open(std::string(INGOT_SOURCE_DIR) + "/tests/golden/arch/qwen3_moe/checkpoint",
                       {.family = "generic"});
  const auto to = [&](SchemeId scheme) {
    Recipe recipe;
    recipe.to = scheme;
    resolve(recipe, plain);
    return plan_for(plain, recipe).counts.cast;
  };
  EXPECT_EQ(to(SchemeId::kF16), plain.tensors().size());
  EXPECT_EQ(to(SchemeId::kF32), plain.tensors().size());
  EXPECT_EQ(to(SchemeId::kBf16), 0U);
}

TEST_F(ExamplePlan, ConfigNamesQuantizedTensorsMadePlain) {
  const Plan plan = planned_by({"model.layers.0.self_attn.o_proj.weight=bf16"});
  EXPECT_EQ(plan.counts.cast, 1U);
  const auto config = formats::parse_json(plan.json.config, "config.json");
  EXPECT_THAT(config.at("quantization_config").at("modules_to_not_convert").dump(),
              ::testing::HasSubstr("model.layers.0.self_attn.o_proj"));
}

TEST_F(ExamplePlan, DroppedTensorsTakeNoRoom) {
  Recipe recipe = recipe_to(SchemeId::kBf16);
  const Plan whole = plan_for(source_, recipe);
  recipe.mtp = MtpPolicy::kDrop;
  const Plan dropped = plan_for(source_, recipe);
  EXPECT_GT(dropped.counts.dropped, 0U);
  EXPECT_LT(dropped.sizes.bytes_out, whole.sizes.bytes_out);
  EXPECT_EQ(dropped.tensors.size(), whole.tensors.size());
}

// transformers makes a layer of it before it ties it, and would look for its scales.
TEST(PlainLayers, NameTheHeadOfATiedModel) {
  const Checkpoint source =
      Checkpoint::open(std::filesystem::path(INGOT_SOURCE_DIR) /
                       "tests/golden/arch_variants/qwen3_moe_tied/checkpoint");
  for (const char* dialect : {"compressed-tensors", "modelopt"}) {
    Recipe recipe;
    recipe.to = SchemeId::kFp8Channel;
    recipe.choices.dialect = dialect;
    recipe.allow.engine_refuses.emplace_back("*");
    resolve(recipe, source);
    const auto block = formats::parse_json(plan_for(source, recipe).json.config,
                                           "config.json")["quantization_config"];
    EXPECT_THAT(block["ignore"].get<std::vector<std::string>>(), ::testing::Contains("lm_head"))
        << dialect;
  }
}

}  // namespace
}  // namespace ingot::convert
