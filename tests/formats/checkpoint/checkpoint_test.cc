#include "formats/checkpoint/checkpoint.h"

#include <sys/resource.h>

#include "formats/checkpoint/checkpoint_files.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "tests/formats/checkpoint/side_paths.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::formats {
namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using enum ErrorCode;

const fs::path kTinyV32 = fs::path(INGOT_SOURCE_DIR) / "examples/tiny-v32";
constexpr const char* kUpStem = "model.layers.0.mlp.up_proj";

const LogicalTensor& logical(const Checkpoint& checkpoint, std::string_view name) {
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no logical tensor " + std::string(name));
}

class OpenCheckpoint : public InTempDir {
 protected:
  [[nodiscard]] Checkpoint open(const OpenOptions& options = {}) const {
    tiny_.write(dir_.path());
    return Checkpoint::open(dir_.path(), options);
  }

  TinyCheckpoint tiny_ = tiny_deepseek_v3();
};

// msmodelslim's names, of today and of before.
TEST_F(OpenCheckpoint, ReadsTheIndexOfMsmodelslim) {
  for (const std::string stem : {"quant_model_weights", "quant_model_weight_w8a8_dynamic"}) {
    TinyCheckpoint tiny = tiny_deepseek_v3();
    const std::size_t n_tensors = tiny.files["model.safetensors"].size();
    const std::string first = stem + "-00001-of-00002.safetensors";
    const std::string second = stem + "-00002-of-00002.safetensors";
    tiny.files[first] = std::move(tiny.files["model.safetensors"]);
    tiny.files.erase("model.safetensors");
    tiny.files[second] = {tiny.files[first].back()};
    tiny.files[first].pop_back();
    tiny.index_files();
    const TempDir dir;
    tiny.write(dir.path());
    const std::string index = stem + ".safetensors.index.json";
    fs::rename(dir / "model.safetensors.index.json", dir / index);
    const Checkpoint checkpoint = Checkpoint::open(dir.path());
    EXPECT_TRUE(checkpoint.has_index());
    EXPECT_EQ(checkpoint.stored().size(), n_tensors);
    EXPECT_EQ(checkpoint.files().size(), 2U);
    fs::remove(dir / second);
    expect_error(kNotFound, {second, index + " names it"}, [&] { Checkpoint::open(dir.path()); });
    fs::copy_file(dir / index, dir / "quant_model_weight.safetensors.index.json");
    expect_error(kDuplicate, {index, "quant_model_weight.safetensors.index.json"},
                 [&] { Checkpoint::open(dir.path()); });
  }
}

TEST_F(OpenCheckpoint, NamesRepairWhereAnIndexIsMissing) {
  tiny_.files["a.safetensors"] = std::move(tiny_.files["model.safetensors"]);
  tiny_.files.erase("model.safetensors");
  expect_error(kNotFound, {"1 .safetensors file(s)", "ingot repair makes one"},
               [&] { static_cast<void>(open()); });
}

TEST_F(OpenCheckpoint, OpensTheBundledModel) {
  const Checkpoint model = Checkpoint::open(kTinyV32);
  EXPECT_EQ(model.family().name, "deepseek_v32");
  EXPECT_EQ(model.dialect().name, "deepseek");
  EXPECT_TRUE(model.has_index());
  EXPECT_FALSE(model.lacks_promised_mtp());
  ASSERT_EQ(model.files().size(), 2U);
  EXPECT_EQ(model.files()[0].name, "model-00001-of-00002.safetensors");
  EXPECT_EQ(model.files()[0].n_bytes, fs::file_size(kTinyV32 / "model-00001-of-00002.safetensors"));
  EXPECT_EQ(model.stored().size(), 661U);
  EXPECT_EQ(model.tensors().size(), 361U);
  std::size_t n_fp8 = 0;
  for (const LogicalTensor& tensor : model.tensors()) {
    ASSERT_NE(tensor.rule, nullptr) << tensor.name;
    const bool is_fp8 = tensor.encoding.scheme == SchemeId::kFp8Block;
    EXPECT_EQ(is_fp8, tensor.rule->fp8_by_default) << tensor.name;
    n_fp8 += is_fp8 ? 1 : 0;
  }
  EXPECT_EQ(n_fp8, 300U);
  EXPECT_THAT(side_paths(model),
              ::testing::IsSupersetOf(
                  {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}));
}

