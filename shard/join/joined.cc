// Slices of many ranks, read as one tensor.
//
// The problem: bytes of the whole lie in as many files as there are slices, in runs that may be a
// few bytes long where columns were cut; experts of a stack are held by different ranks; slices may
// have been padded or given other blocks; and what several ranks hold must be equal.
//
// The choice: a range of the whole is put together in blocks of some megabytes. In each, the cut
// says which stretch of each slice is needed. A stretch that is one run, or whose runs are long, is
// read to its place; short runs are read as one stretch into a buffer and copied from there, so
// that no read is smaller than it must be. In a stack a block ends where other ranks hold the next
// expert. Of each slice the first holder is read; with `compare_replicas` the others are read too
// and compared byte by byte. Cuts are computed once per kind of slices, not once per tensor: a
// model has hundreds of thousands of slices of some hundred kinds.
//
// Rejected: a read per run (millions of small reads for one matrix); whole slices in memory (their
// size is bounded by nothing); a file of the whole, to be read afterwards (twice the disk).
//
// The cost: two passes over the runs of a block, and a buffer as large as its short stretches.

#include "shard/join/joined.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/scratch.h"
#include "shard/cut/part_cut.h"

namespace ingot::shard {

using formats::StoredTensor;

namespace {

/// The pieces of one whole, and where their bytes are.
struct PiecesOfWhole {
  const formats::CheckpointFiles& files;
  const std::vector<PlacedSlice>& kinds;
  std::span<const JoinedPiece> pieces;
  std::uint64_t expert_bytes = 0;  ///< of one expert in one slice
  std::string_view tensor;         ///< for errors
};

constexpr std::uint64_t kCompareBytes = std::uint64_t{256} << 10;

/// Reads slices of one whole from their first holders and, if asked to, compares the others.
class PieceReader {
 public:
  PieceReader(const PiecesOfWhole& whole, bool compare_replicas)
      : whole_(whole), compare_replicas_(compare_replicas) {}

  /// How many experts of a stack, from this one on, are adjacent in every piece that has it, and in
  /// no other piece; a large number where every piece has all of them.
  [[nodiscard]] std::uint64_t experts_held_alike(std::uint32_t expert) const {
    std::uint64_t n = std::numeric_limits<std::uint32_t>::max();
    for (const JoinedPiece& piece : whole_.pieces) {
      const auto& held = record_of(piece).experts;
      if (held.empty()) continue;
      auto at = std::lower_bound(held.begin(), held.end(), expert);
      if (at == held.end()) continue;
      std::uint64_t alike = *at - expert;
      if (alike == 0) {
        for (++alike, ++at; at != held.end() && *at == expert + alike; ++at) ++alike;
      }
      n = std::min(n, alike);
    }
    return n;
  }

  /// Bytes of slice number `slice`, from `offset` of it with all experts. In a stack they must be
  /// of experts held alike from `expert` on.
  void fetch(std::uint32_t expert, std::uint32_t slice, std::uint64_t offset,
             std::span<std::byte> out) {
    const JoinedPiece* first = nullptr;
    for (const JoinedPiece& piece : whole_.pieces) {
      if (whole_.kinds[piece.kind].slice != slice) continue;
      const auto own = offset_in(piece, expert, offset);
      if (!own) continue;
      if (first == nullptr) {
        INGOT_CHECK(!record_of(piece).is_zeroed);
        first = &piece;
        whole_.files.read_file(piece.file, piece.offset + *own, out);
        if (!compare_replicas_) return;
      } else {
        compare(*first, piece, *own, out);
      }
    }
    INGOT_CHECK(first != nullptr);
  }

 private:
  [[nodiscard]] const formats::SliceRecord& record_of(const JoinedPiece& piece) const {
    return whole_.kinds[piece.kind].record;
  }

  // The place of a byte in a piece; nullopt when the piece lacks the expert.
  [[nodiscard]] std::optional<std::uint64_t> offset_in(const JoinedPiece& piece,
                                                       std::uint32_t expert,
                                                       std::uint64_t offset) const {
    const auto& held = record_of(piece).experts;
    if (held.empty()) return offset;
    const auto at = std::lower_bound(held.begin(), held.end(), expert);
    if (at == held.end() || *at != expert) return std::nullopt;
    const auto position = static_cast<std::uint64_t>(at - held.begin());
    return offset - (expert - position) * whole_.expert_bytes;
  }

