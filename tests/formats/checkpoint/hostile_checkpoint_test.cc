#include "tests/formats/checkpoint/hostile_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::formats {
namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using enum ErrorCode;

using HostileDirectory = InTempDir;

TEST_F(HostileDirectory, ThatIsNotThereOrNoDirectory) {
  expect_error(kNotFound, {"no such directory"}, [&] { Checkpoint::open(dir_ / "nothing"); });
  write_bytes(dir_ / "file", "x");
  expect_error(kInvalidArgument, {"not a directory"}, [&] { Checkpoint::open(dir_ / "file"); });
  fs::create_symlink(dir_ / "loop", dir_ / "loop");
  expect_error(kIo, {"symbolic link"}, [&] { Checkpoint::open(dir_ / "loop"); });
}

TEST_F(HostileDirectory, WithAnUnfinishedConversion) {
  tiny_deepseek_v3().write(dir_.path());
  fs::create_directory(dir_ / ".ingot-partial");
  expect_error(kExists, {"unfinished", "--resume"}, [&] { Checkpoint::open(dir_.path()); });
}

TEST_F(HostileDirectory, ThatMayNotBeRead) {
  // Root may read anything, so the test changes to another user for as long as it lasts.
  const uid_t user = ::geteuid();
  if (user == 0) {
    fs::permissions(dir_.path(), fs::perms::all);
    ASSERT_EQ(::seteuid(65534), 0);
  }
  tiny_deepseek_v3().write(dir_ / "model");
  fs::permissions(dir_ / "model/model.safetensors", fs::perms::none);
  expect_error(kPermission, {"model.safetensors"}, [&] { Checkpoint::open(dir_ / "model"); });
  fs::permissions(dir_ / "model", fs::perms::none);
  expect_error(kPermission, {}, [&] { Checkpoint::open(dir_ / "model"); });
  fs::permissions(dir_ / "model", fs::perms::owner_all);
  ASSERT_EQ(::seteuid(user), 0);
}

TEST_F(HostileDirectory, WithFilesThatAreNone) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.write(dir_.path());
  fs::remove(dir_ / "model.safetensors");
  fs::create_directory(dir_ / "model.safetensors");
  expect_error(kInvalidArgument, {"model.safetensors", "not a regular file"},
               [&] { Checkpoint::open(dir_.path()); });
  fs::remove(dir_ / "model.safetensors");
  ASSERT_EQ(::mkfifo((dir_ / "model.safetensors").c_str(), 0600), 0);
  expect_error(kInvalidArgument, {"not a regular file"}, [&] { Checkpoint::open(dir_.path()); });
  fs::remove(dir_ / "model.safetensors");
  fs::create_symlink("model.safetensors", dir_ / "model.safetensors");
  expect_error(kIo, {"model.safetensors", "symbolic link"}, [&] { Checkpoint::open(dir_.path()); });
  fs::remove(dir_ / "model.safetensors");
  fs::create_symlink("gone", dir_ / "model.safetensors");
  expect_error(kNotFound, {"model.safetensors"}, [&] { Checkpoint::open(dir_.path()); });
}

TEST_F(HostileDirectory, WithSideFilesThatAreNone) {
  tiny_deepseek_v3().write(dir_.path());
  fs::create_symlink("tokenizer.json", dir_ / "tokenizer.json");
  expect_error(kIo, {"tokenizer.json", "symbolic link"}, [&] { Checkpoint::open(dir_.path()); });
  fs::remove(dir_ / "tokenizer.json");
  fs::create_symlink("gone", dir_ / "tokenizer.json");
  expect_error(kNotFound, {"tokenizer.json", "leads nowhere"},
               [&] { Checkpoint::open(dir_.path()); });
  fs::remove(dir_ / "tokenizer.json");
  ASSERT_EQ(::mkfifo((dir_ / "tokenizer.json").c_str(), 0600), 0);
  expect_error(kInvalidArgument, {"tokenizer.json", "not a regular file"},
               [&] { Checkpoint::open(dir_.path()); });
}

TEST(HostileConfig, MissingOrWrong) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  const std::string good = tiny.config;
  tiny.config.clear();
  refuse(tiny, kNotFound, {"config.json", "--family generic"});
  tiny.config = "no json";
  refuse(tiny, kCorrupt, {"config.json"});
  tiny.config = "[]";
  refuse(tiny, kCorrupt, {"config.json"});
  tiny.config = R"({"model_type": "deepseek_v3"})";
  refuse(tiny, kCorrupt, {"config.json", "num_hidden_layers", "hidden_size"});
  tiny.config = R"({"model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": -8})";
  refuse(tiny, kCorrupt, {"config.json", "hidden_size"});
  tiny.config =
      R"({"model_type": "deepseek_v3", "num_hidden_layers": 1048576, "num_attention_heads": 4294967296,
                    "qk_nope_head_dim": 4294967296})";
  refuse(tiny, kLimit, {"config.json"});
  tiny.config = R"({"model_type": "lama"})";
  refuse(tiny, kUnsupported, {"lama", "deepseek_v32", "--family"});
  tiny.config = good;
  tiny.config.insert(1, R"("quantization_config": {"quant_method": "gptq"},)");
  refuse(tiny, kUnsupported, {"gptq"});
}

