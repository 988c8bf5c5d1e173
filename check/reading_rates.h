#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace ingot::check {

/// How fast the weights of a checkpoint were read, once from the disk and once more.
struct ReadingRates {
  std::uint64_t n_bytes = 0;  ///< a file with several names counts once
  double cold_seconds = 0;    ///< time after the page cache was asked to drop the files
  double hot_seconds = 0;     ///< time right after that, as far as memory holds them
};

/// Reads every byte of the weights files at and below `path` twice, as loaders do: in pieces on all
/// threads, through the page cache. Throws kIo for the first piece that cannot be read, and
/// kInterrupted.
ReadingRates measure_reading(const std::filesystem::path& path, std::size_t threads);

}  // namespace ingot::check