  // Another holder against the bytes of the first; one that is zeroed must be zero.
  void compare(const JoinedPiece& first, const JoinedPiece& piece, std::uint64_t offset,
               std::span<const std::byte> expected) {
    const bool is_zeroed = record_of(piece).is_zeroed;
    while (!expected.empty()) {
      const auto bytes = other_.take(std::min<std::uint64_t>(kCompareBytes, expected.size()));
      whole_.files.read_file(piece.file, piece.offset + offset, bytes);
      const auto wanted = expected.first(bytes.size());
      const auto at = is_zeroed ? std::find_if(bytes.begin(), bytes.end(),
                                               [](std::byte byte) { return byte != std::byte{0}; })
                      : std::memcmp(bytes.data(), wanted.data(), bytes.size()) == 0
                          ? bytes.end()
                          : std::mismatch(bytes.begin(), bytes.end(), wanted.begin()).first;
      if (at != bytes.end())
        refuse(first, piece, offset + static_cast<std::uint64_t>(at - bytes.begin()));
      offset += bytes.size();
      expected = expected.subspan(bytes.size());
    }
  }

  [[noreturn]] void refuse(const JoinedPiece& first, const JoinedPiece& piece,
                           std::uint64_t byte) const {
    constexpr std::string_view kRemedy =
        "one of them was changed after it was written: run ingot check on both";
    throw Error(ErrorCode::kMismatch,
                record_of(piece).is_zeroed
                    ? fmt::format("is not zero in {} at byte {}, though only {} may count in the "
                                  "sum over ranks ({})",
                                  holder(piece), byte, holder(first), kRemedy)
                    : fmt::format("differs between {} and {} at byte {} ({})", holder(first),
                                  holder(piece), byte, kRemedy))
        .in_tensor(whole_.tensor);
  }

  // The directory above a file, or the file itself.
  [[nodiscard]] std::string_view holder(const JoinedPiece& piece) const {
    const std::string_view file = whole_.files.files()[piece.file].name;
    return file.substr(0, file.find('/'));
  }

  const PiecesOfWhole whole_;
  bool compare_replicas_;
  Scratch other_;
};

// Bytes of the whole that are put together at a time.
constexpr std::uint64_t kBlockBytes = std::uint64_t{2} << 20;
// Stretches of this length are read to where they belong, shorter ones together.
constexpr std::uint64_t kDirectBytes = std::uint64_t{64} << 10;

}  // namespace

// How the wholes of one kind of slices were cut.
struct JoinedBytes::Cut {
  explicit Cut(const PlacedSlice& placed)
      : cut(placed.dtype, placed.record.whole, placed.record.axis, placed.n,
            placed.record.sections),
        original(original_in_whole(placed)) {
    const std::uint64_t matrices = placed.record.whole.empty() ? 1 : placed.record.whole[0];
    if (matrices == 0) return;
    matrix_bytes = cut.whole_bytes() / matrices;
    slice_matrix_bytes = cut.slice_bytes() / matrices;
  }
  PartCut cut;
  std::optional<formats::Nest> original;
  std::uint64_t matrix_bytes = 0;        // of one expert, where the whole is a stack
  std::uint64_t slice_matrix_bytes = 0;  // of one expert in a slice
};

// One call of read(): its tensor and its buffers.
class JoinedBytes::Reading {
 public:
  Reading(const JoinedBytes& source, const JoinedTensor& joined, const StoredTensor& tensor)
      : joined_(joined),
        cut_(source.cuts_[source.pieces_of(joined)[0].kind]),
        pieces_({.files = source.files_,
                 .kinds = source.slices_.kinds,
                 .pieces = source.pieces_of(joined),
                 .expert_bytes = cut_.slice_matrix_bytes,
                 .tensor = tensor.name},
                source.compare_replicas_) {}

  void read(std::uint64_t offset, std::span<std::byte> out) {
    if (!cut_.original) return read_whole(offset, out);
    cut_.original->gather(offset, out,
                          [this](std::uint32_t, std::uint64_t at, std::span<std::byte> bytes) {
                            read_whole(at, bytes);
                          });
  }

 private:
  struct Stretch {
    std::uint64_t begin = std::numeric_limits<std::uint64_t>::max(), end = 0;
    std::uint64_t buffered = 0;  // where it begins in the buffer
    std::uint32_t n_runs = 0;
    [[nodiscard]] bool is_direct() const {
      return n_runs == 1 || end - begin >= kDirectBytes * n_runs;
    }
  };

  // Bytes of the whole as it was cut.
  void read_whole(std::uint64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
      std::uint64_t n_bytes = out.size();
      std::uint64_t expert = 0;
      if (joined_.is_stack) {
        expert = offset / cut_.matrix_bytes;
        const std::uint64_t alike = pieces_.experts_held_alike(static_cast<std::uint32_t>(expert));
        n_bytes = std::min(n_bytes, (expert + alike) * cut_.matrix_bytes - offset);
      }
      if (cut_.cut.kind() == PartCut::Kind::kCut) n_bytes = std::min(n_bytes, kBlockBytes);
      read_block(static_cast<std::uint32_t>(expert), offset,
                 out.first(static_cast<std::size_t>(n_bytes)));
      out = out.subspan(static_cast<std::size_t>(n_bytes));
      offset += n_bytes;
    }
  }

