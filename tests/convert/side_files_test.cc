#include "convert/job/preflight.h"

#include <gtest/gtest.h>

#include "tests/convert/conversion.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot::convert {
namespace {

namespace fs = std::filesystem;

using namespace ingot::testing;

void require(const fs::path& directory) {
  require_own_side_files(formats::Checkpoint::open(directory));
}

TEST(SideFileLinks, RefusedWhenTheyLeadOut) {
  const TempDir directory;
  copy_example(directory / "in");
  write_text_file(directory / "secret", "s");
  fs::create_symlink("../secret", directory / "in" / "a.txt");
  fs::create_directory(directory / "in" / "sub");
  // A link to a link.
  fs::create_symlink("../a.txt", directory / "in" / "sub" / "b.txt");
  expect_error(
      ErrorCode::kUnsupported,
      {"2 faults", "a.txt", "sub/b.txt", (directory / "secret").string(), "--follow-links"},
      [&] { require(directory / "in"); });
}

TEST(SideFileLinks, WelcomeInsideTheSource) {
  const TempDir directory;
  copy_example(directory / "in");
  fs::create_symlink("tokenizer.json", directory / "in" / "again.json");
  fs::create_directory_symlink(directory / "in", directory / "by_another_name");
  EXPECT_NO_THROW(require(directory / "in"));
  EXPECT_NO_THROW(require(directory / "by_another_name"));
}

TEST(SideFileLinks, LinksOfAHubSnapshotAreFollowed) {
  const TempDir directory;
  const fs::path root = directory / "models--org--name";
  const fs::path snapshot = root / "snapshots" / "0123abcd";
  fs::create_directories(snapshot);
  fs::create_directories(root / "blobs");
  for (const auto& entry : fs::directory_iterator(tiny_v32())) {
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

}  // namespace
}  // namespace ingot::convert
