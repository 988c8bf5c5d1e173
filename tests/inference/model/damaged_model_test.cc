// Checkpoints that lack something, contradict their config or hold NaN: what is wrong is named.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/container/dtype.h"
#include "tests/convert/output_tensors.h"
#include "tests/inference/model/edited_copy.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {
namespace {

using formats::Json;

constexpr std::uint8_t kE4m3Nan = 0x7F;
constexpr std::uint16_t kBf16Nan = 0x7FC0;
constexpr std::uint32_t kF32Nan = 0x7FC00000;

class DamagedFamily : public ::testing::TestWithParam<const char*> {
 protected:
  DamagedFamily() {
    const std::filesystem::path from =
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/arch" / GetParam() / "checkpoint";
    whole_.config = read_text_file(from / "config.json", 1 << 20);
    for (auto& [name, tensor] : read_output(from)) {
      whole_.files["model.safetensors"].push_back(
          {.name = name,
           .dtype = std::string(formats::dtype_name(tensor.dtype)),
           .shape = tensor.shape,
           .data = tensor.bytes});
    }
  }

  [[nodiscard]] std::vector<TinyTensor>& tensors() { return whole_.files["model.safetensors"]; }

  /// Places of one tensor of every kind: of the experts the first and the last of a layer.
  [[nodiscard]] std::vector<std::size_t> places() {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < tensors().size(); ++i) {
      const std::string& name = tensors()[i].name;
      const bool is_expert = name.find(".experts.") != std::string::npos;
      if (!is_expert || name.find("layers.2.mlp.experts.0.") != std::string::npos ||
          name.find("layers.2.mlp.experts.7.") != std::string::npos) {
        places.push_back(i);
      }
    }
    return places;
  }

  void expect_refused(ErrorCode code, const std::string& name) {
    const TempDir directory;
    whole_.write(directory.path());
    expect_error(code, {name}, [&] { OpenedModel opened(directory.path()); });
  }

  TinyCheckpoint whole_;
};

TEST_P(DamagedFamily, LackingAnyTensorIsRefusedByName) {
  for (const std::size_t i : places()) {
    const TinyTensor removed = tensors()[i];
    tensors().erase(tensors().begin() + static_cast<std::ptrdiff_t>(i));
    expect_refused(ErrorCode::kMissingTensor, removed.name);
    tensors().insert(tensors().begin() + static_cast<std::ptrdiff_t>(i), removed);
  }
  EXPECT_GT(places().size(), 20U);
}

TEST_P(DamagedFamily, NamesATensorOfAnotherShape) {
  for (const std::size_t i : places()) {
    const TinyTensor before = tensors()[i];
    tensors()[i].shape[0] *= 2;
    tensors()[i].data += before.data;
    expect_refused(ErrorCode::kShapeMismatch, before.name);
    tensors()[i] = before;
  }
}

INSTANTIATE_TEST_SUITE_P(Arch, DamagedFamily,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "glm_moe_dsa",
                                           "qwen3_moe"),
                         [](const auto& suite) { return std::string(suite.param); });