TEST(HostileDescription, ThatIsCorrupt) {
  TempDir dir;
  tiny_deepseek_v3().write(dir.path());
  const fs::path file = dir / "quant_model_description.json";
  for (const char* text : {"", "[]", "{\"a\": 1, \"a\": 2}", "{} {}"}) {
    write_bytes(file, text);
    expect_error(kCorrupt, {"quant_model_description.json"}, [&] { Checkpoint::open(dir.path()); });
  }
  fs::remove(file);
  fs::create_symlink("gone", file);
  expect_error(kNotFound, {"quant_model_description.json"}, [&] { Checkpoint::open(dir.path()); });
}

TEST(HostileIndex, ThatIsCorrupt) {
  TempDir dir;
  tiny_deepseek_v3().write(dir.path());
  write_bytes(dir / "model.safetensors.index.json", "{\"weight_map\": 1}");
  expect_error(kCorrupt, {"model.safetensors.index.json"}, [&] { Checkpoint::open(dir.path()); });
  fs::remove(dir / "model.safetensors.index.json");
  fs::create_symlink("gone", dir / "model.safetensors.index.json");
  expect_error(kNotFound, {"model.safetensors.index.json"}, [&] { Checkpoint::open(dir.path()); });
}

TEST(HostileIndex, NamingAFileThatIsNotThere) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.index_files();
  tiny.weight_map[kUpWeight] = "second.safetensors";
  remove_tensor(tiny, kUpWeight);
  refuse(tiny, kNotFound, {"second.safetensors", "fetch this file"});
}

TEST(HostileIndex, NamingATensorThatIsNotThere) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.index_files();
  remove_tensor(tiny, kUpWeight);
  refuse(tiny, kMissingTensor, {kUpWeight, "model.safetensors", "not there"});
}

TEST(HostileIndex, NamingTheWrongFile) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["second.safetensors"] = {tensor_of(tiny, kUpWeight)};
  tiny.files["model.safetensors"].erase(tiny.files["model.safetensors"].begin());
  remove_tensor(tiny, kUpWeight);
  tiny.files["second.safetensors"] = {{kUpWeight, "BF16", {12, 8}}};
  tiny.index_files();
  tiny.weight_map[kUpWeight] = "model.safetensors";
  tiny.weight_map["model.norm.weight"] = "second.safetensors";
  refuse(tiny, kMissingTensor, {kUpWeight, "it is in second.safetensors", "model.norm.weight"});
}

/// Tensors dealt to so many files.
TinyCheckpoint tiny_in_shards(std::size_t n) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  const std::vector<TinyTensor> all = std::move(tiny.files["model.safetensors"]);
  tiny.files.clear();
  for (std::size_t i = 0; i < all.size(); ++i)
    tiny.files[fmt::format("model-{:05}-of-{:05}.safetensors", i % n + 1, n)].push_back(all[i]);
  tiny.index_files();
  return tiny;
}

/// One fault for all, which names the remedy for an index.
void refuse_index_once(const TinyCheckpoint& tiny, std::string_view fragment) {
  SCOPED_TRACE(fragment);
  TempDir dir;
  tiny.write(dir.path());
  ErrorList faults;
  Checkpoint::open(dir.path(), {.faults = &faults});
  ASSERT_EQ(faults.errors().size(), 1U);
  EXPECT_THAT(faults.errors().front().what(),
              ::testing::AllOf(::testing::HasSubstr(std::string(fragment)),
                               ::testing::HasSubstr("ingot repair")));
}

TEST(HostileIndex, OfOtherFilesIsOneFault) {
  const TinyCheckpoint three = tiny_in_shards(3);
  TinyCheckpoint tiny = tiny_in_shards(6);
  tiny.weight_map = three.weight_map;
  refuse_index_once(tiny, "'model-00001-of-00003.safetensors' and 2 more");
  tiny = three;
  tiny.weight_map = tiny_in_shards(6).weight_map;
  tiny.files.erase("model-00002-of-00003.safetensors");
  refuse_index_once(tiny, "'model-00001-of-00003.safetensors' and 1 more");
  // The same files, and the tensors dealt in another way.
  tiny = three;
  for (auto& [tensor, file] : tiny.weight_map) file = "model-00001-of-00003.safetensors";
  tiny.weight_map.begin()->second = "model-00002-of-00003.safetensors";
  tiny.weight_map.rbegin()->second = "model-00003-of-00003.safetensors";
  refuse_index_once(tiny, "more");
}

