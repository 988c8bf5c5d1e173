#include "formats/json/zstd_lines.h"

#include <algorithm>
#include <new>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"

namespace ingot::formats {
namespace {

// Our own files stay far below these; a hostile file meets them before memory does.
constexpr std::uint64_t kMaxTextBytes = std::uint64_t{4} << 30;
constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;
// Every tensor's line has hashes, which do not compress: ten times is usual. The first bytes have
// no such limit, as short texts may be all alike.
constexpr std::uint64_t kMaxExpansion = 64;
constexpr std::uint64_t kFreeTextBytes = std::uint64_t{32} << 20;
constexpr int kMaxWindowLog = 27;
constexpr int kLevel = 3;

struct FreeDecompressor {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// Throws where zstd had no memory, which is no fault of the bytes.
void require_memory(std::size_t result) {
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
}

// Decompresses a file piece by piece.
class ZstdFile {
 public:
  explicit ZstdFile(const std::filesystem::path& path)
      : file_(Fd::open_for_reading(path)),
        n_compressed_(file_.size()),
        context_(ZSTD_createDCtx()),
        input_(ZSTD_DStreamInSize()),
        output_(ZSTD_DStreamOutSize()) {
    if (context_ == nullptr) throw std::bad_alloc();
    INGOT_CHECK(
        !ZSTD_isError(ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMaxWindowLog)));
  }

  [[nodiscard]] bool done() const { return done_; }
  [[nodiscard]] std::uint64_t n_compressed() const { return n_compressed_; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }

  // The next piece of text; valid until the next call.
  std::string_view next() {
    // A full output buffer may have more behind it without any further input.
    if (in_.pos == in_.size && !was_full_) refill();
    ZSTD_outBuffer out{output_.data(), output_.size(), 0};
    const std::size_t left = ZSTD_decompressStream(context_.get(), &out, &in_);
    require_memory(left);
    if (ZSTD_isError(left)) corrupt("is not a sound zstd stream (cut, or changed?)");
    was_full_ = out.pos == out.size;
    done_ = left == 0;
    if (done_ && (in_.pos != in_.size || offset_ != n_compressed_)) {
      corrupt("has bytes after the end of its zstd stream");
    }
    return {output_.data(), out.pos};
  }

  [[noreturn]] void corrupt(const std::string& message) const {
    throw Error(ErrorCode::kCorrupt, message).in_file(file_.path());
  }

 private:
  void refill() {
    const std::size_t n =
        static_cast<std::size_t>(std::min<std::uint64_t>(input_.size(), n_compressed_ - offset_));
    if (n == 0) corrupt("zstd stream ends early (truncated? make it again)");
    file_.read_exact(std::span(input_).first(n), offset_);
    offset_ += n;
    in_ = {input_.data(), n, 0};
  }

  Fd file_;
  std::uint64_t n_compressed_ = 0;
  std::uint64_t offset_ = 0;
  std::unique_ptr<ZSTD_DCtx, FreeDecompressor> context_;
  std::vector<std::byte> input_;
  std::vector<char> output_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool was_full_ = false;
  bool done_ = false;
};

}  // namespace

void ZstdLineWriter::Free::operator()(ZSTD_CCtx_s* context) const {
  ZSTD_freeCCtx(context);
}

ZstdLineWriter::ZstdLineWriter(const std::filesystem::path& path, Durable durable)
    : file_(Fd::open_for_writing(path, O_WRONLY | O_CREAT | O_TRUNC)),
      durable_(durable),
      context_(ZSTD_createCCtx()),
      buffer_(ZSTD_CStreamOutSize()) {
  ZSTD_CCtx* context = context_.get();
  if (context == nullptr) throw std::bad_alloc();
  INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, kLevel)));
  INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1)));
}

void ZstdLineWriter::feed(std::string_view text, bool is_end) {
  hasher_.update(std::as_bytes(std::span(text)));
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  while (true) {
    ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
    const std::size_t left =
        ZSTD_compressStream2(context_.get(), &out, &in, is_end ? ZSTD_e_end : ZSTD_e_continue);
    require_memory(left);
    INGOT_CHECK(!ZSTD_isError(left));
    file_.write_exact(std::span(buffer_).first(out.pos), offset_);
    offset_ += out.pos;
    if (is_end ? left == 0 : in.pos == in.size) return;
  }
}

void ZstdLineWriter::append(std::string_view line) {
  feed(line, false);
  feed("\n", false);
}

Hash128 ZstdLineWriter::finish() {
  feed({}, true);
  if (durable_ == Durable::kNow) file_.sync();
  file_.close();
  return hasher_.finish();
}

Hash128 read_zstd_lines(const std::filesystem::path& path,
                        const std::function<void(std::string_view)>& take) {
  ZstdFile file(path);
  TensorHasher hasher;
  std::uint64_t n_text = 0;
  std::string line;
  const auto limit = [&](const char* what) {
    throw Error(ErrorCode::kLimit, what).in_file(file.path());
  };
  while (!file.done()) {
    std::string_view text = file.next();
    hasher.update(std::as_bytes(std::span(text)));
    n_text += text.size();
    if (n_text > kMaxTextBytes) limit("decompresses to more than 4 GiB");
    // Products stay small: no file has 2^58 bytes.
    if (n_text > kFreeTextBytes && n_text / kMaxExpansion > file.n_compressed())
      limit("decompresses to more than 64 times its size (it was not made by ingot)");
    while (!text.empty()) {
      const std::size_t newline = text.find('\n');
      const std::string_view rest = text.substr(0, newline);
      if (rest.size() > kMaxLineBytes - line.size()) limit("has a line of more than 16 MiB");
      // Most lines lie within one decompressed piece.
      const bool is_whole = line.empty() && newline != std::string_view::npos;
      if (!is_whole) line += rest;
      if (newline == std::string_view::npos) break;
      take(is_whole ? rest : line);
      line.clear();
      text.remove_prefix(newline + 1);
    }
  }
  if (!line.empty()) file.corrupt("ends in the middle of a line");
  return hasher.finish();
}

}  // namespace ingot::formats