TEST_F(OpenCheckpoint, ListsTensorsInSourceOrder) {
  const Checkpoint model = Checkpoint::open(kTinyV32, {.threads = 2});
  std::pair<std::uint32_t, std::uint64_t> before{0, 0};
  for (const LogicalTensor& tensor : model.tensors()) {
    const StoredTensor& weight = model.stored()[tensor.encoding.stored.weight()];
    const std::pair<std::uint32_t, std::uint64_t> at{weight.file, weight.offset};
    EXPECT_LT(before, at) << tensor.name;
    before = at;
  }
}

TEST_F(OpenCheckpoint, JoinsWeightAndScaleAcrossFiles) {
  const Checkpoint model = Checkpoint::open(kTinyV32);
  std::size_t n_split = 0;
  for (const LogicalTensor& tensor : model.tensors()) {
    if (tensor.encoding.scheme != SchemeId::kFp8Block) continue;
    const StoredTensor& weight = model.stored()[tensor.encoding.stored.weight()];
    const StoredTensor& scale = model.stored()[tensor.encoding.stored[Part::kScale]];
    EXPECT_EQ(scale.name, tensor.name + "_scale_inv");
    EXPECT_EQ(scale.shape, block_scale_shape(tensor.shape, 128, 128));
    n_split += weight.file != scale.file ? 1 : 0;
  }
  EXPECT_EQ(n_split, 1U);
}

TEST_F(OpenCheckpoint, TellsLayerExpertAndRole) {
  const Checkpoint model = Checkpoint::open(kTinyV32);
  const LogicalTensor& expert = logical(model, "model.layers.2.mlp.experts.7.down_proj.weight");
  EXPECT_EQ(expert.layer, 2U);
  EXPECT_EQ(expert.expert, 7U);
  EXPECT_EQ(expert.rule->role, Role::kExpertDown);
  EXPECT_EQ(logical(model, "model.layers.5.eh_proj.weight").rule->role, Role::kMtpProj);
  EXPECT_FALSE(logical(model, "lm_head.weight").layer);
}

TEST_F(OpenCheckpoint, ReadsTheBytesOfATensor) {
  tensor_of(tiny_, "model.norm.weight").data = "0123456789abcdef";
  const Checkpoint model = open();
  const std::uint32_t stored = logical(model, "model.norm.weight").encoding.stored.weight();
  std::string text(6, '.');
  model.read(stored, 4, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "456789");
  expect_error(kInternal, {},
               [&] { model.read(stored, 12, std::as_writable_bytes(std::span(text))); });

  const std::vector<std::byte> header = model.header_bytes(0);
  EXPECT_EQ(header.size(), model.files()[0].data_start);
  std::string file(header.size(), '.');
  model.read_file(0, 0, std::as_writable_bytes(std::span(file)));
  EXPECT_EQ(std::memcmp(file.data(), header.data(), file.size()), 0);
}

TEST_F(OpenCheckpoint, OpensASingleFileWithoutIndex) {
  const Checkpoint model = open();
  EXPECT_FALSE(model.has_index());
  EXPECT_EQ(model.tensors().size(), 3U + 2 * 9 + 3 + 2 + 9);
  for (const LogicalTensor& tensor : model.tensors())
    EXPECT_EQ(tensor.encoding.scheme, SchemeId::kBf16) << tensor.name;
}

TEST_F(OpenCheckpoint, UnderstandsEveryNameOfAScale) {
  for (const char* suffix : {".weight_scale_inv", ".weight_scale", ".scale"}) {
    for (const char* dtype : {"F32", "BF16", "F8_E8M0"}) {
      TempDir dir;
      TinyCheckpoint tiny = tiny_deepseek_v3();
      make_fp8(tiny, kUpWeight, std::string(kUpStem) + suffix);
      tensor_of(tiny, std::string(kUpStem) + suffix).dtype = dtype;
      tiny.write(dir.path());
      const Checkpoint model = Checkpoint::open(dir.path());
      const LogicalTensor& tensor = logical(model, kUpWeight);
      EXPECT_EQ(tensor.encoding.scheme, SchemeId::kFp8Block) << suffix << dtype;
      EXPECT_EQ(tensor.encoding.block_rows, 128U);
      EXPECT_EQ(model.stored()[tensor.encoding.stored[Part::kScale]].name,
                std::string(kUpStem) + suffix);
    }
  }
}

