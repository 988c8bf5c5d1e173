// Ranks that the program cuts, each by itself and all together: accepted as they are, and refused
// once something in them contradicts the manifest or is missing.

#include "check/check.h"
#include "check/stored_hashes.h"
#include "formats/family/families.h"
#include "formats/records/manifest.h"
#include "tests/check/findings.h"
#include "tests/check/rules/spelled_checkpoint.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"

namespace ingot::formats {

using namespace check;

namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using namespace ::testing;
using enum ErrorCode;

const std::string kGate = "model.layers.0.mlp.gate_proj.weight";
const std::string kDown = "model.layers.0.mlp.down_proj.weight";
const std::string kNorm = "model.layers.0.input_layernorm.weight";
const std::string kUpOfExpert3 = "model.layers.1.mlp.experts.3.up_proj.weight";
const std::string kSharedUp = "model.layers.1.mlp.shared_experts.up_proj.weight";
const std::string kStack = "model.layers.1.mlp.experts.gate_up_proj";

/// A V3.2 whose widths 2 ranks can cut at the edges of blocks: layer 0 dense, 1 a mixture of 4
/// experts, 2 for multi-token prediction.
void even_widths(SynthOptions& options) {
  options.layers = 2;
  options.dense_layers = 1;
  options.mtp_layers = 1;
  options.experts = 4;
  options.hidden = 256;
  options.intermediate = 512;
  options.moe_intermediate = 256;
  options.vocab = 512;
  options.heads = 16;
}

void plain_widths(SynthOptions& options) {
  even_widths(options);
  options.fp8 = false;
}

const EditableCheckpoint& fp8_model() {
  static const EditableCheckpoint model = make_synthetic(even_widths);
  return model;
}

const EditableCheckpoint& plain_model() {
  static const EditableCheckpoint model = make_synthetic(plain_widths);
  return model;
}

/// Records and a manifest of the weights and side files in a directory.
void write_manifest_of(const fs::path& directory, const SlicingRecord& slicing,
                       const std::map<std::string, SliceRecord>& slices,
                       const std::string& layout) {
  Manifest manifest = {
      .tool_version = "0", .family = "deepseek_v32", .dialect = "deepseek", .layout = layout};
  manifest.slicing = slicing;
  std::vector<TensorRecord> records;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".safetensors") {
      manifest.side_files.push_back({name, entry.file_size(), hash_file(entry.path()), ""});
      continue;
    }
    const Fd file = Fd::open_for_reading(entry.path());
    std::vector<Hash128> hashes;
    for (const StoredTensor& tensor : read_safetensors_header(file).tensors) {
      hashes.push_back(
          hash_range(tensor.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
            file.read_exact(out, tensor.offset + offset);
          }));
      TensorRecord& record = records.emplace_back();
      record.name = tensor.name;
      record.role = "other";
      record.action = "copy";
      const std::string dtype(dtype_name(tensor.dtype));
      record.output = {{tensor.name, name, dtype, tensor.shape, hashes.back()}};
      const auto slice = slices.find(tensor.name);
      if (slice != slices.end()) record.output[0].slice = slice->second;
    }
    manifest.files.push_back(
        {name, file.size(), weights_file_hash(read_safetensors_header_bytes(file), hashes), ""});
  }
  manifest.n_tensors = records.size();
  manifest.records_hash = write_tensor_records(directory / kRecordsName, records);
  std::ofstream(directory / kManifestName) << manifest_text(manifest);
}

/// A rank's directory in memory, to be damaged and written with a manifest that agrees.
struct Rank {
  EditableCheckpoint model;
  std::map<std::string, SliceRecord> slices;  ///< by stored tensor
  SlicingRecord slicing;

  explicit Rank(const fs::path& directory) : model(EditableCheckpoint::load(directory)) {
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".json") && name != "config.json" && name != kManifestName &&
          !name.ends_with(".index.json"))
        model.descriptions[name] = read_json_file(entry.path(), 1 << 20);
    }
    const Manifest manifest = *read_manifest(directory);
    slicing = *manifest.slicing;
    for (const TensorRecord& record :
         read_tensor_records(directory / kRecordsName, manifest.records_hash)) {
      for (const TensorHash& output : record.output) {
        if (output.slice) slices[output.name] = *output.slice;
      }
    }
  }
  void write(const fs::path& directory) const {
    fs::create_directories(directory);
    model.write(directory);
    write_manifest_of(directory, slicing, slices, "ranks");
  }
};

struct Cut {
  std::uint32_t tp = 1, ep = 1;
  std::optional<std::uint32_t> etp = {};
  std::uint32_t pp = 1;
  shard::TpFit fit = shard::TpFit::kRefuse;
  std::string experts = {};  ///< by slot
};

