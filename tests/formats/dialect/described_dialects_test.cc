#include "formats/base/foreign_files.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/dialect.h"
#include "formats/json/json.h"
#include "tests/formats/checkpoint/side_paths.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// The dialects that put a description next to config.json: ModelOpt and Ascend.

namespace ingot::formats {
namespace {

using namespace ::testing;
using namespace ingot::testing;
using ingot::testing::expect_error;

constexpr TensorRule kDescribedRule = {.fp8_by_default = true};

ModelConfig config_with(const std::string& quantization = "") {
  const std::string member =
      quantization.empty() ? "" : ", \"quantization_config\": " + quantization;
  return parse_model_config(
      "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 2" + member + "}", "config.json");
}

WrittenTensor tensor(std::string_view name, SchemeId scheme,
                     Activations activations = Activations::kWeightOnly,
                     std::vector<std::string> stored = {}) {
  WrittenTensor written;
  written.name = name;
  written.scheme = scheme;
  written.activations = activations;
  written.rule = scheme_facts(scheme).quantized ? &kDescribedRule : nullptr;
  written.rank = name.find("norm") == std::string_view::npos ? 2 : 1;
  written.stored = std::move(stored);
  if (written.stored.empty()) written.stored.emplace_back(name);
  return written;
}

/// Two layers with experts in `scheme` and everything else plain.
std::vector<WrittenTensor> moe(SchemeId scheme, Activations activations) {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const std::string layer : {"0", "1"}) {
      const std::string stem = "model.layers." + layer + ".";
      for (const char* leaf :
           {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate", "input_layernorm",
            "mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.down_proj"})
        names.push_back(stem + leaf + ".weight");
    }
    names.emplace_back("lm_head.weight");
    names.emplace_back("model.embed_tokens.weight");
    return names;
  }();
  std::vector<WrittenTensor> written;
  for (const std::string& name : kNames) {
    const bool is_quantized = name.find("experts") != std::string::npos;
    written.push_back(tensor(name, is_quantized ? scheme : SchemeId::kBf16, activations));
  }
  return written;
}

Json config_block(std::string_view dialect, const ModelConfig& source,
                  const std::vector<WrittenTensor>& written, const Json* description = nullptr) {
  return find_dialect(dialect)->quantization_config(
      {.source = source, .description = description, .tensors = written});
}
Json description(std::string_view dialect, const ModelConfig& source,
                 const std::vector<WrittenTensor>& written, const Json* of_source = nullptr) {
  return find_dialect(dialect)->description(
      {.source = source, .description = of_source, .tensors = written});
}

TEST(Modelopt, DescribesWeightOnlyNvfp4) {
  const auto written = moe(SchemeId::kNvfp4, Activations::kWeightOnly);
  EXPECT_EQ(
      description("modelopt", config_with(), written).dump(),
      R"({"producer":{"name":"modelopt","version":"0.27.0"},"quantization":{"quant_algo":"W4A16_NVFP4","kv_cache_quant_algo":null,"group_size":16,"exclude_modules":["lm_head","model.embed_tokens","model.layers.0.mlp.gate","model.layers.0.self_attn*","model.layers.1.mlp.gate","model.layers.1.self_attn*"]}})");
  EXPECT_EQ(
      config_block("modelopt", config_with(), written).dump(),
      R"({"config_groups":{"group_0":{"weights":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},"targets":["Linear"]}},"ignore":["lm_head","model.embed_tokens","model.layers.0.mlp.gate","model.layers.0.self_attn*","model.layers.1.mlp.gate","model.layers.1.self_attn*"],"quant_algo":"W4A16_NVFP4","group_size":16,"producer":{"name":"modelopt","version":"0.27.0"},"quant_method":"modelopt"})");
}