TEST_F(OpenCheckpoint, TakesTheBlockSizeFromTheConfig) {
  tiny_.config.insert(
      1, R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 4]},)");
  make_fp8(tiny_, kUpWeight, std::string(kUpStem) + ".weight_scale_inv");
  tensor_of(tiny_, std::string(kUpStem) + ".weight_scale_inv").shape = {2, 2};
  const Checkpoint model = open();
  EXPECT_EQ(logical(model, kUpWeight).encoding.block_rows, 8U);
  EXPECT_EQ(logical(model, kUpWeight).encoding.block_cols, 4U);
}

TEST_F(OpenCheckpoint, UnderstandsStackedExperts) {
  auto& tensors = tiny_.files["model.safetensors"];
  std::erase_if(tensors,
                [](const TinyTensor& t) { return t.name.find(".experts.") != std::string::npos; });
  const std::string stem = "model.layers.1.mlp.experts.";
  tensors.push_back({stem + "gate_up_proj", "F8_E4M3", {2, 8, 8}});
  tensors.push_back({stem + "gate_up_proj_scale_inv", "F32", {2, 1, 1}});
  tensors.push_back({stem + "down_proj", "BF16", {2, 8, 4}});
  const Checkpoint model = open();
  EXPECT_EQ(logical(model, stem + "gate_up_proj").encoding.scheme, SchemeId::kFp8Block);
  EXPECT_EQ(logical(model, stem + "down_proj").encoding.scheme, SchemeId::kBf16);
  EXPECT_EQ(logical(model, stem + "down_proj").rule->role, Role::kExpertsDown);
}

TEST_F(OpenCheckpoint, NoticesPromisedMtpLayersThatAreNotThere) {
  tiny_.config.replace(tiny_.config.find("\"num_nextn_predict_layers\": 0"), 29,
                       "\"num_nextn_predict_layers\": 1 ");
  tiny_.write(dir_ / "without");
  EXPECT_TRUE(Checkpoint::open(dir_ / "without").lacks_promised_mtp());
  tiny_.files["model.safetensors"].push_back({"model.layers.2.enorm.weight", "BF16", {8}});
  tiny_.write(dir_ / "with");
  EXPECT_FALSE(Checkpoint::open(dir_ / "with").lacks_promised_mtp());
}

TEST_F(OpenCheckpoint, AllowsUnknownTensorsByPattern) {
  tiny_.files["model.safetensors"].push_back({"vision.patch.weight", "BF16", {2, 2}});
  tiny_.write(dir_.path());
  std::vector<Pattern> allowed;
  allowed.emplace_back("vision.*");
  const Checkpoint model = Checkpoint::open(dir_.path(), {.allow_unknown = &allowed});
  EXPECT_EQ(logical(model, "vision.patch.weight").rule, nullptr);
  EXPECT_NE(logical(model, kUpWeight).rule, nullptr);
}

TEST_F(OpenCheckpoint, ScaleBesideNoWeightIsAParameter) {
  tiny_.files.begin()->second.push_back({"model.layers.1.mlp.router.scale", "F32", {8}});
  tiny_.write(dir_.path());
  std::vector<Pattern> allowed;
  allowed.emplace_back("*.router.scale");
  const Checkpoint model = Checkpoint::open(dir_.path(), {.allow_unknown = &allowed});
  EXPECT_EQ(logical(model, "model.layers.1.mlp.router.scale").encoding.scheme, SchemeId::kF32);
}

TEST_F(OpenCheckpoint, GenericFamilyNeedsNoConfigOrIndex) {
  TinyCheckpoint tiny;
  tiny.files["a.safetensors"] = {{"anything", "I64", {3}}, {"w.weight", "F8_E4M3", {4, 4}}};
  tiny.files["b.safetensors"] = {
      {"w.scale", "F32", {1, 1}}, {"norm.scale", "BF16", {4}}, {"norm.weight", "BF16", {4}}};
  tiny.write(dir_.path());
  const Checkpoint model = Checkpoint::open(dir_.path(), {.family = "generic"});
  EXPECT_EQ(model.files().size(), 2U);
  EXPECT_TRUE(model.config().raw->is_null());
  EXPECT_EQ(model.tensors().size(), 4U);
  EXPECT_EQ(logical(model, "w.weight").encoding.scheme, SchemeId::kFp8Block);
  EXPECT_EQ(logical(model, "norm.scale").encoding.scheme, SchemeId::kBf16)
      << "a parameter, not a scale";
  EXPECT_EQ(logical(model, "anything").encoding.scheme, SchemeId::kRaw);
}