/// A model as the program cuts it.
class Ranks {
 public:
  Ranks(const EditableCheckpoint& whole, const Cut& cut)
      : n_(shard::make_topology(cut.tp, cut.ep, cut.etp, cut.pp).n_ranks()) {
    fs::create_directory(dir_ / "whole");
    whole.write(dir_ / "whole");
    Conversion conversion(dir_ / "whole", top());
    conversion.recipe.to = std::nullopt;
    conversion.plan.layout = find_layout("ranks");
    conversion.plan.links = false;
    conversion.plan.slicing = {.topology = shard::make_topology(cut.tp, cut.ep, cut.etp, cut.pp),
                               .expert_map = cut.experts,
                               .redundant_experts = !cut.experts.empty(),
                               .fit = cut.fit,
                               .stages = cut.pp == 2 ? "0-0,1-1" : ""};
    conversion.run();
  }
  [[nodiscard]] std::uint32_t size() const { return n_; }
  [[nodiscard]] fs::path top() const { return dir_ / "cut"; }
  [[nodiscard]] fs::path path(std::uint32_t rank) const {
    return top() / shard::rank_directory_name(rank, n_);
  }
  [[nodiscard]] Rank operator[](std::uint32_t rank) const { return Rank(path(rank)); }

 private:
  TempDir dir_;
  std::uint32_t n_;
};

constexpr Spelled kStaticInt8 = {"modelslim", SchemeId::kInt8Channel, Activations::kStatic};

/// Experts in one tensor, as transformers 5 saves them: gate rows, then up rows.
EditableCheckpoint stacked_model() {
  EditableCheckpoint model = plain_model();
  for (const std::string layer : {"model.layers.1.", "model.layers.2."}) {
    model.erase_prefix(layer + "mlp.experts.");
    model.put_zeros(layer + "mlp.experts.gate_up_proj", DType::kBf16, {4, 512, 256});
    model.put_zeros(layer + "mlp.experts.down_proj", DType::kBf16, {4, 256, 256});
  }
  return model;
}

/// Experts of 191 columns, padded to 192 and cut by 2.
EditableCheckpoint narrow_model() {
  return make_synthetic([](SynthOptions& options) {
    plain_widths(options);
    options.moe_intermediate = 191;
  });
}

const Ranks& plain() {
  static const Ranks ranks(plain_model(), {.tp = 2});
  return ranks;
}
const Ranks& fp8() {
  static const Ranks ranks(fp8_model(), {.tp = 2});
  return ranks;
}
const Ranks& static_int8() {
  static const Ranks ranks(make_spelled(kStaticInt8, plain_widths), {.tp = 2});
  return ranks;
}
const Ranks& staged() {
  static const Ranks ranks(plain_model(), {.ep = 2, .pp = 2});
  return ranks;
}
const Ranks& stacked() {
  static const Ranks ranks(stacked_model(), {.ep = 2});
  return ranks;
}
const Ranks& padded() {
  static const Ranks ranks(narrow_model(), {.tp = 2, .fit = shard::TpFit::kPad});
  return ranks;
}

CheckResult check_rank(const Rank& rank) {
  const TempDir dir;
  rank.write(dir / "rank");
  return check_checkpoint(dir / "rank", {.threads = 2});
}

std::set<std::string_view> rules_of(const CheckResult& result) {
  std::set<std::string_view> rules;
  for (const Finding& finding : result.findings) rules.insert(finding.rule);
  return rules;
}

const LogicalTensor& logical(const Checkpoint& checkpoint, std::string_view name) {
  const auto found = std::ranges::find(checkpoint.tensors(), name, &LogicalTensor::name);
  if (found == checkpoint.tensors().end())
    throw std::runtime_error("no logical tensor " + std::string(name));
  return *found;
}

struct Model {
  const char* name;
  Spelled spelled;
  friend void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }
};

std::vector<Model> models() {
  using enum SchemeId;
  using enum Activations;
  return {{"Bf16", {}},
          {"DeepseekFp8", {"deepseek", kFp8Block, kDynamic}},
          {"DeepseekInt8", {"deepseek", kInt8Block, kDynamic}},
          {"CtFp8Block", {"compressed-tensors", kFp8Block, kDynamic}},
          {"CtFp8Channel", {"compressed-tensors", kFp8Channel, kDynamic}},
          {"CtInt8Channel", {"compressed-tensors", kInt8Channel, kDynamic}},
          {"CtNvfp4", {"compressed-tensors", kNvfp4, kWeightOnly}},
          {"CtMxfp4", {"compressed-tensors", kMxfp4, kWeightOnly}},
          {"CtMxfp8", {"compressed-tensors", kMxfp8, kDynamic}},
          {"ModeloptNvfp4", {"modelopt", kNvfp4, kStatic}},
          {"ModeloptFp8", {"modelopt", kFp8Tensor, kStatic}},
          {"ModelslimDynamic", {"modelslim", kInt8Channel, kDynamic}},
          {"ModelslimStatic", kStaticInt8}};
}

class EveryModel : public ::testing::TestWithParam<Model> {};

