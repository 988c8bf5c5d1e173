// Checkpoints that lack something, contradict their config or hold NaN: the error names the fault.

#include <regex>

#include "formats/container/dtype.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {

using formats::Json;
using namespace inference;

namespace {

constexpr std::uint32_t kE4m3Nan = 0x7F, kBf16Nan = 0x7FC0, kF32Nan = 0x7FC00000;

class DamagedFamily : public ::testing::TestWithParam<const char*> {
 protected:
  DamagedFamily() {
    std::filesystem::path from =
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden" / GetParam();
    const TempDir plain;
    if (from.filename() != "checkpoint") {  // quantized
      Conversion(from, plain / "plain").run();
      from = plain / "plain";
    }
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
      // These kinds are not read.
      if (name.starts_with("mtp.") || name.starts_with("model.visual.")) continue;
      if (!is_expert || name.find("layers.2.mlp.experts.0.") != std::string::npos ||
          name.find("layers.2.mlp.experts.7.") != std::string::npos ||
          name.find("layers.2.ffn.experts.4.") != std::string::npos) {
        places.push_back(i);
      }
    }
    return places;
  }

  /// Every third of them; in families with the same kinds of layers, others.
  [[nodiscard]] std::vector<std::size_t> few_places() {
    const std::vector<std::size_t> all = places();
    EXPECT_GT(all.size(), 20U);
    std::vector<std::size_t> few;
    for (std::size_t i = std::string_view(GetParam()).size() % 3; i < all.size(); i += 3)
      few.push_back(all[i]);
    return few;
  }

  void expect_each_needed(const std::vector<std::size_t>& places) {
    for (const std::size_t i : places) {
      const auto at = tensors().begin() + static_cast<std::ptrdiff_t>(i);
      const TinyTensor removed = *at;
      tensors().erase(at);
      expect_refused(ErrorCode::kMissingTensor, removed.name);
      tensors().insert(tensors().begin() + static_cast<std::ptrdiff_t>(i), removed);
    }
  }

  void expect_each_shape_checked(const std::vector<std::size_t>& places) {
    for (const std::size_t i : places) {
      const TinyTensor before = tensors()[i];
      tensors()[i].shape[0] *= 2;
      tensors()[i].data += before.data;
      expect_refused(ErrorCode::kShapeMismatch, before.name);
      tensors()[i] = before;
    }
  }

  void expect_refused(ErrorCode code, std::string name) {
    SCOPED_TRACE(name);
    // Those of a nested text model are named without it.
    if (const std::size_t at = name.find("language_model."); at != std::string::npos)
      name.erase(at, std::string_view("language_model.").size());
    const TempDir directory;
    whole_.write(directory.path());
    expect_error(code, {name}, [&] { OpenedModel opened(directory.path()); });
  }

  TinyCheckpoint whole_;
};

TEST_P(DamagedFamily, LackingAnyTensorIsRefusedByName) {
  expect_each_needed(few_places());
}

TEST_P(DamagedFamily, NamesATensorOfAnotherShape) {
  expect_each_shape_checked(few_places());
}

class SlowDamagedFamily : public DamagedFamily {};

TEST_P(SlowDamagedFamily, LackingAnyTensorIsRefusedByName) {
  expect_each_needed(places());
}

TEST_P(SlowDamagedFamily, NamesATensorOfAnotherShape) {
  expect_each_shape_checked(places());
}

const auto kFamilies = ::testing::Values(
    "arch/deepseek_v2/checkpoint", "arch/deepseek_v3/checkpoint", "arch/glm_moe_dsa/checkpoint",
    "arch/qwen3_moe/checkpoint", "families/deepseek_v4", "forward/qwen3_next/checkpoint",
    "forward/kimi_linear/checkpoint", "forward/bailing_hybrid/checkpoint",
    "forward/nemotron_h/checkpoint", "forward/glm5_next/checkpoint");

std::string family_name(const ::testing::TestParamInfo<const char*>& suite) {
  const std::filesystem::path path = suite.param;
  return path.filename() == "checkpoint" ? path.parent_path().filename().string()
                                         : path.filename().string();
}

