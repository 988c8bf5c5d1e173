#include "synth/synth.h"
#include "tests/convert/slicing/rank_tree.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Slices that were damaged after they were made: an error of its own for each damage, also where
// there is no manifest above the ranks, and no file under a final name.

namespace ingot::testing {
namespace {

namespace fs = std::filesystem;
using enum ErrorCode;

constexpr Cut kCut = {.tp = 2, .ep = 4};

fs::path made(const std::string& name, const std::function<void(const fs::path&)>& make) {
  static const TempDir directory;
  if (!fs::exists(directory / name)) make(directory / name);
  return directory / name;
}

// Every rank has files of its own.
fs::path ranks(const Cut& cut = kCut, const std::string& map = "") {
  return made(cut.name() + map, [&](const fs::path& to) {
    Conversion conversion = slicing(arch_fixture("qwen3_moe"), to, cut);
    conversion.plan.links = false;
    conversion.plan.slicing.expert_map = map;
    conversion.run();
  });
}
fs::path cut_ranks() {
  return ranks();
}

// In DeepSeek's layout, with records of ours.
fs::path shards_of(const fs::path& model, std::uint32_t n, const fs::path& to) {
  Conversion conversion = keeping(model, to);
  conversion.plan.layout = formats::find_layout("deepseek-mp");
  conversion.plan.slicing.topology = shard::make_topology(n, n, 1, 1);
  conversion.run();
  return to;
}
fs::path recorded_shards() {
  return made("recorded",
              [](const fs::path& to) { shards_of(arch_fixture("deepseek_v3"), 4, to); });
}

// Copies shards without ingot's records: DeepSeek's own converter leaves none.
fs::path without_records(const fs::path& from, const fs::path& to) {
  fs::copy(from, to);
  for (const auto name : {formats::kManifestName, formats::kRecordsName}) fs::remove(to / name);
  return to;
}
fs::path foreign_shards() {
  return made("foreign", [](const fs::path& to) { without_records(recorded_shards(), to); });
}

// In FP8, each cut between two blocks of 128.
fs::path fp8_shards() {
  return made("fp8", [](const fs::path& to) {
    const TempDir directory;
    formats::write_synthetic_checkpoint(directory / "model",
                                        {.family = formats::find_family("deepseek_v3"),
                                         .size = formats::SynthSize::kTiny,
                                         .mtp_layers = 0,
                                         .hidden = 256,
                                         .moe_intermediate = 512,
                                         .intermediate = 512,
                                         .heads = 32});
    without_records(shards_of(directory / "model", 2, directory / "shards"), to);
  });
}

using Tensors = std::map<std::string, TinyTensor>;

// Writes a file again with other tensors.
void edit_tensors(const fs::path& path, const std::function<void(Tensors&)>& edit) {
  OutputTensors found;
  add_file(path, found);
  Tensors tensors;
  for (const auto& [name, tensor] : found) {
    tensors[name] = {name, std::string(formats::dtype_name(tensor.dtype)), tensor.shape,
                     tensor.bytes};
  }
  edit(tensors);
  std::vector<TinyTensor> rows;
  for (const auto& [name, tensor] : tensors) rows.push_back(tensor);
  write_bytes(path, safetensors_bytes(rows));
}

void edit_text(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_text_file(path, 1 << 24);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  write_bytes(path, text.replace(at, from.size(), to));
}

void flip(const fs::path& path, const std::string& name, std::size_t at) {
  std::string bytes = read_text_file(path, 1 << 24);
  for (const auto& tensor : formats::read_safetensors_header(Fd::open_for_reading(path)).tensors) {
    if (tensor.name == name) bytes.at(tensor.offset + at) ^= 1;
  }
  write_bytes(path, bytes);
}

// The conversion that a manifest says it belongs to.
std::string job_of(const fs::path& directory) {
  const std::string text = read_text_file(directory / "ingot.json", 1 << 24);
  return text.substr(text.find("\"job\": \"") + 8, 32);
}

void replace(const fs::path& old, const fs::path& with) {
  fs::remove_all(old);
  fs::copy(with, old, fs::copy_options::recursive);
}

std::string rank(std::uint32_t number) {
  return shard::rank_directory_name(number, 4);
}
std::string shard_file(std::uint32_t number) {
  return fmt::format("model{}-mp4.safetensors", number);
}

constexpr const char* kAll = "all-00001-of-00001.safetensors";
constexpr const char* kTp = "tp-01-of-02-00001-of-00001.safetensors";

struct Fault {
  friend void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

