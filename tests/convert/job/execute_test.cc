#include <atomic>

#include "convert/convert.h"
#include "convert/run/memory_plan.h"
#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "tests/convert/targets.h"
#include "tests/support/bytes.h"
#include "tests/support/disk_dir.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;

// Overwrites bytes of one stored tensor in a copied checkpoint.
void patch_tensor(const std::filesystem::path& directory, const std::string& name, std::uint64_t at,
                  std::vector<std::uint8_t> bytes) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto header = formats::read_safetensors_header(Fd::open_for_reading(entry.path()));
    for (const formats::StoredTensor& tensor : header.tensors) {
      if (tensor.name != name) continue;
      Fd::open_for_writing(entry.path(), 02)
          .write_exact(std::as_bytes(std::span(bytes)), tensor.offset + at);
      return;
    }
  }
  FAIL() << name;
}

using Execute = InTempDir;

TEST_F(Execute, CastOfTheExampleEqualsTheIndependentGolden) {
  const auto golden = formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/tiny-v32/cast_bf16.sha256.json",
      1 << 20);
  const auto tensors = tensor_bytes(tiny_bf16());
  ASSERT_EQ(tensors.size(), golden.size());
  for (const auto& [name, facts] : golden.items()) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_EQ(sha256(tensors.at(name)), facts.at("sha256").get<std::string>()) << name;
  }
}

TEST_F(Execute, ReshardingIsLossless) {
  for (const std::uint64_t limit : {std::uint64_t{300'000}, std::uint64_t{1} << 40}) {
    const TempDir directory;
    Conversion conversion(small_v32(), directory / "out");
    conversion.recipe.to.reset();
    conversion.plan.shards.max_shard_bytes = limit;
    conversion.run();
    EXPECT_TRUE(tensor_bytes(directory / "out") == tensor_bytes(small_v32()));
    for (const auto& [name, bytes] : tree(directory / "out")) {
      // A tensor larger than the limit has a file of its own; the largest here has 1 MiB. Headers
      // come on top.
      if (!name.ends_with(".safetensors")) continue;
      EXPECT_LE(bytes.size(), std::max<std::uint64_t>(limit, 1 << 20) + 120'000) << name;
    }
    // And the re-sharded checkpoint is a source like any other.
    Conversion(directory / "out", directory / "cast").run();
    EXPECT_TRUE(tensor_bytes(directory / "cast") == tensor_bytes(small_bf16()));
  }
}

// Tensors of several files are converted next to each other; the later one may well be met first.
TEST_F(Execute, FailsWithTheFirstTensorOfThePlan) {
  constexpr const char* kFirst = "model.layers.0.self_attn.o_proj.weight";
  constexpr const char* kLater = "model.layers.2.self_attn.o_proj.weight";
  copy_small(dir_ / "in");
  for (const char* name : {kFirst, kLater}) patch_tensor(dir_ / "in", name, 4321, {0x7f});
  for (const std::size_t threads : {1U, 2U, 7U}) {
    Conversion conversion(dir_ / "in", dir_ / std::to_string(threads));
    conversion.plan.shards.max_shard_bytes = 300'000;
    conversion.execute.threads = threads;
    expect_error(ErrorCode::kNonFinite, {kFirst}, [&] { conversion.run(); });
  }
}

TEST_F(Execute, DerivesConfigAndIndexAndCopiesSideFiles) {
  copy_small(dir_ / "in");
  std::filesystem::create_directories(dir_ / "in" / "sub");
  write_text_file(dir_ / "in" / "sub" / "modeling.py", "print('x')\n");
  Conversion(dir_ / "in", dir_ / "out").run();
  const auto config = formats::read_json_file(dir_ / "out" / "config.json", 1 << 20);
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_EQ(config.at("num_nextn_predict_layers"), 1);
  EXPECT_EQ(config.at("hidden_size"), 256);
  auto in = tree(dir_ / "in"), out = tree(dir_ / "out");
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "sub/modeling.py"}) {
    EXPECT_EQ(in.at(name), out.at(name)) << name;
  }
  const auto index =
      formats::read_json_file(dir_ / "out" / "model.safetensors.index.json", 1 << 20);
  std::uint64_t total = 0;
  for (const auto& [name, bytes] : tensor_bytes(dir_ / "out")) {
    total += bytes.size();
    EXPECT_TRUE(index.at("weight_map").contains(name));
  }
  EXPECT_EQ(index.at("metadata").at("total_size"), total);
  EXPECT_EQ(index.at("weight_map").size(), 112U);
}

TEST_F(Execute, DroppedMtpLayerLeavesNoTrace) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.recipe.mtp = MtpPolicy::kDrop;
  conversion.run();
  for (const auto& [name, bytes] : tensor_bytes(dir_ / "out"))
    EXPECT_FALSE(name.starts_with("model.layers.2."));
  EXPECT_EQ(
      formats::read_json_file(dir_ / "out" / "config.json", 1 << 20).at("num_nextn_predict_layers"),
      0);
  // The records still account for every tensor of the source.
  const auto manifest = formats::read_manifest(dir_ / "out");
  const auto records = formats::read_tensor_records(
      dir_ / "out" / std::string(formats::kRecordsName), manifest->records_hash);
  EXPECT_EQ(records.size(), 112U);
  EXPECT_GT(std::count_if(records.begin(), records.end(),
                          [](const auto& r) { return r.action == "drop"; }),
            0);
}