INSTANTIATE_TEST_SUITE_P(Arch, DamagedFamily, kFamilies, family_name);
INSTANTIATE_TEST_SUITE_P(Arch, SlowDamagedFamily, kFamilies, family_name);

class DamagedModel : public ::testing::Test {
 protected:
  DamagedModel()
      : copy_(INGOT_SOURCE_DIR "/examples/tiny-v32"),
        golden_(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors") {}

  /// A number of 1, 2 or 4 bytes, as its bits tell.
  void set(const std::string& tensor, std::size_t index, std::uint32_t bits, std::size_t n) const {
    if (n == 1) copy_.set(tensor, index, static_cast<std::uint8_t>(bits));
    if (n == 2) copy_.set(tensor, index, static_cast<std::uint16_t>(bits));
    if (n == 4) copy_.set(tensor, index, bits);
  }
  /// Expects the error of a forward pass over the first `n` tokens of a prompt of 185.
  void expect_step_fails(std::string_view words, std::size_t n = 20) const {
    const OpenedModel opened(copy_.path());
    auto ids = golden_.integers("prompt4.input_ids");
    ids.resize(n);
    expect_error(ErrorCode::kNonFinite, words, [&] { run(opened.model, ids); });
  }

  EditedCopy copy_;
  GoldenFile golden_;
};

/// A number in a weight, and the error of the forward pass, or of opening the model.
struct BadNumber {
  const char* name;
  std::string tensor;
  std::size_t index, n_bytes;
  std::uint32_t bits;
  const char* words;
  std::size_t n_tokens = 20;  ///< 0: found when it is opened
  ErrorCode code = ErrorCode::kNonFinite;
};

class DamagedWeight : public DamagedModel, public ::testing::WithParamInterface<BadNumber> {};

TEST_P(DamagedWeight, IsFoundWhereItsNumberShows) {
  const BadNumber& bad = GetParam();
  set(bad.tensor, bad.index, bad.bits, bad.n_bytes);
  if (bad.n_tokens > 0) {
    expect_step_fails(bad.words, bad.n_tokens);
  } else {
    expect_error(bad.code, bad.words, [&] { OpenedModel opened(copy_.path()); });
  }
}

const std::string kLayer = "model.layers.";
const std::string kOScale = kLayer + "2.self_attn.o_proj.weight_scale_inv";
const std::string kInputNorm = kLayer + "2.input_layernorm.weight";
const std::string kGateBias = kLayer + "3.mlp.gate.e_score_correction_bias";

const std::vector<BadNumber> kBadNumbers = {
    {"latent", kLayer + "2.self_attn.kv_a_proj_with_mqa.weight", 5, 1, kE4m3Nan,
     "layer 2...the latent of row 0"},
    {"rope_key", kLayer + "4.self_attn.kv_a_proj_with_mqa.weight", 143 * 256, 1, kE4m3Nan,
     "layer 4...the latent"},
    {"query", kLayer + "3.self_attn.q_b_proj.weight", 0, 1, kE4m3Nan,
     "layer 3...attention of row 0"},
    {"expansion", kLayer + "1.self_attn.kv_b_proj.weight", 40 * 128, 1, kE4m3Nan,
     "layer 1...attention of row 0"},
    {"output", kLayer + "0.self_attn.o_proj.weight", 0, 1, kE4m3Nan,
     "layer 0...the attention output"},
    {"index_key", kLayer + "1.self_attn.indexer.wk.weight", 0, 1, kE4m3Nan,
     "layer 1...the index key"},
    {"index_query", kLayer + "1.self_attn.indexer.wq_b.weight", 0, 1, kE4m3Nan,
     "layer 1...the indexer's query", 70},
    {"index_heads", kLayer + "2.self_attn.indexer.weights_proj.weight", 0, 2, kBf16Nan,
     "layer 2...the indexer's head weights", 70},
    {"dense_mlp", kLayer + "0.mlp.up_proj.weight", 0, 1, kE4m3Nan, "layer 0...the MLP"},
    {"router", kLayer + "2.mlp.gate.weight", 0, 2, kBf16Nan, "layer 2...the router"},
    {"shared_expert", kLayer + "4.mlp.shared_experts.gate_proj.weight", 0, 1, kE4m3Nan,
     "layer 4...the mixture of experts"},
    {"head", "lm_head.weight", 7, 2, kBf16Nan, "the head of row 0"},
    {"finite_scale_that_overflows", kOScale, 0, 4, 0x7F000000, "layer 2...the attention output"},
    {"norm", kInputNorm, 9, 2, kBf16Nan, "model.layers.2.input_layernorm.weight", 0},
    {"bias_of_router", kGateBias, 1, 4, kF32Nan, "model.layers.3.mlp.gate.e_score_correct", 0},
    {"scale_nan", kOScale, 1, 4, kF32Nan, "2.self_attn.o_proj.weight", 0, ErrorCode::kBadScale},
    {"scale_zero", kOScale, 1, 4, 0, "2.self_attn.o_proj.weight", 0, ErrorCode::kBadScale},
    {"scale_negative", kOScale, 1, 4, 0xBF800000, "2.self_attn.o_proj.weight", 0,
     ErrorCode::kBadScale},
    {"scale_infinite", kOScale, 1, 4, 0x7F800000, "2.self_attn.o_proj.weight", 0,
     ErrorCode::kBadScale},
};

INSTANTIATE_TEST_SUITE_P(Places, DamagedWeight, ::testing::ValuesIn(kBadNumbers), kNameOfRow);

TEST_F(DamagedModel, FindsNanInAnExpertsRow) {
  const auto experts = golden_.integers("prompt4.experts.3");  // [tokens, 4]
  const std::int64_t expert = experts[8];                      // of the third token
  const auto first = std::ranges::find(experts, expert) - experts.begin();
  set(fmt::format("model.layers.3.mlp.experts.{}.down_proj.weight", expert), 0, kE4m3Nan, 1);
  expect_step_fails(fmt::format("layer 3...the mixture of experts of row {} ", first / 4));
}

TEST_F(DamagedModel, FindsNanInATokensEmbedding) {
  const auto token = static_cast<std::size_t>(golden_.integers("prompt4.input_ids").at(3));
  set("model.embed_tokens.weight", token * 256, kBf16Nan, 2);
  expect_step_fails("layer 0...the latent of row 3 ");
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

// Steps that make no sense, and limits: an error that says so, and nothing else changed.

namespace {

class BadStep : public ::testing::Test {
 protected:
  BadStep()
      : opened_(INGOT_SOURCE_DIR "/examples/tiny-v32"),
        cache_(opened_.model.make_cache(KvFormat::kF32, 192)),
        a_(cache_.add()),
        b_(cache_.add()) {
    opened_.model.step(rows(a_, 0, 5), cache_);
  }

  static std::vector<Row> rows(SequenceId sequence, std::uint32_t first, std::uint32_t n) {
    std::vector<Row> rows;
    for (std::uint32_t i = first; i < first + n; ++i) {
      rows.push_back({.sequence = sequence,
                      .position = i,
                      .token = static_cast<std::int32_t>(10 + i),
                      .logits = true});
    }
    return rows;
  }
  static std::vector<Row> joined(std::vector<Row> first, const std::vector<Row>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  /// The step fails so, and both sequences are as long as before.
  void expect_refused(ErrorCode code, std::initializer_list<std::string> fragments,
                      const std::vector<Row>& step) {
    expect_error(code, fragments, [&] { opened_.model.step(step, cache_); });
    EXPECT_EQ(cache_.main().length(a_), 5U);
    EXPECT_EQ(cache_.main().length(b_), 0U);
  }

  OpenedModel opened_;
  ModelCache cache_;
  SequenceId a_, b_;
};

TEST_F(BadStep, TokensOutsideTheVocabularyAreRefused) {
  for (const std::int32_t token : {-1, 2048, 2'000'000'000}) {
    std::vector<Row> step = joined(rows(a_, 5, 3), rows(b_, 0, 2));
    step[4].token = token;
    expect_refused(ErrorCode::kInvalidArgument, {std::to_string(token), "2048"}, step);
    EXPECT_THROW(static_cast<void>(opened_.model.embed(step)), Error);
    const Matrix states(2, opened_.model.spec().hidden);
    expect_error(ErrorCode::kInvalidArgument, {std::to_string(token)}, [&] {
      static_cast<void>(opened_.model.mtp(states, std::span(step).last(2), cache_));
    });
    EXPECT_EQ(cache_.mtp().length(b_), 0U);
  }
}

TEST_F(BadStep, PositionsWithGapsAreRefused) {
  expect_refused(ErrorCode::kInvalidArgument, {"position 6", "5 tokens"}, rows(a_, 6, 1));
  expect_refused(ErrorCode::kInvalidArgument, {"position 1", "0 tokens"}, rows(b_, 1, 3));
  expect_refused(ErrorCode::kInvalidArgument, {"row 2", "position 8", "after 6"},
                 joined(rows(a_, 5, 2), rows(a_, 8, 1)));
  expect_refused(ErrorCode::kInvalidArgument, {"row 2", "position 6", "after 6"},
                 joined(rows(a_, 5, 2), rows(a_, 6, 1)));
  std::vector<Row> backwards = rows(a_, 5, 2);
  std::swap(backwards[0], backwards[1]);
  expect_refused(ErrorCode::kInvalidArgument, {"row 1"}, backwards);
  std::vector<Row> last = rows(b_, 0, 1);
  last[0].position = 4294967295U;
  expect_refused(ErrorCode::kInvalidArgument, {"position 4294967295"}, last);
}

// A good sequence next to a bad one stays as it was, too.
TEST_F(BadStep, NothingIsReservedForTheOthers) {
  expect_refused(ErrorCode::kInvalidArgument, {"position 2", "0 tokens"},
                 joined(rows(a_, 5, 10), rows(b_, 2, 1)));
  expect_refused(ErrorCode::kLimit, {"no room"}, joined(rows(a_, 5, 10), rows(b_, 0, 180)));
}

TEST_F(BadStep, ASequenceInTwoPlacesIsRefused) {
  expect_refused(ErrorCode::kInvalidArgument, {"not adjacent"},
                 joined(joined(rows(a_, 5, 1), rows(b_, 0, 1)), rows(a_, 6, 1)));
}

TEST_F(BadStep, RefusesPromptsBeyondTheCapacity) {
  expect_refused(ErrorCode::kLimit, {"no room for 200 tokens"}, rows(b_, 0, 200));
  EXPECT_EQ(opened_.model.step(rows(b_, 0, 20), cache_).rows(), 20U);
}

/// The first number that follows these words.
std::uint64_t number_after(const std::string& text, const std::string& words) {
  std::smatch found;
  if (!std::regex_search(text, found, std::regex(words + "([0-9]+)"))) return 0;
  return std::stoull(found[1]);
}

TEST(WeightLimit, TooSmallBudgetSaysWhatIsEnough) {
  inference::ModelOptions options = f32_options();
  options.weight_limit = 1000;
  std::string message;
  try {
    OpenedModel opened(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
    FAIL() << "opened in 1000 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLimit);
    message = error.what();
  }
  const std::uint64_t enough = number_after(message, "take [0-9]+: ");
  const std::uint64_t all = number_after(message, "would be enough, ");
  ASSERT_GT(enough, 1000U) << message;
  ASSERT_GT(all, enough) << message;

  options.weight_limit = enough - 1;
  expect_error(ErrorCode::kLimit, {std::to_string(enough)},
               [&] { OpenedModel opened(INGOT_SOURCE_DIR "/examples/tiny-v32", options); });
  const auto ids = GoldenFile(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors")
                       .integers("prompt0.input_ids");
  const Recording wanted = run(OpenedModel(INGOT_SOURCE_DIR "/examples/tiny-v32").model, ids);
  options.weight_limit = enough;
  const OpenedModel least(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
  EXPECT_TRUE(same_bits(run(least.model, ids), wanted));
  EXPECT_GT(least.model.expert_counters().reads, 0U);
  options.weight_limit = all;
  const OpenedModel resident(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
  EXPECT_TRUE(same_bits(run(resident.model, ids), wanted));
  EXPECT_EQ(resident.model.expert_counters().misses, 0U);
}

}  // namespace

}  // namespace ingot::testing
