#include "convert/run/window_writer.h"

#include <atomic>

#include <fcntl.h>

#include "formats/base/parallel.h"
#include "tests/convert/run/window_job.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/disk_dir.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;

struct Setting {
  std::size_t threads, windows;
  bool direct;
};

class WindowWriterSettings : public ::testing::TestWithParam<Setting> {};

TEST_P(WindowWriterSettings, WritesRandomRangesAndReportsEachOnce) {
  const Setting setting = GetParam();
  for (std::uint32_t seed = 0; seed < 2; ++seed) {
    const DiskDir directory;
    const Job job = random_job(seed, 5, 700'000);
    std::vector<std::uint32_t> durable;
    StagedFiles staged(Folder::open(directory.path()));
    WindowWriter writer(staged, job.files,
                        {.window_bytes = kWindow,
                         .max_windows = setting.windows,
                         .writer_threads = 2,
                         .direct = setting.direct,
                         .sync_bytes = 300'000,
                         .sync_interval = std::chrono::milliseconds(1)},
                        [&](const std::vector<std::uint32_t>& items) {
                          durable.insert(durable.end(), items.begin(), items.end());
                        });
    std::atomic<std::size_t> next = 0;
    run_workers(setting.threads, [&](std::size_t) {
      for (std::size_t i = next++; i < job.ranges.size(); i = next++)
        write_range(writer, job.ranges[i]);
    });
    for (std::uint32_t item = 0; item < job.n_items; ++item) writer.finish_item(item);
    writer.finish();
    std::sort(durable.begin(), durable.end());
    EXPECT_EQ(durable.size(), job.n_items);
    EXPECT_EQ(std::unique(durable.begin(), durable.end()), durable.end());
    expect_files(directory, job);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, WindowWriterSettings,
                         ::testing::Values(Setting{1, 2, true}, Setting{1, 64, true},
                                           Setting{2, 4, true}, Setting{3, 6, false},
                                           Setting{7, 14, true}, Setting{7, 100, false}),
                         [](const auto& instance) {
                           return std::to_string(instance.param.threads) + "ThreadsWith" +
                                  std::to_string(instance.param.windows) + "Windows" +
                                  (instance.param.direct ? "Direct" : "Buffered");
                         });

TEST(WindowWriter, SpillsWhenFilesOutnumberWindows) {
  const DiskDir directory;
  Job job = random_job(9, 30, 150'000);
  StagedFiles staged(Folder::open(directory.path()));
  WindowWriter writer(staged, job.files,
                      {.window_bytes = kWindow, .max_windows = 2, .writer_threads = 1},
                      [](const std::vector<std::uint32_t>&) {});
  for (const Range& range : job.ranges) write_range(writer, range);
  for (std::uint32_t item = 0; item < job.n_items; ++item) writer.finish_item(item);
  writer.finish();
  EXPECT_GT(writer.windows_spilled(), 0U);
  expect_files(directory, job);
}

TEST(WindowWriter, ContinuesAroundRangesThatAnEarlierRunWrote) {
  const DiskDir directory;
  const Job job = random_job(3, 3, 500'000);
  const auto early = [](const Range& range) { return range.item % 3 == 0; };
  {
    StagedFiles staged(Folder::open(directory.path()));
    WindowWriter writer(staged, job.files, {.window_bytes = kWindow, .max_windows = 4},
                        [](const std::vector<std::uint32_t>&) {});
    for (const Range& range : job.ranges) {
      if (early(range)) write_range(writer, range);
    }
    // Neighbours are missing, so most windows are incomplete: force them out through other windows'
    // need for memory.
    writer.abandon();
  }
  // Bytes that the first writer did not get to disk are put there by hand: the second must not
  // write them.
  for (const Range& range : job.ranges) {
    if (!early(range)) continue;
    const Fd file = Fd::open_for_writing(directory / job.files[range.file].name, 02 | 0100);
    std::vector<std::byte> bytes(range.n_bytes);
    for (std::uint64_t i = 0; i < range.n_bytes; ++i)
      bytes[i] = content(range.file, range.offset + i);
    file.write_exact(bytes, range.offset);
  }
  StagedFiles staged(Folder::open(directory.path()));
  WindowWriter writer(staged, job.files, {.window_bytes = kWindow, .max_windows = 4},
                      [](const std::vector<std::uint32_t>&) {});
  for (const Range& range : job.ranges) {
    if (early(range)) writer.mark_written(range.file, range.offset, range.n_bytes);
  }
  for (const Range& range : job.ranges) {
    if (!early(range)) write_range(writer, range);
  }
  for (std::uint32_t item = 0; item < job.n_items; ++item) writer.finish_item(item);
  writer.finish();
  expect_files(directory, job);
}

TEST(WindowWriter, DurableOnlyAfterTheLastByte) {
  const DiskDir directory;
  std::vector<std::uint32_t> durable;
  StagedFiles staged(Folder::open(directory.path()));
  WindowWriter writer(staged, {{.name = "a", .n_bytes = 2 * kWindow}},
                      {.window_bytes = kWindow,
                       .max_windows = 2,
                       .writer_threads = 1,
                       .sync_bytes = 1,
                       .sync_interval = std::chrono::milliseconds(0)},
                      [&](const std::vector<std::uint32_t>& items) {
                        durable.insert(durable.end(), items.begin(), items.end());
                      });
  // Item 0 reaches into the second window, which only item 1 completes.
  write_range(writer, {.file = 0, .item = 0, .offset = 0, .n_bytes = kWindow});
  write_range(writer, {.file = 0, .item = 0, .offset = kWindow, .n_bytes = 10});
  writer.finish_item(0);
  for (int i = 0; i < 12'000 && writer.written().n_bytes < kWindow; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(writer.written().n_bytes, kWindow);
  EXPECT_TRUE(durable.empty());
  write_range(writer, {.file = 0, .item = 1, .offset = kWindow + 10, .n_bytes = kWindow - 10});
  writer.finish_item(1);
  writer.finish();
  EXPECT_EQ(durable, (std::vector<std::uint32_t>{0, 1}));
}

TEST(WindowWriter, ProducersWriteWhatWaits) {
  // Smaller windows share their memory.
  constexpr std::size_t kLargeWindow = std::size_t{2} << 20;
  const DiskDir directory;
  Job job{.n_items = 8};
  for (std::uint32_t file = 0; file < job.n_items; ++file) {
    job.files.push_back({.name = "file-" + std::to_string(file), .n_bytes = kLargeWindow});
    job.ranges.push_back({.file = file, .item = file, .n_bytes = kLargeWindow});
  }
  StagedFiles staged(Folder::open(directory.path()));
  // There is memory for all, and no other thread that writes.
  WindowWriter writer(staged, job.files,
                      {.window_bytes = kLargeWindow,
                       .max_windows = 64,
                       .writer_threads = 0,
                       .most_waiting_bytes = 3 * kLargeWindow},
                      [](const std::vector<std::uint32_t>&) {});
  for (const Range& range : job.ranges) {
    write_range(writer, range);
    writer.finish_item(range.item);
  }
  EXPECT_EQ(writer.written().n_bytes, 5 * kLargeWindow);
  writer.help();
  EXPECT_EQ(writer.written().n_bytes, 8 * kLargeWindow);
  writer.finish();
  expect_files(directory, job);
}

TEST(WindowWriter, AFailingDiskStopsEveryProducer) {
  const DiskDir directory;
  // The name is a directory, so that opening the output fails in a writer thread.
  std::filesystem::create_directory(directory / "file");
  StagedFiles staged(Folder::open(directory.path()));
  staged.take("file");
  WindowWriter writer(staged, {{.name = "file", .n_bytes = 50 * kWindow}},
                      {.window_bytes = kWindow, .max_windows = 4, .writer_threads = 2},
                      [](const std::vector<std::uint32_t>&) {});
  expect_error(ErrorCode::kIo, {"file"}, [&] {
    run_workers(2, [&](std::size_t worker) {
      for (std::uint64_t i = 0; i < 25; ++i) {
        write_range(
            writer,
            {.file = 0, .item = 0, .offset = (2 * i + worker) * kWindow, .n_bytes = kWindow});
      }
    });
    writer.finish_item(0);
    writer.finish();
  });
}

// More files than the process may open, in folders of their own.

constexpr std::size_t kFiles = 150;
constexpr rlim_t kDescriptors = 64;

WindowWriter::Options options(std::size_t windows) {
  return {.window_bytes = kWindow, .max_windows = windows, .writer_threads = 2};
}

void ignore(const std::vector<std::uint32_t>&) {}

void finish(WindowWriter& writer, const Job& job) {
  for (std::uint32_t item = 0; item < job.n_items; ++item) writer.finish_item(item);
  writer.finish();
}

class ManyFiles : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ManyFiles, AreWrittenWholeWithFewDescriptors) {
  const DiskDir directory;
  const Job job = random_job(1, kFiles, 70'000);
  std::vector<std::uint32_t> durable;
  std::uint64_t n_spilled = 0;
  {
    const DescriptorLimit limit(kDescriptors);
    StagedFiles staged(Folder::open(directory.path()));
    WindowWriter writer(staged, job.files, options(GetParam()),
                        [&](const std::vector<std::uint32_t>& items) {
                          durable.insert(durable.end(), items.begin(), items.end());
                        });
    std::atomic<std::size_t> next = 0;
    run_workers(4, [&](std::size_t) {
      for (std::size_t i = next++; i < job.ranges.size(); i = next++)
        write_range(writer, job.ranges[i]);
    });
    finish(writer, job);
    n_spilled = writer.windows_spilled();
  }
  // Two windows per file: with room for all of them nothing needs to be spilled.
  EXPECT_EQ(n_spilled > 0, GetParam() < kFiles) << n_spilled;
  EXPECT_EQ(durable.size(), job.n_items);
  EXPECT_EQ(std::set(durable.begin(), durable.end()).size(), job.n_items);
  expect_files(directory, job);
}

INSTANTIATE_TEST_SUITE_P(Windows, ManyFiles, ::testing::Values(8, 400),
                         [](const auto& instance) { return std::to_string(instance.param); });

using WindowWriterFiles = OnDisk;

TEST_F(WindowWriterFiles, AreContinuedAroundWhatAnEarlierRunWrote) {
  const Job job = random_job(2, kFiles, 20'000);
  const auto early = [](const Range& range) { return range.item % 3 == 0; };
  for (const Range& range : job.ranges) {
    if (!early(range)) continue;
    const Fd file = Fd::open_for_writing(dir_ / job.files[range.file].name, O_WRONLY | O_CREAT);
    std::vector<std::byte> bytes(range.n_bytes);
    for (std::uint64_t i = 0; i < range.n_bytes; ++i)
      bytes[i] = content(range.file, range.offset + i);
    file.write_exact(bytes, range.offset);
  }
  {
    const DescriptorLimit limit(kDescriptors);
    StagedFiles staged(Folder::open(dir_.path()));
    WindowWriter writer(staged, job.files, options(16), ignore);
    for (const Range& range : job.ranges) {
      if (early(range)) writer.mark_written(range.file, range.offset, range.n_bytes);
    }
    for (const Range& range : job.ranges) {
      if (!early(range)) write_range(writer, range);
    }
    finish(writer, job);
  }
  expect_files(dir_, job);
}

TEST_F(WindowWriterFiles, MayStandInFolders) {
  Job job = random_job(3, 40, 30'000);
  for (std::size_t i = 0; i < job.files.size(); ++i) {
    job.files[i].name = "rank-" + std::to_string(i % 7) + "/part/" + job.files[i].name;
  }
  // Found as well as made.
  std::filesystem::create_directories(dir_ / "rank-3");
  StagedFiles staged(Folder::open(dir_.path()));
  WindowWriter writer(staged, job.files,
                      {.window_bytes = kWindow, .max_windows = 8, .max_open_files = 3}, ignore);
  std::atomic<std::size_t> next = 0;
  run_workers(3, [&](std::size_t) {
    for (std::size_t i = next++; i < job.ranges.size(); i = next++)
      write_range(writer, job.ranges[i]);
  });
  finish(writer, job);
  expect_files(dir_, job);
}

TEST_F(WindowWriterFiles, ReportAFolderThatCannotBeMade) {
  Job job = random_job(4, 2, 10'000);
  job.files[1].name = "rank/file";
  Fd::open_for_writing(dir_ / "rank", O_WRONLY | O_CREAT);
  StagedFiles staged(Folder::open(dir_.path()));
  WindowWriter writer(staged, job.files, options(4), ignore);
  expect_error(ErrorCode::kIo, {"rank"}, [&] {
    for (const Range& range : job.ranges) write_range(writer, range);
    finish(writer, job);
  });
}

// The limit of the tests above is a real one.
TEST_F(WindowWriterFiles, ReportThatTheProcessMayOpenNoMore) {
  const Job job = random_job(5, kFiles, 1'000);
  const DescriptorLimit limit(kDescriptors);
  StagedFiles staged(Folder::open(dir_.path()));
  WindowWriter writer(staged, job.files,
                      {.window_bytes = kWindow,
                       .max_windows = 4,
                       .max_open_files = kFiles,
                       .sync_bytes = std::uint64_t{1} << 40,
                       .sync_interval = std::chrono::hours(1)},
                      ignore);
  expect_error(ErrorCode::kIo, {"open"}, [&] {
    for (const Range& range : job.ranges) write_range(writer, range);
    finish(writer, job);
  });
}

TEST_F(WindowWriterFiles, ReportAWriteThatFailsAfterReopening) {
  StagedFiles staged(Folder::open(dir_.path()));
  WindowWriter writer(
      staged, {{.name = "a", .n_bytes = 2 * kWindow}, {.name = "b", .n_bytes = kWindow}},
      {.window_bytes = kWindow, .max_windows = 2, .writer_threads = 1, .max_open_files = 1},
      ignore);
  write_range(writer, {.file = 0, .item = 0, .offset = 0, .n_bytes = kWindow});
  while (writer.written().n_bytes < kWindow) std::this_thread::yield();
  write_range(writer, {.file = 1, .item = 0, .offset = 0, .n_bytes = kWindow});
  while (writer.written().n_bytes < 2 * kWindow) std::this_thread::yield();
  // The first file is closed by now; opening its name a second time must not create it.
  std::filesystem::remove(dir_ / "a");
  expect_error(ErrorCode::kNotFound, {"a"}, [&] {
    write_range(writer, {.file = 0, .item = 0, .offset = kWindow, .n_bytes = kWindow});
    writer.finish_item(0);
    writer.finish();
  });
}

}  // namespace
}  // namespace ingot::convert
