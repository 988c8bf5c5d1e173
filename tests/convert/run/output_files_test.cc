#include "convert/run/output_files.h"

#include <atomic>

#include "check/rules/loader_rules.h"
#include "convert/job/preflight.h"
#include "convert/output/planned_checkpoint.h"
#include "convert/output/rank_directories.h"
#include "convert/run/memory/converted_bytes.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"
#include "shard/join/source.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/disk_dir.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using ingot::testing::Target;
namespace fs = std::filesystem;
using formats::Checkpoint;

std::vector<OutputFiles::File> files_of(std::size_t n, std::uint64_t n_bytes) {
  std::vector<OutputFiles::File> files;
  for (std::size_t i = 0; i < n; ++i)
    files.push_back({.name = "file-" + std::to_string(i), .n_bytes = n_bytes});
  return files;
}

void write(OutputFiles& files, std::uint32_t file, std::string_view text, std::uint64_t offset) {
  files.use(file).buffered().write_exact(std::as_bytes(std::span(text)), offset);
}

std::string text_of(const DiskDir& directory, const std::string& name) {
  return read_text_file(directory / name, 1 << 20);
}

class StagedOutput : public OnDisk {
 protected:
  StagedFiles staged_{Folder::open(dir_.path())};
};

TEST_F(StagedOutput, KeepNoMoreOpenThanTheyMay) {
  OutputFiles files(staged_, files_of(20, 6), false, 3);
  for (std::uint32_t file = 0; file < 20; ++file) {
    write(files, file, "abc", 0);
    EXPECT_EQ(descriptors_below(dir_.path()), std::min<std::size_t>(file + 1, 3));
  }
  for (std::uint32_t file = 0; file < 20; ++file) write(files, file, "def", 3);
  EXPECT_EQ(descriptors_below(dir_.path()), 3U);
  for (std::uint32_t file = 0; file < 20; ++file)
    EXPECT_EQ(text_of(dir_, files.name(file)), "abcdef");
}

TEST_F(StagedOutput, CloseTheOneThatWasIdleLongest) {
  OutputFiles files(staged_, files_of(3, 1), false, 2);
  write(files, 0, "a", 0);
  write(files, 1, "a", 0);
  write(files, 0, "b", 0);  // 1 is idle longer now
  write(files, 2, "a", 0);
  // A file that is not open cannot be opened again once it is gone.
  std::filesystem::remove(dir_ / "file-0");
  std::filesystem::remove(dir_ / "file-1");
  EXPECT_NO_THROW(write(files, 0, "c", 0));
  expect_error(ErrorCode::kNotFound, {"file-1"}, [&] { write(files, 1, "c", 0); });
}

