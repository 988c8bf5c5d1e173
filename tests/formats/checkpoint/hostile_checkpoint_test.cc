#include <sys/stat.h>
#include <unistd.h>

#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/json/json.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Small checkpoints with faults, for the tests of refusals.

namespace ingot::testing {

inline constexpr const char* kUpStem = "model.layers.0.mlp.up_proj";
inline constexpr const char* kScale = "model.layers.0.mlp.up_proj.weight_scale_inv";

/// Writes the checkpoint and expects that opening it fails, and that `check` finds the same fault.
template <typename Words = std::initializer_list<std::string>>
void refuse(const TinyCheckpoint& tiny, ErrorCode code, const Words& words) {
  TempDir dir;
  tiny.write(dir.path());
  expect_error(code, words, [&] { formats::Checkpoint::open(dir.path()); });
  ErrorList faults;
  formats::Checkpoint::open(dir.path(), {.faults = &faults});
  EXPECT_THAT(faults.errors(), ::testing::Contains(::testing::Property(&Error::code, code)));
}

/// The tiny model with one FP8 weight.
inline TinyCheckpoint tiny_fp8() {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  make_fp8(tiny, kUpWeight, kScale);
  return tiny;
}

inline void remove_tensor(TinyCheckpoint& tiny, const std::string& name) {
  for (auto& [file, tensors] : tiny.files) {
    std::erase_if(tensors, [&](const TinyTensor& tensor) { return tensor.name == name; });
  }
}

}  // namespace ingot::testing

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

using Damage = std::function<void(TinyCheckpoint&)>;

Damage without(const std::string& tensor) {
  return [=](TinyCheckpoint& tiny) { remove_tensor(tiny, tensor); };
}
Damage adds(const std::string& name, const std::string& dtype,
            const std::vector<std::uint64_t>& shape) {
  return [=](TinyCheckpoint& tiny) {
    tiny.files["model.safetensors"].push_back({name, dtype, shape});
  };
}
Damage of_dtype(const std::string& tensor, const std::string& dtype) {
  return [=](TinyCheckpoint& tiny) { tensor_of(tiny, tensor).dtype = dtype; };
}
Damage of_shape(const std::string& tensor, const std::vector<std::uint64_t>& shape) {
  return [=](TinyCheckpoint& tiny) { tensor_of(tiny, tensor).shape = shape; };
}
Damage config(const std::string& text) {
  return [=](TinyCheckpoint& tiny) { tiny.config = text; };
}
Damage says(const std::string& keys) {
  return [=](TinyCheckpoint& tiny) { tiny.config.insert(1, keys + ","); };
}
Damage other(const TinyCheckpoint& whole) {
  return [=](TinyCheckpoint& tiny) { tiny = whole; };
}
/// One change after the other.
template <typename... Changes>
Damage all(const Changes&... changes) {
  return [=](TinyCheckpoint& tiny) { (changes(tiny), ...); };
}
void fp8(TinyCheckpoint& tiny) {
  make_fp8(tiny, kUpWeight, kScale);
}
void indexed(TinyCheckpoint& tiny) {
  tiny.index_files();
}
/// Weights in a file of another name, and with a file more.
void renamed(TinyCheckpoint& tiny) {
  auto file = tiny.files.extract("model.safetensors");
  file.key() = "a.safetensors";
  tiny.files.insert(std::move(file));
}
void with_stray_file(TinyCheckpoint& tiny) {
  tiny.files["stray.safetensors"] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}}};
}

/// One INT8 weight of Quark, with a zero point for each of its 12 rows.
TinyCheckpoint tiny_quark(const char* dtype, const std::vector<std::uint64_t>& shape) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tensor_of(tiny, kUpWeight).dtype = "I8";
  tiny.files["model.safetensors"].push_back({std::string(kUpStem) + ".weight_scale", "BF16", {12}});
  tiny.files["model.safetensors"].push_back(
      {std::string(kUpStem) + ".weight_zero_point", dtype, shape});
  tiny.config.insert(1, R"("quantization_config": {"quant_method": "quark",
      "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel",
                                         "symmetric": false}}},)");
  return tiny;
}