TEST(Modelopt, NamesTheAlgorithmOfEverySpelling) {
  const std::map<std::pair<SchemeId, Activations>, std::string> names = {
      {{SchemeId::kNvfp4, Activations::kWeightOnly}, "W4A16_NVFP4"},
      {{SchemeId::kNvfp4, Activations::kStatic}, "NVFP4"},
      {{SchemeId::kFp8Tensor, Activations::kStatic}, "FP8"},
      {{SchemeId::kFp8Channel, Activations::kDynamic}, "FP8_PER_CHANNEL_PER_TOKEN"},
      {{SchemeId::kFp8Block, Activations::kDynamic}, "FP8_PB_WO"},
      {{SchemeId::kMxfp8, Activations::kDynamic}, "MXFP8"}};
  const Dialect& modelopt = *find_dialect("modelopt");
  const auto n_written = std::ranges::count(modelopt.storage, false, &StorageRow::is_read_only);
  EXPECT_EQ(static_cast<std::size_t>(n_written), names.size());
  for (const StorageRow& row : modelopt.storage) {
    const auto written = moe(row.scheme, row.activations);
    const std::string& algo = names.at({row.scheme, row.activations});
    const Json file = description("modelopt", config_with(), written);
    const Json block = config_block("modelopt", config_with(), written);
    EXPECT_EQ(file["quantization"]["quant_algo"], algo);
    EXPECT_EQ(block["quant_algo"], algo);
    // Read back, from either of the two.
    const ModelConfig again = config_with(block.dump());
    EXPECT_EQ(&dialect_of(again), &modelopt);
    const std::string_view expert = "model.layers.0.mlp.experts.0.up_proj.weight";
    for (const Json& beside : {file, Json()}) {
      EXPECT_EQ(SourceActivations(again, modelopt, beside).of(expert, {.scheme = row.scheme}),
                row.activations);
    }
    EXPECT_EQ(config_block("modelopt", again, written, &file).dump(), block.dump());
    EXPECT_EQ(description("modelopt", again, written, &file).dump(), file.dump());
  }
}

TEST(Modelopt, KeepsTheSourcesFilesWhileTheyHold) {
  const auto written = moe(SchemeId::kNvfp4, Activations::kStatic);
  const Json file = Json::parse(
      R"({"producer":{"name":"modelopt","version":"0.33"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":["lm_head","model.layers.*.self_attn*"]}})");
  EXPECT_EQ(description("modelopt", config_with(), written, &file), file);
  auto without_expert = written;
  for (WrittenTensor& t : without_expert) {
    if (t.name.find("experts") != std::string_view::npos &&
        t.name.find(".1.mlp") != std::string_view::npos) {
      t.scheme = SchemeId::kBf16;
    }
  }
  const Json anew = description("modelopt", config_with(), without_expert, &file);
  EXPECT_EQ(anew["quantization"]["exclude_modules"],
            Json::array({"lm_head", "model.embed_tokens", "model.layers.0.mlp.gate",
                         "model.layers.0.self_attn*", "model.layers.1.mlp*",
                         "model.layers.1.self_attn*"}));
  EXPECT_TRUE(anew["quantization"]["kv_cache_quant_algo"].is_null());
}

TEST(Modelopt, ExcludesSomethingAlways) {
  const std::vector<WrittenTensor> written = {
      tensor("a.weight", SchemeId::kNvfp4, Activations::kWeightOnly)};
  EXPECT_EQ(description("modelopt", config_with(), written)["quantization"]["exclude_modules"],
            Json::array({"model.norm"}));
}

// vLLM builds the head of an MTP layer with the quantization config, as `model.layers.N.head`.
TEST(Modelopt, ExcludesThePredictionHeadByVllmsName) {
  auto written = moe(SchemeId::kFp8Tensor, Activations::kStatic);
  for (const char* name :
       {"model.layers.2.shared_head.head.weight", "model.layers.2.mlp.experts.0.gate_proj.weight"})
    written.push_back(tensor(name, SchemeId::kBf16));
  written.back().scheme = SchemeId::kFp8Tensor;
  written.back().activations = Activations::kStatic;
  written.back().rule = &kDescribedRule;
  const Json excluded =
      description("modelopt", config_with(), written)["quantization"]["exclude_modules"];
  EXPECT_NE(std::find(excluded.begin(), excluded.end(), "model.layers.2.head"), excluded.end())
      << excluded.dump();
}

