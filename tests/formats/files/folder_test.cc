#include "formats/files/folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "formats/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot {
namespace {

using namespace ingot::testing;
namespace fs = std::filesystem;

// `out`, a folder, and `mine`, another folder next to it with a file in it.
class Folders : public InTempDir {
 protected:
  Folders() {
    fs::create_directories(dir_ / "out");
    fs::create_directories(dir_ / "mine/deep");
    write_text_file(dir_ / "mine/deep/a", "precious");
  }
  [[nodiscard]] bool is_whole() const {
    return fs::exists(dir_ / "mine/deep/a") &&
           read_text_file(dir_ / "mine/deep/a", 100) == "precious";
  }
  [[nodiscard]] Folder out() const { return Folder::open(dir_ / "out"); }
};

TEST_F(Folders, MakeAndFindWhatIsBelow) {
  EXPECT_FALSE(out().find("a/b"));
  EXPECT_EQ(out().make("a/b").path(), (dir_ / "out/a/b").string());
  EXPECT_TRUE(out().find("a/b"));
  EXPECT_TRUE(out().create("a/b/c", O_WRONLY).valid());
  EXPECT_FALSE(out().create("a/b/c", O_WRONLY).valid());
  EXPECT_TRUE(out().stamp("a/b/c"));
  EXPECT_FALSE(out().stamp("a/x/c"));
  out().rename("a/b/c", *out().find("a"), "d");
  EXPECT_TRUE(fs::exists(dir_ / "out/a/d"));
  out().remove_all("a");
  out().remove_all("a");
  EXPECT_TRUE(fs::is_empty(dir_ / "out"));
}

TEST_F(Folders, RefuseLinksOnTheWay) {
  fs::create_directory_symlink(dir_ / "mine", dir_ / "out/link");
  const auto refused = [&](const auto& act) {
    expect_error(ErrorCode::kExists, {(dir_ / "out/link").string(), "symbolic link"}, act);
  };
  refused([&] { (void)out().find("link"); });
  refused([&] { (void)out().find("link/deep"); });
  refused([&] { (void)out().make("link/deep"); });
  refused([&] { (void)out().create("link/new", O_WRONLY); });
  refused([&] { (void)out().replace("link/deep/a", O_WRONLY); });
  refused([&] { (void)out().open("link/deep/a", O_WRONLY | O_TRUNC); });
  refused([&] { out().remove("link/deep/a"); });
  refused([&] { out().remove_all("link/deep"); });
  EXPECT_TRUE(is_whole());
}

TEST_F(Folders, RemoveLinksAndNotWhatTheyLeadTo) {
  fs::create_directory_symlink(dir_ / "mine", dir_ / "out/link");
  fs::create_directories(dir_ / "out/a/b");
  fs::create_directory_symlink(dir_ / "mine", dir_ / "out/a/b/link");
  out().remove_all("a");
  out().remove_all("link");
  EXPECT_TRUE(fs::is_empty(dir_ / "out"));
  EXPECT_TRUE(is_whole());
}

TEST_F(Folders, WriteToNoFileWithOtherNames) {
  fs::create_symlink(dir_ / "mine/deep/a", dir_ / "out/link");
  fs::create_hard_link(dir_ / "mine/deep/a", dir_ / "out/hard");
  expect_error(ErrorCode::kExists, {"symbolic link"}, [&] { (void)out().open("link", O_RDWR); });
  expect_error(ErrorCode::kExists, {"hard links"}, [&] { (void)out().open("hard", O_RDWR); });
  EXPECT_EQ(out().n_links("hard"), 2U);
  for (const char* name : {"link", "hard"})
    out().replace(name, O_WRONLY).write_exact(std::as_bytes(std::span("new", 3)), 0);
  EXPECT_EQ(read_text_file(dir_ / "out/hard", 100), "new");
  EXPECT_FALSE(fs::is_symlink(dir_ / "out/link"));
  EXPECT_TRUE(is_whole());
}

}  // namespace
}  // namespace ingot