/// INT8 weights of compressed-tensors in two groups, both asymmetric, without a zero point.
TinyCheckpoint tiny_lost_zero_points() {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  for (const char* name : {"gate_proj", "up_proj"}) {
    const std::string stem = std::string("model.layers.0.mlp.") + name;
    TinyTensor& packed = tensor_of(tiny, stem + ".weight");
    packed = {stem + ".weight_packed", "I32", {12, 2}};
    tiny.files["model.safetensors"].push_back({stem + ".weight_scale", "BF16", {12, 1}});
    tiny.files["model.safetensors"].push_back({stem + ".weight_shape", "I32", {2}});
  }
  tensor_of(tiny, "model.layers.0.mlp.down_proj.weight").dtype = "I8";
  tiny.files["model.safetensors"].push_back(
      {"model.layers.0.mlp.down_proj.weight_scale", "F32", {8, 1}});
  tiny.config.insert(1, R"("quantization_config": {"quant_method": "compressed-tensors",
      "config_groups": {
        "packed": {"targets": ["re:.*(gate|up)_proj"], "weights": {"symmetric": false,
                   "num_bits": 8, "strategy": "channel"}},
        "plain": {"targets": ["re:.*down_proj"], "weights": {"symmetric": false, "type": "int",
                   "num_bits": 8, "strategy": "channel"}}}},)");
  return tiny;
}

/// A weight under another suffix and dtype, with one part more.
Damage spelled(const std::string& suffix, const std::string& dtype, const std::string& part,
               const std::string& part_dtype) {
  return [=](TinyCheckpoint& tiny) {
    tensor_of(tiny, kUpWeight) = {kUpStem + suffix, dtype, {12, 8}};
    adds(kUpStem + part, part_dtype, {12, 1})(tiny);
  };
}

/// Four-bit codes, two to a byte, as I8.
Damage packed(const std::string& suffix, const std::vector<std::uint64_t>& scales) {
  return all(fp8, without(kScale), of_dtype(kUpWeight, "I8"),
             adds(kUpStem + suffix, "F8_E8M0", scales));
}

const std::string kUp = kUpStem, kSide = "model.layers.0.mlp.side_proj",
                  kNorm = "model.norm.weight";
const std::string kInBlocks =
    R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})";