TEST(Modelopt, ListsTheModulesOfAMixture) {
  auto written = moe(SchemeId::kNvfp4, Activations::kWeightOnly);
  const std::string_view fp8 = "model.layers.0.self_attn.o_proj.weight";
  const std::string_view mx = "model.layers.1.self_attn.o_proj.weight";
  written.push_back(tensor(fp8, SchemeId::kFp8Tensor, Activations::kStatic));
  written.push_back(tensor(mx, SchemeId::kMxfp8, Activations::kDynamic));
  const Json block = config_block("modelopt", config_with(), written);
  const Json file = description("modelopt", config_with(), written);
  EXPECT_EQ(block["quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(block["quantized_layers"].dump(),
            R"({"model.layers.0.mlp.experts":{"quant_algo":"W4A16_NVFP4","group_size":16},)"
            R"("model.layers.0.self_attn.o_proj":{"quant_algo":"FP8"},)"
            R"("model.layers.1.mlp.experts":{"quant_algo":"W4A16_NVFP4","group_size":16},)"
            R"("model.layers.1.self_attn.o_proj":{"quant_algo":"MXFP8","group_size":32}})");
  EXPECT_EQ(file["quantization"]["quantized_layers"], block["quantized_layers"]);
  EXPECT_EQ(block["config_groups"].size(), 3U);
  // Read back, and kept.
  const ModelConfig again = config_with(block.dump());
  const Dialect& modelopt = *find_dialect("modelopt");
  const SourceActivations said(again, modelopt, file);
  EXPECT_EQ(said.of(fp8, {.scheme = SchemeId::kFp8Tensor}), Activations::kStatic);
  EXPECT_EQ(said.of(mx, {.scheme = SchemeId::kMxfp8}), Activations::kDynamic);
  EXPECT_EQ(said.of("model.layers.1.mlp.experts.0.up_proj.weight", {.scheme = SchemeId::kNvfp4}),
            Activations::kWeightOnly);
  EXPECT_EQ(config_block("modelopt", again, written, &file).dump(), block.dump());
  EXPECT_EQ(description("modelopt", again, written, &file).dump(), file.dump());
}

TEST(Modelopt, RefusesWhatItCannotHold) {
  auto written = moe(SchemeId::kNvfp4, Activations::kWeightOnly);
  written.push_back(tensor("model.layers.0.mlp.experts.1.up_proj.weight", SchemeId::kMxfp8,
                           Activations::kDynamic));
  expect_error(ErrorCode::kUnsupported, {"other experts of its layer"},
               [&] { static_cast<void>(description("modelopt", config_with(), written)); });
  expect_error(ErrorCode::kUnsupported, {"nvfp4 with dynamic"}, [&] {
    static_cast<void>(
        config_block("modelopt", config_with(), moe(SchemeId::kNvfp4, Activations::kDynamic)));
  });
  const ModelConfig source =
      config_with(R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":"lm_head"})");
  expect_error(ErrorCode::kCorrupt, {"ignore"}, [&] {
    static_cast<void>(
        config_block("modelopt", source, moe(SchemeId::kNvfp4, Activations::kStatic)));
  });
}

TEST(Modelslim, ListsEveryStoredTensor) {
  const std::vector<WrittenTensor> written = {
      tensor("a.weight", SchemeId::kInt8Channel, Activations::kDynamic,
             {"a.weight", "a.weight_scale", "a.weight_offset"}),
      tensor("norm.weight", SchemeId::kF32), tensor("b", SchemeId::kRaw)};
  EXPECT_EQ(
      description("modelslim", config_with(), written).dump(),
      R"({"model_quant_type":"W8A8_DYNAMIC","version":"1.0.0","group_size":0,"metadata":{},"optional":{},"a.weight":"W8A8_DYNAMIC","a.weight_offset":"W8A8_DYNAMIC","a.weight_scale":"W8A8_DYNAMIC","b":"FLOAT","norm.weight":"FLOAT"})");
  EXPECT_TRUE(
      config_block("modelslim", config_with(R"({"quant_method":"fp8"})"), written).is_null())
      << "another method would be taken";
}

TEST(Modelslim, IsNamedAfterItsHighestType) {
  const WrittenTensor at_run_time =
      tensor("a.weight", SchemeId::kInt8Channel, Activations::kDynamic);
  const WrittenTensor before = tensor("b.weight", SchemeId::kInt8Channel, Activations::kStatic);
  EXPECT_EQ(description("modelslim", config_with(), {at_run_time})["model_quant_type"],
            "W8A8_DYNAMIC");
  const Json both = description("modelslim", config_with(), {before, at_run_time});
  EXPECT_EQ(both["model_quant_type"], "W8A8");
  EXPECT_EQ(both["a.weight"], "W8A8_DYNAMIC");
  EXPECT_EQ(both["b.weight"], "W8A8");
}

TEST(Modelslim, KeepsTheTypeThatTheSourceGave) {
  const Json source = {{"a.weight", "W8A8_MIX"}, {"b.weight", "W8A8_DYNAMIC"}};
  const std::vector<WrittenTensor> written = {
      tensor("a.weight", SchemeId::kInt8Channel, Activations::kStatic),
      tensor("b.weight", SchemeId::kInt8Channel, Activations::kStatic)};
  const Json derived = description("modelslim", config_with(), written, &source);
  EXPECT_EQ(derived["a.weight"], "W8A8_MIX");
  EXPECT_EQ(derived["b.weight"], "W8A8") << "no longer what the source said";
}

TEST(SourceActivationsOf, PartsAndDefaults) {
  Encoding with_input = {.scheme = SchemeId::kInt8Channel};
  with_input.stored.set(Part::kInputScale, 0);
  const ModelConfig config = config_with();
  const SourceActivations ascend(config, *find_dialect("modelslim"), nullptr);
  EXPECT_EQ(ascend.of("a.weight", with_input), Activations::kStatic);
  EXPECT_EQ(ascend.of("a.weight", {.scheme = SchemeId::kInt8Channel}), Activations::kDynamic);
  const SourceActivations deepseek(config, *find_dialect("deepseek"), nullptr);
  EXPECT_EQ(deepseek.of("a.weight", {.scheme = SchemeId::kFp8Block}), Activations::kDynamic);
  EXPECT_EQ(deepseek.of("a.weight", {.scheme = SchemeId::kMxfp4}), Activations::kWeightOnly);
}

constexpr const char* kPointer =
    "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 4302000000\n";

/// The tiny model in two shards with an index.
TinyCheckpoint two_shards() {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  auto& all = tiny.files["model.safetensors"];
  tiny.files["model-00002-of-00002.safetensors"] = {all.back()};
  all.pop_back();
  tiny.files["model-00001-of-00002.safetensors"] = std::move(all);
  tiny.files.erase("model.safetensors");
  tiny.index_files();
  return tiny;
}

using StrayFiles = InTempDir;

TEST_F(StrayFiles, AreLeftOutWithARemark) {
  TinyCheckpoint tiny = two_shards();
  tiny.files["consolidated.safetensors"] = {{"layers.0.attention.wq.weight", "BF16", {8, 8}}};
  tiny.files["merged.safetensors"] = {tiny.files["model-00002-of-00002.safetensors"]};
  tiny.write(dir_.path());
  write_bytes(dir_ / "truncated.safetensors", "short");
  write_bytes(dir_ / "pytorch_model.bin", "x");
  write_bytes(dir_ / "model-Q4_K_M.gguf", "x");
  write_bytes(dir_ / "figures/benchmark.PNG", "x");
  write_bytes(dir_ / "original/consolidated.00.pth", "x");
  write_bytes(dir_ / "vision/model.safetensors", "x");
  write_bytes(dir_ / "tokenizer.json", "{}");
  const Checkpoint model = Checkpoint::open(dir_.path());
  EXPECT_EQ(model.files().size(), 2U);
  EXPECT_THAT(side_paths(model), ElementsAre("tokenizer.json"));
  EXPECT_THAT(
      model.remarks(),
      ElementsAre("left out, weights that the checkpoint does not use: consolidated.safetensors, "
                  "merged.safetensors, truncated.safetensors, vision/model.safetensors",
                  "left out, pictures: figures/benchmark.PNG",
                  "left out, weights in GGUF: model-Q4_K_M.gguf",
                  "left out, weights in a format that is not read: original/",
                  "left out, weights in PyTorch's pickles: pytorch_model.bin"));
}

TEST_F(StrayFiles, AreLeftOutBesideASingleFile) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["consolidated.safetensors"] = {{"layers.0.attention.wq.weight", "BF16", {8, 8}}};
  tiny.write(dir_.path());
  EXPECT_THAT(Checkpoint::open(dir_.path()).remarks(),
              ElementsAre(HasSubstr("consolidated.safetensors")));
}