  const char* name;
  fs::path (*slices)();
  std::function<void(const fs::path&)> damage;
  ErrorCode code;
  std::vector<std::string> facts;
  std::vector<std::string> gathered =
      {};  ///< without the manifest above the ranks, where it says else
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {"MissingRanks",
       cut_ranks,
       [](const fs::path& top) {
         for (const std::uint32_t number : {1U, 3U}) fs::remove_all(top / rank(number));
       },
       kNotFound,
       {"rank-00001-of-00004: is missing, one of 4 ranks", "rank-00003-of-00004"},
       {"rank-00001-of-00004: is missing, one of 4 ranks", "rank-00003-of-00004"}},
      {"ARankOfAnotherRun",
       cut_ranks,
       [](const fs::path& top) {
         replace(top / rank(1), ranks(kCut, "[7, 6, 5, 4, 3, 2, 1, 0]") / rank(1));
       },
       kMismatch,
       {"rank-00001-of-00004", "another run", "its hash is"},
       {"rank-00001-of-00004", "belongs to another conversion than rank-00000-of-00004"}},
      {"ARankOfAnotherTopology",
       cut_ranks,
       [](const fs::path& top) {
         replace(top / rank(1), ranks({.tp = 4}) / rank(1));
         edit_text(top / rank(1) / "ingot.json", job_of(top / rank(1)), job_of(top / rank(0)));
       },
       kMismatch,
       {"rank-00001-of-00004"},
       {"says tp 4, ep 1", "says tp 2, ep 4"}},
      {"RanksOfTwoNumbers",
       cut_ranks,
       [](const fs::path& top) {
         fs::copy(ranks({.ep = 2}) / "rank-00000-of-00002", top / "rank-00000-of-00002");
         fs::remove(top / formats::kManifestName);
       },
       kMismatch,
       {"holds ranks of 2 and of 4"}},
      {"RanksThatChangedPlaces",
       cut_ranks,
       [](const fs::path& top) {
         fs::rename(top / rank(1), top / "away");
         fs::rename(top / rank(3), top / rank(1));
         fs::rename(top / "away", top / rank(3));
       },
       kMismatch,
       {"rank-00001-of-00004"},
       {"is of rank 3, in the place of rank 1"}},
      {"ATopologyThatContradictsItself",
       cut_ranks,
       [](const fs::path& top) {
         edit_text(top / "ingot.json", "\"n_ranks\": 4", "\"n_ranks\": 8");
       },
       kMismatch,
       {"ingot.json", "topology contradicts itself", "n_ranks is 8"}},
      {"AManifestOfAnotherPlace",
       cut_ranks,
       [](const fs::path& top) {
         edit_text(top / rank(2) / "ingot.json", "\"tp_rank\": 0", "\"tp_rank\": 1");
       },
       kMismatch,
       {"rank-00002-of-00004", "was changed or belongs to another run"},
       {"rank-00002-of-00004", "tp_rank is 1, of rank 2 it is 0"}},
      {"AManifestAboveOfAnotherJob",
       cut_ranks,
       [](const fs::path& top) {
         edit_text(top / "ingot.json", job_of(top), job_of(ranks({.tp = 4})));
       },
       kMismatch,
       {"belongs to another conversion than the manifest above it"}},
      {"AMissingFile",
       cut_ranks,
       [](const fs::path& top) { fs::remove(top / rank(1) / kTp); },
       kNotFound,
       {"rank-00001-of-00004/tp-01", "fetch this file"}},
      {"AFileThatWasCutShort",
       cut_ranks,
       [](const fs::path& top) { fs::resize_file(top / rank(1) / kTp, 100); },
       kMismatch,
       {"rank-00001-of-00004/tp-01", "has 100 bytes"}},
      {"AFileThatNoManifestKnows",
       cut_ranks,
       [](const fs::path& top) {
         fs::copy(top / rank(0) / kAll, top / rank(0) / "extra.safetensors");
       },
       kMismatch,
       {"rank-00000-of-00004/extra.safetensors", "is not named by ingot.json"}},
      {"ARankThatIsUnfinished",
       cut_ranks,
       [](const fs::path& top) { write_bytes(top / rank(1) / ".ingot-partial/x", "x"); },
       kExists,
       {"unfinished conversion"}},
      {"AnUnfinishedConversion",
       cut_ranks,
       [](const fs::path& top) { write_bytes(top / ".ingot-partial/journal.jsonl", ""); },
       kExists,
       {"unfinished conversion", "--resume"}},
      {"ARankWithoutAManifest",
       cut_ranks,
       [](const fs::path& top) { fs::remove(top / rank(1) / "ingot.json"); },
       kNotFound,
       {"ingot.json"}},
      {"RecordsOfAnotherRank",
       cut_ranks,
       [](const fs::path& top) {
         replace(top / rank(1) / formats::kRecordsName, top / rank(0) / formats::kRecordsName);
       },
       kMismatch,
       {"ingot.tensors.jsonl.zst", "the manifest promises"}},
      {"ATensorOfAnotherName",
       cut_ranks,
       [](const fs::path& top) {
         edit_text(top / rank(1) / kTp, "\"lm_head.weight", "\"lm_haed.weight");
       },
       kMismatch,
       {"'lm_head.weight'", "the records promise it, but it is not here", "'lm_haed.weight'",
        "is not in ingot.tensors.jsonl.zst"}},
      {"AConfigOfAnotherWidth",
       cut_ranks,
       [](const fs::path& top) {
         for (std::uint32_t number = 0; number < 4; ++number)
           edit_text(top / rank(number) / "config.json", "\"vocab_size\": 512",
                     "\"vocab_size\": 768");
       },
       kShapeMismatch,
       {"embed_tokens"}},
      {"AReplicaThatWasChanged",
       cut_ranks,
       [](const fs::path& top) {
         flip(top / rank(2) / kAll, "model.layers.1.input_layernorm.weight", 17);
       },
       kMismatch,
       {"model.layers.1.input_layernorm.weight",
        "differs between rank-00000-of-00004 and rank-00002-of-00004 at byte 17",
        "one of them was changed after it was written"}},
      {"ASliceOfWhichOneReplicaWasChanged",
       cut_ranks,
       [](const fs::path& top) { flip(top / rank(3) / kTp, "lm_head.weight", 17); },
       kMismatch,
       {"lm_head.weight",
        "differs between rank-00001-of-00004 and rank-00003-of-00004 at byte 17"}},

