#include "formats/family/family_check.h"
#include "formats/json/json.h"
#include "inference/generate/generate.h"
#include "inference/model/layer_stream.h"
#include "inference/parallel/thread_comm.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Small checkpoints of whole families in FP32 against recordings of Hugging Face transformers
// (tests/golden/PROVENANCE.md).

namespace ingot::testing {
namespace {

using namespace inference;
using inference::Matrix;

/// Relative. transformers' run in FP64 differs by at most 1e-5, of two by 2e-5 and 4e-5.
double tolerance_of(const std::string& family) {
  return family == "qwen3_5_text" || family == "qwen3_next_dense" ? 1e-4 : 1e-5;
}

/// The most that BF16 costs; more where transformers loses over 0.2 too, or errors grow by layer.
double rounding_of(const std::string& family) {
  // Three passes through a loop choose experts that often.
  if (family == "inkling2_loop") return 0.6;
  const std::set<std::string> rough = {"phimoe",     "gemma4", "hy_v4_vl", "qwen3_5_text",
                                       "sarvam_mla", "axk2",   "zaya",     "qwen3_next_dense"};
  if (family == "muse_spark") return 0.5;
  return rough.contains(family) ? 0.4 : 0.2;
}

/// Every folder with a recording is a row.
const std::vector<std::string> kRecordedFamilies = [] {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(INGOT_SOURCE_DIR "/tests/golden/forward")) {
    if (std::filesystem::exists(entry.path() / "golden.safetensors"))
      names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}();

/// A small checkpoint in the layout of a release, and its recordings.
std::filesystem::path fixture(const std::string& name) {
  const std::filesystem::path golden = std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden";
  const std::filesystem::path own = golden / "forward" / name / "checkpoint";
  return std::filesystem::exists(own) ? own : golden / "families" / name;
}

GoldenFile golden_of(const std::string& name) {
  return GoldenFile(std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/forward" / name /
                    "golden.safetensors");
}

std::vector<std::int64_t> golden_ids(const std::string& name) {
  return golden_of(name).integers("input_ids");
}

class FamilyForward : public ::testing::TestWithParam<std::string> {
 protected:
  OpenedModel opened_{fixture(GetParam())};
  GoldenFile golden_ = golden_of(GetParam());
  std::vector<std::int64_t> ids_ = golden_.integers("input_ids");

