#include "formats/base/fd.h"

#include <cerrno>
#include <chrono>
#include <new>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/aligned_buffer.h"
#include "formats/base/error.h"
#include "formats/files/folder.h"
#include "tests/support/bytes.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/test.h"

namespace ingot {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::TempDir;
using enum ErrorCode;

std::string read_back(const Fd& file, std::uint64_t offset, std::size_t n) {
  std::string text(n, '?');
  file.read_exact(std::as_writable_bytes(std::span(text)), offset);
  return text;
}

TEST(Fd, WritesAndReadsAtAnyOffset) {
  const TempDir dir;
  const Fd out = Fd::open_for_writing(dir / "f", O_WRONLY | O_CREAT | O_EXCL);
  out.write_exact(bytes_of("world"), 6);
  out.write_exact(bytes_of("hello "), 0);
  out.sync_data();
  out.sync();
  const Fd in = Fd::open_for_reading(dir / "f");
  EXPECT_EQ(in.size(), 11U);
  EXPECT_EQ(read_back(in, 0, 11), "hello world");
  EXPECT_EQ(read_back(in, 4, 3), "o w");
  EXPECT_EQ(read_back(in, 11, 0), "");
}

TEST(Fd, ReadBeyondTheEndIsATruncatedFile) {
  const TempDir dir;
  write_text_file(dir / "f", "1234");
  const Fd file = Fd::open_for_reading(dir / "f");
  expect_error(kCorrupt, {(dir / "f").string(), "byte 4", "3 bytes early", "truncated"},
               [&] { (void)read_back(file, 2, 5); });
}

TEST(Fd, MissingFileIsNotFoundWithItsPath) {
  const TempDir dir;
  expect_error(kNotFound, {(dir / "absent").string()},
               [&] { Fd::open_for_reading(dir / "absent"); });
  expect_error(kNotFound, {"absent"},
               [&] { Fd::open_for_writing(dir / "absent" / "f", O_WRONLY | O_CREAT); });
  expect_error(kNotFound, {"absent"}, [&] { Fd::open_directory(dir / "absent"); });
}

TEST(Fd, RefusesToReadAnythingButARegularFile) {
  const TempDir dir;
  expect_error(kInvalidArgument, {"is not a regular file"},
               [&] { Fd::open_for_reading(dir.path()); });
  // Must not hang waiting for a writer.
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0644), 0);
  expect_error(kInvalidArgument, {"fifo", "is not a regular file"},
               [&] { Fd::open_for_reading(dir / "fifo"); });
  expect_error(kInvalidArgument, {"/dev/null"}, [] { Fd::open_for_reading("/dev/null"); });
}

TEST(Fd, SymlinkLoopIsAnIoErrorNamingIt) {
  const TempDir dir;
  std::filesystem::create_symlink("b", dir / "a");
  std::filesystem::create_symlink("a", dir / "b");
  expect_error(kIo, {(dir / "a").string(), "symbolic link"},
               [&] { Fd::open_for_reading(dir / "a"); });
}

TEST(Fd, DeniedAccessIsAPermissionError) {
  constexpr uid_t kNobody = 65534;
  const TempDir dir;
  write_text_file(dir / "f", "secret");
  std::filesystem::permissions(dir / "f", std::filesystem::perms::none);
  // Root may read everything, so it steps down for the attempt.
  const bool was_root = ::geteuid() == 0;
  if (was_root && ::seteuid(kNobody) != 0) GTEST_SKIP() << "cannot give up root";
  expect_error(kPermission, {(dir / "f").string(), "open for reading"},
               [&] { Fd::open_for_reading(dir / "f"); });
  if (was_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
}

TEST(Fd, WriteToAFullDeviceIsNoSpace) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  const Fd full = Fd::open_for_writing("/dev/full", O_WRONLY);
  expect_error(kNoSpace, {"/dev/full", "free space"}, [&] { full.write_exact(bytes_of("x"), 0); });
}

TEST(Fd, WriteThroughAReadOnlyDescriptorFails) {
  const TempDir dir;
  write_text_file(dir / "f", "1234");
  const Fd file = Fd::open_for_reading(dir / "f");
  expect_error(kIo, {(dir / "f").string()}, [&] { file.write_exact(bytes_of("x"), 0); });
}