TEST_P(EveryModel, IsAcceptedRankByRank) {
  const Spelled& spelled = GetParam().spelled;
  const EditableCheckpoint whole =
      spelled.dialect.empty() ? plain_model() : make_spelled(spelled, plain_widths);
  const TempDir unsliced;
  whole.write(unsliced.path());
  std::set<std::string_view> inherited = rules_of(check_checkpoint(unsliced.path(), {}));
  // Engines load no rank's directory, so their refusals are not among the findings.
  std::erase_if(inherited, [](std::string_view rule) { return rule.starts_with("engine."); });
  EXPECT_THAT(inherited, ::testing::Each("modelopt.algo-of-sglang"));

  // Every topology for plain weights; for a scheme one that cuts each of its parts.
  std::vector<Cut> cuts = {{.tp = 2, .ep = 2, .etp = 2}};
  if (spelled.dialect.empty())
    cuts = {{.tp = 2},           {.tp = 2, .ep = 2}, {.tp = 2, .ep = 4},
            {.ep = 2, .etp = 2}, {.pp = 2},          {.tp = 2, .ep = 2, .pp = 2}};
  for (const Cut& cut : cuts) {
    const Ranks ranks(whole, cut);
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      SCOPED_TRACE(ranks.path(rank));
      const CheckResult result = check_checkpoint(ranks.path(rank), {.threads = 2});
      EXPECT_EQ(rules_of(result), inherited) << text_of(result.findings);
      EXPECT_EQ(result.n_hashed, result.n_tensors);
      EXPECT_GT(result.n_hashed, 10U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RankDirectory, EveryModel, ::testing::ValuesIn(models()),
                         [](const auto& row) { return row.param.name; });

TEST(RankDirectory, HasTensorsInTheShapeOfTheirSlices) {
  const Ranks ranks(make_spelled({"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly},
                                 plain_widths),
                    {.tp = 2});
  const Checkpoint checkpoint = Checkpoint::open(ranks.path(1));
  EXPECT_EQ(logical(checkpoint, kGate).shape, (Shape{256, 256}));
  EXPECT_EQ(logical(checkpoint, kDown).shape, (Shape{256, 256}));
  EXPECT_EQ(logical(checkpoint, kUpOfExpert3).shape, (Shape{128, 256}));
  EXPECT_EQ(logical(checkpoint, kUpOfExpert3).expert, 3U);
  ASSERT_NE(checkpoint.slicing(), nullptr);
  EXPECT_EQ(checkpoint.slicing()->rank->tp_rank, 1U);
  EXPECT_TRUE(checkpoint.is_whole());
}

// Blocks of 64 x 64 in place of 128 x 128, so that 4 ranks can cut experts 256 wide.
TEST(RankDirectory, MayBeRetiled) {
  const Ranks ranks(fp8_model(), {.tp = 4, .fit = shard::TpFit::kRetile});
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const CheckResult result = check_checkpoint(ranks.path(rank), {});
    EXPECT_THAT(rules_of(result), ElementsAre("fp8.block-128")) << text_of(result.findings);
  }
}

TEST(PaddedRank, IsAccepted) {
  const Rank rank = padded()[1];
  EXPECT_EQ(30, std::ranges::count_if(
                    rank.slices, [](const auto& row) { return !row.second.original.empty(); }));
  EXPECT_THAT(check_rank(rank).findings, IsEmpty());
}

TEST(PaddedRank, MustSayPaddedWidthsInItsOwnConfig) {
  Rank rank = padded()[1];
  rank.model.config["moe_intermediate_size"] = 191;
  const CheckResult result = check_rank(rank);
  ASSERT_EQ(result.findings.size(), 30U);
  EXPECT_THAT(result.findings[0].message, HasSubstr("by config.json it has"));
}

TEST(StackedRank, HoldsTheStackOfItsExperts) {
  const Ranks ranks(stacked_model(), {.tp = 4, .ep = 2, .etp = 2});
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_THAT(check_checkpoint(ranks.path(rank), {}).findings, IsEmpty());
    EXPECT_EQ(logical(Checkpoint::open(ranks.path(rank)), kStack).shape, (Shape{2, 256, 256}));
  }
}

// Expert 4 is the shared one: in a slot of the first rank and of no other.
TEST(RankDirectory, HoldsSharedExpertsOfItsSlots) {
  const Ranks ranks(plain_model(), {.tp = 2, .ep = 2, .experts = "[0, 1, 4, 3, 2, 0]"});
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_EQ(ranks[rank].model.tensors.contains(kSharedUp), rank == 0);
    EXPECT_THAT(check_checkpoint(ranks.path(rank), {}).findings, IsEmpty());
  }
  Rank first = ranks[0];
  first.model.tensors.erase(kSharedUp);
  EXPECT_EQ(only(check_rank(first).findings).rule, "model.complete");
}

TEST(RankDirectory, SharesHeadsOfKeysAndValuesBetweenRanks) {
  const EditableCheckpoint whole = make_synthetic([](SynthOptions& options) {
    options.family = find_family("qwen3_moe");
    options.heads = 16;
    options.experts = 4;
    options.fp8 = false;
  });
  ASSERT_EQ(whole.config.at("num_key_value_heads"), 2);
  const std::string key = "model.layers.0.self_attn.k_proj.weight";
  const std::uint64_t half = whole.tensors.at(key).shape[0] / 2;
  const Ranks ranks(whole, {.tp = 4, .ep = 2});
  const TempDir dir;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(logical(Checkpoint::open(ranks.path(rank)), key).shape[0], half);
    Rank cut = ranks[rank];
    // Ranks 0 and 1 share the first head, 2 and 3 the second.
    EXPECT_EQ(cut.slices.at(key).offset, rank < 2 ? 0 : half);
    cut.slices.at(key).offset = rank < 2 ? half : 0;
    cut.write(dir / std::to_string(rank));
    expect_error(kMismatch, {key, "begins at"},
                 [&] { Checkpoint::open(dir / std::to_string(rank)); });
  }
}