  // Bytes of the whole whose experts, in a stack, are held alike from `expert` on.
  void read_block(std::uint32_t expert, std::uint64_t offset, std::span<std::byte> out) {
    const PartCut& cut = cut_.cut;
    if (cut.kind() != PartCut::Kind::kCut) return pieces_.fetch(expert, 0, offset, out);
    stretches_.assign(cut.n_slices(), {});
    cut.for_each_run(offset, out.size(), [&](const PartCut::Run& run) {
      Stretch& stretch = stretches_[run.slice];
      stretch.begin = std::min(stretch.begin, run.slice_offset);
      stretch.end = std::max(stretch.end, run.slice_offset + run.n_bytes);
      ++stretch.n_runs;
    });
    std::uint64_t n_buffered = 0;
    for (Stretch& stretch : stretches_) {
      if (stretch.n_runs == 0 || stretch.is_direct()) continue;
      stretch.buffered = n_buffered;
      n_buffered += stretch.end - stretch.begin;
    }
    const std::span<std::byte> buffer = buffer_.take(n_buffered);
    for (std::uint32_t slice = 0; slice < stretches_.size(); ++slice) {
      const Stretch& stretch = stretches_[slice];
      if (stretch.n_runs == 0 || stretch.is_direct()) continue;
      pieces_.fetch(expert, slice, stretch.begin,
                    buffer.subspan(static_cast<std::size_t>(stretch.buffered),
                                   static_cast<std::size_t>(stretch.end - stretch.begin)));
    }
    cut.for_each_run(offset, out.size(), [&](const PartCut::Run& run) {
      const Stretch& stretch = stretches_[run.slice];
      const auto to = out.subspan(static_cast<std::size_t>(run.whole_offset - offset),
                                  static_cast<std::size_t>(run.n_bytes));
      if (stretch.is_direct()) return pieces_.fetch(expert, run.slice, run.slice_offset, to);
      const std::uint64_t from = stretch.buffered + run.slice_offset - stretch.begin;
      std::memcpy(to.data(), buffer.data() + from, to.size());
    });
  }

  const JoinedTensor& joined_;
  const Cut& cut_;
  PieceReader pieces_;
  std::vector<Stretch> stretches_;
  Scratch buffer_;
};

namespace {

// As I32 or I64, little-endian.
void read_dimensions(const formats::Shape& shape, formats::DType dtype, std::uint64_t offset,
                     std::span<std::byte> out) {
  const std::size_t width = formats::dtype_bits(dtype) / 8;
  std::vector<std::byte> bytes(shape.size() * width);
  for (std::size_t d = 0; d < shape.size(); ++d)
    std::memcpy(&bytes[d * width], &shape[d], std::min(width, sizeof shape[d]));
  INGOT_CHECK(offset + out.size() <= bytes.size());
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
}

}  // namespace

JoinedBytes::JoinedBytes(JoinedSlices slices, bool compare_replicas)
    : slices_(std::move(slices)),
      cuts_(slices_.kinds.begin(), slices_.kinds.end()),
      files_(std::move(slices_.files)),
      compare_replicas_(compare_replicas) {}

JoinedBytes::~JoinedBytes() = default;

void JoinedBytes::read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
                       std::span<std::byte> out) const {
  INGOT_CHECK(offset <= tensor.n_bytes && out.size() <= tensor.n_bytes - offset);
  if (const auto found = slices_.dimensions.find(index); found != slices_.dimensions.end())
    return read_dimensions(found->second, tensor.dtype, offset, out);
  Reading(*this, slices_.tensors.at(index), tensor).read(offset, out);
}

std::string JoinedBytes::home_file(std::uint32_t index) const {
  return slices_.homes.at(pieces_of(slices_.tensors.at(index))[0].home);
}

bool JoinedBytes::may_have_replicas(std::uint32_t index) const {
  const JoinedTensor& joined = slices_.tensors.at(index);
  const auto pieces = pieces_of(joined);
  // By slice, zeroed ones last.
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const PlacedSlice& kind = slices_.kinds[pieces[i].kind];
    if (kind.record.is_zeroed || (i > 0 && kind.slice == slices_.kinds[pieces[i - 1].kind].slice))
      return true;
  }
  return false;
}

std::span<const JoinedPiece> JoinedBytes::pieces_of(const JoinedTensor& joined) const {
  return std::span(slices_.pieces).subspan(joined.first_piece, joined.n_pieces);
}

}  // namespace ingot::shard
