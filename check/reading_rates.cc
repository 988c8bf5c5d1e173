#include "check/reading_rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <vector>

#include "formats/base/aligned_buffer.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/files/folder.h"
#include "formats/files/hub_cache.h"

namespace ingot::check {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;

struct Piece {
  std::size_t file;
  std::uint64_t offset, n_bytes;
};

std::vector<Fd> open_weights(const fs::path& path) {
  std::vector<fs::path> paths;
  if (fs::is_regular_file(path)) paths.push_back(path);
  (void)visit_below(path, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (entry.path().extension() == ".safetensors" && entry.is_regular_file(ignored))
      paths.push_back(entry.path());
    return true;
  });
  std::sort(paths.begin(), paths.end());
  std::vector<Fd> files;
  std::vector<FileStamp> seen;
  for (const fs::path& one : paths) {
    Fd file = Fd::open_for_reading(one);
    const FileStamp stamp = file.stamp();
    const auto is_it = [&](const FileStamp& other) { return other.is_same_file(stamp); };
    if (std::ranges::any_of(seen, is_it)) continue;
    seen.push_back(stamp);
    files.push_back(std::move(file));
  }
  return files;
}

double seconds_to_read(const std::vector<Fd>& files, const std::vector<Piece>& pieces,
                       std::size_t threads) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<std::size_t> next = 0;
  run_workers(threads, [&](std::size_t) {
    const AlignedBuffer buffer(kReadBytes);
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      try {
        StopScope::check();
        files[pieces[i].file].read_exact(buffer.span().first(pieces[i].n_bytes), pieces[i].offset);
      } catch (...) {
        next = pieces.size();  // no thread takes another piece
        throw;
      }
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

ReadingRates measure_reading(const fs::path& path, std::size_t threads) {
  const std::vector<Fd> files = open_weights(formats::checkpoint_directory(path));
  ReadingRates rates;
  std::vector<Piece> pieces;
  for (std::size_t f = 0; f < files.size(); ++f) {
    files[f].drop_cache();
    const std::uint64_t size = files[f].size();
    rates.n_bytes += size;
    for (std::uint64_t at = 0; at < size; at += kReadBytes)
      pieces.push_back({.file = f, .offset = at, .n_bytes = std::min(kReadBytes, size - at)});
  }
  rates.cold_seconds = seconds_to_read(files, pieces, threads);
  rates.hot_seconds = seconds_to_read(files, pieces, threads);
  return rates;
}

}  // namespace ingot::check