// Only the second of two stages has quantized weights; config.json is that of the whole.
TEST(RankDirectory, MayHoldNoQuantizedWeight) {
  for (const char* dialect : {"deepseek", "compressed-tensors"}) {
    SCOPED_TRACE(dialect);
    EditableCheckpoint whole =
        make_spelled({dialect, SchemeId::kFp8Block, Activations::kDynamic}, plain_widths);
    Json& block = whole.config["quantization_config"];
    Json& ignored = block[block.contains("ignore") ? "ignore" : "modules_to_not_convert"];
    for (const auto& [name, tensor] : plain_model().tensors) {
      if (!name.starts_with("model.layers.0.")) continue;
      const std::string stem = name.substr(0, name.rfind('.'));
      whole.tensors.erase(stem + ".weight_scale_inv");
      whole.tensors.erase(stem + ".weight_scale");
      whole.tensors[name] = tensor;
      ignored.push_back(stem);
    }
    EXPECT_THAT(check_checkpoint(Ranks(whole, {.pp = 2}).path(0), {}).findings, IsEmpty());
    // One stage that holds it all must keep the promise.
    Rank all = Ranks(plain_model(), {})[0];
    all.model.config = whole.config;
    const std::set<std::string_view> rules = rules_of(check_rank(all));
    EXPECT_TRUE(rules.contains("fp8.config-without-weights") ||
                rules.contains("quantized.config-without-weights"));
  }
}

TEST(RankDirectory, IsNotAskedToBeCutAgain) {
  EXPECT_THAT(check_checkpoint(fp8().path(0), {.tensor_parallel = 16}).findings, IsEmpty());
  const TempDir dir;
  fp8_model().write(dir.path());
  EXPECT_FALSE(check_checkpoint(dir.path(), {.tensor_parallel = 16}).findings.empty());
}

TEST(RankFaults, WithoutItsManifestIsAMisshapenCheckpoint) {
  const TempDir dir;
  fp8()[0].write(dir / "rank");
  EXPECT_NE(Checkpoint::open(dir / "rank").slicing(), nullptr);
  fs::remove(dir / "rank/ingot.json");
  expect_error(kShapeMismatch, {kGate, "[256, 256]", "[512, 256]"},
               [&] { Checkpoint::open(dir / "rank"); });
  const Ranks one(fp8_model(), {});
  one[0].write(dir / "one");
  fs::remove(dir / "one/ingot.json");
  EXPECT_EQ(Checkpoint::open(dir / "one").slicing(), nullptr);
}

/// A change of a rank, and the one finding about a tensor, by its rule and message.
struct Fault {
  const char* name;
  const Ranks& (*ranks)();
  std::uint32_t rank;
  ErrorCode code;
  std::string tensor, words;
  std::function<void(Rank&)> damage;
  friend void PrintTo(const Fault& row, std::ostream* out) { *out << row.name; }
};

using Damage = std::function<void(Rank&)>;

Damage zeros(const std::string& tensor, const Shape& shape) {
  return [=](Rank& rank) { rank.model.put_zeros(tensor, DType::kBf16, shape); };
}

/// A tensor of the whole model in a rank that should not have it, or lacks it.
Damage foreign(const std::string& tensor) {
  return [=](Rank& rank) { rank.model.tensors[tensor] = plain_model().tensors.at(tensor); };
}
Damage missing(const std::string& tensor) {
  return [=](Rank& rank) { EXPECT_EQ(rank.model.tensors.erase(tensor), 1U); };
}

Damage slice(const std::string& tensor, SliceRecord record) {
  return [=](Rank& rank) { rank.slices[tensor] = record; };
}
Damage no_slice(const std::string& tensor) {
  return [=](Rank& rank) { EXPECT_EQ(rank.slices.erase(tensor), 1U); };
}

/// One change after the other.
Damage both(const Damage& first, const Damage& second) {
  return [=](Rank& rank) {
    first(rank);
    second(rank);
  };
}