      {"MissingShards",
       foreign_shards,
       [](const fs::path& top) {
         for (const std::uint32_t number : {1U, 3U}) fs::remove(top / shard_file(number));
       },
       kNotFound,
       {"model1-mp4.safetensors: is missing, one of 4 shards", "model3-mp4.safetensors"}},
      {"ShardsWithoutAConfig",
       foreign_shards,
       [](const fs::path& top) { fs::remove(top / "config.json"); },
       kNotFound,
       {"config.json of the hub", "--config"}},
      {"TheConfigOfDeepseeksInferenceCode",
       foreign_shards,
       [](const fs::path& top) {
         write_bytes(top / "config.json", R"({"vocab_size": 16, "dim": 8, "n_layers": 2})");
       },
       kNotFound,
       {"--config"}},
      {"ShardsOfTwoNumbers",
       foreign_shards,
       [](const fs::path& top) { fs::copy(top / shard_file(0), top / "model0-mp2.safetensors"); },
       kMismatch,
       {"mp4.safetensors", "is a shard of 4, the others are of 2"}},
      {"AShardThatLacksATensor",
       foreign_shards,
       [](const fs::path& top) {
         edit_tensors(top / shard_file(1), [](Tensors& tensors) { tensors.erase("head.weight"); });
       },
       kMismatch,
       {"'lm_head.weight'", "no file has slice 1 of 4"}},
      {"ANameThatTheFamilyLacks",
       foreign_shards,
       [](const fs::path& top) {
         for (std::uint32_t number = 0; number < 4; ++number) {
           edit_tensors(top / shard_file(number), [](Tensors& tensors) {
             tensors["layers.1.extra.weight"] = {"layers.1.extra.weight", "F32", {3}};
           });
         }
       },
       kUnknownTensor,
       {"layers.1.extra.weight"}},
      {"AShardOfWhichAReplicaWasChanged",
       foreign_shards,
       [](const fs::path& top) { flip(top / shard_file(1), "norm.weight", 3); },
       kMismatch,
       {"differs between model0-mp4.safetensors and model1-mp4.safetensors at byte 3"}},
      // 448 rows are four blocks, so both halves have two scales, for 224 rows each.
      {"ScalesThatWereCutInsideABlock",
       fp8_shards,
       [](const fs::path& top) {
         edit_text(top / "config.json", "\"intermediate_size\": 512", "\"intermediate_size\": 448");
         for (const char* file : {"model0-mp2.safetensors", "model1-mp2.safetensors"}) {
           edit_tensors(top / file, [](Tensors& tensors) {
             for (const auto& [name, side] : {std::pair{"w1", 0U}, {"w3", 0U}, {"w2", 1U}}) {
               TinyTensor& tensor = tensors.at(fmt::format("layers.0.ffn.{}.weight", name));
               tensor.shape[side] = 224;
               tensor.data.resize(tensor.shape[0] * tensor.shape[1]);
             }
           });
         }
       },
       kUnsupported,
       {"layers.0.ffn.w1.weight", "224 rows per shard", "blocks of 128", "layers.0.ffn.w2.weight",
        "224 columns per shard"}},
      {"ARecordedShardThatWasCutShort",
       recorded_shards,
       [](const fs::path& top) { fs::resize_file(top / shard_file(1), 64); },
       kMismatch,
       {"model1-mp4.safetensors", "has 64 bytes"}},
      {"ARecordedShardThatIsMissing",
       recorded_shards,
       [](const fs::path& top) { fs::remove(top / shard_file(0)); },
       kNotFound,
       {"model0-mp4.safetensors: is missing"}},
  };
  return all;
}

class BadSlices : public ::testing::TestWithParam<Fault> {
 protected:
  void expect_unmerged(const std::vector<std::string>& facts) {
    try {
      keeping(top_, directory_ / "merged").run();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error_code_name(error.code()), error_code_name(GetParam().code)) << error.what();
      for (const std::string& fact : facts) EXPECT_THAT(error.what(), ::testing::HasSubstr(fact));
    }
    for (const std::string& name : top_level(directory_ / "merged"))
      EXPECT_EQ(name, ".ingot-partial");
    fs::remove_all(directory_ / "merged");
  }

