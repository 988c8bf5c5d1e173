#pragma once

#include "convert/run/window_writer.h"
#include "formats/base/fd.h"
#include "tests/support/test.h"

namespace ingot::testing {

constexpr std::size_t kWindow = 64 * 1024;

/// A disjoint range of a file, belonging to an item.
struct Range {
  std::uint32_t file = 0, item = 0;
  std::uint64_t offset = 0, n_bytes = 0;
};

/// The byte at a position of a file: any function will do that differs between neighbours and
/// files.
inline std::byte content(std::uint32_t file, std::uint64_t offset) {
  return static_cast<std::byte>((offset * 131 + offset / 251 + file * 77) & 0xFF);
}

/// Files, the ranges that make them up, and how many items these belong to.
struct Job {
  std::vector<convert::WindowWriter::File> files;
  std::vector<Range> ranges;
  std::uint32_t n_items = 0;
};

/// Files of about `file_bytes`, cut into ranges in random order that belong to 40 items.
inline Job random_job(std::uint32_t seed, std::size_t n_files, std::uint64_t file_bytes) {
  std::mt19937 random(seed);
  Job job;
  for (std::uint32_t file = 0; file < n_files; ++file) {
    const std::uint64_t n_bytes = file_bytes + random() % 5000;
    job.files.push_back({.name = "file-" + std::to_string(file), .n_bytes = n_bytes});
    for (std::uint64_t offset = 0; offset < n_bytes;) {
      const std::uint64_t n = std::min<std::uint64_t>(n_bytes - offset, 1 + random() % kWindow);
      job.ranges.push_back({.file = file,
                            .item = static_cast<std::uint32_t>(random() % 40),
                            .offset = offset,
                            .n_bytes = n});
      offset += n;
    }
  }
  job.n_items = 40;
  std::shuffle(job.ranges.begin(), job.ranges.end(), random);
  return job;
}

/// Fills a range with its content.
inline void write_range(convert::WindowWriter& writer, const Range& range) {
  std::uint64_t at = range.offset;
  writer.put(range.file, range.offset, range.n_bytes, range.item, [&](std::span<std::byte> piece) {
    for (std::byte& b : piece) b = content(range.file, at++);
  });
  EXPECT_EQ(at, range.offset + range.n_bytes);
}

/// Every byte of every file of the job is its content.
inline void expect_files(const TempDir& directory, const Job& job) {
  for (std::uint32_t f = 0; f < job.files.size(); ++f) {
    const std::string text = read_text_file(directory / job.files[f].name, 1 << 30);
    ASSERT_EQ(text.size(), job.files[f].n_bytes);
    std::uint64_t at = 0;
    while (at < text.size() && static_cast<std::byte>(text[at]) == content(f, at)) ++at;
    ASSERT_EQ(at, text.size()) << job.files[f].name << " has another byte here";
  }
}

}  // namespace ingot::testing