std::vector<Fault> faults() {
  const std::string scale = kDown + "_scale_inv", gate_scale = kGate + "_scale_inv";
  const std::string deq = "model.layers.0.mlp.gate_proj.deq_scale";
  const std::string bias = "model.layers.0.mlp.down_proj.quant_bias";
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  const std::string layer1 = "model.layers.1.", enorm = "model.layers.2.enorm.weight";
  return {
      {"AnotherShape", plain, 1, kShapeMismatch, kGate,
       "[256, 128]...along dimension 0 from 256...[512, 256]", zeros(kGate, {256, 128})},
      {"NoEqualPart", plain, 1, kShapeMismatch, kGate, "[200, 256]...512",
       zeros(kGate, {200, 256})},
      {"SliceOfMoreRanks", plain, 0, kShapeMismatch, kGate, "one of 4 slices...makes 2",
       zeros(kGate, {128, 256})},
      {"SliceOfAnotherRank", plain, 1, kMismatch, kDown,
       "begins at 0 of 512...rank 1 begins at 256",
       [](Rank& rank) { rank.slices.at(kDown).offset = 0; }},
      {"WholeOutsideTheConfig", plain, 0, kShapeMismatch, kDown, "[128, 512]...[256, 512]",
       both(zeros(kDown, {128, 256}), [](Rank& rank) { rank.slices.at(kDown).whole[0] = 128; })},
      {"SliceCalledWhole", plain, 0, kShapeMismatch, kDown,
       "[256, 256]...is whole by the manifest...[256, 512]", no_slice(kDown)},
      {"WholeCalledSlice", plain, 1, kMismatch, kNorm, "begins at 128 of 256...begins at 0",
       slice(kNorm, {.axis = 0, .offset = 128, .whole = {256}})},
      {"ScalesOfAnotherWhole", fp8, 0, kShapeMismatch, scale,
       "a whole of shape [2, 2]...[256, 512] needs 8 numbers", no_slice(scale)},
      {"ScalesOfTwiceTheWhole", static_int8, 0, kShapeMismatch, deq, "one of 4 slices",
       slice(deq, {.axis = 0, .whole = {1024}})},
      {"ScalesCalledWhole", static_int8, 0, kShapeMismatch, deq, "[256]...needs 512 numbers",
       no_slice(deq)},
      {"ZeroedBiasOfTheFirst", static_int8, 0, kMismatch, bias, "zeroed...rank 0",
       slice(bias, {.whole = {256}, .is_zeroed = true})},
      {"ShapeBeforePadding", padded, 1, kShapeMismatch, kUpOfExpert3,
       "[128, 256] before it was padded...[191, 256]",
       [](Rank& rank) { rank.slices.at(kUpOfExpert3).original[0] = 128; }},
      {"StackOfOtherExperts", stacked, 1, kMismatch, kStack, "2 experts...rank 1 holds in layer 1",
       [](Rank& rank) { rank.slices.at(kStack).experts[0] = 1; }},
      {"StackOfMore", stacked, 1, kMismatch, kStack, "4 experts...not the 2 that rank 1",
       both(no_slice(kStack), zeros(kStack, {4, 512, 256}))},
      {"NoStack", stacked, 1, kMissingTensor, kStack, "moe.expert-ids",
       both(no_slice(kStack), missing(kStack))},
      {"NegativeScale", fp8, 1, kBadScale, gate_scale, "not finite and positive",
       [=](Rank& rank) { rank.model.put_floats(gate_scale, Shape(2, 2), -1); }},
      {"StagesOfMoreLayers", plain, 0, kMismatch, "", "divides 3 layers...config.json has 2",
       [](Rank& rank) { rank.slicing.stage_layers[1] = rank.slicing.rank->end_layer = 3; }},
      {"EmbeddingOfAnother", staged, 2, kMismatch, embedding,
       "rank 2...without the embedding, with norm and head", foreign(embedding)},
      {"NormOfAnother", staged, 0, kMismatch, "model.norm.weight",
       "rank 0...with the embedding, without norm and head", foreign("model.norm.weight")},
      {"HeadOfAnother", staged, 0, kMismatch, head, "rank 0...without norm and head",
       foreign(head)},
      {"RouterOfAnother", staged, 0, kMismatch, layer1 + "mlp.gate.weight",
       "rank 0...of layers 0 to 0", foreign(layer1 + "mlp.gate.weight")},
      {"LayerOfAnother", staged, 2, kMismatch, kNorm, "rank 2...of layers 1 to 2", foreign(kNorm)},
      {"ExpertOfAnother", staged, 2, kMismatch, kUpOfExpert3,
       "rank 2...with other experts in layer 1", foreign(kUpOfExpert3)},
      {"NoEmbedding", staged, 0, kMissingTensor, embedding, "model.complete", missing(embedding)},
      {"NoHead", staged, 2, kMissingTensor, head, "model.complete", missing(head)},
      {"NoNorm", staged, 0, kMissingTensor, kNorm, "model.complete", missing(kNorm)},
      {"NoExpert", staged, 3, kMissingTensor, kUpOfExpert3, "moe.expert-ids",
       missing(kUpOfExpert3)},
      {"NoSharedExpert", staged, 2, kMissingTensor, kSharedUp, "model.complete",
       missing(kSharedUp)},
      {"NoNormOfPrediction", staged, 2, kMissingTensor, enorm, "mtp.complete", missing(enorm)},
      {"NoIndexer", staged, 2, kMissingTensor, layer1 + "self_attn.indexer.wk.weight",
       "indexer.complete", missing(layer1 + "self_attn.indexer.wk.weight")},
      {"NoCorrectionBias", staged, 3, kMissingTensor, layer1 + "mlp.gate.e_score_correction_bias",
       "router.correction-bias", missing(layer1 + "mlp.gate.e_score_correction_bias")},
  };
}

class RankFault : public ::testing::TestWithParam<Fault> {};

TEST_P(RankFault, IsTheOneFinding) {
  const Fault& fault = GetParam();
  Rank rank = fault.ranks()[fault.rank];
  fault.damage(rank);
  const Finding finding = only(check_rank(rank).findings);
  EXPECT_EQ(error_code_name(finding.code), error_code_name(fault.code)) << finding.message;
  EXPECT_EQ(finding.tensor, fault.tensor);
  expect_words(std::string(finding.rule) + ": " + finding.message, fault.words);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankFault, ::testing::ValuesIn(faults()), kNameOfRow);