TEST_F(OpenCheckpoint, GenericFamilyLeavesFilesOfOtherNames) {
  tiny_.files["golden.safetensors"] = {{"logits", "F32", {3}}};
  tiny_.write(dir_.path());
  const Checkpoint model = Checkpoint::open(dir_.path(), {.family = "generic"});
  EXPECT_EQ(model.files().size(), 1U);
  EXPECT_THAT(model.remarks(), ::testing::Contains(::testing::HasSubstr("golden.safetensors")));
}

/// A family of this size with input-major stacks; FP8 ones of this shape of down, with scales.
StackOrder order_of_quantized(const fs::path& directory, std::uint64_t hidden,
                              const std::vector<std::uint64_t>& gate_up,
                              const std::vector<std::uint64_t>& down) {
  TinyCheckpoint tiny;
  tiny.config = R"({"num_hidden_layers": 1, "num_experts": 2, "moe_intermediate_size": 16,
      "hidden_size": )" +
                std::to_string(hidden) + "}";
  for (const auto& [name, shape] : {std::pair{"gate_up_proj", gate_up}, {"down_proj", down}}) {
    const std::string stack = std::string("layers.0.experts.") + name;
    tiny.files["model.safetensors"].push_back({stack, "F8_E4M3", shape});
    tiny.files["model.safetensors"].push_back({stack + "_scale_inv", "F32", {2, 1, 1}});
  }
  tiny.write(directory);
  write_bytes(directory / "ingot-family.yaml", R"(family: odd
tensors:
- under: "layers.{layer}.experts."
  stack: input-major
  quantized: true
  present: stacked
  tensors:
  - {name: gate_up_proj, role: experts-gate-up, shape: [num_experts, hidden_size, 2 * moe_intermediate_size]}
  - {name: down_proj, role: experts-down, shape: [num_experts, moe_intermediate_size, hidden_size]}
)");
  const Checkpoint model = Checkpoint::open(directory);
  EXPECT_EQ(logical(model, "layers.0.experts.gate_up_proj").stack,
            logical(model, "layers.0.experts.down_proj").stack);
  return logical(model, "layers.0.experts.down_proj").stack;
}

TEST_F(OpenCheckpoint, ReadsQuantizedStacksInTheOrderOfTheirShapes) {
  using enum StackOrder;
  EXPECT_EQ(order_of_quantized(dir_ / "a", 24, {2, 24, 32}, {2, 16, 24}), kInputMajor);
  EXPECT_EQ(order_of_quantized(dir_ / "b", 24, {2, 32, 24}, {2, 24, 16}), kOutputMajor);
  // The matrices of gate and up are square; those of down tell.
  EXPECT_EQ(order_of_quantized(dir_ / "c", 32, {2, 32, 32}, {2, 16, 32}), kInputMajor);
  EXPECT_EQ(order_of_quantized(dir_ / "d", 32, {2, 32, 32}, {2, 32, 16}), kOutputMajor);
}

TEST_F(OpenCheckpoint, TakesTheFamilyFromTheCaller) {
  tiny_.config.replace(tiny_.config.find("\"deepseek_v3\""), 13, "\"some_remake\"");
  tiny_.write(dir_.path());
  EXPECT_EQ(Checkpoint::open(dir_.path(), {.family = "deepseek_v3"}).family().name, "deepseek_v3");
  expect_error(kUnsupported, {"some_remake", "qwen3_moe"}, [&] { Checkpoint::open(dir_.path()); });
  expect_error(kInvalidArgument, {"no family 'lama'", "kimi_k2"},
               [&] { Checkpoint::open(dir_.path(), {.family = "lama"}); });
}