std::vector<Refusal<TinyCheckpoint>> refusals() {
  std::vector<Refusal<TinyCheckpoint>> rows = {
      {"NoConfig", kNotFound, "config.json...--family generic", config("")},
      {"ConfigOfNoJson", kCorrupt, "config.json", config("no json")},
      {"ConfigOfNoObject", kCorrupt, "config.json", config("[]")},
      {"ConfigWithoutWidths", kCorrupt, "config.json...num_hidden_layers...hidden_size",
       config(R"({"model_type": "deepseek_v3"})")},
      {"ConfigOfNegativeWidth", kCorrupt, "config.json...hidden_size",
       config(R"({"model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": -8})")},
      {"ConfigOfHugeWidths", kLimit, "config.json",
       config(R"({"model_type": "deepseek_v3", "num_hidden_layers": 1048576,
                  "num_attention_heads": 4294967296, "qk_nope_head_dim": 4294967296})")},
      {"UnknownModelType", kUnsupported, "lama...deepseek_v32...--family",
       config(R"({"model_type": "lama"})")},
      {"UnknownMethod", kUnsupported, "gptq",
       says(R"("quantization_config": {"quant_method": "gptq"})")},
      {"IndexOfALostFile", kNotFound, "second.safetensors...fetch this file",
       all(indexed, without(kUpWeight),
           [](auto& tiny) { tiny.weight_map[kUpWeight] = "second.safetensors"; })},
      {"IndexOfALostTensor", kMissingTensor, "up_proj.weight...model.safetensors...not there",
       all(indexed, without(kUpWeight))},
      {"IndexWithoutATensor", kMissingTensor,
       "up_proj.weight...not named by model.safetensors.index.json",
       all(indexed, [](auto& tiny) { tiny.weight_map.erase(kUpWeight); })},
      {"IndexWithoutAFile", kMissingTensor, "stray.safetensors...move the file away",
       all(indexed, with_stray_file)},
      {"NoIndex", kNotFound, "index...--family generic", renamed},
      {"NoIndexOfTwoFiles", kMissingTensor, "stray.safetensors...without an index",
       with_stray_file},
      {"NoFiles", kNotFound, "holds no weights", [](auto& tiny) { tiny.files.clear(); }},
      {"NoTensors", kMissingTensor, "holds no tensors",
       [](auto& tiny) { tiny.files["model.safetensors"].clear(); }},
      {"LayerBeyondTheLast", kUnknownTensor, "model.layers.2.input_layernorm.weight",
       adds("model.layers.2.input_layernorm.weight", "BF16", {8})},
      {"RouterOfADenseLayer", kUnknownTensor, "model.layers.0.mlp.gate.weight",
       adds("model.layers.0.mlp.gate.weight", "BF16", {8})},
      {"ExpertBeyondTheLast", kUnknownTensor, "model.layers.1.mlp.experts.2.up_proj.weight",
       adds("model.layers.1.mlp.experts.2.up_proj.weight", "BF16", {8})},
      {"DenseWeightOfAMixture", kUnknownTensor, "model.layers.1.mlp.up_proj.weight",
       adds("model.layers.1.mlp.up_proj.weight", "BF16", {8})},
      {"MisspeltExpert", kUnknownTensor,
       "not here: model.layers.1.mlp.experts.1.gate_proj.weight...gate_porj",
       [](auto& tiny) {
         std::string& name = tensor_of(tiny, "model.layers.1.mlp.experts.1.gate_proj.weight").name;
         name.replace(name.find("proj"), 4, "porj");
       }},
      {"UnknownScale", kUnknownTensor, "side_proj.scale...a scale without a weight",
       adds(kSide + ".scale", "F32", {1})},
      {"NoScale", kMissingTensor, "up_proj.weight...without a scale", all(fp8, without(kScale))},
      {"ScaleWithoutAWeight", kMissingTensor, "side_proj...there is no",
       adds(kSide + ".weight_scale", "F32", {1, 1})},
      {"InverseScaleWithoutAWeight", kMissingTensor, "side_proj...there is no",
       adds(kSide + ".weight_scale_inv", "F32", {1, 1})},
      // Parameters are called `.scale` too; this one the family does not have.
      {"ParameterScaleWithoutAWeight", kUnknownTensor, "does not have...side_proj",
       adds(kSide + ".scale", "F32", {1, 1})},
      {"ScaleInTwoConventions", kDuplicate, "up_proj.weight...two scales...weight_scale_inv",
       all(fp8, adds(kUp + ".weight_scale", "F32", {1, 1}))},
      {"ScaleOnAVector", kShapeMismatch, "model.norm.weight...two dimensions",
       all(of_dtype(kNorm, "F8_E4M3"), adds("model.norm.weight_scale_inv", "F32", {1}))},
      // The bytes would make a well-formed INT8 weight, and garbage.
      {"ExponentsOfAWrongShape", kShapeMismatch, "weight_scale...[12, 1]...mxfp8",
       all(fp8, without(kScale), adds(kUp + ".weight_scale", "U8", {1, 1}))},
      {"ExponentsOfFourBitsOfAWrongShape", kShapeMismatch, "weight_scale...[12, 1]...mxfp4",
       all(fp8, without(kScale), adds(kUp + ".weight_scale", "U8", {1, 1}),
           of_dtype(kUpWeight, "I8"))},
      {"PackedWithoutAShape", kMissingTensor, "weight_shape",
       spelled(".weight_packed", "I32", ".weight_scale", "BF16")},
      {"PackedWithoutAScale", kUnsupported, "unknown scheme",
       spelled(".weight_packed", "U8", ".other", "BF16")},
      {"IntegersWithoutAScale", kDtypeMismatch, "up_proj.weight...I8", of_dtype(kUpWeight, "I8")},
      {"WeightsOfWrongShapes", kShapeMismatch,
       "2 faults...model.norm.weight...up_proj.weight...[8, 12]...[12, 8]",
       all(of_shape(kUpWeight, {8, 12}), of_shape(kNorm, {4, 2}))},
      {"ZeroPointsOfHalfTheRows", kShapeMismatch, "weight_zero_point...[6]...needs 12 numbers",
       other(tiny_quark("I8", {6}))},
      {"ZeroPointsOfEachNumber", kShapeMismatch, "weight_zero_point...needs 12 numbers",
       other(tiny_quark("I8", {12, 8}))},
      {"ZeroPointsWithoutASign", kDtypeMismatch, "weight_zero_point...U8...must be I8",
       other(tiny_quark("U8", {12}))},
      // Words hold four zero points each, and codes in bytes have no packed ones.
      {"ZeroPointsInWords", kDtypeMismatch, "weight_zero_point...I32...must be I8",
       other(tiny_quark("I32", {3}))},
      {"NoZeroPoints", kMissingTensor,
       "up_proj.weight...asymmetric by config.json...no weight_zero_point",
       all(other(tiny_quark("I8", {12})), without(kUp + ".weight_zero_point"))},
      {"NoZeroPointsOfGroups", kMissingTensor,
       "2 faults...gate_proj...(config_groups.packed)...as 1 more of its weights...down_proj..."
       "(config_groups.plain) and has no weight_zero_point (a file",
       other(tiny_lost_zero_points())},
  };
  for (const char* suffix : {".weight_scale_inv", ".weight_scale", ".scale"}) {
    rows.push_back({suffix + 1, kMissingTensor, "up_proj...plain BF16",
                    adds(kUpStem + std::string(suffix), "F32", {1, 1})});
    rows.push_back({suffix + 1, kShapeMismatch, "up_proj.weight...[12, 16]...[12, 8]",
                    packed(suffix, {12, 1})});
    rows.push_back({suffix + 1, kShapeMismatch, "scale...[12, 1]...mxfp4", packed(suffix, {1, 1})});
  }
  for (const char* dtype : {"F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    rows.push_back({dtype, kMissingTensor, dtype, spelled(".weight", dtype, ".other", "F32")});
    rows.push_back(
        {dtype, kDtypeMismatch, "F64", spelled(".weight", dtype, ".weight_scale", "F64")});
    rows.push_back({dtype, kUnsupported, "a zero point, which a weight in fp8-",
                    all(spelled(".weight", dtype, ".weight_scale", "F32"),
                        adds(kUp + ".weight_zero_point", "I8", {12, 1}))});
  }
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{2, 1}, {1, 2}, {1}, {}, {1, 1, 1}, {0, 1}, {12, 1}})
    rows.push_back({"ScaleOfAWrongShape", kShapeMismatch,
                    "weight_scale_inv...weight of shape [12, 8] needs [1, 1]",
                    all(fp8, of_shape(kScale, shape), says(kInBlocks))});
  for (const char* dtype : {"F16", "F64", "I32", "F8_E4M3", "U8"})
    rows.push_back(
        {"ScaleOfAWrongDtype", kDtypeMismatch, dtype, all(fp8, of_dtype(kScale, dtype))});
  return rows;
}

