#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "formats/base/fd.h"
#include "formats/base/hash.h"

namespace ingot::formats {

/// Writes lines of text as one zstd stream. Memory is bounded by zstd's window, whatever the text.
class ZstdLineWriter {
 public:
  /// Creates or replaces the file.
  explicit ZstdLineWriter(const std::filesystem::path& path, Durable durable = Durable::kNow);
  ~ZstdLineWriter();
  ZstdLineWriter(ZstdLineWriter&&) noexcept;
  ZstdLineWriter& operator=(ZstdLineWriter&&) noexcept;

  /// `line` without its newline.
  void append(std::string_view line);
  /// Ends the stream, makes the file durable and returns the tensor hash of the uncompressed text.
  [[nodiscard]] Hash128 finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Calls `take` for every line (without its newline) of a file that ZstdLineWriter wrote, and
/// returns the hash of the uncompressed text. The file may be hostile: not one whole zstd stream,
/// bytes after it, or a last line without newline is kCorrupt; more than 4 GiB of text, beyond 32 MiB
/// more than 64 times the bytes of the file, or a line of more than 16 MiB is kLimit.
Hash128 read_zstd_lines(const std::filesystem::path& path,
                        const std::function<void(std::string_view)>& take);

}  // namespace ingot::formats