TEST(Fd, ReserveGivesTheLengthAndKeepsTheContent) {
  const TempDir dir;
  const Fd file = Fd::open_for_writing(dir / "f", O_RDWR | O_CREAT);
  file.write_exact(bytes_of("data"), 0);
  file.reserve(0);
  EXPECT_EQ(file.size(), 4U);
  file.reserve(10'000);
  EXPECT_EQ(file.size(), 10'000U);
  EXPECT_EQ(read_back(file, 0, 5), std::string("data\0", 5));
  file.truncate(2);
  EXPECT_EQ(file.size(), 2U);
}

TEST(Fd, MovingHandsTheDescriptorOver) {
  const TempDir dir;
  write_text_file(dir / "f", "1234");
  Fd first = Fd::open_for_reading(dir / "f");
  const int number = first.get();
  Fd second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.get(), number);
  second = Fd();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(Fd, CloseIsFinalAndMayBeRepeated) {
  const TempDir dir;
  write_text_file(dir / "f", "1234");
  Fd file = Fd::open_for_reading(dir / "f");
  file.close();
  EXPECT_FALSE(file.valid());
  EXPECT_NO_THROW(file.close());
}

TEST(TextFile, RoundTripsAndReplaces) {
  const TempDir dir;
  write_text_file(dir / "f", "a longer first version");
  write_text_file(dir / "f", "second");
  EXPECT_EQ(read_text_file(dir / "f", 6), "second");
  expect_error(kLimit, {"6 bytes long", "at most 5"}, [&] { read_text_file(dir / "f", 5); });
}

TEST(FileStamp, DetectsAWrittenOrReplacedFile) {
  const TempDir dir;
  EXPECT_FALSE(stamp_of(dir / "f").has_value());
  write_text_file(dir / "f", "one");
  const FileStamp before = *stamp_of(dir / "f");
  EXPECT_EQ(before.n_bytes, 3U);
  EXPECT_EQ(before, Fd::open_for_reading(dir / "f").stamp());
  std::filesystem::create_symlink("f", dir / "link");
  EXPECT_EQ(before, *stamp_of(dir / "link"));

  std::filesystem::last_write_time(
      dir / "f", std::filesystem::last_write_time(dir / "f") + std::chrono::nanoseconds(1));
  EXPECT_NE(before, *stamp_of(dir / "f"));
  EXPECT_TRUE(before.is_same_file(*stamp_of(dir / "f")));

  const FileStamp linked = *stamp_of(dir / "f");
  std::filesystem::create_hard_link(dir / "f", dir / "further");
  EXPECT_TRUE(linked.is_unwritten(*stamp_of(dir / "f")));

  write_text_file(dir / "g", "two");
  rename_file(dir / "g", dir / "f");
  EXPECT_FALSE(before.is_same_file(*stamp_of(dir / "f")));
}

TEST(Fd, LocksAFileForOneOpening) {
  const TempDir dir;
  write_text_file(dir / "f", "1");
  {
    const Fd first = Fd::open_for_writing(dir / "f", O_RDWR);
    EXPECT_EQ(first.try_lock(), LockState::kLocked);
    EXPECT_EQ(Fd::open_for_writing(dir / "f", O_RDWR).try_lock(), LockState::kHeldElsewhere);
    EXPECT_EQ(first.try_lock(), LockState::kLocked);
  }
  EXPECT_EQ(Fd::open_for_writing(dir / "f", O_RDWR).try_lock(), LockState::kLocked);
}

TEST(RenameFile, ReplacesTheTargetAndNamesTheMissingSource) {
  const TempDir dir;
  write_text_file(dir / "from", "new");
  write_text_file(dir / "to", "old");
  rename_file(dir / "from", dir / "to");
  sync_directory(dir.path());
  EXPECT_EQ(read_text_file(dir / "to", 10), "new");
  EXPECT_FALSE(std::filesystem::exists(dir / "from"));
  expect_error(kNotFound, {(dir / "from").string()},
               [&] { rename_file(dir / "from", dir / "to"); });
}

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

TEST_F(Folders, AreListedWithWhatIsBelow) {
  fs::create_directories(dir_ / "out/b/c");
  write_text_file(dir_ / "out/b/c/file", "");
  fs::create_directory_symlink(dir_ / "mine", dir_ / "out/a");
  const auto names = [&](const std::vector<fs::directory_entry>& entries) {
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : entries)
      found.push_back(entry.path().lexically_relative(dir_ / "out").string());
    return found;
  };
  EXPECT_THAT(names(entries_in(dir_ / "out")), ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(names(entries_below(dir_ / "out")),
              ::testing::ElementsAre("a", "b", "b/c", "b/c/file"));
}

TEST_F(Folders, AreListedWithOneDescriptorOrNamed) {
  fs::create_directories(dir_ / "out/below/again");
  const int next_free = Fd::open_for_reading(dir_ / "mine/deep/a").get();
  {
    const testing::DescriptorLimit one_more(static_cast<rlim_t>(next_free) + 1);
    EXPECT_EQ(entries_below(dir_ / "out").size(), 2U);
  }
  const testing::DescriptorLimit none(static_cast<rlim_t>(next_free));
  expect_error(ErrorCode::kIo, "out: cannot read directory: Too many open files",
               [&] { (void)entries_below(dir_ / "out"); });
  std::error_code failure;
  EXPECT_TRUE(names_in(dir_ / "out", failure).empty());
  EXPECT_EQ(failure, std::errc::too_many_files_open);
}

TEST_F(Folders, AreLeftWhereAVisitDoesNotLeadIn) {
  fs::create_directories(dir_ / "out/a/x");
  fs::create_directories(dir_ / "out/b/y");
  std::vector<std::string> seen;
  const std::error_code failure = visit_below(dir_ / "out", [&](const fs::directory_entry& entry) {
    seen.push_back(entry.path().filename().string());
    return seen.back() != "a";
  });
  EXPECT_FALSE(failure);
  EXPECT_THAT(seen, ::testing::ElementsAre("a", "b", "y"));
  EXPECT_EQ(visit_below(dir_ / "nowhere", [](const auto&) { return true; }),
            std::errc::no_such_file_or_directory);
}

// A check that collects faults of files must not take it for one.
TEST(AlignedBuffer, WithoutMemoryIsNoFaultOfAFile) {
  EXPECT_THROW(AlignedBuffer(std::size_t{1} << 62), std::bad_alloc);
}

TEST(SystemError, WithoutMemoryIsNoFaultOfAFile) {
  EXPECT_THROW((void)system_error(ENOMEM, "list", "model"), std::bad_alloc);
}

}  // namespace
}  // namespace ingot