  [[nodiscard]] const inference::Model& model() const { return opened_.model; }
};

// Rows of a recording that the golden has.
std::vector<float> rows_of(const std::vector<float>& all, std::size_t n_rows,
                           const std::vector<std::int64_t>& rows) {
  const std::size_t width = all.size() / n_rows;
  std::vector<float> some;
  for (const std::int64_t row : rows) {
    const auto from = all.begin() + row * static_cast<std::ptrdiff_t>(width);
    some.insert(some.end(), from, from + static_cast<std::ptrdiff_t>(width));
  }
  return some;
}

TEST_P(FamilyForward, EveryLayerAndTheLogitsAgree) {
  const Recording is = run(model(), ids_);
  std::vector<std::int64_t> rows;
  if (golden_.has("positions")) {
    rows = golden_.integers("positions");
  } else {
    for (std::size_t i = 0; i < ids_.size(); ++i) rows.push_back(static_cast<std::int64_t>(i));
  }
  const std::size_t n_streams = model().spec().ends.hyper ? model().spec().ends.hyper->streams : 1;
  for (std::size_t l = 0; l <= model().spec().n_main; ++l) {
    const std::vector<float> hidden = rows_of(is.hidden.at(l), ids_.size(), rows);
    const std::vector<float> golden = golden_.floats(fmt::format("hidden.{}", l));
    std::vector<float> wanted;
    if (golden.size() * n_streams == hidden.size() && l == 0) {
      // Every stream begins as the embedding, or is made of it and only the first one recorded.
      if (n_streams > 1 && model().spec().ends.hyper->active) continue;
      for (std::size_t at = 0; at < golden.size(); at += model().spec().hidden) {
        for (std::size_t s = 0; s < n_streams; ++s) {
          const auto from = golden.begin() + static_cast<std::ptrdiff_t>(at);
          wanted.insert(wanted.end(), from,
                        from + static_cast<std::ptrdiff_t>(model().spec().hidden));
        }
      }
    } else {
      wanted = golden;
    }
    // A factor that is no part of the embedding comes behind what was recorded.
    const EndsSpec& ends = model().spec().ends;
    if (l == 0 && !ends.rounds_embedding_factor)
      for (float& value : wanted) value *= ends.embedding_factor;
    const double error = relative_error(hidden, wanted);
    EXPECT_LE(error, tolerance_of(GetParam())) << "hidden " << l;
    RecordProperty(fmt::format("hidden_{}", l), fmt::format("{:.2e}", error));
  }
  const double error =
      relative_error(rows_of(is.logits, ids_.size(), rows), golden_.floats("logits"));
  EXPECT_LE(error, tolerance_of(GetParam()));
  RecordProperty("logits", fmt::format("{:.2e}", error));
}

TEST_P(FamilyForward, RolesTellWeightsApart) {
  const formats::RoleSet unread = {formats::Role::kOther, formats::Role::kOtherModality,
                                   formats::Role::kRotary, formats::Role::kLookupTable};
  std::set<WeightPlace> places;
  for (const formats::LogicalTensor& tensor : opened_.source.tensors()) {
    ASSERT_NE(tensor.rule, nullptr) << tensor.name;
    const formats::TensorRule& rule = *tensor.rule;
    const bool is_read = rule.fine || !unread.has(rule.role);
    if (!is_read || (tensor.layer && *tensor.layer >= model().spec().layers.size())) continue;
    // One of each head.
    if (!formats::key_mark(rule.pattern).empty()) continue;
    const WeightRole role = rule.fine ? WeightRole(*rule.fine) : WeightRole(rule.role);
    EXPECT_TRUE(places.insert({role, tensor.layer, tensor.expert, rule.block}).second)
        << tensor.name;
  }
}

TEST_P(FamilyForward, GreedyTokensAgree) {
  const std::vector<std::int64_t> wanted = golden_.integers("greedy");
  ModelCache cache = model().make_cache(KvFormat::kF32, ids_.size() + wanted.size());
  const SequenceId sequence = cache.add();
  std::vector<std::int64_t> tokens = ids_;
  for (const std::int64_t token : wanted) {
    Recording step;
    feed(model(), cache, sequence, tokens, SIZE_MAX / 2, step);
    const std::size_t vocab = model().spec().vocab;
    const auto last = step.logits.end() - static_cast<std::ptrdiff_t>(vocab);
    ASSERT_EQ(std::max_element(last, step.logits.end()) - last, token)
        << "after " << tokens.size() << " tokens";
    tokens.push_back(token);
  }
}

TEST_P(FamilyForward, BitsDependOnNeitherChunksNorThreadsNorBatch) {
  const Recording whole = run(model(), ids_);
  for (const std::size_t chunk : {1U, 7U, 50U}) {
    const Recording pieces = run(model(), ids_, chunk);
    EXPECT_EQ(pieces.logits, whole.logits) << "chunks of " << chunk;
  }
  const OpenedModel threaded(fixture(GetParam()), f32_options(AttentionForm::kAuto, 4));
  EXPECT_EQ(run(threaded.model, ids_).logits, whole.logits);
  // Next to a sequence that is elsewhere.
  ModelCache cache = model().make_cache(KvFormat::kF32, 2 * ids_.size() + 64);
  const SequenceId first = cache.add(), second = cache.add();
  Recording other;
  feed(model(), cache, first, std::span(ids_).first(5), SIZE_MAX / 2, other);
  std::vector<Row> rows;
  for (std::size_t i = 5; i < 9; ++i) {
    rows.push_back({.sequence = first,
                    .position = static_cast<std::uint32_t>(i),
                    .token = static_cast<std::int32_t>(ids_[i]),
                    .logits = true});
  }
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    rows.push_back({.sequence = second,
                    .position = static_cast<std::uint32_t>(i),
                    .token = static_cast<std::int32_t>(ids_[i]),
                    .logits = true});
  }
  const Matrix logits = model().step(rows, cache, {}, nullptr);
  const std::span both = logits.values();
  const std::size_t vocab = model().spec().vocab;
  EXPECT_TRUE(std::ranges::equal(both.subspan(4 * vocab), whole.logits));
  EXPECT_TRUE(std::ranges::equal(both.first(4 * vocab),
                                 std::span(whole.logits).subspan(5 * vocab, 4 * vocab)));
}

TEST_P(FamilyForward, AStreamOfLayersHasTheSameBits) {
  LayerStream stream(opened_.source, {.profile = Profile::kF32});
  std::vector<Row> rows;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    rows.push_back(
        {.position = static_cast<std::uint32_t>(i), .token = static_cast<std::int32_t>(ids_[i])});
  }
  Matrix hidden = stream.embed(rows);
  for (std::size_t l = 0; l < model().spec().n_main; ++l) stream.layer(l, hidden, rows, {});
  const Matrix logits = stream.head(stream.final_norm(hidden));
  EXPECT_TRUE(std::ranges::equal(logits.values(), run(model(), ids_).logits));
}