TEST(RankFaults, LacksPromisedMtpOnTheLastStageOnly) {
  for (const std::uint32_t stage : {0U, 1U}) {
    Rank rank = staged()[2 * stage];
    rank.model.erase_prefix(kMtp);
    const TempDir dir;
    rank.write(dir / "rank");
    EXPECT_EQ(Checkpoint::open(dir / "rank").lacks_promised_mtp(), stage == 1);
    const std::set<std::string_view> rules = rules_of(check_checkpoint(dir / "rank", {}));
    EXPECT_EQ(rules, stage == 0 ? std::set<std::string_view>{}
                                : std::set<std::string_view>{"mtp.present"});
  }
}

TEST(RankFaults, SaysForeignRecordsOnce) {
  const TempDir dir;
  fp8()[0].write(dir / "rank");
  (void)write_tensor_records(dir / "rank/ingot.tensors.jsonl.zst", {});
  expect_error(kMismatch, {"ingot.tensors.jsonl.zst", "the manifest promises"},
               [&] { Checkpoint::open(dir / "rank"); });
  // Without them nothing can be said of shapes.
  EXPECT_THAT(only(check_checkpoint(dir / "rank", {}).findings).message,
              HasSubstr("the manifest promises"));
}

TEST(RankFaults, SaysOnceThatItsManifestContradictsItself) {
  const TempDir dir;
  Rank rank = plain()[0];
  rank.slicing.rank->tp_rank = 1;
  rank.write(dir / "rank");
  expect_error(kMismatch, {"ingot.json", "tp_rank is 1", "of rank 0 it is 0"},
               [&] { Checkpoint::open(dir / "rank"); });
  EXPECT_EQ(1, std::ranges::count_if(check_checkpoint(dir / "rank", {}).findings,
                                     [](const Finding& finding) {
                                       return finding.message.find("tp_rank") != std::string::npos;
                                     }));
}

TEST(RankFaults, RefusesTwoRecordsOfOneTensor) {
  const TempDir dir;
  plain()[0].write(dir / "rank");
  Manifest manifest = *read_manifest(dir / "rank");
  std::vector<TensorRecord> records =
      read_tensor_records(dir / "rank/ingot.tensors.jsonl.zst", manifest.records_hash);
  const TensorRecord gate = *std::ranges::find(records, kGate, &TensorRecord::name);
  records.push_back(gate);
  manifest.records_hash = write_tensor_records(dir / "rank/ingot.tensors.jsonl.zst", records);
  std::ofstream(dir / "rank/ingot.json") << manifest_text(manifest);
  expect_error(kDuplicate, {kGate, "several records"}, [&] { Checkpoint::open(dir / "rank"); });
}

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 0x40));
}

TEST(RankFaults, FindsFaultsOfHashes) {
  const TempDir dir;
  fp8()[1].write(dir / "rank");
  flip_last_byte(dir / "rank/model.safetensors");
  const Finding finding = only(check_checkpoint(dir / "rank", {}).findings);
  EXPECT_EQ(finding.code, kMismatch);
  EXPECT_THAT(finding.message, HasSubstr("its bytes have hash"));
}

// A sliced checkpoint as a whole: every directory of its ranks, or every file of layout
// deepseek-mp.

const Ranks& pair() {
  static const Ranks ranks(plain_model(), {.tp = 2, .ep = 2});
  return ranks;
}

class SlicedCheck : public ::testing::Test {
 protected:
  SlicedCheck() { fs::copy(pair().top(), dir_.path(), fs::copy_options::recursive); }
  [[nodiscard]] std::vector<Finding> findings() const {
    return check_checkpoint(dir_.path(), {}).findings;
  }
  void expect_finding(ErrorCode code, const std::string& file, const std::string& words) const {
    const Finding found = only(findings());
    EXPECT_EQ(error_code_name(found.code), error_code_name(code));
    EXPECT_TRUE(file.empty() || found.file == file) << found.file;
    expect_words(found.message, words);
  }
  void write_top(const Manifest& manifest) const {
    std::ofstream(dir_ / "ingot.json") << manifest_text(manifest);
  }

  TempDir dir_;
};

const std::string kFirst = "rank-00000-of-00002", kSecond = "rank-00001-of-00002";
/// The file of the tensors that a rank has for itself.
const std::string kOwn = "/tp-01-of-02-00001-of-00001.safetensors";

TEST_F(SlicedCheck, AcceptsAllRanksAndAddsThemUp) {
  const CheckResult all = check_checkpoint(dir_.path(), {.threads = 2});
  EXPECT_THAT(all.findings, IsEmpty());
  EXPECT_TRUE(all.has_manifest);
  EXPECT_EQ(all.family, "deepseek_v32");
  const CheckResult first = check_checkpoint(dir_ / kFirst, {}),
                    second = check_checkpoint(dir_ / kSecond, {});
  EXPECT_GT(all.n_tensors, 100U);
  EXPECT_EQ(all.n_tensors, first.n_tensors + second.n_tensors);
  EXPECT_EQ(all.n_hashed, all.n_tensors);
  EXPECT_EQ(all.n_bytes, first.n_bytes + second.n_bytes);
  EXPECT_EQ(all.n_files, first.n_files + second.n_files);
}