TEST(HostileIndex, ThatIsStaleIsOneFault) {
  TinyCheckpoint tiny = tiny_in_shards(3);
  for (int i = 0; i < 30; ++i)
    tiny.weight_map[fmt::format("gone.{}.weight", i)] =
        fmt::format("model-0000{}-of-00003.safetensors", i % 3 + 1);
  refuse_index_once(tiny, "and 25 more");
  tiny = tiny_in_shards(3);
  std::erase_if(tiny.weight_map,
                [](const auto& entry) { return entry.first.ends_with("proj.weight"); });
  refuse_index_once(tiny, "is not named by");
  tiny = tiny_in_shards(9);
  std::erase_if(tiny.weight_map, [](const auto& entry) {
    return entry.second != "model-00001-of-00009.safetensors";
  });
  refuse_index_once(tiny, "nor are 7 more files");
  tiny = tiny_in_shards(9);
  for (auto& [name, tensors] : tiny_in_shards(9).files) {
    if (name != "model-00001-of-00009.safetensors") tiny.files.erase(name);
  }
  refuse_index_once(tiny, "nor are 7 more files");
  tiny = tiny_in_shards(9);
  tiny.weight_map.clear();
  refuse_index_once(tiny, "has 9 .safetensors file(s)");
  tiny.files["model.safetensors"] = tiny_deepseek_v3().files["model.safetensors"];
  refuse_index_once(tiny, "and so do 8 more");
}

TEST(HostileIndex, NotNamingATensor) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.index_files();
  tiny.weight_map.erase(kUpWeight);
  refuse(tiny, kMissingTensor, {kUpWeight, "not named by model.safetensors.index.json"});
}

TEST(HostileIndex, NotNamingAFile) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.index_files();
  tiny.files["stray.safetensors"] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}}};
  refuse(tiny, kMissingTensor, {"stray.safetensors", "move the file away"});
}

TEST(HostileIndex, ThatIsMissing) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["a.safetensors"] = std::move(tiny.files["model.safetensors"]);
  tiny.files.erase("model.safetensors");
  refuse(tiny, kNotFound, {"index", "--family generic"});
  tiny.files["model.safetensors"] = std::move(tiny.files["a.safetensors"]);
  tiny.files["a.safetensors"] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}}};
  refuse(tiny, kMissingTensor, {"a.safetensors", "without an index"});
  tiny.files.clear();
  refuse(tiny, kNotFound, {"holds no weights"});
  tiny.files["model.safetensors"] = {};
  refuse(tiny, kMissingTensor, {"holds no tensors"});
}

TEST(HostileFiles, WithOneNameTwice) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["second.safetensors"] = {{kUpWeight, "BF16", {12, 8}},
                                      {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}}};
  tiny.index_files();
  refuse(tiny, kDuplicate,
         {"second.safetensors", kUpWeight,
          "also in model.safetensors, model.safetensors.index.json names this "
          "file; their bytes are equal (ingot repair leaves one out)"});
  ErrorList faults;
  TempDir dir;
  tiny.write(dir.path());
  EXPECT_EQ(Checkpoint::open(dir.path(), {.faults = &faults}).tensors().size(),
            std::size_t{tiny.weight_map.size()});
  EXPECT_EQ(faults.errors().size(), 1U);
}

TEST(HostileFiles, CopiesAreMergedOrChosenByTheIndex) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["second.safetensors"] = {{kUpWeight, "BF16", {12, 8}}};
  tiny.index_files();
  TempDir dir;
  tiny.write(dir.path());
  const auto file_of = [](const Checkpoint& model) {
    const auto found = std::ranges::find(model.stored(), kUpWeight, &StoredTensor::name);
    return model.files()[found->file].name;
  };
  const Checkpoint merged = Checkpoint::open(dir.path(), {.merges_copies = true});
  EXPECT_EQ(file_of(merged), "second.safetensors");
  EXPECT_THAT(merged.remarks(), ::testing::Contains(::testing::HasSubstr("one copy is taken")));

  tiny.files["second.safetensors"][0].data = std::string(12 * 8 * 2, '\1');
  tiny.write(dir.path());
  expect_error(kDuplicate,
               {kUpWeight, "their bytes differ", "--allow duplicate-tensor", "index names"},
               [&] { Checkpoint::open(dir.path(), {.merges_copies = true}); });
  const std::vector<Pattern> allowed = {Pattern(kUpWeight)};
  EXPECT_EQ(file_of(Checkpoint::open(dir.path(), {.allow_duplicate = &allowed})),
            "second.safetensors");
  tiny.weight_map[kUpWeight] = "model.safetensors";
  tiny.write(dir.path());
  EXPECT_EQ(file_of(Checkpoint::open(dir.path(), {.allow_duplicate = &allowed})),
            "model.safetensors");
}