TEST_F(StagedOutput, NeverCloseOneInUse) {
  OutputFiles files(staged_, files_of(3, 1), false, 2);
  std::atomic<bool> is_open = false;
  std::thread other;
  {
    const OutputFiles::Use first = files.use(0);
    std::thread([&] {
      const OutputFiles::Use second = files.use(1);
      other = std::thread([&] {
        write(files, 2, "x", 0);
        is_open = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_FALSE(is_open);
    }).join();
    other.join();
    EXPECT_TRUE(is_open);
    first.buffered().write_exact(std::as_bytes(std::span("y", 1)), 0);
  }
  EXPECT_EQ(text_of(dir_, "file-0"), "y");
}

TEST_F(StagedOutput, ReserveTheirBytesOnceOnly) {
  OutputFiles files(staged_, files_of(2, 5'000), false, 1);
  write(files, 0, "a", 0);
  EXPECT_EQ(std::filesystem::file_size(dir_ / "file-0"), 5'000U);
  write(files, 1, "a", 0);
  std::filesystem::resize_file(dir_ / "file-0", 10);
  write(files, 0, "b", 1);
  EXPECT_EQ(std::filesystem::file_size(dir_ / "file-0"), 10U);
}

TEST_F(StagedOutput, SyncWhatAClosedDescriptorWrote) {
  OutputFiles files(staged_, files_of(2, 1), true, 1);
  write(files, 0, "a", 0);
  write(files, 1, "a", 0);
  EXPECT_NO_THROW(files.sync_data(0));
  std::filesystem::remove(dir_ / "file-1");
  expect_error(ErrorCode::kNotFound, {"file-1"}, [&] { files.sync_data(1); });
}

TEST_F(StagedOutput, MakeTheFoldersInTheirNames) {
  StagedFiles staged(Folder::open(dir_.path() / "" / "."));
  OutputFiles files(staged, {{.name = "a/b/one", .n_bytes = 3}, {.name = "a/two", .n_bytes = 3}},
                    false, 4);
  write(files, 0, "one", 0);
  write(files, 1, "two", 0);
  EXPECT_EQ(text_of(dir_, "a/b/one"), "one");
  EXPECT_EQ(text_of(dir_, "a/two"), "two");
}

TEST_F(StagedOutput, CanBeOpenedAfterAFailure) {
  OutputFiles files(staged_, {{.name = "a/one", .n_bytes = 3}}, false, 1);
  Fd::open_for_writing(dir_ / "a", 0101);
  expect_error(ErrorCode::kIo, {"a"}, [&] { write(files, 0, "one", 0); });
  std::filesystem::remove(dir_ / "a");
  write(files, 0, "one", 0);
  EXPECT_EQ(text_of(dir_, "a/one"), "one");
}

TEST_F(StagedOutput, LeaveDescriptorsToTheSourceAndTheRest) {
  for (const rlim_t most : {16U, 64U, 256U, 1024U}) {
    const DescriptorLimit limit(most);
    const std::size_t of_source = std::min<std::size_t>(most / 2, 256);
    const std::size_t n = OutputFiles::default_max_open();
    EXPECT_GE(n, 2U);
    EXPECT_LE(of_source + 2 * n, most - most / 4) << most;
  }
}

void require(const fs::path& directory) {
  require_own_side_files(formats::Checkpoint::open(directory));
}

using SideFileLinks = OnDisk;

TEST_F(SideFileLinks, RefusedWhenTheyLeadOut) {
  copy_small(dir_ / "in");
  write_text_file(dir_ / "secret", "s");
  fs::create_symlink("../secret", dir_ / "in" / "a.txt");
  fs::create_directory(dir_ / "in" / "sub");
  // A link to a link.
  fs::create_symlink("../a.txt", dir_ / "in" / "sub" / "b.txt");
  expect_error(ErrorCode::kUnsupported,
               {"2 faults", "a.txt", "sub/b.txt", (dir_ / "secret").string(), "--follow-links"},
               [&] { require(dir_ / "in"); });
}

TEST_F(SideFileLinks, WelcomeInsideTheSource) {
  copy_small(dir_ / "in");
  fs::create_symlink("tokenizer.json", dir_ / "in" / "again.json");
  fs::create_directory_symlink(dir_ / "in", dir_ / "by_another_name");
  EXPECT_NO_THROW(require(dir_ / "in"));
  EXPECT_NO_THROW(require(dir_ / "by_another_name"));
}

TEST_F(SideFileLinks, LinksOfAHubSnapshotAreFollowed) {
  const fs::path root = dir_ / "models--org--name";
  const fs::path snapshot = root / "snapshots" / "0123abcd";
  fs::create_directories(snapshot);
  fs::create_directories(root / "blobs");
  for (const auto& entry : fs::directory_iterator(small_v32())) {
    const fs::path name = entry.path().filename();
    fs::copy_file(entry.path(), root / "blobs" / name);
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  }
  EXPECT_NO_THROW(require(snapshot));
  // A name that begins alike is another folder.
  fs::create_directories(root / "blobs2");
  write_text_file(root / "blobs2" / "x", "x");
  fs::create_symlink("../../blobs2/x", snapshot / "x");
  expect_error(ErrorCode::kUnsupported, {"blobs2/x"}, [&] { require(snapshot); });
}

// The planned checkpoint, which is judged before the start, is the one on the disk at the end.

std::vector<std::string> stored_lines(const Checkpoint& checkpoint) {
  std::vector<std::string> lines;
  for (const formats::StoredTensor& stored : checkpoint.stored()) {
    lines.push_back(fmt::format("{} {} {} {} at {}, {} bytes", checkpoint.files()[stored.file].name,
                                stored.name, formats::dtype_name(stored.dtype),
                                formats::shape_text(stored.shape), stored.offset, stored.n_bytes));
  }
  return lines;
}

std::vector<std::string> finding_lines(const Checkpoint& checkpoint) {
  std::vector<std::string> lines;
  for (const check::Finding& finding :
       check::run_loader_rules(checkpoint, {.threads = 2, .most_bytes = 0}))
    lines.push_back(
        fmt::format("{} {} {} {}", finding.rule, finding.file, finding.tensor, finding.message));
  return lines;
}

void expect_same(const Checkpoint& planned, const Checkpoint& written) {
  EXPECT_EQ(stored_lines(planned), stored_lines(written));
  EXPECT_EQ(finding_lines(planned), finding_lines(written));
  EXPECT_EQ(*planned.config().raw, *written.config().raw);
  EXPECT_EQ(planned.description(), written.description());
  EXPECT_EQ(planned.dialect().name, written.dialect().name);
  EXPECT_EQ(planned.has_index(), written.has_index());
  EXPECT_EQ(planned.lacks_promised_mtp(), written.lacks_promised_mtp());
  ASSERT_EQ(planned.tensors().size(), written.tensors().size());
  for (std::size_t i = 0; i < planned.tensors().size(); ++i) {
    const formats::LogicalTensor &a = planned.tensors()[i], &b = written.tensors()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.shape, b.shape) << a.name;
    EXPECT_EQ(a.encoding.scheme, b.encoding.scheme) << a.name;
    EXPECT_EQ(a.rule, b.rule) << a.name;
  }
  for (std::uint32_t file = 0; file < planned.files().size(); ++file)
    EXPECT_EQ(planned.header_bytes(file), written.header_bytes(file));
}

// Plans, converts, and compares every directory that loader rules judge.
void expect_as_planned(Conversion conversion) {
  const Checkpoint source = shard::open_source(conversion.input);
  Recipe recipe = conversion.recipe;
  resolve(recipe, source);
  const Plan plan = plan_for(source, recipe, conversion.plan);
  conversion.run();
  if (!plan.has_rank_directories()) {
    expect_same(planned_checkpoint(plan, std::nullopt, 2), Checkpoint::open(conversion.output));
    return;
  }
  const std::uint32_t n_ranks = plan.slicing->topology.n_ranks();
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    SCOPED_TRACE(rank);
    expect_same(planned_checkpoint(plan, rank, 2),
                Checkpoint::open(conversion.output / shard::rank_directory_name(rank, n_ranks)));
  }
}

class PlannedTarget : public ::testing::TestWithParam<Target> {};

INSTANTIATE_TEST_SUITE_P(FirstTargets, PlannedTarget, ::testing::ValuesIn(first_targets()),
                         target_name);
INSTANTIATE_TEST_SUITE_P(SlowTargets, PlannedTarget,
                         ::testing::ValuesIn(all_targets_but(first_targets())), target_name);

TEST_P(PlannedTarget, IsWhatIsWritten) {
  const DiskDir directory;
  Conversion conversion(synth_model(), directory / "out");
  GetParam().apply(conversion.recipe);
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  expect_as_planned(conversion);
}

TEST(PlannedCheckpoint, EqualsTheWrittenSingleFile) {
  const DiskDir directory;
  Conversion conversion(synth_model(), directory / "out");
  conversion.plan.shards.max_shard_bytes = std::uint64_t{1} << 40;
  expect_as_planned(conversion);
}

TEST(PlannedCheckpoint, EqualsTheWrittenRanks) {
  struct Case {
    shard::Topology topology;
    shard::TpFit fit;
    formats::SchemeId to;
  };
  const Case cases[] = {
      {{.tp = 2, .ep = 4}, shard::TpFit::kRetile, formats::SchemeId::kFp8Block},
      {{.tp = 2, .ep = 2, .etp = 3}, shard::TpFit::kPad, formats::SchemeId::kBf16},
      {{.tp = 4, .pp = 2}, shard::TpFit::kBf16, formats::SchemeId::kFp8Block},
      {{.tp = 2, .ep = 2, .pp = 2}, shard::TpFit::kRefuse, formats::SchemeId::kInt8Channel},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(fmt::format("tp {} fit {}", row.topology.tp, shard::tp_fit_name(row.fit)));
    const DiskDir directory;
    Conversion conversion(small_v32(), directory / "out");
    conversion.recipe.to = row.to;
    conversion.plan.layout = formats::find_layout("ranks");
    conversion.plan.slicing.topology = row.topology;
    conversion.plan.slicing.fit = row.fit;
    expect_as_planned(conversion);
  }
}

/// The tensors that readers see and the findings of loader rules, in any order.
std::set<std::string> seen_lines(const Checkpoint& checkpoint) {
  std::set<std::string> lines;
  for (const formats::LogicalTensor& tensor : checkpoint.tensors()) {
    tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
      const formats::StoredTensor& stored = checkpoint.stored()[index];
      lines.insert(fmt::format("{}: {} {} {} {}", tensor.name,
                               scheme_facts(tensor.encoding.scheme).name, stored.name,
                               dtype_name(stored.dtype), formats::shape_text(stored.shape)));
    });
  }
  for (const check::Finding& finding :
       check::run_loader_rules(checkpoint, {.threads = 2, .most_bytes = 0}))
    lines.insert(fmt::format("{} {}", finding.rule, error_code_name(finding.code)));
  return lines;
}

TEST(PlannedCheckpoint, OfSlicesIsWhatTheyJoinTo) {
  struct Case {
    const char* layout;
    shard::Topology topology;
    shard::TpFit fit;
    formats::SchemeId to;
  };
  const Case cases[] = {
      {"ranks", {.tp = 2, .ep = 4}, shard::TpFit::kRetile, formats::SchemeId::kFp8Block},
      {"ranks", {.tp = 2, .ep = 2, .etp = 3}, shard::TpFit::kPad, formats::SchemeId::kBf16},
      {"deepseek-mp",
       {.tp = 2, .ep = 2, .etp = 1},
       shard::TpFit::kBf16,
       formats::SchemeId::kFp8Block},
      {"vllm-sharded", {.tp = 2, .etp = 2}, shard::TpFit::kBf16, formats::SchemeId::kFp8Block},
      {"vllm-sharded",
       {.tp = 2, .ep = 2, .etp = 1},
       shard::TpFit::kRefuse,
       formats::SchemeId::kInt8Channel},
      {"vllm-sharded",
       {.tp = 2, .ep = 2, .etp = 1},
       shard::TpFit::kBf16,
       formats::SchemeId::kInt4Group},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(fmt::format("{} {}", row.layout, scheme_facts(row.to).name));
    const DiskDir directory;
    Conversion conversion(small_v32(), directory / "out");
    conversion.recipe.to = row.to;
    conversion.recipe.mtp = MtpPolicy::kDrop;
    conversion.plan.layout = formats::find_layout(row.layout);
    conversion.plan.slicing.topology = row.topology;
    conversion.plan.slicing.fit = row.fit;
    const Checkpoint source = shard::open_source(conversion.input);
    Recipe recipe = conversion.recipe;
    resolve(recipe, source);
    const Plan plan = plan_for(source, recipe, conversion.plan);
    conversion.run();
    EXPECT_EQ(seen_lines(planned_checkpoint(plan, std::nullopt, 2)),
              seen_lines(shard::open_source(conversion.output)));
  }
}

// Pieces of an odd size, from several threads at once, twice.
TEST(ConvertedCheckpoint, ReadsWhatAConversionWrites) {
  using enum formats::SchemeId;
  for (const formats::SchemeId to : {kNvfp4, kInt8Channel, kBf16}) {
    SCOPED_TRACE(formats::scheme_facts(to).name);
    const DiskDir directory;
    Conversion conversion(small_v32(), directory / "out");
    conversion.recipe.to = to;
    conversion.run();
    const Checkpoint source = shard::open_source(conversion.input);
    Recipe recipe = conversion.recipe;
    resolve(recipe, source);
    const Plan plan = plan_for(source, recipe, conversion.plan);
    ConvertedBytes bytes(plan, 2);
    const Checkpoint converted = converted_checkpoint(plan, bytes, 2);
    const Checkpoint written = shard::open_source(conversion.output);
    ASSERT_EQ(converted.stored().size(), written.stored().size());
    const std::size_t n = written.stored().size();
    parallel_for(2 * n, 4, [&](std::size_t i) {
      const auto stored = static_cast<std::uint32_t>(i % n);
      const formats::StoredTensor& tensor = written.stored()[stored];
      ASSERT_EQ(converted.stored()[stored].name, tensor.name);
      std::vector<std::byte> wanted(tensor.n_bytes), is(tensor.n_bytes);
      written.read(stored, 0, wanted);
      constexpr std::size_t kPiece = 70'001;
      for (std::size_t at = 0; at < is.size(); at += kPiece)
        converted.read(stored, at, std::span(is).subspan(at, std::min(kPiece, is.size() - at)));
      EXPECT_EQ(is, wanted) << tensor.name;
    });
  }
}

TEST(PlannedCheckpoint, HasNoBytes) {
  const Checkpoint source = Checkpoint::open(synth_model());
  Recipe recipe;
  recipe.to = formats::SchemeId::kBf16;
  resolve(recipe, source);
  const Plan plan = plan_for(source, recipe);
  const Checkpoint planned = planned_checkpoint(plan, std::nullopt, 1);
  EXPECT_FALSE(planned.has_data(0));
  std::byte byte{};
  expect_error(ErrorCode::kInternal, {"planned"}, [&] { planned.read(0, 0, {&byte, 1}); });
}

}  // namespace
}  // namespace ingot::convert