TEST_F(OpenCheckpoint, ListsSideFilesOfAllDepths) {
  tiny_.write(dir_ / "model");
  const fs::path model = dir_ / "model";
  for (const char* name :
       {"tokenizer.json", ".gitattributes", "modeling/code.py", "modeling/config.json",
        "zz/a/b.txt", ".git/HEAD", ".cache/x", "modeling/.hidden/x", "ingot.tensors.jsonl.zst",
        "modeling/x.safetensors", "other.safetensors.index.json"}) {
    write_bytes(model / name, "12345");
  }
  write_bytes(model / "ingot.json", manifest_text(Manifest()));
  write_bytes(dir_ / "elsewhere/blob", "1234567");
  fs::create_symlink(dir_ / "elsewhere/blob", model / "chat_template.jinja");
  fs::create_directory_symlink(dir_ / "elsewhere", model / "linked");
  fs::create_directory_symlink(model, model / "self");
  const Checkpoint checkpoint = Checkpoint::open(model);
  EXPECT_EQ(side_paths(checkpoint),
            (std::vector<std::string>{".gitattributes", "chat_template.jinja", "modeling/code.py",
                                      "modeling/config.json", "tokenizer.json", "zz/a/b.txt"}));
  EXPECT_EQ(checkpoint.side_files()[1].n_bytes, 7U) << "of the file, not of the link";
}

TEST_F(OpenCheckpoint, IsNotOpenedUnderAnUnreadableManifest) {
  tiny_.write(dir_ / "model");
  write_bytes(dir_ / "model/ingot.json", "12345");
  // Its tensors may be slices.
  expect_error(kCorrupt, {"ingot.json"}, [&] { Checkpoint::open(dir_ / "model"); });
}

TEST_F(OpenCheckpoint, TakesTheDialectFromTheDescriptionFile) {
  tiny_.write(dir_ / "model");
  EXPECT_TRUE(Checkpoint::open(dir_ / "model").description().is_null());
  write_bytes(dir_ / "model/quant_model_description.json", R"({"model_quant_type": "W8A8"})");
  const Checkpoint ascend = Checkpoint::open(dir_ / "model");
  EXPECT_EQ(ascend.dialect().name, "modelslim");
  EXPECT_EQ(ascend.description()["model_quant_type"], "W8A8");
  write_bytes(dir_ / "model/hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4"}})");
  const Checkpoint nvidia = Checkpoint::open(dir_ / "model");
  EXPECT_EQ(nvidia.dialect().name, "modelopt");
  EXPECT_EQ(nvidia.description()["quantization"]["quant_algo"], "NVFP4");
  EXPECT_EQ(side_paths(nvidia), std::vector<std::string>{}) << "derived anew, never copied";
}

TEST_F(OpenCheckpoint, TakesTheDialectFromTheConfigFirst) {
  tiny_.config.insert(1, R"("quantization_config": {"quant_method": "fp8"},)");
  tiny_.write(dir_.path());
  write_bytes(dir_ / "quant_model_description.json", "{}");
  const Checkpoint model = Checkpoint::open(dir_.path());
  EXPECT_EQ(model.dialect().name, "deepseek");
  EXPECT_TRUE(model.description().is_null()) << "of another dialect";
  EXPECT_EQ(side_paths(model), std::vector<std::string>{});
}

// As in the cache of the Hugging Face hub, where every file is a link.
TEST_F(OpenCheckpoint, FollowsLinksToFiles) {
  tiny_.index_files();
  tiny_.write(dir_ / "blobs");
  fs::create_directory(dir_ / "snapshot");
  for (const auto& entry : fs::directory_iterator(dir_ / "blobs")) {
    fs::create_symlink(entry.path(), dir_ / "snapshot" / entry.path().filename());
  }
  EXPECT_TRUE(Checkpoint::open(dir_ / "snapshot").has_index());
}