class HostileCheckpoint : public ::testing::TestWithParam<Refusal<TinyCheckpoint>> {};

TEST_P(HostileCheckpoint, IsRefusedByName) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  GetParam().damage(tiny);
  refuse(tiny, GetParam().code, GetParam().words);
}

INSTANTIATE_TEST_SUITE_P(Rows, HostileCheckpoint, ::testing::ValuesIn(refusals()),
                         [](const auto& row) {
                           std::string name(row.param.name);
                           std::ranges::replace(name, '.', '_');
                           return fmt::format("{}_{}", name, row.index);
                         });

TEST(HostileZeroPoints, AreReadWhereTheyFit) {
  const TempDir dir;
  tiny_quark("I8", {12}).write(dir.path());
  Checkpoint::open(dir.path());
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A complete model with these tensors more.
TinyCheckpoint with(const std::vector<TinyTensor>& more) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  for (const TinyTensor& tensor : more) tiny.files["model.safetensors"].push_back(tensor);
  return tiny;
}

Checkpoint open(const TinyCheckpoint& tiny, const TempDir& dir, const OpenOptions& options = {}) {
  tiny.write(dir.path());
  return Checkpoint::open(dir.path(), options);
}

std::vector<std::string> remarks_under(const std::string& family, const Json& more) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  Json config = Json::parse(tiny.config);
  config.update(more);
  tiny.config = json_text(config);
  const TempDir dir;
  return open(tiny, dir, {.family = family}).remarks();
}

// Keys of MiniCPM 3 and of CWM are unread under deepseek_v3.
TEST(ForcedFamily, IsWarnedOfByKeysThatItDoesNotRead) {
  const Json factors = {{"model_type", "minicpm3"}, {"scale_emb", 12}, {"scale_depth", 1.4}};
  EXPECT_THAT(remarks_under("deepseek_v3", factors),
              ElementsAre(::testing::AllOf(HasSubstr("scale_depth, scale_emb"),
                                           HasSubstr("compute another model"))));
  const Json windows = {{"model_type", "cwm"}, {"sliding_window", 8}};
  EXPECT_THAT(remarks_under("deepseek_v3", windows), ElementsAre(HasSubstr("sliding_window")));
}

TEST(ForcedFamily, IsNotWarnedOfByOtherKeys) {
  const Json idle = {{"model_type", "other"},     {"scale_emb", 1},    {"sliding_window", nullptr},
                     {"use_cache", true},         {"bos_token_id", 5}, {"attention_dropout", 0.1},
                     {"initializer_range", 0.02}, {"use_sinks", false}};
  EXPECT_THAT(remarks_under("deepseek_v3", idle), ::testing::IsEmpty());
  EXPECT_THAT(remarks_under("", {{"scale_emb", 12}}), ::testing::IsEmpty());
}