TEST_F(Execute, MissingMtpLayersGiveAWarning) {
  Conversion dropped(small_v32(), dir_ / "dropped");
  dropped.recipe.mtp = MtpPolicy::kDrop;
  dropped.run();
  auto config = formats::read_json_file(dir_ / "dropped" / "config.json", 1 << 20);
  config["num_nextn_predict_layers"] = 1;
  write_text_file(dir_ / "dropped" / "config.json", formats::json_text(config));

  const auto source = formats::Checkpoint::open(dir_ / "dropped");
  const Plan plan = plan_for(source, Recipe());
  ASSERT_EQ(plan.warnings.size(), 1U);
  EXPECT_THAT(plan.warnings[0], ::testing::HasSubstr("MTP"));
  EXPECT_EQ(formats::parse_json(plan.json.config, "config").at("num_nextn_predict_layers"), 0);
}

TEST_F(Execute, CastsAnUnknownModelUnderGeneric) {
  copy_small(dir_ / "in");
  auto config = formats::read_json_file(dir_ / "in" / "config.json", 1 << 20);
  config["model_type"] = "from_elsewhere";
  write_text_file(dir_ / "in" / "config.json", formats::json_text(config));
  Conversion conversion(dir_ / "in", dir_ / "out");
  expect_error(ErrorCode::kUnsupported, {"from_elsewhere", "generic"}, [&] { conversion.run(); });
  conversion.family = "generic";
  conversion.run();
  EXPECT_TRUE(tensor_bytes(dir_ / "out") == tensor_bytes(small_bf16()));
}

TEST_F(Execute, RecordsHoldTheHashesOfBothSides) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.execute.sha256 = true;
  conversion.run();
  const auto manifest = formats::read_manifest(dir_ / "out");
  ASSERT_TRUE(manifest.has_value());
  const auto source = tensor_bytes(small_v32()), output = tensor_bytes(dir_ / "out");
  std::size_t hashed = 0;
  for (const auto& record : formats::read_tensor_records(
           dir_ / "out" / std::string(formats::kRecordsName), manifest->records_hash)) {
    for (const auto& [side, bytes] :
         {std::pair(&record.source, &source), std::pair(&record.output, &output)}) {
      for (const formats::TensorHash& tensor : *side) {
        TensorHasher hasher;
        hasher.update(std::as_bytes(std::span(bytes->at(tensor.name))));
        EXPECT_EQ(hasher.finish(), tensor.hash) << tensor.name;
        ++hashed;
      }
    }
  }
  EXPECT_EQ(hashed, source.size() + output.size());
  const auto files = tree(dir_ / "out");
  for (const auto& file : manifest->files) {
    EXPECT_EQ(file.sha256, sha256(files.at(file.name)));
    EXPECT_EQ(file.n_bytes, files.at(file.name).size());
  }
}

TEST_F(Execute, NanInTheLastTensorPublishesNothing) {
  copy_small(dir_ / "in");
  patch_tensor(dir_ / "in", "model.layers.2.self_attn.q_b_proj.weight", 384 * 128 - 1, {0xFF});
  Conversion conversion(dir_ / "in", dir_ / "out");
  expect_error(ErrorCode::kNonFinite,
               {"model.layers.2.self_attn.q_b_proj.weight", "row 383, column 127"},
               [&] { conversion.run(); });
  expect_unpublished(dir_ / "out");

  conversion.execute.force = true;
  conversion.recipe.allow.add("nan-code=*.q_b_proj.weight");
  conversion.run();
  const std::string bytes =
      tensor_bytes(dir_ / "out").at("model.layers.2.self_attn.q_b_proj.weight");
  EXPECT_EQ(static_cast<std::uint8_t>(bytes[bytes.size() - 1]), 0xFF);
  EXPECT_EQ(static_cast<std::uint8_t>(bytes[bytes.size() - 2]), 0xC0);
}

