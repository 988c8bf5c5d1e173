#include "inference/model/layer_stream.h"

#include "inference/generate/memory_plan.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"

namespace ingot::testing {
namespace {

using namespace inference;

using Tokens = std::vector<std::int64_t>;

constexpr const char* kExample = INGOT_SOURCE_DIR "/examples/tiny-v32";

std::vector<Row> rows_of(const std::vector<Tokens>& prompts) {
  std::vector<Row> rows;
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    for (std::size_t i = 0; i < prompts[s].size(); ++i) {
      rows.push_back({.sequence = static_cast<std::uint32_t>(s),
                      .position = static_cast<std::uint32_t>(i),
                      .token = static_cast<std::int32_t>(prompts[s][i])});
    }
  }
  return rows;
}

// Recorded prompts, one of them longer than the indexer's choice.
std::vector<Tokens> example_prompts() {
  const GoldenFile golden(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors");
  std::vector<Tokens> prompts = {golden.integers("prompt4.input_ids"),
                                 golden.integers("prompt0.input_ids"),
                                 golden.integers("prompt3.input_ids")};
  prompts[0].resize(80);
  return prompts;
}

/// Everything that a stream shows of some sequences.
struct Streamed {
  Recording recording;
  Matrix logits, mtp, mtp_logits;
  std::uint64_t bytes_read = 0;
};

Streamed stream(const formats::Checkpoint& source, const std::vector<Tokens>& prompts,
                const LayerStreamOptions& options) {
  LayerStream stream(source, options);
  const std::vector<Row> rows = rows_of(prompts);
  Streamed is;
  Matrix hidden = stream.embed(rows);
  is.recording.taps().hidden(0, hidden);
  for (std::size_t l = 0; l < stream.spec().n_main; ++l) {
    stream.layer(l, hidden, rows, is.recording.taps());
  }
  const Matrix normed = stream.final_norm(hidden);
  is.logits = stream.head(normed);
  if (stream.has_mtp()) {
    is.mtp = stream.mtp(normed, rows, is.recording.taps());
    is.mtp_logits = stream.head(is.mtp);
  }
  is.bytes_read = stream.bytes_read();
  return is;
}

LayerStreamOptions f32_stream(std::size_t threads = 1, std::uint64_t weight_limit = 0) {
  return {.profile = Profile::kF32, .threads = threads, .weight_limit = weight_limit};
}

std::uint64_t least_weights(const formats::Checkpoint& source, const std::vector<Tokens>& prompts) {
  std::vector<std::size_t> lengths;
  for (const Tokens& prompt : prompts) lengths.push_back(prompt.size());
  const auto need = inference::stream_memory(source, Profile::kF32, lengths, 1);
  return need.resident + need.two_experts;
}

TEST(LayerStream, ComputesWhatTheModelComputesBitForBit) {
  const auto prompts = example_prompts();
  const std::vector<Row> rows = rows_of(prompts);
  for (const Profile profile : {Profile::kF32, Profile::kNative}) {
    const OpenedModel opened(kExample, {.profile = profile, .form = AttentionForm::kNaive});
    const inference::Model& model = opened.model;
    const auto format =
        profile == Profile::kF32 ? inference::KvFormat::kF32 : inference::KvFormat::kBf16;
    inference::ModelCache cache = model.make_cache(format, 512);
    for (std::size_t i = 0; i < prompts.size(); ++i) cache.add();
    std::vector<Row> wanted_rows = rows;
    for (Row& row : wanted_rows) row.logits = true;
    Recording wanted;
    Matrix normed;
    const Matrix logits = model.step(wanted_rows, cache, wanted.taps(), &normed);
    const Matrix mtp = model.mtp(normed, rows, cache, wanted.taps());

    const Streamed is =
        stream(opened.source, prompts, {.profile = profile, .form = AttentionForm::kNaive});
    EXPECT_TRUE(same_bits(is.recording, wanted));  // the MTP layer's hidden state included
    EXPECT_EQ(is.recording.experts, wanted.experts);
    EXPECT_EQ(is.recording.selected, wanted.selected);
    EXPECT_GT(is.recording.n_selected, 0U);
    EXPECT_TRUE(same_bits(is.logits.values(), logits.values()));
    EXPECT_TRUE(same_bits(is.mtp.values(), mtp.values()));
    EXPECT_TRUE(same_bits(is.mtp_logits.values(), model.head(mtp).values()));
  }
}

TEST(LayerStream, IgnoresThreadsAndMemory) {
  const auto prompts = example_prompts();
  const formats::Checkpoint source = shard::open_source(kExample);
  const Streamed one = stream(source, prompts, f32_stream());
  const Streamed two = stream(source, prompts, f32_stream(2, least_weights(source, prompts)));
  EXPECT_TRUE(same_bits(two.recording, one.recording));
  EXPECT_TRUE(same_bits(two.logits.values(), one.logits.values()));
  EXPECT_TRUE(same_bits(two.mtp_logits.values(), one.mtp_logits.values()));
}

// Otherwise a model larger than memory would be read once per token.
TEST(LayerStream, ReadsEveryExpertOnceHoweverSmallTheMemory) {
  const auto prompts = example_prompts();
  const formats::Checkpoint source = shard::open_source(kExample);
  const Streamed roomy = stream(source, prompts, f32_stream());
  const Streamed tight = stream(source, prompts, f32_stream(1, least_weights(source, prompts)));
  std::uint64_t stored = 0, ends = 0;
  for (const formats::StoredTensor& tensor : source.stored()) {
    stored += tensor.n_bytes;
    if (tensor.name == "lm_head.weight" || tensor.name == "model.embed_tokens.weight") {
      ends += tensor.n_bytes;
    }
  }
  // Embedding and head are read for the MTP layer once more.
  EXPECT_LE(roomy.bytes_read, stored + ends + 4096);
  EXPECT_LE(tight.bytes_read, roomy.bytes_read);
}

TEST(LayerStream, RefusesALimitBelowALayer) {
  const auto prompts = example_prompts();
  const formats::Checkpoint source = shard::open_source(kExample);
  expect_error(ErrorCode::kLimit, {"would be enough"},
               [&] { stream(source, prompts, f32_stream(1, 1000)); });
}

class LayerStreamOfFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerStreamOfFamily, AgreesWithRecordedActivations) {
  const std::string root = std::string(INGOT_SOURCE_DIR "/tests/golden/") + GetParam();
  const formats::Checkpoint source = shard::open_source(root + "/checkpoint");
  const GoldenFile golden(root + "/golden.safetensors");
  const Streamed is = stream(source, {golden.integers("input_ids")}, f32_stream());
  for (std::size_t l = 0; golden.has("hidden." + std::to_string(l)); ++l) {
    EXPECT_LE(
        relative_error(is.recording.hidden.at(l), golden.floats("hidden." + std::to_string(l))),
        1e-5)
        << l;
  }
  EXPECT_LE(relative_error(is.logits.values(), golden.floats("logits")), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Families, LayerStreamOfFamily,
                         ::testing::Values("arch/qwen3_moe", "arch_variants/glm_shared_indexer",
                                           "arch_variants/qwen3_moe_tied"),
                         [](const auto& suite) {
                           return std::filesystem::path(suite.param).filename().string();
                         });

}  // namespace
}  // namespace ingot::testing