// Each says that the index is not of these files.
TEST_F(StrayFiles, ThatTheIndexShouldNameAreRefused) {
  const auto refuse = [](const std::string& file, const std::string& tensor) {
    SCOPED_TRACE(file + " " + tensor);
    TempDir dir;
    TinyCheckpoint tiny = two_shards();
    tiny.files[file] = {{tensor, "BF16", {8, 8}}};
    tiny.write(dir.path());
    expect_error(ErrorCode::kMissingTensor, {file, "is not named by", "move the file away"},
                 [&] { Checkpoint::open(dir.path()); });
  };
  refuse("model-00003-of-00003.safetensors", "nothing.of.this.model");
  refuse("model.safetensors", "nothing.of.this.model");
  refuse("extra.safetensors", "model.layers.1.mlp.experts.2.up_proj.weight");
  refuse("extra.safetensors", "model.layers.0.self_attn.rotary_emb.inv_freq");
}

TEST_F(StrayFiles, LikeShardsAreRefusedWithoutAnIndex) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["model-00002-of-00002.safetensors"] = {{"other", "BF16", {1}}};
  tiny.write(dir_.path());
  expect_error(ErrorCode::kMissingTensor, {"model-00002-of-00002.safetensors", "without an index"},
               [&] { Checkpoint::open(dir_.path()); });
}