TEST_F(Execute, RefusesScalesNotFiniteAndPositive) {
  const std::vector<std::vector<std::uint8_t>> bad = {{0, 0, 0, 0},       {0, 0, 0, 0x80},
                                                      {0, 0, 0x80, 0xBF}, {0, 0, 0x80, 0x7F},
                                                      {0, 0, 0xC0, 0x7F}, {0, 0, 0x80, 0xFF}};
  for (const bool cast : {true, false}) {
    for (const auto& bytes : bad) {
      const TempDir directory;
      copy_small(directory / "in");
      patch_tensor(directory / "in", "model.layers.1.self_attn.o_proj.weight_scale_inv", 4, bytes);
      Conversion conversion(directory / "in", directory / "out");
      if (!cast) conversion.recipe.to.reset();
      expect_error(ErrorCode::kBadScale, {"model.layers.1.self_attn.o_proj"},
                   [&] { conversion.run(); });
      expect_unpublished(directory / "out");
    }
  }
}

TEST_F(Execute, ReportsTheFirstFaultInPlanOrder) {
  copy_example(dir_ / "in");
  for (const int expert : {3, 7, 11}) {
    patch_tensor(dir_ / "in",
                 "model.layers.2.mlp.experts." + std::to_string(expert) + ".up_proj.weight", 5,
                 {0x7F});
  }
  for (const std::size_t threads : {1U, 2U, 5U}) {
    Conversion conversion(dir_ / "in", dir_ / ("out" + std::to_string(threads)));
    conversion.execute.threads = threads;
    // Names sort as text: 11 comes before 3.
    expect_error(ErrorCode::kNonFinite, {"experts.11.up_proj"}, [&] { conversion.run(); });
  }
}

TEST_F(Execute, RefusesAnExistingTargetUnlessForced) {
  std::filesystem::create_directories(dir_ / "out");
  write_text_file(dir_ / "out" / "precious.txt", "mine");
  write_text_file(dir_ / "out" / "model-00009-of-00009.safetensors", "stale");
  write_text_file(dir_ / "out" / "model.safetensors.index.json", "stale");
  Conversion conversion(small_v32(), dir_ / "out");
  expect_error(ErrorCode::kExists, {"--force"}, [&] { conversion.run(); });
  conversion.execute.resume = true;
  expect_error(ErrorCode::kExists, {"--force"}, [&] { conversion.run(); });
  conversion.execute.resume = false;
  conversion.execute.force = true;
  expect_error(ErrorCode::kExists, {"precious.txt"}, [&] { conversion.run(); });
  std::filesystem::rename(dir_ / "out" / "precious.txt", dir_ / "precious.txt");
  conversion.run();
  auto files = tree(dir_ / "out");
  EXPECT_FALSE(files.contains("model-00009-of-00009.safetensors"));
  EXPECT_NE(files.at("model.safetensors.index.json"), "stale");

  conversion.execute.force = false;
  expect_error(ErrorCode::kExists, {"finished"}, [&] { conversion.run(); });
}

TEST_F(Execute, SourceAndOutputMustNotContainOneAnother) {
  copy_small(dir_ / "in");
  std::filesystem::create_directory_symlink(dir_ / "in", dir_ / "link");
  for (const char* output : {"in", "in/out", "in/../in/x", "link/out", "."}) {
    Conversion conversion(dir_ / "in", dir_.path() / output);
    expect_error(ErrorCode::kInvalidArgument, {"contain"}, [&] { conversion.run(); });
  }
}

TEST_F(Execute, RefusesATooSmallBudgetWithTheFigure) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.execute.mem_limit = 10 << 20;
  expect_error(ErrorCode::kLimit, {"--mem-limit"}, [&] { conversion.run(); });
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
}

TEST_F(Execute, UncreatableOutputIsPermissionOrExists) {
  write_text_file(dir_ / "file", "x");
  Conversion conversion(small_v32(), dir_ / "file");
  expect_error(ErrorCode::kExists, {"not a directory"}, [&] { conversion.run(); });
}

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

