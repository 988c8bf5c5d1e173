#include "shard/join/piece_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::shard {
namespace {

constexpr std::uint64_t kCompareBytes = std::uint64_t{256} << 10;

}  // namespace

std::uint64_t PieceReader::experts_held_alike(std::uint32_t expert) const {
  std::uint64_t n = std::numeric_limits<std::uint32_t>::max();
  for (const JoinedPiece& piece : whole_.pieces) {
    if (piece.experts == JoinedPiece::kEveryExpert) continue;
    const auto& held = whole_.expert_sets[piece.experts];
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

// Where a piece has a byte; nothing when it lacks the expert.
std::optional<std::uint64_t> PieceReader::offset_in(const JoinedPiece& piece, std::uint32_t expert,
                                                    std::uint64_t offset) const {
  if (piece.experts == JoinedPiece::kEveryExpert) return offset;
  const auto& held = whole_.expert_sets[piece.experts];
  const auto at = std::lower_bound(held.begin(), held.end(), expert);
  if (at == held.end() || *at != expert) return std::nullopt;
  const auto position = static_cast<std::uint64_t>(at - held.begin());
  return offset - (expert - position) * whole_.expert_bytes;
}

void PieceReader::fetch(std::uint32_t expert, std::uint32_t slice, std::uint64_t offset,
                        std::span<std::byte> out) {
  const JoinedPiece* first = nullptr;
  for (const JoinedPiece& piece : whole_.pieces) {
    if (piece.slice != slice) continue;
    const auto own = offset_in(piece, expert, offset);
    if (!own) continue;
    if (first == nullptr) {
      INGOT_CHECK(!piece.is_zeroed);
      first = &piece;
      whole_.files.read(piece.file, piece.offset + *own, out);
      if (!compare_replicas_) return;
    } else if (piece.is_zeroed) {
      expect_zeros(*first, piece, *own, out.size());
    } else {
      compare(*first, piece, *own, out);
    }
  }
  INGOT_CHECK(first != nullptr);
}

template <typename Visit>
void PieceReader::for_each_portion(const JoinedPiece& piece, std::uint64_t offset,
                                   std::uint64_t n_bytes, const Visit& visit) {
  for (std::uint64_t done = 0; done < n_bytes;) {
    const std::span<std::byte> bytes = other_.take(std::min(kCompareBytes, n_bytes - done));
    whole_.files.read(piece.file, piece.offset + offset + done, bytes);
    visit(done, bytes);
    done += bytes.size();
  }
}

void PieceReader::compare(const JoinedPiece& first, const JoinedPiece& piece, std::uint64_t offset,
                          std::span<const std::byte> expected) {
  for_each_portion(piece, offset, expected.size(), [&](std::uint64_t done, auto bytes) {
    const auto wanted = expected.subspan(static_cast<std::size_t>(done), bytes.size());
    if (std::memcmp(bytes.data(), wanted.data(), bytes.size()) == 0) return;
    const auto at = std::mismatch(bytes.begin(), bytes.end(), wanted.begin()).first;
    throw Error(ErrorCode::kMismatch,
                fmt::format("differs between {} and {} at byte {} (one of them was changed after "
                            "it was written: run ingot check on both)",
                            holder(first), holder(piece),
                            offset + done + static_cast<std::uint64_t>(at - bytes.begin())))
        .in_tensor(whole_.tensor);
  });
}

void PieceReader::expect_zeros(const JoinedPiece& first, const JoinedPiece& piece,
                               std::uint64_t offset, std::uint64_t n_bytes) {
  for_each_portion(piece, offset, n_bytes, [&](std::uint64_t done, auto bytes) {
    const auto at = std::find_if(bytes.begin(), bytes.end(),
                                 [](std::byte byte) { return byte != std::byte{0}; });
    if (at == bytes.end()) return;
    throw Error(
        ErrorCode::kMismatch,
        fmt::format("is not zero in {} at byte {}, though only {} may count in the sum "
                    "over ranks (one of them was changed after it was written: run ingot "
                    "check on both)",
                    holder(piece), offset + done + static_cast<std::uint64_t>(at - bytes.begin()),
                    holder(first)))
        .in_tensor(whole_.tensor);
  });
}

// The directory above a file, or the file itself.
std::string_view PieceReader::holder(const JoinedPiece& piece) const {
  const std::string_view file = whole_.files[piece.file].facts.name;
  return file.substr(0, file.find('/'));
}

}  // namespace ingot::shard