  TempDir directory_;
  fs::path top_ = directory_ / "slices";
};

INSTANTIATE_TEST_SUITE_P(OfEveryKind, BadSlices, ::testing::ValuesIn(faults()),
                         [](const auto& fault) { return fault.param.name; });

TEST_P(BadSlices, AreNotMergedAndTheFaultIsNamed) {
  fs::copy(GetParam().slices(), top_, fs::copy_options::recursive);
  GetParam().damage(top_);
  expect_unmerged(GetParam().facts);
  if (GetParam().gathered.empty()) return;
  fs::remove(top_ / formats::kManifestName);
  expect_unmerged(GetParam().gathered);
}

TEST(OpenSource, ListsFilesOfRanksAndTheirHomes) {
  const TempDir directory;
  const Cut cut = {.ep = 2};
  slicing(synth_model(), directory / "ranks", cut).run();
  const formats::Checkpoint joined = shard::open_source(directory / "ranks");
  EXPECT_TRUE(shard::is_sliced(directory / "ranks"));
  EXPECT_FALSE(joined.is_whole());
  EXPECT_EQ(joined.slicing(), nullptr);
  EXPECT_EQ(joined.directory(), rank_directory(directory / "ranks", 0, cut));
  EXPECT_EQ(joined.side_files().size(),
            formats::Checkpoint::open(synth_model()).side_files().size());
  // Four files for two ranks; the common one is linked.
  ASSERT_EQ(joined.files().size(), 3U);
  EXPECT_EQ(joined.files()[0].name, fmt::format("rank-00000-of-00002/{}", kAll));
  EXPECT_EQ(joined.header_bytes(2).size(), joined.files()[2].data_start);
  const OutputTensors source = read_output(synth_model());
  for (std::uint32_t i = 0; i < joined.stored().size(); ++i)
    EXPECT_EQ(joined.home_file(i), source.at(joined.stored()[i].name).file);
}

TEST(OpenSource, OpensARankAsSlices) {
  const fs::path directory = ranks() / rank(1);
  EXPECT_FALSE(shard::is_sliced(directory));
  const formats::Checkpoint one = shard::open_source(directory);
  ASSERT_NE(one.slicing(), nullptr);
  EXPECT_EQ(one.slicing()->rank->rank, 1U);
  for (const formats::LogicalTensor& tensor : one.tensors()) {
    if (tensor.name == "lm_head.weight") {
      EXPECT_EQ(tensor.shape, (formats::Shape{256, 128}));
    }
  }
}

TEST(OpenSource, OpensWhatIsNotSlicedAsItIs) {
  EXPECT_FALSE(shard::is_sliced(synth_model()));
  EXPECT_TRUE(shard::open_source(synth_model()).is_whole());
  EXPECT_FALSE(shard::is_sliced(synth_model() / "nowhere"));
  expect_error(kNotFound, {"no such directory"},
               [] { shard::open_source(synth_model() / "nowhere"); });
}

}  // namespace
}  // namespace ingot::testing
