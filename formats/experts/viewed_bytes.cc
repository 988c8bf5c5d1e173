#include "formats/experts/viewed_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::formats {
namespace {

/// Memory for rows that are read together.
constexpr std::uint64_t kSlabBytes = std::uint64_t{4} << 20;
/// Rows this many times their own length apart are read with the bytes between them.
constexpr std::uint64_t kMostWaste = 4;

bool is_range(const View& view) {
  const ViewPiece& piece = view.pieces.front();
  return view.n_in_turn == 1 && piece.col_step == 1 &&
         (piece.rows == 1 || piece.row_step == piece.cols);
}

std::uint64_t piece_bytes(const View& view) {
  return view.pieces.front().rows * view.pieces.front().cols * view.element_bits / 8;
}

/// Gathers rows of one piece.
class Gatherer {
 public:
  Gatherer(const Checkpoint& source, std::uint32_t element_bits)
      : source_(source), bits_(element_bits), width_(element_bits / 8) {}

  /// Rows [first, first + n) of `piece`; `out` has their bytes.
  void rows(const ViewPiece& piece, std::uint64_t first, std::uint64_t n,
            std::span<std::byte> out) {
    if (bits_ < 8) {
      turned_nibbles(piece, first, n, out);
    } else if (piece.col_step <= piece.row_step || piece.rows == 1) {
      along_rows(piece, first, n, out);
    } else {
      along_columns(piece, first, n, out);
    }
  }

  /// Rows of `piece` that are gathered in one go.
  [[nodiscard]] std::uint64_t rows_at_once(const ViewPiece& piece) const {
    const std::uint64_t row =
        std::max(piece.row_step, piece.row_step < piece.col_step ? piece.row_step * piece.cols
                                                                 : piece.cols * piece.col_step);
    return std::max<std::uint64_t>(kSlabBytes * 8 / bits_ / std::max<std::uint64_t>(row, 1), 1);
  }

 private:
  void read(const ViewPiece& piece, std::uint64_t element, std::span<std::byte> out) const {
    source_.read(piece.stored, element * bits_ / 8, out);
  }

  void along_rows(const ViewPiece& piece, std::uint64_t first, std::uint64_t n,
                  std::span<std::byte> out) {
    const std::uint64_t length = (piece.cols - 1) * piece.col_step + 1;
    const bool is_dense = piece.row_step <= kMostWaste * length;
    const std::uint64_t together = is_dense ? n : 1;
    for (std::uint64_t r = 0; r < n; r += together) {
      slab_.resize(((together - 1) * piece.row_step + length) * width_);
      read(piece, piece.first + (first + r) * piece.row_step, slab_);
      for (std::uint64_t i = 0; i < together; ++i) {
        for (std::uint64_t c = 0; c < piece.cols; c += piece.col_step == 1 ? piece.cols : 1) {
          const std::uint64_t n_elements = piece.col_step == 1 ? piece.cols : 1;
          std::memcpy(&out[((r + i) * piece.cols + c) * width_],
                      &slab_[(i * piece.row_step + c * piece.col_step) * width_],
                      n_elements * width_);
        }
      }
    }
  }

  void along_columns(const ViewPiece& piece, std::uint64_t first, std::uint64_t n,
                     std::span<std::byte> out) {
    slab_.resize(((n - 1) * piece.row_step + 1) * width_);
    for (std::uint64_t c = 0; c < piece.cols; ++c) {
      read(piece, piece.first + c * piece.col_step + first * piece.row_step, slab_);
      for (std::uint64_t r = 0; r < n; ++r)
        std::memcpy(&out[(r * piece.cols + c) * width_], &slab_[r * piece.row_step * width_],
                    width_);
    }
  }