TEST(UnknownTensor, IsTakenAndReportedOncePerPattern) {
  const TempDir dir;
  const Checkpoint model = open(with({{"model.layers.0.extra.bias", "F32", {2}},
                                      {"model.layers.1.extra.bias", "F32", {2}},
                                      {"logit_scale_of_words", "F32", {1}}}),
                                dir);
  EXPECT_EQ(count_unknown(model), 3U);
  for (const LogicalTensor& tensor : model.tensors())
    EXPECT_EQ(role_of(tensor) == Role::kUnknown, tensor.is_unknown) << tensor.name;
  EXPECT_THAT(model.remarks(),
              ElementsAre(HasSubstr("logit_scale_of_words: 1 tensor that no row of family"),
                          HasSubstr("model.layers.*.extra.bias: 2 tensors that no row of family")));
}

TEST(UnknownTensor, IsAnErrorWhereItMisspellsAnOptionalOne) {
  const std::string rotary = "model.layers.0.self_attn.rotary_emb.inv_freq";
  refuse(with({{"model.layers.0.self_attn.rotary_emb.inv_freqs", "F32", {1}}}), kUnknownTensor,
         {"misspelt " + rotary});
  // Here the tensor that might be meant is present.
  const TempDir dir;
  EXPECT_EQ(
      count_unknown(open(with({{rotary, "F32", {1}},
                               {"model.layers.0.self_attn.rotary_emb.inv_freqs", "F32", {1}}}),
                         dir)),
      1U);
}

TEST(UnknownTensor, IsAnErrorWhereItMisspellsAPart) {
  const std::string scale = std::string(kUpStem) + ".input_scale";
  TinyCheckpoint tiny = tiny_fp8();
  tiny.files["model.safetensors"].push_back({std::string(kUpStem) + ".input_sclae", "F32", {1}});
  refuse(tiny, kUnknownTensor, {"misspelt " + scale});
  // A plain weight has no such part.
  const TempDir dir;
  EXPECT_EQ(count_unknown(open(with({{std::string(kUpStem) + ".input_sclae", "F32", {1}}}), dir)),
            1U);
}

TEST(UnknownTensor, IsOneFindingWhereItIsAnError) {
  const TempDir dir;
  ErrorList faults;
  const Checkpoint model =
      open(with({{"model.layers.0.mlp.side_proj.scale", "F32", {1}}, {"model.extra", "F32", {1}}}),
           dir, {.faults = &faults});
  EXPECT_EQ(faults.errors().size(), 1U);
  EXPECT_THAT(model.remarks(), ElementsAre(HasSubstr("model.extra")));
}

TEST(UnknownTensor, IsTakenByAPatternWhateverItMayBe) {
  const std::vector<Pattern> allowed = {Pattern("*.side_proj.scale")};
  const TempDir dir;
  const Checkpoint model = open(with({{"model.layers.0.mlp.side_proj.scale", "F32", {1}}}), dir,
                                {.allow_unknown = &allowed});
  EXPECT_EQ(count_unknown(model), 1U);
}

TEST(UnknownTensor, IsRefusedAsAMatrixOfAPartOfTheBytes) {
  const auto refused = [](const std::vector<std::uint64_t>& shape, const char* dtype = "F32") {
    const TempDir dir;
    const Checkpoint model = open(with({{"model.extra.weight", dtype, shape}}), dir);
    ErrorList faults;
    refuse_unknown_weights(
        model, [](const LogicalTensor&) { return false; }, faults);
    return !faults.empty();
  };
  EXPECT_TRUE(refused({64, 64}));
  EXPECT_FALSE(refused({4096})) << "no matrix";
  EXPECT_FALSE(refused({1, 1})) << "small";
  EXPECT_FALSE(refused({64, 64}, "BOOL")) << "a mask";
  EXPECT_FALSE(refused({64, 64}, "I64")) << "positions";
}

TEST(UnknownTensor, IsRefusedOncePerKindOfMatrices) {
  std::vector<TinyTensor> small;
  for (int i = 0; i < 1024; ++i)
    small.push_back({"model.extra." + std::to_string(i) + ".weight", "F32", {1, 1}});
  const auto faults_of = [](const std::vector<TinyTensor>& more) {
    const TempDir dir;
    const Checkpoint model = open(with(more), dir);
    ErrorList faults;
    refuse_unknown_weights(
        model, [](const LogicalTensor&) { return false; }, faults);
    return faults.errors().size();
  };
  EXPECT_EQ(faults_of(small), 1U);
  EXPECT_EQ(faults_of({small.front()}), 0U);
}

}  // namespace
}  // namespace ingot::formats
