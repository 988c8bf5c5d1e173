// Two checkpoints are compared once, so their bytes gain nothing from the page cache, and the
// kernel's copies out of it were the largest part of the work. But a version that was just written
// is in it, and reading that from the disk would be slower by far. So each piece is asked for with
// RWF_NOWAIT, which gives cached bytes and waits for nothing, and is read with O_DIRECT otherwise.
// Nothing is read ahead then: twice as many threads as may compute make up for it.

#include "delta/piece_reader.h"

#include <sys/uio.h>

#include "formats/base/checked.h"

namespace ingot::delta {

namespace {

constexpr std::uint64_t kDirectAlignment = 4096;

}  // namespace

PieceReader::PieceReader(const Weights& weights, Turns& turns)
    : weights_(weights), turns_(turns), buffer_(2 * kMostBytes) {}

void PieceReader::open(std::uint32_t file) {
  const std::filesystem::path& path = weights_.bytes().path(file);
  cached_ = Fd::open_for_reading(path);
  direct_ = Fd::open_direct(path);
  const auto& stamp = weights_.bytes().stamp(file);
  if (!stamp || !cached_.stamp().is_same_file(*stamp)) {
    cached_ = Fd();
    direct_ = Fd();
  }
  file_ = file;
}

bool PieceReader::read_cached(std::span<std::byte> out, std::uint64_t at) const {
  if (!cached_.valid()) return false;
  const struct iovec range { .iov_base = out.data(), .iov_len = out.size() };
  const ssize_t n = uninterrupted(
      [&] { return ::preadv2(cached_.get(), &range, 1, static_cast<off_t>(at), RWF_NOWAIT); });
  return n >= 0 && static_cast<std::size_t>(n) == out.size();
}

bool PieceReader::read_direct(std::uint64_t at, std::size_t n_bytes) {
  if (!direct_.valid()) return false;
  struct Pause {
    ~Pause() { turns.acquire(); }
    Turns& turns;
  };
  const std::uint64_t begin = round_down(at, kDirectAlignment);
  const std::uint64_t wanted = at + n_bytes - begin;
  const auto range =
      buffer_.span().first(static_cast<std::size_t>(round_up(wanted, kDirectAlignment)));
  turns_.release();
  const Pause pause{turns_};
  if (direct_.read_direct(range, begin).value_or(0) >= wanted) return true;
  direct_ = Fd();
  return false;
}

std::span<std::byte> PieceReader::read(const formats::StoredTensor& tensor, std::uint64_t offset,
                                       std::size_t n_bytes) {
  INGOT_CHECK(n_bytes <= kMostBytes);
  const std::uint64_t at = tensor.offset + offset;
  if (file_ != tensor.file) open(tensor.file);
  const auto out = buffer_.span().subspan(static_cast<std::size_t>(at % kDirectAlignment), n_bytes);
  const bool is_read = read_cached(out, at) || read_direct(at, n_bytes);
  // Also without bytes it throws for a file that has changed.
  weights_.bytes().read_file(tensor.file, at, is_read ? std::span<std::byte>() : out);
  return out;
}

}  // namespace ingot::delta