/// A change of all ranks, and the one finding.
struct TreeFault {
  const char* name;
  ErrorCode code;
  std::string file, words;
  std::function<void(const fs::path& top)> damage;
  friend void PrintTo(const TreeFault& row, std::ostream* out) { *out << row.name; }
};

class SlicedFault : public SlicedCheck, public WithParamInterface<TreeFault> {};

TEST_P(SlicedFault, IsTheOneFinding) {
  GetParam().damage(dir_.path());
  expect_finding(GetParam().code, GetParam().file, GetParam().words);
  EXPECT_EQ(findings()[0].tensor.empty(), GetParam().name != std::string("TensorThatDiffers"));
}

void put_other_conversion(const fs::path& top) {
  Rank other(top / kSecond);
  other.slicing.job.low ^= 1;
  fs::remove_all(top / kSecond);
  other.write(top / kSecond);
}

void put_unsliced(const fs::path& top) {
  fs::remove_all(top / kSecond);
  fs::create_directory(top / kSecond);
  plain_model().write(top / kSecond);
}

const std::vector<TreeFault> kTreeFaults = {
    {"MissingRank", kNotFound, kSecond, "is missing...rank 1",
     [](const fs::path& top) { fs::remove_all(top / kSecond); }},
    {"DirectoryOfAnotherCut", kMismatch, "rank-00002-of-00004", "not one of the 2 directories",
     [](const fs::path& top) { fs::create_directories(top / "rank-00002-of-00004/tokenizer"); }},
    {"TensorThatDiffers", kMismatch, kSecond + kOwn, "its bytes have hash",
     [](const fs::path& top) { flip_last_byte(top / (kSecond + kOwn)); }},
    {"ChangedManifest", kMismatch, kSecond + "/ingot.json",
     "has hash...changed since it was written",
     [](const fs::path& top) {
       std::ofstream(top / kSecond / "ingot.json", std::ios::app) << " ";
     }},
    {"RankOfAnotherConversion", kMismatch, kSecond + "/ingot.json", "it is of another conversion",
     put_other_conversion},
    {"UnslicedCheckpoint", kNotFound, kSecond + "/ingot.json", "", put_unsliced},
    {"UnfinishedConversion", kExists, "", "",
     [](const fs::path& top) { fs::create_directory(top / ".ingot-partial"); }},
};

INSTANTIATE_TEST_SUITE_P(Trees, SlicedFault, ::testing::ValuesIn(kTreeFaults), kNameOfRow);

TEST_F(SlicedCheck, PutsTheRankBeforeStructureFiles) {
  fs::remove(dir_ / (kSecond + kOwn));
  EXPECT_FALSE(findings().empty());
  for (const Finding& finding : findings())
    EXPECT_TRUE(finding.file.starts_with(kSecond)) << finding.file << finding.message;
}

TEST_F(SlicedCheck, RefusesRanksInEachOthersPlaces) {
  fs::rename(dir_ / kFirst, dir_ / "aside");
  fs::rename(dir_ / kSecond, dir_ / kFirst);
  fs::rename(dir_ / "aside", dir_ / kSecond);
  EXPECT_THAT(findings(), ElementsAre(Field(&Finding::message, HasSubstr("it is that of rank 1")),
                                      Field(&Finding::message, HasSubstr("it is that of rank 0"))));
}

TEST_F(SlicedCheck, EndsAtARankLinkedToTheWhole) {
  fs::remove_all(dir_ / kSecond);
  fs::create_directory_symlink(dir_.path(), dir_ / kSecond);
  const std::vector<Finding> found = findings();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].file, kSecond + "/ingot.json");
  EXPECT_EQ(found[1].code, kUnsupported);
  EXPECT_THAT(found[1].message, HasSubstr("cut for 2 ranks"));
}

TEST_F(SlicedCheck, ComparesSideFilesOfTheTop) {
  std::ofstream(dir_ / "config.json") << "{}";
  Manifest manifest = *read_manifest(dir_.path());
  manifest.side_files = {{"config.json", 2, hash_file(dir_ / "config.json"), ""}};
  write_top(manifest);
  EXPECT_THAT(findings(), IsEmpty());
  std::ofstream(dir_ / "config.json") << "[]";
  expect_finding(kMismatch, "config.json", "its bytes have hash");
}

TEST_F(SlicedCheck, ComparesRecordsOfTheTop) {
  Manifest manifest = *read_manifest(dir_.path());
  fs::remove(dir_.path() / kRecordsName);
  manifest.n_tensors = 1;
  write_top(manifest);
  expect_finding(kNotFound, "ingot.tensors.jsonl.zst", "");
  manifest.n_tensors = 0;
  manifest.records_hash = write_tensor_records(dir_.path() / kRecordsName, {});
  write_top(manifest);
  EXPECT_THAT(findings(), IsEmpty());
  manifest.records_hash = {1, 2};
  write_top(manifest);
  expect_finding(kMismatch, "ingot.tensors.jsonl.zst", "the manifest promises");
}

