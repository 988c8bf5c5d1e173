#include "convert/output/apart.h"

#include "tests/convert/conversion.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
namespace fs = std::filesystem;

class Apart : public InTempDir {
 protected:
  Apart() {
    for (const char* folder : {"in/sub", "out/rank-000-of-002", "other"})
      fs::create_directories(dir_.path() / folder);
    for (const char* file : {"in/a", "in/sub/b", "out/a", "out/s", "other/c"})
      write_text_file(dir_.path() / file, "x");
  }
  [[nodiscard]] JobInputs input(const char* name) const { return {.folders = {dir_ / name}}; }
  void expect_refused(const JobInputs& inputs, const char* output) const {
    expect_error(ErrorCode::kInvalidArgument, {"must not contain one another"},
                 [&] { require_apart(inputs, dir_ / output); });
  }
};

TEST_F(Apart, RefusesOneFolderInsideTheOther) {
  for (const char* output : {"in", "in/", "in/sub", "in/new/deep", ".", "none/../in/x"})
    expect_refused(input("in"), output);
  EXPECT_NO_THROW(require_apart(input("in"), dir_ / "out"));
  EXPECT_NO_THROW(require_apart(input("in"), dir_ / "new/in"));
  EXPECT_NO_THROW(require_apart(input("none"), dir_ / "out"));
}

TEST_F(Apart, FollowsLinksOfSourceOutputAndTheirParents) {
  fs::create_directory_symlink(dir_ / "in", dir_ / "link");
  fs::create_directory_symlink(dir_.path(), dir_ / "up");
  for (const char* output : {"link", "link/new", "up/in", "up/link/sub/new"})
    expect_refused(input("in"), output);
  expect_refused(input("up/in/sub"), "in");
}

TEST_F(Apart, RefusesSourcesWhoseFilesLieInTheOutput) {
  fs::create_symlink(dir_ / "out/a", dir_ / "in/weights");
  expect_refused(input("in"), "out");
  fs::remove(dir_ / "in/weights");
  fs::create_directory_symlink(dir_ / "out/rank-000-of-002", dir_ / "in/rank");
  expect_refused(input("in"), "out");
  fs::remove(dir_ / "in/rank");
  fs::create_symlink(dir_ / "other/c", dir_ / "in/c");
  EXPECT_NO_THROW(require_apart(input("in"), dir_ / "out"));
  // The output may be next to a link's target, as in the hub's cache.
  EXPECT_NO_THROW(require_apart(input("in"), dir_ / "other/new"));
  expect_refused({.folders = {dir_ / "in"}, .files = {dir_ / "out/s"}}, "out");
}

TEST_F(Apart, HardLinksAreNoReason) {
  fs::create_hard_link(dir_ / "in/a", dir_ / "out/same");
  EXPECT_NO_THROW(require_apart(input("in"), dir_ / "out"));
}

TEST_F(Apart, ProbeShowsWhatIsOneFolder) {
  const auto expect_seen = [&](const char* source, const char* output) {
    expect_error(ErrorCode::kInvalidArgument, {"appears in"},
                 [&] { require_unseen(input(source), dir_ / output); });
  };
  expect_seen("in", "in");
  expect_seen("in", "in/sub");
  expect_seen("in/sub", "in");
  // The leftovers of a kill go.
  write_text_file(dir_ / "out/.ingot-probe-4194305-2", "");
  const auto before = top_level(dir_ / "in");
  EXPECT_NO_THROW(require_unseen(input("in"), dir_ / "out"));
  EXPECT_EQ(top_level(dir_ / "out"), (std::vector<std::string>{"a", "rank-000-of-002", "s"}));
  EXPECT_EQ(top_level(dir_ / "in"), before);
}

TEST(ApartFromOptions, ScalesAreNotReplaced) {
  const TempDir dir;
  copy_small(dir / "release");
  Conversion plain(small_v32(), dir / "bf16");
  plain.run();
  const auto before = tree(dir / "release");
  Conversion back(dir / "bf16", dir / "release");
  back.recipe.to = formats::SchemeId::kFp8Block;
  back.recipe.choices.scales_from =
      std::make_shared<const formats::Checkpoint>(formats::Checkpoint::open(dir / "release"));
  back.execute.force = true;
  expect_error(ErrorCode::kInvalidArgument, {"must not contain"}, [&] { back.run(); });
  EXPECT_TRUE(tree(dir / "release") == before);
}

}  // namespace
}  // namespace ingot::convert
