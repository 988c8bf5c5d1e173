// Slices of many ranks, read as one tensor.
//
// The problem: bytes of the whole lie in as many files as there are slices, in runs that may be a
// few bytes long where columns were cut; experts of a stack are held by different ranks; slices may
// have been padded or given other blocks; and what several ranks hold must be equal.
//
// The choice: slices are the pieces of a nest of loops (formats/places/nest.h), which reads of each
// slice one stretch for many runs; in a stack a stretch ends where other ranks hold the next
// expert. Of each slice the first holder is read; with `compare_replicas` the others are read too
// and compared byte by byte. Cuts are computed once per kind of slices, not once per tensor: a
// model has hundreds of thousands of slices of some hundred kinds.
//
// Rejected: a read per run (millions of small reads for one matrix); whole slices in memory (their
// size is bounded by nothing); a file of the whole, to be read afterwards (twice the disk).

#include "shard/join/joined.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/scratch.h"
#include "formats/places/turned.h"

namespace ingot::shard {

using formats::StoredTensor;

namespace {

constexpr std::uint64_t kCompareBytes = std::uint64_t{256} << 10;

}  // namespace

// One call of read(): reads slices of one whole from their first holders and, if asked to, compares
// the others.
class JoinedBytes::Reading {
 public:
  Reading(const JoinedBytes& source, const JoinedTensor& joined, const StoredTensor& tensor)
      : source_(source),
        is_stack_(joined.is_stack),
        pieces_(source.pieces_of(joined)),
        kind_(kind_of(pieces_[0])),
        expert_bytes_(is_stack_ ? kind_.cut.slice_bytes() / kind_.record.whole[0] : 0),
        tensor_(tensor.name) {}

  void read(std::uint64_t offset, std::span<std::byte> out) {
    if (!kind_.original) return read_whole(offset, out);
    kind_.original->gather(offset, out,
                           [this](std::uint32_t, std::uint64_t at, std::span<std::byte> bytes) {
                             read_whole(at, bytes);
                           });
  }

 private:
  [[nodiscard]] const PlacedSlice& kind_of(const JoinedPiece& piece) const {
    return source_.slices_.kinds[piece.kind];
  }

  // Bytes of the whole as it was cut.
  void read_whole(std::uint64_t offset, std::span<std::byte> out) {
    kind_.cut.gather(offset, out,
                     [this](std::uint32_t slice, std::uint64_t at, std::span<std::byte> bytes) {
                       read_slice(slice, at, bytes);
                     });
  }

  // Bytes of a slice with all experts, which in a stack may be in different pieces.
  void read_slice(std::uint32_t slice, std::uint64_t offset, std::span<std::byte> out) {
    if (!is_stack_) return fetch(0, slice, offset, out);
    while (!out.empty()) {
      const auto expert = static_cast<std::uint32_t>(offset / expert_bytes_);
      const std::uint64_t end = (expert + experts_held_alike(expert)) * expert_bytes_;
      const auto bytes = out.first(std::min<std::uint64_t>(out.size(), end - offset));
      fetch(expert, slice, offset, bytes);
      out = out.subspan(bytes.size());
      offset += bytes.size();
    }
  }

  // Number of experts of a stack, from `expert` on, that are adjacent in every piece that has
  // `expert`, and in no other piece; a large number where every piece has all experts.
  [[nodiscard]] std::uint64_t experts_held_alike(std::uint32_t expert) const {
    std::uint64_t n = std::numeric_limits<std::uint32_t>::max();
    for (const JoinedPiece& piece : pieces_) {
      const auto& held = kind_of(piece).record.experts;
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

  // Bytes of slice number `slice`, from `offset` of it with all experts. In a stack they must be of
  // experts held alike from `expert` on.
  void fetch(std::uint32_t expert, std::uint32_t slice, std::uint64_t offset,
             std::span<std::byte> out) {
    const JoinedPiece* first = nullptr;
    for (const JoinedPiece& piece : pieces_) {
      if (kind_of(piece).slice != slice) continue;
      const auto own = offset_in(piece, expert, offset);
      if (!own) continue;
      if (first == nullptr) {
        INGOT_CHECK(!kind_of(piece).record.is_zeroed);
        first = &piece;
        read_piece(piece, *own, out);
        if (!source_.compare_replicas_) return;
      } else {
        compare(*first, piece, *own, out);
      }
    }
    INGOT_CHECK(first != nullptr);
  }

  void read_piece(const JoinedPiece& piece, std::uint64_t offset, std::span<std::byte> out) const {
    if (piece.stride == 0) return source_.files_.read_file(piece.file, piece.offset + offset, out);
    const formats::Shape& shape = kind_of(piece).cut.slice_shape();
    formats::TurnedRows{.rows = shape.at(0), .cols = shape.at(1), .stride = piece.stride}
        .nest()
        .gather(offset, out,
                [&](std::uint32_t /*piece*/, std::uint64_t at, std::span<std::byte> run) {
                  source_.files_.read_file(piece.file, piece.offset + at, run);
                });
  }

  // The place of a byte in a piece; nullopt when the piece lacks the expert.
  [[nodiscard]] std::optional<std::uint64_t> offset_in(const JoinedPiece& piece,
                                                       std::uint32_t expert,
                                                       std::uint64_t offset) const {
    const auto& held = kind_of(piece).record.experts;
    if (held.empty()) return offset;
    const auto at = std::lower_bound(held.begin(), held.end(), expert);
    if (at == held.end() || *at != expert) return std::nullopt;
    const auto position = static_cast<std::uint64_t>(at - held.begin());
    return offset - (expert - position) * expert_bytes_;
  }

  // Another holder against the bytes of the first; one that is zeroed must be zero.
  void compare(const JoinedPiece& first, const JoinedPiece& piece, std::uint64_t offset,
               std::span<const std::byte> expected) {
    const bool is_zeroed = kind_of(piece).record.is_zeroed;
    while (!expected.empty()) {
      const auto bytes = other_.take(std::min<std::uint64_t>(kCompareBytes, expected.size()));
      read_piece(piece, offset, bytes);
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
                kind_of(piece).record.is_zeroed
                    ? fmt::format("is not zero in {} at byte {}, though only {} may count in the "
                                  "sum over ranks ({})",
                                  holder(piece), byte, holder(first), kRemedy)
                    : fmt::format("differs between {} and {} at byte {} ({})", holder(first),
                                  holder(piece), byte, kRemedy))
        .in_tensor(tensor_);
  }

  // The directory above a file, or the file itself.
  [[nodiscard]] std::string_view holder(const JoinedPiece& piece) const {
    const std::string_view file = source_.files_.files()[piece.file].name;
    return file.substr(0, file.find('/'));
  }

  const JoinedBytes& source_;
  const bool is_stack_;
  const std::span<const JoinedPiece> pieces_;
  const PlacedSlice& kind_;           // kind of the first piece, which is cut as all are
  const std::uint64_t expert_bytes_;  // bytes of one expert in a slice, where the whole is a stack
  const std::string_view tensor_;     // name for errors
  Scratch other_;
};

namespace {

// Reads dimensions as I32 or I64, little-endian.
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
      files_(std::move(slices_.files)),
      compare_replicas_(compare_replicas) {}

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
  // Pieces are ordered by slice, and zeroed pieces come last.
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
