#include "convert/run/output_files.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "formats/base/error.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;

std::vector<OutputFiles::File> files_of(std::size_t n, std::uint64_t n_bytes) {
  std::vector<OutputFiles::File> files;
  for (std::size_t i = 0; i < n; ++i)
    files.push_back({.name = "file-" + std::to_string(i), .n_bytes = n_bytes});
  return files;
}

void write(OutputFiles& files, std::uint32_t file, std::string_view text, std::uint64_t offset) {
  files.use(file).buffered().write_exact(std::as_bytes(std::span(text)), offset);
}

std::string text_of(const TempDir& directory, const std::string& name) {
  return read_text_file(directory / name, 1 << 20);
}

TEST(OutputFiles, KeepNoMoreOpenThanTheyMay) {
  const TempDir directory;
  StagedFiles staged(directory.path());
  OutputFiles files(staged, files_of(20, 6), false, 3);
  for (std::uint32_t file = 0; file < 20; ++file) {
    write(files, file, "abc", 0);
    EXPECT_EQ(descriptors_below(directory.path()), std::min<std::size_t>(file + 1, 3));
  }
  for (std::uint32_t file = 0; file < 20; ++file) write(files, file, "def", 3);
  EXPECT_EQ(descriptors_below(directory.path()), 3U);
  for (std::uint32_t file = 0; file < 20; ++file)
    EXPECT_EQ(text_of(directory, files.name(file)), "abcdef");
}

TEST(OutputFiles, CloseTheOneThatWasIdleLongest) {
  const TempDir directory;
  StagedFiles staged(directory.path());
  OutputFiles files(staged, files_of(3, 1), false, 2);
  write(files, 0, "a", 0);
  write(files, 1, "a", 0);
  write(files, 0, "b", 0);  // 1 is idle longer now
  write(files, 2, "a", 0);
  // A file that is not open cannot be opened again once it is gone.
  std::filesystem::remove(directory / "file-0");
  std::filesystem::remove(directory / "file-1");
  EXPECT_NO_THROW(write(files, 0, "c", 0));
  expect_error(ErrorCode::kNotFound, {"file-1"}, [&] { write(files, 1, "c", 0); });
}

TEST(OutputFiles, NeverCloseOneInUse) {
  const TempDir directory;
  StagedFiles staged(directory.path());
  OutputFiles files(staged, files_of(3, 1), false, 2);
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
  EXPECT_EQ(text_of(directory, "file-0"), "y");
}

TEST(OutputFiles, ReserveTheirBytesOnceOnly) {
  const TempDir directory;
  StagedFiles staged(directory.path());
  OutputFiles files(staged, files_of(2, 5'000), false, 1);
  write(files, 0, "a", 0);
  EXPECT_EQ(std::filesystem::file_size(directory / "file-0"), 5'000U);
  write(files, 1, "a", 0);
  std::filesystem::resize_file(directory / "file-0", 10);
  write(files, 0, "b", 1);
  EXPECT_EQ(std::filesystem::file_size(directory / "file-0"), 10U);
}

TEST(OutputFiles, SyncWhatAClosedDescriptorWrote) {
  const TempDir directory;
  StagedFiles staged(directory.path());
  OutputFiles files(staged, files_of(2, 1), true, 1);
  write(files, 0, "a", 0);
  write(files, 1, "a", 0);
  EXPECT_NO_THROW(files.sync_data(0));
  std::filesystem::remove(directory / "file-1");
  expect_error(ErrorCode::kNotFound, {"file-1"}, [&] { files.sync_data(1); });
}

TEST(OutputFiles, MakeTheFoldersInTheirNames) {
  const TempDir directory;
  StagedFiles staged(directory.path() / "" / ".");
  OutputFiles files(staged, {{.name = "a/b/one", .n_bytes = 3}, {.name = "a/two", .n_bytes = 3}},
                    false, 4);
  write(files, 0, "one", 0);
  write(files, 1, "two", 0);
  EXPECT_EQ(text_of(directory, "a/b/one"), "one");
  EXPECT_EQ(text_of(directory, "a/two"), "two");
}

TEST(OutputFiles, CanBeOpenedAfterAFailure) {
  const TempDir directory;
  StagedFiles staged(directory.path());
  OutputFiles files(staged, {{.name = "a/one", .n_bytes = 3}}, false, 1);
  Fd::open_for_writing(directory / "a", 0101);
  expect_error(ErrorCode::kIo, {"a"}, [&] { write(files, 0, "one", 0); });
  std::filesystem::remove(directory / "a");
  write(files, 0, "one", 0);
  EXPECT_EQ(text_of(directory, "a/one"), "one");
}

TEST(OutputFiles, LeaveDescriptorsToTheSourceAndTheRest) {
  for (const rlim_t most : {16U, 64U, 256U, 1024U}) {
    const DescriptorLimit limit(most);
    const std::size_t of_source = std::min<std::size_t>(most / 2, 256);
    const std::size_t n = OutputFiles::default_max_open();
    EXPECT_GE(n, 2U);
    EXPECT_LE(of_source + 2 * n, most - most / 4) << most;
  }
}

}  // namespace
}  // namespace ingot::convert