  /// Codes of four bits, the first of a pair in the lower half of its byte.
  void turned_nibbles(const ViewPiece& piece, std::uint64_t first, std::uint64_t n,
                      std::span<std::byte> out) {
    const std::uint64_t begin = first - first % 2;
    slab_.resize(ceil_div(first + n - begin, 2));
    std::ranges::fill(out, std::byte{0});
    for (std::uint64_t c = 0; c < piece.cols; ++c) {
      read(piece, piece.first + c * piece.col_step + begin, slab_);
      for (std::uint64_t r = 0; r < n; ++r) {
        const std::uint64_t at = first + r - begin;
        const std::byte code = (slab_[at / 2] >> (4 * (at % 2))) & std::byte{15};
        out[(r * piece.cols + c) / 2] |= code << (4 * (c % 2));
      }
    }
  }

  const Checkpoint& source_;
  std::uint32_t bits_;
  std::size_t width_;
  std::vector<std::byte> slab_;
};

}  // namespace

std::uint64_t View::n_bytes() const {
  return pieces.size() * piece_bytes(*this);
}

ViewedBytes::ViewedBytes(std::shared_ptr<const Checkpoint> source, std::vector<View> views)
    : source_(std::move(source)), views_(std::move(views)), is_whole_(source_->is_whole()) {
  for (const View& view : views_) {
    INGOT_CHECK(!view.pieces.empty() && view.pieces.size() % view.n_in_turn == 0);
    const auto file_of = [&](const ViewPiece& piece) {
      return source_->stored()[piece.stored].file;
    };
    is_whole_ = is_whole_ && std::ranges::all_of(view.pieces, [&](const ViewPiece& piece) {
                  return file_of(piece) == file_of(view.pieces.front());
                });
  }
}

void ViewedBytes::read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
                       std::span<std::byte> out) const {
  const View& view = views_.at(index);
  const ViewPiece& shape = view.pieces.front();
  const std::uint64_t end = offset + out.size();
  if (is_range(view)) {
    const std::uint64_t length = piece_bytes(view);
    for (std::uint64_t at = offset; at < end;) {
      const ViewPiece& piece = view.pieces.at(at / length);
      const std::uint64_t stop = std::min(end, (at / length + 1) * length);
      source_->read(piece.stored, piece.first * view.element_bits / 8 + at % length,
                    out.subspan(at - offset, stop - at));
      at = stop;
    }
    return;
  }
  // Whole rows, of which the first and the last may be wanted in part.
  const std::uint64_t row_bytes = shape.cols * view.element_bits / 8;
  const std::uint64_t turns = view.n_in_turn;
  const std::uint64_t group_rows = shape.rows * turns;
  Gatherer gatherer(*source_, view.element_bits);
  const std::uint64_t step = gatherer.rows_at_once(shape);
  std::vector<std::byte> rows, own;
  for (std::uint64_t at = offset; at < end;) {
    const std::uint64_t row = at / row_bytes, group = row / group_rows, within = row % group_rows;
    const std::uint64_t n = std::min({step, ceil_div(end, row_bytes) - row, group_rows - within});
    rows.resize(n * row_bytes);
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
      // The first row at hand that this piece gives.
      const std::uint64_t lead = (turn + turns - within % turns) % turns;
      if (lead >= n) continue;
      const std::uint64_t n_own = ceil_div(n - lead, turns);
      const ViewPiece& piece = view.pieces.at(group * turns + turn);
      if (turns == 1) {
        gatherer.rows(piece, within, n, rows);
        continue;
      }
      own.resize(n_own * row_bytes);
      gatherer.rows(piece, (within + lead) / turns, n_own, own);
      for (std::uint64_t i = 0; i < n_own; ++i)
        std::memcpy(&rows[(lead + i * turns) * row_bytes], &own[i * row_bytes], row_bytes);
    }
    const std::uint64_t stop = std::min(end, (row + n) * row_bytes);
    std::memcpy(&out[at - offset], &rows[at - row * row_bytes], stop - at);
    at = stop;
  }
}

std::string ViewedBytes::home_file(std::uint32_t index) const {
  const std::uint32_t stored = views_.at(index).pieces.front().stored;
  return source_->is_whole() ? source_->files()[source_->stored()[stored].file].name
                             : source_->home_file(stored);
}

}  // namespace ingot::formats