TEST(ForeignWeights, AreNamedWithTheRemedy) {
  const auto refuse = [](const std::string& file, const std::string& fact) {
    SCOPED_TRACE(file);
    TempDir dir;
    write_bytes(dir / file, "x");
    expect_error(ErrorCode::kUnsupported, {file, fact, "safetensors"},
                 [&] { Checkpoint::open(dir.path()); });
    write_bytes(dir / "config.json", "{}");
    expect_error(ErrorCode::kUnsupported, {file, fact},
                 [&] { Checkpoint::open(dir.path(), {.family = "generic"}); });
  };
  refuse("model-Q4_K_M.gguf", "GGUF");
  refuse("pytorch_model-00001-of-00002.bin", "pickles");
  refuse("consolidated.00.pth", "pickles");
  refuse("tf_model.h5", "not read");
}

TEST(LfsPointer, IsSaidToBeOne) {
  TempDir dir;
  tiny_deepseek_v3().write(dir.path());
  write_bytes(dir / "model.safetensors", kPointer);
  expect_error(ErrorCode::kCorrupt, {"model.safetensors", "Git LFS pointer", "git lfs pull"},
               [&] { Checkpoint::open(dir.path()); });
  write_bytes(dir / "config.json", kPointer);
  expect_error(ErrorCode::kCorrupt, {"config.json", "Git LFS pointer", "git lfs pull"},
               [&] { Checkpoint::open(dir.path()); });
}

}  // namespace
}  // namespace ingot::formats