TEST_F(OpenCheckpoint, PutsASavedHeaderForAConsumedFile) {
  tiny_.files["second.safetensors"] = {
      {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}}};
  tiny_.index_files();
  tiny_.write(dir_ / "model");
  std::uint64_t n_bytes = 0;
  {
    const Checkpoint whole = Checkpoint::open(dir_ / "model");
    const std::vector<std::byte> header = whole.header_bytes(0);
    n_bytes = whole.files()[0].n_bytes;
    write_bytes(dir_ / "saved/model.safetensors.header",
                std::string_view(reinterpret_cast<const char*>(header.data()), header.size()));
    whole.close_file(0);
    EXPECT_TRUE(whole.has_data(0));
  }
  fs::remove(dir_ / "model/model.safetensors");
  expect_error(kNotFound, {"model.safetensors"}, [&] { Checkpoint::open(dir_ / "model"); });
  const Checkpoint model = Checkpoint::open(dir_ / "model", {.consumed_headers = dir_ / "saved"});
  EXPECT_FALSE(model.has_data(0));
  EXPECT_TRUE(model.has_data(1));
  EXPECT_EQ(model.files()[0].n_bytes, n_bytes);
  std::string byte(1, '.');
  expect_error(kNotFound, {"consumed"}, [&] {
    model.read(logical(model, kUpWeight).encoding.stored.weight(), 0,
               std::as_writable_bytes(std::span(byte)));
  });
}