/// A plan without tables: 24 MiB are the program's, 4 MiB each thread's.
MemoryPlan divide(std::size_t threads, std::uint64_t mem_limit, std::uint64_t open_targets,
                  std::size_t n_files = 1) {
  const ingot::testing::TempDir directory;
  ingot::testing::tiny_deepseek_v3().write(directory.path());
  const auto source = formats::Checkpoint::open(directory.path());
  Plan plan{.source = source};
  plan.sizes.open_targets = open_targets;
  plan.files.resize(n_files);
  return plan_memory(plan, threads, mem_limit);
}

void expect_windows(const MemoryPlan& memory, std::uint64_t n, std::uint64_t n_bytes) {
  EXPECT_EQ(memory.n_windows, n);
  EXPECT_EQ(memory.window_bytes, n_bytes);
}

TEST(Resources, GiveAnUnslicedJobFewLargeWindows) {
  expect_windows(divide(2, 1024 * kMiB, 1), 24, 8 * kMiB);
  expect_windows(divide(16, 1024 * kMiB, 1), 34, 8 * kMiB);
  expect_windows(divide(2, (24 + 8 + 60) * kMiB, 1), 15, 4 * kMiB);
  expect_windows(divide(2, (24 + 8 + 10) * kMiB, 1), 10, 1 * kMiB);
  expect_windows(divide(2, (24 + 8 + 6) * kMiB, 1), 6, 1 * kMiB);
}

TEST(Resources, GiveEachThreadAFileOfItsOwn) {
  const auto files_at_once = [](std::size_t threads, std::uint64_t mem_limit, std::size_t n_files) {
    return divide(threads, mem_limit, 1, n_files).files_at_once;
  };
  EXPECT_EQ(files_at_once(16, 1024 * kMiB, 163), 16U);
  EXPECT_EQ(divide(16, 1024 * kMiB, 1, 163).n_windows, 49U) << "one more for each further file";
  EXPECT_EQ(files_at_once(16, 1024 * kMiB, 3), 3U);
  EXPECT_EQ(files_at_once(2, 1024 * kMiB, 163), 2U);
  EXPECT_EQ(files_at_once(2, (24 + 8 + 6) * kMiB, 163), 1U) << "no window to spare";
}

TEST(Resources, ScatteredJobsGetSmallerWindows) {
  expect_windows(divide(2, 1024 * kMiB, 2), 24, 8 * kMiB);        // wants 10
  expect_windows(divide(2, 1024 * kMiB, 10), 48, 4 * kMiB);       // wants 26
  expect_windows(divide(2, 1024 * kMiB, 64), 192, 1 * kMiB);      // wants 134
  expect_windows(divide(2, 1024 * kMiB, 320), 768, 256 * kKiB);   // wants 646
  expect_windows(divide(16, 1024 * kMiB, 64), 1088, 256 * kKiB);  // wants 1058 of 272 MiB
}

TEST(Resources, PeakIgnoresTheNumberOfTargets) {
  for (const std::uint64_t mem_limit : {38 * kMiB, 92 * kMiB, 1024 * kMiB}) {
    const std::uint64_t peak = divide(2, mem_limit, 1).peak();
    for (const std::uint64_t targets : {2U, 7U, 64U, 320U, 1000000U}) {
      const MemoryPlan memory = divide(2, mem_limit, targets);
      EXPECT_EQ(memory.peak(), peak);
      EXPECT_GE(memory.window_bytes, 64 * kKiB);
      EXPECT_EQ(memory.window_bytes % 4096, 0U);
    }
  }
}

TEST(Resources, SpillRatherThanGoBelowTheSmallestWindow) {
  expect_windows(divide(2, 38 * kMiB, 320), 96, 64 * kKiB);  // wants 646
}

// A machine of many processors runs with the budget that was enough for one of few.
TEST(Resources, TakeAsManyThreadsAsTheBudgetHolds) {
  EXPECT_EQ(divide(16, 38 * kMiB, 1).threads, 2);
  EXPECT_EQ(divide(16, 38 * kMiB - 1, 1).threads, 1);
  for (std::uint64_t limit = 32 * kMiB; limit < 160 * kMiB; limit += 5 * kMiB)
    EXPECT_LE(divide(16, limit, 320).peak(), limit);
}

TEST(Resources, NameTheLeastBudget) {
  for (const std::uint64_t targets : {1U, 320U}) {
    ingot::testing::expect_error(ErrorCode::kLimit, {"than 33.6 MB", "--mem-limit 34MB"},
                                 [&] { divide(2, 32 * kMiB - 1, targets); });
  }
}

}  // namespace
}  // namespace ingot::convert