TEST(HostileFiles, ThatAreTruncatedAreAllNamed) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["second.safetensors"] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}}};
  tiny.index_files();
  tiny.write(dir.path());
  for (const char* name : {"model.safetensors", "second.safetensors"}) {
    fs::resize_file(dir / name, fs::file_size(dir / name) - 1);
  }
  expect_error(kCorrupt, {"2 faults", "  model.safetensors", "  second.safetensors"},
               [&] { Checkpoint::open(dir.path(), {.threads = 2}); });
}

TEST(HostileNames, AreListedWithTheRemedy) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  for (int i = 10; i < 40; ++i)
    tiny.files["model.safetensors"].push_back({"vision." + std::to_string(i), "BF16", {1}});
  remove_tensor(tiny, "model.norm.weight");
  refuse(tiny, kUnknownTensor,
         {"30 tensor(s)", "deepseek_v3", "1 that config.json promises is not here",
          "model.norm.weight", "vision.10", "vision.29", "and 10 more", "generic"});
  const std::vector<Pattern> none;
  TempDir dir;
  tiny.write(dir.path());
  expect_error(kUnknownTensor, {"--allow unknown-tensor"},
               [&] { Checkpoint::open(dir.path(), {.allow_unknown = &none}); });
}

TEST(HostileNames, InTheWrongPlace) {
  for (const char* name :
       {"model.layers.2.input_layernorm.weight", "model.layers.0.mlp.gate.weight",
        "model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.1.mlp.up_proj.weight"}) {
    TinyCheckpoint tiny = tiny_deepseek_v3();
    tiny.files["model.safetensors"].push_back({name, "BF16", {8}});
    refuse(tiny, kUnknownTensor, {name});
  }
}

TEST(CollectedFaults, LeaveWhatIsUnderstood) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_fp8();
  remove_tensor(tiny, kScale);
  tensor_of(tiny, "model.norm.weight").shape = {9};
  tiny.files["model.safetensors"].push_back({"model.layers.9.mlp.gate.weight", "BF16", {1}});
  tiny.write(dir.path());
  ErrorList faults;
  const Checkpoint model = Checkpoint::open(dir.path(), {.faults = &faults});
  ASSERT_EQ(faults.errors().size(), 3U);
  EXPECT_EQ(faults.errors()[0].code(), kMissingTensor);
  EXPECT_EQ(faults.errors()[1].code(), kShapeMismatch);
  EXPECT_EQ(faults.errors()[2].code(), kUnknownTensor);
  EXPECT_EQ(model.tensors().size(), model.stored().size() - 1)
      << "all but the weight without a scale";
}

TEST(CollectedFaults, OfAnUnreadFormAreOne) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_fp8();
  remove_tensor(tiny, kScale);
  tiny.config.insert(1, R"("quantization_config": {"quant_method": "torchao"},)");
  tiny.write(dir.path());
  ErrorList faults;
  const Checkpoint model = Checkpoint::open(dir.path(), {.faults = &faults});
  ASSERT_EQ(faults.errors().size(), 1U) << "not what follows from taking it for another form";
  EXPECT_EQ(faults.errors()[0].code(), kUnsupported);
  EXPECT_THAT(faults.errors()[0].message(), ::testing::Not(::testing::HasSubstr("headers")));
  EXPECT_FALSE(model.is_understood());
  EXPECT_FALSE(model.stored().empty());
}

TEST(CollectedFaults, NameTheRemedyWhereHeadersTell) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_fp8();
  const std::string plain = tiny.config;
  tiny.config.insert(1, R"("quantization_config": {"quant_method": "quark"},)");
  tiny.write(dir.path());
  expect_error(kUnsupported, {"AMD Quark", "no quantization_config"},
               [&] { Checkpoint::open(dir.path()); });
  tiny.config = plain;
  tiny.write(dir.path());
  Checkpoint::open(dir.path());
}

TEST(CollectedFaults, DoNotSpreadToPartners) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_fp8();
  tiny.files["second.safetensors"] = {{kScale, "F32", {1, 1}}};
  for (auto& [name, tensors] : tiny.files) {
    if (name == "model.safetensors")
      std::erase_if(tensors, [](const TinyTensor& t) { return t.name == kScale; });
  }
  tiny.index_files();
  tiny.write(dir.path());
  write_bytes(dir / "second.safetensors", "short");
  ErrorList faults;
  Checkpoint::open(dir.path(), {.faults = &faults});
  ASSERT_EQ(faults.errors().size(), 1U) << "the file, not the weight that now lacks a scale";
  EXPECT_EQ(faults.errors()[0].code(), kCorrupt);
}

}  // namespace
}  // namespace ingot::formats