TEST(CheckpointFiles, ManyAreReadWithFewDescriptors) {
  TempDir dir;
  constexpr std::uint32_t kFiles = 60;
  std::vector<WeightsFile> located;
  for (std::uint32_t i = 0; i < kFiles; ++i) {
    WeightsFile& file = located.emplace_back();
    file.path = dir / std::to_string(i);
    write_bytes(file.path, std::string(1, static_cast<char>('A' + i)));
  }
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  // The files that this process has open already, and a few.
  limit.rlim_cur =
      static_cast<rlim_t>(std::distance(fs::directory_iterator("/proc/self/fd"), {})) + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<std::thread> threads;
  std::vector<std::string> failures(4);
  {
    const CheckpointFiles files(std::move(located));
    for (std::size_t t = 0; t < failures.size(); ++t) {
      threads.emplace_back([&, t] {
        try {
          for (std::uint32_t round = 0; round < 5 * kFiles; ++round) {
            const std::uint32_t i = (round * 7 + static_cast<std::uint32_t>(t)) % kFiles;
            char letter = '.';
            files.read_file(i, 0, std::as_writable_bytes(std::span(&letter, 1)));
            if (letter != static_cast<char>('A' + i)) failures[t] = "wrong byte";
          }
        } catch (const std::exception& error) {
          failures[t] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  limit.rlim_cur = before;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

// A checkpoint over tensors that the caller has found.

// Every byte of tensor i is i, and each calls the same file its home.
class NumberedBytes final : public StoredBytes {
 public:
  [[nodiscard]] std::span<const SourceFile> files() const override { return files_; }
  void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    EXPECT_LE(offset + out.size(), tensor.n_bytes);
    std::fill(out.begin(), out.end(), static_cast<std::byte>(index));
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return std::vector<std::byte>(file + 3);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override { return file == 0; }
  void read_file(std::uint32_t, std::uint64_t offset, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), static_cast<std::byte>(offset));
  }
  void close_file(std::uint32_t file) const override { closed = file; }
  [[nodiscard]] bool is_whole() const override { return false; }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return "home-" + std::to_string(index);
  }

  mutable std::uint32_t closed = ~std::uint32_t{0};

 private:
  std::vector<SourceFile> files_ = {{"slices", 1000, 8}};
};

// The contents of a directory, as if they had been found elsewhere.
Draft found_in(const TinyCheckpoint& checkpoint, const TempDir& dir) {
  checkpoint.write(dir / "model");
  const Checkpoint opened = Checkpoint::open(dir / "model");
  Draft model;
  model.directory = dir.path();
  model.has_index = true;
  model.config = opened.config();
  model.stored.assign(opened.stored().begin(), opened.stored().end());
  model.side_files = {{"tokenizer.json", 5}};
  model.bytes = std::make_unique<NumberedBytes>();
  return model;
}

using AssembledCheckpoint = InTempDir;

TEST_F(AssembledCheckpoint, UnderstandsItsTensorsAsADirectoryDoes) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  make_fp8(tiny, kUpWeight, "model.layers.0.mlp.up_proj.weight_scale_inv");
  const Checkpoint checkpoint = Checkpoint::assemble(found_in(tiny, dir_));
  const Checkpoint opened = Checkpoint::open(dir_ / "model");
  EXPECT_EQ(checkpoint.family().name, "deepseek_v3");
  EXPECT_EQ(checkpoint.dialect().name, "deepseek");
  ASSERT_EQ(checkpoint.tensors().size(), opened.tensors().size());
  for (std::size_t i = 0; i < opened.tensors().size(); ++i) {
    EXPECT_EQ(checkpoint.tensors()[i].name, opened.tensors()[i].name);
    EXPECT_EQ(checkpoint.tensors()[i].shape, opened.tensors()[i].shape);
    EXPECT_EQ(checkpoint.tensors()[i].encoding.scheme, opened.tensors()[i].encoding.scheme);
    EXPECT_EQ(checkpoint.tensors()[i].rule, opened.tensors()[i].rule);
    EXPECT_EQ(checkpoint.tensors()[i].layer, opened.tensors()[i].layer);
  }
  EXPECT_TRUE(checkpoint.has_index());
  EXPECT_EQ(checkpoint.slicing(), nullptr);
  EXPECT_EQ(checkpoint.directory(), dir_.path());
  ASSERT_EQ(checkpoint.side_files().size(), 1U);
  EXPECT_EQ(checkpoint.side_files()[0].path, "tokenizer.json");
}

TEST_F(AssembledCheckpoint, ReadsFromTheBytesThatItWasGiven) {
  Draft model = found_in(tiny_deepseek_v3(), dir_);
  auto* bytes = dynamic_cast<NumberedBytes*>(model.bytes.get());
  const Checkpoint checkpoint = Checkpoint::assemble(std::move(model));
  EXPECT_EQ(&checkpoint.bytes(), bytes);
  EXPECT_FALSE(checkpoint.is_whole());
  EXPECT_EQ(checkpoint.home_file(7), "home-7");
  ASSERT_EQ(checkpoint.files().size(), 1U);
  EXPECT_EQ(checkpoint.files()[0].name, "slices");
  std::array<std::byte, 4> out{};
  checkpoint.read(5, 2, out);
  EXPECT_THAT(out, ::testing::Each(std::byte{5}));
  checkpoint.read_file(0, 9, out);
  EXPECT_THAT(out, ::testing::Each(std::byte{9}));
  EXPECT_EQ(checkpoint.header_bytes(0).size(), 3U);
  EXPECT_TRUE(checkpoint.has_data(0));
  checkpoint.close_file(0);
  EXPECT_EQ(bytes->closed, 0U);
}

TEST_F(AssembledCheckpoint, DirectoryIsWhole) {
  tiny_deepseek_v3().write(dir_ / "model");
  const Checkpoint opened = Checkpoint::open(dir_ / "model");
  EXPECT_TRUE(opened.is_whole());
  EXPECT_EQ(opened.home_file(0), "");
}

TEST_F(AssembledCheckpoint, TakesTheDialectThatItIsGiven) {
  Draft model = found_in(tiny_deepseek_v3(), dir_);
  model.dialect = find_dialect("modelslim");
  model.description = Json{{"model_quant_type", "W8A8"}};
  const Checkpoint checkpoint = Checkpoint::assemble(std::move(model));
  EXPECT_EQ(checkpoint.dialect().name, "modelslim");
  EXPECT_EQ(checkpoint.description().at("model_quant_type"), "W8A8");
}

TEST_F(AssembledCheckpoint, RefusesWhatADirectoryIsRefusedFor) {
  Draft twice = found_in(tiny_deepseek_v3(), dir_);
  twice.stored.push_back(twice.stored.front());
  expect_error(ErrorCode::kDuplicate, {twice.stored.front().name, "slices"},
               [&] { Checkpoint::assemble(std::move(twice)); });

  Draft misshapen = found_in(tiny_deepseek_v3(), dir_);
  for (StoredTensor& tensor : misshapen.stored) {
    if (tensor.name == kUpWeight) tensor.shape.front() *= 2;
  }
  expect_error(ErrorCode::kShapeMismatch, {kUpWeight},
               [&] { Checkpoint::assemble(std::move(misshapen)); });

  Draft unknown = found_in(tiny_deepseek_v3(), dir_);
  unknown.stored.front().name = "model.surprise.weight";
  ErrorList faults;
  const Checkpoint collected = Checkpoint::assemble(std::move(unknown), {.faults = &faults});
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_EQ(faults.errors()[0].code(), ErrorCode::kUnknownTensor);
  EXPECT_FALSE(collected.tensors().empty());
}

}  // namespace
}  // namespace ingot::formats