class DamagedModel : public ::testing::Test {
 protected:
  DamagedModel()
      : copy_(INGOT_SOURCE_DIR "/examples/tiny-v32"),
        golden_(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors") {}

  /// What a forward pass over the first `n` tokens of a prompt of 185 says.
  void expect_step_fails(std::initializer_list<std::string> fragments, std::size_t n = 20) const {
    const OpenedModel opened(copy_.path());
    auto ids = golden_.integers("prompt4.input_ids");
    ids.resize(n);
    expect_error(ErrorCode::kNonFinite, fragments, [&] { run(opened.model, ids); });
  }
  void expect_open_fails(ErrorCode code, const std::string& name) const {
    expect_error(code, {name}, [&] { OpenedModel opened(copy_.path()); });
  }
  static std::string attention(std::size_t layer, const std::string& name) {
    return fmt::format("model.layers.{}.self_attn.{}", layer, name);
  }

  EditedCopy copy_;
  GoldenFile golden_;
};

TEST_F(DamagedModel, FindsNanInTheLatentProjection) {
  copy_.set(attention(2, "kv_a_proj_with_mqa.weight"), 5, kE4m3Nan);
  expect_step_fails({"layer 2", "the latent", "row 0"});
}

TEST_F(DamagedModel, FindsNanInTheRopeKeyProjection) {
  copy_.set(attention(4, "kv_a_proj_with_mqa.weight"), 143 * 256, kE4m3Nan);
  expect_step_fails({"layer 4", "the latent"});
}

TEST_F(DamagedModel, FindsNanInAQuery) {
  copy_.set(attention(3, "q_b_proj.weight"), 0, kE4m3Nan);
  expect_step_fails({"layer 3", "attention of row 0"});
}

TEST_F(DamagedModel, FindsNanInTheExpansion) {
  copy_.set(attention(1, "kv_b_proj.weight"), 40 * 128, kE4m3Nan);
  expect_step_fails({"layer 1", "attention of row 0"});
}

TEST_F(DamagedModel, FindsNanInTheOutputProjection) {
  copy_.set(attention(0, "o_proj.weight"), 0, kE4m3Nan);
  expect_step_fails({"layer 0", "the attention output"});
}

TEST_F(DamagedModel, FindsNanInTheIndexKeyProjection) {
  copy_.set(attention(1, "indexer.wk.weight"), 0, kE4m3Nan);
  expect_step_fails({"layer 1", "the index key"});
}

TEST_F(DamagedModel, FindsNanInIndexerQueriesThatChoose) {
  copy_.set(attention(1, "indexer.wq_b.weight"), 0, kE4m3Nan);
  expect_step_fails({"layer 1", "the indexer's query"}, 70);
  const EditedCopy other(INGOT_SOURCE_DIR "/examples/tiny-v32");
  other.set(attention(2, "indexer.weights_proj.weight"), 0, kBf16Nan);
  const OpenedModel opened(other.path());
  auto ids = golden_.integers("prompt4.input_ids");
  ids.resize(70);
  expect_error(ErrorCode::kNonFinite, {"layer 2", "the indexer's head weights"},
               [&] { run(opened.model, ids); });
}

TEST_F(DamagedModel, FindsNanInTheDenseMlp) {
  copy_.set("model.layers.0.mlp.up_proj.weight", 0, kE4m3Nan);
  expect_step_fails({"layer 0", "the MLP"});
}

TEST_F(DamagedModel, ANanInTheRouterIsFoundThere) {
  copy_.set("model.layers.2.mlp.gate.weight", 0, kBf16Nan);
  expect_step_fails({"layer 2", "the router"});
}

TEST_F(DamagedModel, FindsNanInAnExpertsRow) {
  const auto experts = golden_.integers("prompt4.experts.3");  // [tokens, 4]
  const std::int64_t expert = experts[8];                      // of the third token
  const auto first = std::ranges::find(experts, expert) - experts.begin();
  copy_.set(fmt::format("model.layers.3.mlp.experts.{}.down_proj.weight", expert), 0, kE4m3Nan);
  expect_step_fails({"layer 3", fmt::format("the mixture of experts of row {} ", first / 4)});
}

TEST_F(DamagedModel, FindsNanInTheSharedExpert) {
  copy_.set("model.layers.4.mlp.shared_experts.gate_proj.weight", 0, kE4m3Nan);
  expect_step_fails({"layer 4", "the mixture of experts"});
}

TEST_F(DamagedModel, ANanInTheHeadIsFoundThere) {
  copy_.set("lm_head.weight", 7, kBf16Nan);
  expect_step_fails({"the head of row 0"});
}

TEST_F(DamagedModel, FindsNanInATokensEmbedding) {
  const auto token = static_cast<std::size_t>(golden_.integers("prompt4.input_ids").at(3));
  copy_.set("model.embed_tokens.weight", token * 256, kBf16Nan);
  expect_step_fails({"layer 0", "the latent of row 3 "});
}

TEST_F(DamagedModel, FindsNanInNormsAndBiasesWhenOpened) {
  copy_.set("model.layers.2.input_layernorm.weight", 9, kBf16Nan);
  expect_open_fails(ErrorCode::kNonFinite, "model.layers.2.input_layernorm.weight");
  const EditedCopy other(INGOT_SOURCE_DIR "/examples/tiny-v32");
  other.set("model.layers.3.mlp.gate.e_score_correction_bias", 1, kF32Nan);
  expect_error(ErrorCode::kNonFinite, {"model.layers.3.mlp.gate.e_score_correction_bias"},
               [&] { OpenedModel opened(other.path()); });
}

TEST_F(DamagedModel, BadScalesAreFoundWhenItIsOpened) {
  for (const std::uint32_t bits : {kF32Nan, 0U, 0xBF800000U, 0x7F800000U}) {
    const EditedCopy copy(INGOT_SOURCE_DIR "/examples/tiny-v32");
    copy.set("model.layers.2.self_attn.o_proj.weight_scale_inv", 1, bits);
    expect_error(ErrorCode::kBadScale, {"model.layers.2.self_attn.o_proj.weight"},
                 [&] { OpenedModel opened(copy.path()); });
  }
}

// A finite scale that is far too large.
TEST_F(DamagedModel, ValuesThatOverflowAreFoundInTheirLayer) {
  copy_.set("model.layers.2.self_attn.o_proj.weight_scale_inv", 0, 0x7F000000U);
  expect_step_fails({"layer 2", "the attention output"});
}

TEST_F(DamagedModel, AnArchitectureWithoutAForwardPassIsRefused) {
  formats::Checkpoint source = shard::open_source(copy_.path(), {.open = {.family = "generic"}});
  expect_error(ErrorCode::kUnsupported,
               {"family generic", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2",
                "glm_moe_dsa", "qwen3_moe"},
               [&] { OpenedModel(std::move(source), f32_options()); });
}

TEST_F(DamagedModel, RefusesAPartialMtpLayer) {
  const std::filesystem::path from(INGOT_SOURCE_DIR "/examples/tiny-v32");
  TinyCheckpoint checkpoint;
  checkpoint.config = read_text_file(from / "config.json", 1 << 20);
  for (auto& [name, tensor] : read_output(from)) {
    if (name == "model.layers.5.eh_proj.weight") continue;
    checkpoint.files["model.safetensors"].push_back(
        {.name = name,
         .dtype = std::string(formats::dtype_name(tensor.dtype)),
         .shape = tensor.shape,
         .data = tensor.bytes});
  }
  const TempDir directory;
  checkpoint.write(directory.path());
  expect_error(ErrorCode::kMissingTensor, {"model.layers.5.eh_proj.weight"},
               [&] { OpenedModel opened(directory.path()); });
}

}  // namespace
}  // namespace ingot::testing
