#include "convert/output/staged_files.h"

#include <chrono>

#include <fcntl.h>

#include "convert/job/run_files.h"
#include "tests/convert/conversion.h"
#include "tests/support/disk_dir.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
namespace fs = std::filesystem;

// A file that must not be lost, and a folder of staged files next to it.
class Staged : public OnDisk {
 protected:
  Staged() {
    fs::create_directories(dir_ / "mine");
    write_text_file(dir_ / "mine/a", "precious");
    fs::create_directories(dir_ / "files");
  }
  [[nodiscard]] std::string mine() const { return read_text_file(dir_ / "mine/a", 100); }
  [[nodiscard]] StagedFiles staged() const { return StagedFiles(Folder::open(dir_ / "files")); }
};

TEST_F(Staged, FilesWithOtherNamesAreCopiedBeforeWriting) {
  fs::create_hard_link(dir_ / "mine/a", dir_ / "files/a");
  StagedFiles files = staged();
  files.open("a").write_exact(std::as_bytes(std::span("new", 3)), 0);
  EXPECT_EQ(read_text_file(dir_ / "files/a", 100), "newcious");
  EXPECT_EQ(mine(), "precious");
  EXPECT_NO_THROW(files.require_ours("a"));
  // A link that is made later is refused.
  fs::create_hard_link(dir_ / "files/a", dir_ / "later");
  expect_error(ErrorCode::kExists, {"hard links"}, [&] { files.reopen("a", 0); });
}

TEST_F(Staged, FilesBesideTheWeightsAreMadeAnew) {
  fs::create_hard_link(dir_ / "mine/a", dir_ / "files/a");
  StagedFiles files = staged();
  write_text_file(files.make("a"), "new");
  EXPECT_EQ(mine(), "precious");
  EXPECT_TRUE(files.share(dir_ / "mine/a", "sub/b", true));
  EXPECT_FALSE(files.share(dir_ / "mine/a", "sub/b", false));
  write_text_file(files.make("sub/b"), "new");
  EXPECT_EQ(mine(), "precious");
  files.drop_but({"a"});
  EXPECT_EQ(tree(dir_ / "files"), (std::map<std::string, std::string>{{"a", "new"}}));
}

TEST_F(Staged, SymbolicLinksAreRefused) {
  fs::create_symlink(dir_ / "mine/a", dir_ / "files/a");
  expect_error(ErrorCode::kExists, {"files/a", "symbolic link"}, [&] { (void)staged(); });
  fs::remove(dir_ / "files/a");
  fs::create_directory_symlink(dir_ / "mine", dir_ / "files/sub");
  expect_error(ErrorCode::kExists, {"files/sub", "symbolic link"}, [&] { (void)staged(); });
}

// Links in the place of folders that a run writes into, empties or removes.
class PlantedLink : public ::testing::TestWithParam<const char*> {};

TEST_P(PlantedLink, CostsNothingItLeadsTo) {
  const DiskDir dir;
  copy_small(dir / "mine");
  write_text_file(dir / "mine/ingot.json", "precious");
  const auto before = tree(dir / "mine");
  Conversion(small_v32(), dir / "out").run();
  const fs::path link = dir.path() / "out" / GetParam();
  fs::create_directories(link.parent_path());
  fs::create_directory_symlink(dir / "mine", link);
  Conversion conversion(small_v32(), dir / "out");
  conversion.execute.force = true;
  expect_error(ErrorCode::kExists, {GetParam(), "symbolic link"}, [&] { conversion.run(); });
  EXPECT_TRUE(tree(dir / "mine") == before);
  EXPECT_TRUE(fs::exists(dir / "out/ingot.json"));
}

INSTANTIATE_TEST_SUITE_P(Names, PlantedLink,
                         ::testing::Values(".ingot-partial", ".ingot-partial/files",
                                           ".ingot-partial/parts", ".ingot-partial/consumed",
                                           ".ingot-partial/claims", ".ingot-swept",
                                           "rank-000-of-002"));

// A link in the place of a claim is passed over: the next run makes a claim of its own.
TEST(PlantedClaim, IsNotWrittenThrough) {
  const DiskDir dir;
  write_text_file(dir / "mine", "precious");
  fs::last_write_time(dir / "mine", fs::file_time_type::clock::now() - std::chrono::minutes(5));
  const OutputPaths paths(dir / "out");
  fs::create_directories(paths.claims);
  fs::create_symlink(dir / "mine", run_file(paths, std::nullopt, 1, kClaimSuffix));
  Conversion(small_v32(), dir / "out").run();
  EXPECT_EQ(read_text_file(dir / "mine", 100), "precious");
}

TEST(PlantedJournal, IsNotWrittenThrough) {
  const DiskDir dir;
  Conversion conversion(small_v32(), dir / "out");
  ASSERT_TRUE(run_stopped(conversion, 110));
  const OutputPaths paths(conversion.output);
  fs::rename(paths.journal, dir / "mine");
  fs::create_symlink(dir / "mine", paths.journal);
  const std::string before = read_text_file(dir / "mine", 1 << 20);
  conversion.execute.resume = true;
  expect_error(ErrorCode::kExists, {"journal.jsonl", "symbolic link"}, [&] { conversion.run(); });
  conversion.execute.resume = false;
  conversion.execute.force = true;
  conversion.run();
  EXPECT_EQ(read_text_file(dir / "mine", 1 << 20), before);
}

}  // namespace
}  // namespace ingot::convert
