// Two checkpoints are compared once, so their bytes gain nothing from the page cache, and the
// kernel's copies out of it were the largest part of the work. But a version that was just
// written is in it, and reading that from the disk would be slower by far. So a window is read
// with O_DIRECT unless its first byte and its last are cached. These are asked for with
// RWF_NOWAIT; the kernel reads ahead all that such a call asks for, so it asks for one byte
// each, of a file that is said to be read at random. Nothing is read ahead otherwise: twice as
// many threads as may compute make up for it.

#include "delta/piece_reader.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/uio.h>

#include "formats/base/checked.h"

namespace ingot::delta {

namespace {

constexpr std::uint64_t kDirectAlignment = 4096;

}  // namespace

PieceReader::PieceReader(const Weights& weights, Turns& turns)
    : weights_(weights), turns_(turns), buffer_(kWindowBytes + kDirectAlignment) {}

void PieceReader::open(std::uint32_t file) {
  const std::filesystem::path& path = weights_.bytes().path(file);
  cached_ = Fd::open_for_reading(path);
  direct_ = Fd::open_direct(path);
  const auto& stamp = weights_.bytes().stamp(file);
  if (!stamp || !cached_.stamp().is_same_file(*stamp)) direct_ = Fd();
  (void)::posix_fadvise(cached_.get(), 0, 0, POSIX_FADV_RANDOM);
  file_ = file;
  next_ = end_ = 0;
}

bool PieceReader::is_cached(std::uint64_t at) const {
  std::byte byte{};
  const struct iovec range { .iov_base = &byte, .iov_len = 1 };
  const ssize_t n = uninterrupted(
      [&] { return ::preadv2(cached_.get(), &range, 1, static_cast<off_t>(at), RWF_NOWAIT); });
  // A file system without such reads has its files in memory, or reads them in its own way.
  return n > 0 || (n < 0 && errno != EAGAIN);
}

bool PieceReader::read_direct(std::uint64_t at, std::uint64_t end, std::size_t n_bytes) {
  if (!direct_.valid() || (is_cached(at) && is_cached(end - 1))) return false;
  struct Pause {
    ~Pause() { turns.acquire(); }
    Turns& turns;
  };
  const auto wanted = static_cast<std::size_t>(round_up(end - begin_, kDirectAlignment));
  turns_.release();
  const Pause pause{turns_};
  const std::uint64_t n = direct_.read_direct(buffer_.span().first(wanted), begin_).value_or(0);
  end_ = std::min(begin_ + n, end);
  if (end_ >= at + n_bytes) return true;
  direct_ = Fd();
  return false;
}

std::span<std::byte> PieceReader::read(const formats::StoredTensor& tensor, std::uint64_t offset,
                                       std::size_t n_bytes) {
  INGOT_CHECK(n_bytes <= kWindowBytes);
  const std::uint64_t at = tensor.offset + offset;
  if (file_ != tensor.file) open(tensor.file);
  bool is_here = at == next_ && at + n_bytes <= end_;
  if (!is_here) {
    begin_ = round_down(at, kDirectAlignment);
    const std::uint64_t rest = tensor.n_bytes - offset;
    is_here = read_direct(at, at + std::min<std::uint64_t>(kWindowBytes, rest), n_bytes);
    if (!is_here) end_ = at + n_bytes;
  }
  const auto out = buffer_.span().subspan(static_cast<std::size_t>(at - begin_), n_bytes);
  // Also without bytes it throws for a file that has changed.
  weights_.bytes().read_file(tensor.file, at, is_here ? std::span<std::byte>() : out);
  next_ = at + n_bytes;
  return out;
}

}  // namespace ingot::delta
