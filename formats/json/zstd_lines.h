#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/base/fd.h"
#include "formats/base/hash.h"

struct ZSTD_CCtx_s;

namespace ingot::formats {

/// Writes lines of text as one zstd stream. Memory is bounded by zstd's window, whatever the text.
class ZstdLineWriter {
 public:
  /// Creates or replaces the file.
  explicit ZstdLineWriter(const std::filesystem::path& path, Durable durable = Durable::kNow);

  /// `line` without its newline.
  void append(std::string_view line);
  /// Ends the stream, makes the file durable and returns the tensor hash of the uncompressed text.
  [[nodiscard]] Hash128 finish();

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  /// Compresses `text`; with `is_end` also the rest of the stream.
  void feed(std::string_view text, bool is_end);

  Fd file_;
  Durable durable_;
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> buffer_;
  std::uint64_t offset_ = 0;
  TensorHasher hasher_;
};

/// Calls `take` for every line (without its newline) of a file that ZstdLineWriter wrote, and
/// returns the hash of the uncompressed text. The file may be hostile: not one whole zstd stream,
/// bytes after it, or a last line without newline is kCorrupt; more than 4 GiB of text, beyond 32
/// MiB more than 64 times the bytes of the file, or a line of more than 16 MiB is kLimit.
Hash128 read_zstd_lines(const std::filesystem::path& path,
                        const std::function<void(std::string_view)>& take);

}  // namespace ingot::formats