TEST_F(SlicedCheck, IsNotOpenedAsOneCheckpoint) {
  expect_error(kUnsupported, {"cut for 2 ranks", kFirst}, [&] { Checkpoint::open(dir_.path()); });
}

// Bytes that count how often they are read.
class CountingBytes final : public StoredBytes {
 public:
  explicit CountingBytes(std::string file) { files_.push_back({std::move(file), 64, 16}); }
  [[nodiscard]] std::span<const SourceFile> files() const override { return files_; }
  void read(std::uint32_t, const StoredTensor&, std::uint64_t,
            std::span<std::byte> out) const override {
    ++n_read;
    std::fill(out.begin(), out.end(), std::byte{1});
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t) const override { return {}; }
  [[nodiscard]] bool has_data(std::uint32_t) const override { return true; }
  void read_file(std::uint32_t, std::uint64_t, std::span<std::byte>) const override {}
  void close_file(std::uint32_t) const override {}

  mutable int n_read = 0;

 private:
  std::vector<SourceFile> files_;
};

TEST(LinkedHashes, ReadFilesThatDirectoriesShareOnce) {
  const TempDir dir;
  fs::create_directory(dir / "a");
  fs::create_directory(dir / "b");
  for (const char* name : {"a/all", "a/own", "b/own"}) std::ofstream(dir / name) << "x";
  fs::create_hard_link(dir / "a/all", dir / "b/all");
  const std::vector<StoredTensor> stored = {{"x", DType::kU8, {4}, 0, 16, 4},
                                            {"y", DType::kU8, {8}, 0, 20, 8}};
  LinkedHashes hashes;
  const auto reads = [&](const char* directory, const char* file) {
    const CountingBytes bytes(file);
    const std::vector<HashedTensor> hashed =
        hashes.hash_stored(dir / directory, {.stored = stored, .bytes = bytes}, 1);
    EXPECT_EQ(hashed.size(), 2U);
    for (const HashedTensor& tensor : hashed) EXPECT_TRUE(tensor.hash.has_value());
    EXPECT_NE(hashed[0].hash, hashed[1].hash);
    return bytes.n_read;
  };
  EXPECT_EQ(reads("a", "all"), 2);
  EXPECT_EQ(reads("b", "all"), 0);
  EXPECT_EQ(reads("a", "own"), 2);
  EXPECT_EQ(reads("b", "own"), 2);
}

// Two files with the same names in them, as DeepSeek's inference code loads them.
class ShardsCheck : public ::testing::Test {
 protected:
  ShardsCheck() {
    for (const char* file : {"model0-mp2.safetensors", "model1-mp2.safetensors"}) {
      EditableCheckpoint shard;
      shard.config = {{"vocab_size", 512}};
      shard.file_name = file;
      shard.put_bytes("head.weight", DType::kU8, {16}, file[5] == '0' ? 3 : 4);
      shard.put_bytes("norm.weight", DType::kU8, {16}, 5);
      shard.write(dir_.path());
    }
    SlicingRecord slicing;
    slicing.tp = slicing.ep = slicing.n_ranks = 2;
    slicing.stage_layers = {0, 2};
    write_manifest_of(dir_.path(), slicing, {}, "deepseek-mp");
  }

  TempDir dir_;
};

TEST_F(ShardsCheck, AcceptsWhatTheManifestSays) {
  const CheckResult result = check_checkpoint(dir_.path(), {});
  EXPECT_THAT(result.findings, IsEmpty());
  EXPECT_EQ(result.n_files, 2U);
  EXPECT_EQ(result.n_tensors, 4U);
  EXPECT_EQ(result.n_hashed, 4U);
}

TEST_F(ShardsCheck, NamesFileAndTensorThatDiffer) {
  flip_last_byte(dir_ / "model1-mp2.safetensors");
  const Finding found = only(check_checkpoint(dir_.path(), {}).findings);
  EXPECT_EQ(found.code, ErrorCode::kMismatch);
  EXPECT_EQ(found.file, "model1-mp2.safetensors");
  EXPECT_EQ(found.tensor, "norm.weight");
}

TEST_F(ShardsCheck, MissesAFileAndReportsAnother) {
  fs::rename(dir_ / "model1-mp2.safetensors", dir_ / "model2-mp2.safetensors");
  std::set<std::pair<std::string, std::string>> found;
  for (const Finding& finding : check_checkpoint(dir_.path(), {}).findings)
    found.emplace(finding.file, finding.tensor);
  EXPECT_EQ(found, (std::set<std::pair<std::string, std::string>>{
                       {"model1-mp2.safetensors", ""},
                       {"model1-mp2.safetensors", "head.weight"},
                       {"model1-mp2.safetensors", "norm.weight"},
                       {"model2-mp2.safetensors", "head.weight"},
                       {"model2-mp2.safetensors", "norm.weight"}}));
}

TEST_F(ShardsCheck, ReportsAHeaderThatCannotBeRead) {
  fs::resize_file(dir_ / "model0-mp2.safetensors", 20);
  const std::vector<Finding> found = check_checkpoint(dir_.path(), {}).findings;
  EXPECT_THAT(found, ::testing::Contains(::testing::Field(&Finding::code, ErrorCode::kCorrupt)));
}

}  // namespace
}  // namespace ingot::formats