// Random routers have small margins, so that rounding flips some choices.
TEST_P(FamilyForward, ProfilesAndCachesThatRoundStayNear) {
  const std::vector<float> exact = run(model(), ids_).logits;
  for (const Profile profile : {Profile::kBf16, Profile::kNative}) {
    const OpenedModel rounded(fixture(GetParam()), {.profile = profile});
    const auto logits = run(rounded.model, ids_, SIZE_MAX / 2, KvFormat::kBf16).logits;
    const double error = relative_error(logits, exact);
    EXPECT_GT(error, 1e-3) << profile_name(profile);
    EXPECT_LT(error, (profile == Profile::kBf16 ? 1 : 2) * rounding_of(GetParam()))
        << profile_name(profile);
  }
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kInt8}) {
    const double error = relative_error(run(model(), ids_, 7, format).logits, exact);
    EXPECT_GT(error, 1e-5) << kv_format_name(format);
    EXPECT_LT(error, 1.25 * rounding_of(GetParam())) << kv_format_name(format);
  }
}

TEST_P(FamilyForward, SequencesBeginAgainButDoNotGoBack) {
  const Recording whole = run(model(), ids_);
  ModelCache cache = model().make_cache(KvFormat::kF32, ids_.size());
  const SequenceId sequence = cache.add();
  Recording first, second;
  feed(model(), cache, sequence, ids_, SIZE_MAX / 2, first);
  cache.main().truncate(sequence, ids_.size() - 3);
  const auto go_on = [&] { feed(model(), cache, sequence, ids_, SIZE_MAX / 2, second); };
  if (!model().spec().keeps_states()) {
    go_on();
  } else {
    expect_error(ErrorCode::kUnsupported, {"layer", "begin the sequence again"}, go_on);
    cache.main().truncate(sequence, 0);
    go_on();
    EXPECT_EQ(second.logits, whole.logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FamilyForward, ::testing::ValuesIn(kRecordedFamilies),
                         [](const auto& suite) { return suite.param; });

// transformers saves configs in words of its own, next to those of the release or (`own`) without
// them; the model is the same.
struct SavedCase {
  std::string name, kind;
};

std::string saved_case_name(const ::testing::TestParamInfo<SavedCase>& info) {
  return info.param.name + (info.param.kind == "own" ? "_own" : "");
}

std::filesystem::path saved_config(const SavedCase& row) {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/saved_configs" /
         (row.name + "." + row.kind + ".json");
}

std::vector<SavedCase> saved_cases() {
  std::vector<SavedCase> cases;
  for (const std::string& name : kRecordedFamilies) {
    for (const char* kind : {"saved", "own"}) {
      SavedCase one{name, kind};
      if (std::filesystem::exists(saved_config(one))) cases.push_back(std::move(one));
    }
  }
  return cases;
}

class SavedConfig : public ::testing::TestWithParam<SavedCase> {};

TEST_P(SavedConfig, GivesTheBitsOfTheReleasedOne) {
  const std::string& name = GetParam().name;
  const EditedCopy copy(fixture(name));
  std::filesystem::remove(copy.path() / "config.json");
  std::filesystem::copy_file(saved_config(GetParam()), copy.path() / "config.json");
  const std::vector<std::int64_t> ids = golden_ids(name);
  const OpenedModel saved(copy.path()), released(fixture(name));
  EXPECT_EQ(run(saved.model, ids).logits, run(released.model, ids).logits);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SavedConfig, ::testing::ValuesIn(saved_cases()),
                         saved_case_name);

// FP4 under E8M0 scales and FP8 are BF16 without loss, so the BF16 release has the same bits.
TEST(DeepseekV4, HasTheSameBitsInBf16) {
  const TempDir directory;
  Conversion(fixture("deepseek_v4"), directory / "bf16").run();
  const OpenedModel quantized(fixture("deepseek_v4")), plain(directory / "bf16");
  const auto ids = golden_ids("deepseek_v4");
  EXPECT_EQ(run(plain.model, ids).logits, run(quantized.model, ids).logits);
}

// The model in BF16, cut; with one rank per stage the bits are the same.
void expect_ranks_agree(const std::string& name, std::initializer_list<Cut> cuts) {
  const TempDir directory;
  const auto ids = golden_ids(name);
  Conversion(fixture(name), directory / "whole").run();
  const std::vector<float> wanted = run(OpenedModel(directory / "whole").model, ids).logits;
  for (const Cut& cut : cuts) {
    slicing(directory / "whole", directory / cut.name(), cut).run();
    const shard::Topology topology = cut.options().slicing.topology;
    std::vector<double> errors(topology.n_ranks());
    run_ranks(topology, [&](std::uint32_t rank, Comm& comm) {
      const formats::Checkpoint own =
          shard::open_source(rank_directory(directory / cut.name(), rank, cut));
      const inference::Model model(own, rank_view(own), comm, f32_options());
      errors[rank] = relative_error(run(model, ids).logits, wanted);
    });
    for (const double error : errors) EXPECT_LE(error, cut.tp > 1 ? 1e-5 : 0) << cut.name();
  }
}

TEST(DeepseekV4, RanksHaveItsLogits) {
  expect_ranks_agree("deepseek_v4", {Cut{.tp = 2}, Cut{.pp = 2}});
}

TEST(GroupedAttention, RanksHaveItsLogits) {
  expect_ranks_agree("glm4_moe_fp8_block", {Cut{.tp = 2}, Cut{.pp = 2}});
  expect_ranks_agree("mimo_v2_flash", {Cut{.tp = 2}, Cut{.pp = 3}});
  expect_ranks_agree("minimax_m3_vl", {Cut{.tp = 2}});
  // Norms over all heads at once; with six ranks three share each key head.
  expect_ranks_agree("minimax_m2", {Cut{.tp = 2}, Cut{.tp = 6}});
}

// Gates by head and by value, heads by layer, sinks of latent attention, a bias of the head.
TEST(GatedAttention, RanksHaveItsLogits) {
  for (const char* name : {"laguna", "afmoe", "phimoe", "hy_v4"})
    expect_ranks_agree(name, {Cut{.tp = 2}, Cut{.pp = 2}});
}

// Layer norms of heads in three forms, a joined bias, MLPs without a gate and their biases.
TEST(DenseFamilies, RanksHaveTheirLogits) {
  for (const char* name : {"cohere", "stablelm_parallel", "phi_head_norms", "sarvam_moe_biases",
                           "starcoder2", "apertus"})
    expect_ranks_agree(name, {Cut{.tp = 2}});
}

TEST(RecurrentMixers, AreComputedWhole) {
  for (const char* name : {"jamba", "lfm2_moe", "minimax", "qwen4_exp", "falcon_h1_norms"}) {
    expect_ranks_agree(name, {Cut{.pp = 2}});
    expect_error(ErrorCode::kUnsupported, {"keeps a recurrent state", "--ranks joined"},
                 [&] { expect_ranks_agree(name, {Cut{.tp = 2}}); });
  }
}

// Each rank has all of attention; experts, vocabulary and convolutions are cut.
TEST(WholeAttention, RanksHaveTheirLogits) {
  for (const char* name : {"zaya", "inkling2", "inkling2_loop"})
    expect_ranks_agree(name, {Cut{.tp = 2}, Cut{.ep = 5}});
  expect_ranks_agree("zaya", {Cut{.pp = 2}});
}

TEST(SharedBlocksOfExperts, RanksHaveTheirLogits) {
  expect_ranks_agree("interns2_mobius", {Cut{.ep = 2}});
  expect_error(ErrorCode::kUnsupported, {"has the experts of layer", "--pp"},
               [] { expect_ranks_agree("interns2_mobius", {Cut{.pp = 2}}); });
}

TEST(TwofoldLayers, RanksHaveTheirLogits) {
  expect_ranks_agree("longcat_flash", {Cut{.tp = 2}, Cut{.pp = 2}});
  expect_error(ErrorCode::kUnsupported, {"experts without tensors", "--ep no larger than --tp"},
               [] { expect_ranks_agree("longcat_flash", {Cut{.ep = 2}}); });
}

TEST(ShortConvolutions, RanksHaveItsLogits) {
  expect_ranks_agree("inkling", {Cut{.tp = 2}, Cut{.pp = 3}});
}

TEST(Ngrams, HaveTheConstantsOfTheCheckpoint) {
  const std::string prefix = "model.language_model.layers.0.ple.ple_embedding.";
  const EditedCopy reseeded(fixture("qwen4_exp"));
  reseeded.config({{"/text_config/seed", 7}});
  const auto ids = golden_ids("qwen4_exp");
  EXPECT_EQ(run(OpenedModel(reseeded.path()).model, ids).logits,
            run(OpenedModel(fixture("qwen4_exp")).model, ids).logits);
  for (const auto& [name, bits, code] :
       {std::tuple("ngram_heads_vocab_sizes", 0U, ErrorCode::kCorrupt),
        std::tuple("ngram_heads_offsets", 150U, ErrorCode::kCorrupt)}) {
    const EditedCopy damaged(fixture("qwen4_exp"));
    damaged.set<std::uint32_t>(prefix + name, 0, bits);
    expect_error(code, {"for head 0 of its n-grams"}, [&] { OpenedModel(damaged.path()); });
  }
  const EditedCopy longer(fixture("qwen4_exp"));
  longer.config({{"/text_config/split_ngram_parts", 8}});
  expect_error(ErrorCode::kShapeMismatch, {"shard_0"}, [&] { OpenedModel(longer.path()); });
}

TEST(LearnedFrequencies, MustBeFinite) {
  const EditedCopy copy(fixture("mistral_large4"));
  copy.set<std::uint16_t>("lerope.alpha", 1, 0x4348);  // 200
  expect_error(ErrorCode::kNonFinite, {"lerope.alpha", "holds 200"},
               [&] { OpenedModel(copy.path()); });
}

TEST(SharedKeys, RanksHaveTheLogits) {
  for (const char* name : {"mistral_large4", "gemma3n", "gemma4_layer_inputs"})
    expect_ranks_agree(name, {Cut{.tp = 2}});
  expect_error(ErrorCode::kUnsupported, {"layer 1 reads the keys of layer 0"},
               [] { expect_ranks_agree("mistral_large4", {Cut{.pp = 3}}); });
}

TEST(GroupedAttention, NeedsTheBiasesThatTheConfigPromises) {
  const EditedCopy copy(fixture("dots1"));
  copy.config({{"/attention_bias", true}});
  expect_error(ErrorCode::kMissingTensor, {"q_proj.bias"}, [&] { OpenedModel(copy.path()); });
}

TEST(DeepseekV4, QuantizedCachesStayNear) {
  const OpenedModel opened(fixture("deepseek_v4"));
  const auto ids = golden_ids("deepseek_v4");
  const std::vector<float> exact = run(opened.model, ids).logits;
  for (const auto& [format, most] :
       {std::pair{KvFormat::kBf16, 0.04}, {KvFormat::kFp8, 0.1}, {KvFormat::kInt8, 0.03}}) {
    const double error = relative_error(run(opened.model, ids, 7, format).logits, exact);
    EXPECT_GT(error, 0) << kv_format_name(format);
    EXPECT_LT(error, most) << kv_format_name(format);
  }
}

TEST(DeepseekV4, RoundingProfilesStayNear) {
  const auto ids = golden_ids("deepseek_v4");
  const std::vector<float> exact = run(OpenedModel(fixture("deepseek_v4")).model, ids).logits;
  for (const Profile profile : {Profile::kBf16, Profile::kNative}) {
    const OpenedModel rounded(fixture("deepseek_v4"), {.profile = profile});
    const auto logits = run(rounded.model, ids, SIZE_MAX / 2, KvFormat::kBf16).logits;
    const double error = relative_error(logits, exact);
    EXPECT_GT(error, 1e-4);
    EXPECT_LT(error, profile == Profile::kBf16 ? 0.12 : 0.3) << profile_name(profile);
  }
}

// MTP layers of small checkpoints in FP32 against recordings of vLLM's modules
// (tests/golden/PROVENANCE.md).

class FamilyDraft : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static std::filesystem::path recorded(const char* name) {
    return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/forward" / GetParam() / name;
  }

  OpenedModel opened_{recorded("checkpoint")};
  std::vector<std::int64_t> ids_ = GoldenFile(recorded("golden.safetensors")).integers("input_ids");

  [[nodiscard]] const inference::Model& model() const { return opened_.model; }
};

TEST_P(FamilyDraft, StatesAndLogitsAgree) {
  const GoldenFile golden(recorded("draft.safetensors"));
  ModelCache cache = model().make_cache(KvFormat::kF32, ids_.size());
  const SequenceId sequence = cache.add();
  Recording is;
  feed(model(), cache, sequence, ids_, ids_.size(), is);
  Matrix normed(ids_.size() - 1, model().spec().hidden);
  std::copy_n(is.normed.begin(), normed.values().size(), normed.values().begin());
  std::vector<Row> rows;
  for (std::size_t i = 0; i + 1 < ids_.size(); ++i) {
    rows.push_back({.sequence = sequence,
                    .position = static_cast<std::uint32_t>(i),
                    .token = static_cast<std::int32_t>(ids_[i + 1])});
  }
  const Matrix states = model().mtp(normed, rows, cache);
  EXPECT_LE(relative_error(states.values(), golden.floats("hidden")), 1e-5);
  EXPECT_LE(relative_error(model().head(states).values(), golden.floats("logits")), 1e-5);
}

TEST_P(FamilyDraft, AnswersAreThoseWithoutDrafts) {
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 12;
  const std::vector<std::vector<std::int32_t>> prompts = {{ids_.begin(), ids_.end()}};
  const GenerateResult without = generate(model(), prompts, options);
  options.drafts = 2;
  const GenerateResult with = generate(model(), prompts, options);
  EXPECT_EQ(with.answers[0].tokens, without.answers[0].tokens);
  EXPECT_EQ(with.drafts.proposed.size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FamilyDraft, ::testing::Values("hy_v3", "exaone_moe"),
                         [](const auto& suite) { return std::string(suite.param); });

// A text model inside a model of several modalities is computed as the text model by itself.

TEST(NestedModel, IsComputedAsTheTextModelAlone) {
  const std::filesystem::path flat_directory =
      INGOT_SOURCE_DIR "/tests/golden/arch/deepseek_v3/checkpoint";
  TinyCheckpoint nested;
  auto& tensors = nested.files["model.safetensors"];
  for (const auto& [name, tensor] : read_output(flat_directory))
    tensors.push_back({"language_model." + name, std::string(formats::dtype_name(tensor.dtype)),
                       tensor.shape, tensor.bytes});
  tensors.push_back({"vision_tower.patch_embed.proj.weight", "BF16", {8, 4}});
  nested.config = formats::json_text(
      {{"model_type", "kimi_k25"},
       {"text_config", formats::read_json_file(flat_directory / "config.json", 1 << 20)}});
  const TempDir directory;
  nested.write(directory.path());

  const OpenedModel flat(flat_directory), inside(directory.path());
  const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const Recording wanted = run(flat.model, ids), is = run(inside.model, ids);
  EXPECT_EQ(is.logits, wanted.logits);
  EXPECT_EQ(is.hidden, wanted.hidden);
}

// tie_word_embeddings with a stored head that is another matrix: vLLM and transformers 5 compute
// with the stored one.

TEST(TiedHead, IsTheStoredOneWhereThereIsOne) {
  const std::filesystem::path untied = INGOT_SOURCE_DIR "/tests/golden/arch/qwen3_moe/checkpoint";
  const EditedCopy tied(untied);
  tied.config({{"/tie_word_embeddings", true}});
  const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const OpenedModel wanted(untied), is(tied.path());
  EXPECT_EQ(run(is.model, ids).logits, run(wanted.model, ids).logits);
}

}  // namespace
}  // namespace ingot::testing
