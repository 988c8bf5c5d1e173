// The problem: experts are stacked, taken from stacks and turned, codes of other layouts are turned
// by nibbles, padding is left out. A read asks for a band that begins and ends anywhere.
//
// The choice: a step whose stride spans what is inside it can be entered in its middle; from the
// first that does not (a transposition) whole turns are gathered, of which the first and the last
// may be wanted in part. A block of some megabytes is read in the order of the pieces, in runs with
// the gaps that cost less than a request, and copied from there in tiles, so that cache lines are
// written whole. Rejected: a reader per form (there were three, with three policies).
//
// The cost: a copy through a slab of all that is no range.

#include "formats/places/nest.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/scratch.h"

namespace ingot::formats {
namespace {

/// Bytes that are gathered at once.
constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
/// Runs are read with the gaps between them where those are no more than the runs, or this short
/// and the slab stays below four blocks.
constexpr std::uint64_t kShortGap = std::uint64_t{16} << 10;
/// Runs of this length are read to where they belong.
constexpr std::uint64_t kDirectBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kWordNibbles = 8;

/// A step in a block: where a turn goes in the piece (or in the slab) and in the block.
struct Loop {
  std::uint64_t n = 1, from = 0, to = 0;
  std::uint32_t pieces = 0;
};
using Loops = std::span<const Loop>;

/// Calls visit(from, to, piece) for each turn of the innermost loop.
template <typename Visit>
void for_each(Loops loops, std::uint64_t from, std::uint64_t to, std::uint32_t piece,
              const Visit& visit) {
  if (loops.empty()) return visit(from, to, piece);
  const Loop& loop = loops.front();
  for (std::uint64_t i = 0; i < loop.n; ++i)
    for_each(loops.subspan(1), from + i * loop.from, to + i * loop.to,
             piece + static_cast<std::uint32_t>(i) * loop.pieces, visit);
}

/// Copies elements of kBytes, or of n bytes where that is 0: a size that the compiler knows makes a
/// move of each copy.
template <std::size_t kBytes>
void copy_tiles(Loops loops, Loop along, Loop across, std::size_t n, const std::byte* slab,
                std::byte* out) {
  constexpr std::uint64_t kTile = 32;
  for_each(loops, 0, 0, 0, [=](std::uint64_t from, std::uint64_t to, std::uint32_t) {
    for (std::uint64_t begin = 0; begin < along.n; begin += kTile) {
      const std::uint64_t tile = std::min(kTile, along.n - begin);
      const std::byte* row = slab + from + begin * along.from;
      std::byte* into = out + to + begin * along.to;
      for (std::uint64_t b = 0; b < across.n; ++b, row += across.from, into += across.to) {
        const std::byte* element = row;
        std::byte* place = into;
        for (std::uint64_t a = 0; a < tile; ++a, element += along.from, place += along.to)
          std::memcpy(place, element, kBytes == 0 ? n : kBytes);
      }
    }
  });
}

void copy_bytes(std::vector<Loop> loops, const std::byte* slab, std::byte* out) {
  std::size_t element = 1;
  if (!loops.empty() && loops.back().from == 1 && loops.back().to == 1) {
    element = loops.back().n;
    loops.pop_back();
  }
  Loop along, across;
  if (!loops.empty()) {
    const auto nearest = std::ranges::min_element(loops, {}, &Loop::to);
    along = *nearest;
    loops.erase(nearest);
  }
  if (!loops.empty()) {
    across = loops.back();
    loops.pop_back();
  }
  const auto copy = element == 1   ? copy_tiles<1>
                    : element == 2 ? copy_tiles<2>
                    : element == 4 ? copy_tiles<4>
                                   : copy_tiles<0>;
  copy(loops, along, across, element, slab, out);
}

/// Transposes eight words of eight nibbles, by halves.
void turn(std::array<std::uint32_t, kWordNibbles>& square) {
  constexpr std::array<std::uint32_t, 3> kLower = {0x0F0F0F0FU, 0x00FF00FFU, 0x0000FFFFU};
  for (std::size_t side = 4, level = 2; side > 0; side /= 2, --level) {
    for (std::size_t i = 0; i < kWordNibbles; ++i) {
      if ((i & side) != 0) continue;
      const std::uint32_t swapped = (square[i] >> (4 * side) ^ square[i + side]) & kLower.at(level);
      square[i] ^= swapped << (4 * side);
      square[i + side] ^= swapped;
    }
  }
}

/// Words of eight nibbles that become a column of eight words each. False where they are none.
bool copy_words(std::vector<Loop> loops, const std::byte* slab, std::byte* out) {
  const auto col = std::ranges::find_if(
      loops, [](const Loop& loop) { return loop.to == 1 && loop.n == kWordNibbles; });
  if (col == loops.end()) return false;
  const Loop along = *col;
  loops.erase(col);
  const auto inner =
      std::ranges::find_if(loops, [](const Loop& l) { return l.from < kWordNibbles; });
  std::array<std::uint64_t, kWordNibbles> rows{};
  std::uint64_t n_rows = 0, found = 0;
  for_each(Loops(inner, loops.end()), 0, 0, 0,
           [&](std::uint64_t from, std::uint64_t to, std::uint32_t) {
             ++n_rows;
             if (from >= kWordNibbles) return;
             rows[from] = to;
             found |= 1U << from;
           });
  loops.erase(inner, loops.end());
  const auto is_of_words = [](std::uint64_t at) { return at % kWordNibbles == 0; };
  if (n_rows != kWordNibbles || found != 0xFF || !is_of_words(along.from) ||
      !std::ranges::all_of(rows, is_of_words) || !std::ranges::all_of(loops, [&](const Loop& l) {
        return is_of_words(l.from) && is_of_words(l.to);
      }))
    return false;
  for_each(loops, 0, 0, 0, [&](std::uint64_t from, std::uint64_t to, std::uint32_t) {
    std::array<std::uint32_t, kWordNibbles> square;
    for (std::size_t i = 0; i < kWordNibbles; ++i)
      std::memcpy(&square[i], slab + (from + i * along.from) / 2, sizeof square[i]);
    turn(square);
    for (std::size_t i = 0; i < kWordNibbles; ++i)
      std::memcpy(out + (to + rows[i]) / 2, &square[i], sizeof square[i]);
  });
  return true;
}

void copy_nibbles(Loops loops, std::uint64_t first, const std::byte* slab,
                  std::span<std::byte> out) {
  std::ranges::fill(out, std::byte{0});
  for_each(loops, first, 0, 0, [&](std::uint64_t from, std::uint64_t to, std::uint32_t) {
    const std::byte code = (slab[from / 2] >> (4 * (from % 2))) & std::byte{15};
    out[to / 2] |= code << (4 * (to % 2));
  });
}

/// One call of gather().
class Gathering {
 public:
  Gathering(std::span<const Step> steps, std::uint64_t per_byte, const ReadPiece& read)
      : steps_(steps),
        per_byte_(per_byte),
        read_(read),
        sizes_(steps.size(), 1),
        first_turned_(steps.size()) {
    std::uint64_t extent = 1;
    for (std::size_t i = steps.size(); i-- > 0;) {
      const bool is_ordered = steps[i].pieces != 0 || steps[i].stride >= extent;
      if (!is_ordered) first_turned_ = i;
      extent += (steps[i].n - 1) * steps[i].stride;
      if (i > 0) sizes_[i - 1] = sizes_[i] * steps[i].n;
    }
  }

  /// Units [begin, end) of the nest inside, and including, a step.
  void range(std::size_t level, std::uint64_t at, std::uint32_t piece, std::uint64_t begin,
             std::uint64_t end, std::span<std::byte> out) {
    const Step& step = steps_[level];
    const std::uint64_t size = sizes_[level];
    const bool is_run = size == 1 && step.stride == 1;
    const bool can_enter = level < first_turned_ && size > 1;
    const std::uint64_t most =
        is_run ? end
               : std::max<std::uint64_t>(kBlockBytes * per_byte_ / std::max(size, step.stride), 1);
    while (begin < end) {
      const std::uint64_t first = begin / size;
      const std::uint64_t from = at + first * step.stride;
      const std::uint32_t of = piece + static_cast<std::uint32_t>(first) * step.pieces;
      const std::uint64_t skipped = begin - first * size;
      std::uint64_t stop = 0;
      if (can_enter && (skipped != 0 || end - begin < size || size > kBlockBytes * per_byte_)) {
        stop = std::min(end, (first + 1) * size);
        range(level + 1, from, of, skipped, stop - first * size,
              out.first((stop - begin) / per_byte_));
      } else {
        const std::uint64_t last = can_enter ? end / size : ceil_div(end, size);
        const std::uint64_t n = std::min(most, last - first);
        stop = std::min(end, (first + n) * size);
        block(level, n, from, of, skipped / per_byte_, out.first((stop - begin) / per_byte_));
      }
      out = out.subspan((stop - begin) / per_byte_);
      begin = stop;
    }
  }

 private:
  /// So many turns of a step, of which `out` gets the bytes from `skipped` on.
  void block(std::size_t level, std::uint64_t n, std::uint64_t at, std::uint32_t piece,
             std::uint64_t skipped, std::span<std::byte> out) {
    const std::uint64_t n_bytes = n * sizes_[level] / per_byte_;
    if (out.size() == n_bytes) return fill(level, n, at, piece, out);
    const auto turns = turns_.take(n_bytes);
    fill(level, n, at, piece, turns);
    std::memcpy(out.data(), &turns[skipped], out.size());
  }

  void fill(std::size_t level, std::uint64_t n, std::uint64_t at, std::uint32_t piece,
            std::span<std::byte> out) {
    std::vector<Loop> loops;
    for (std::size_t i = level; i < steps_.size(); ++i) {
      const std::uint64_t turns = i == level ? n : steps_[i].n;
      if (turns > 1) loops.push_back({turns, steps_[i].stride, sizes_[i], steps_[i].pieces});
    }
    // Sorted in the order of the pieces.
    std::ranges::stable_sort(loops, std::greater<>(), [](const Loop& loop) {
      return std::pair(loop.pieces != 0, loop.from);
    });
    // The innermost loops, which one read is for.
    std::size_t n_reads = loops.size();
    std::uint64_t extent = 1, wanted = 1;
    bool is_direct = per_byte_ == 1;
    while (n_reads > 0 && loops[n_reads - 1].pieces == 0) {
      const Loop& loop = loops[n_reads - 1];
      if (is_direct && extent >= kDirectBytes) break;
      const std::uint64_t next = extent + (loop.n - 1) * loop.from;
      const bool is_near = loop.from <= extent + kShortGap * per_byte_ &&
                           next <= kBlockBytes * per_byte_ &&
                           next * out.size() <= 4 * kBlockBytes * wanted * loop.n;
      if (!is_near && next > 2 * wanted * loop.n) break;
      is_direct = is_direct && loop.from == extent && loop.to == extent;
      extent = next;
      wanted *= loop.n;
      --n_reads;
    }
    const Loops reads = Loops(loops).first(n_reads);
    if (is_direct) {
      return for_each(reads, at, 0, piece,
                      [&](std::uint64_t from, std::uint64_t to, std::uint32_t of) {
                        read_(of, from, out.subspan(to, extent));
                      });
    }
    const std::uint64_t odd = at % per_byte_;
    const std::uint64_t run_bytes = ceil_div(odd + extent, per_byte_);
    std::uint64_t slab_bytes = run_bytes;
    for (const Loop& loop : reads) {
      INGOT_CHECK(loop.from % per_byte_ == 0);
      slab_bytes *= loop.n;
    }
    const auto slab = slab_.take(slab_bytes);
    std::uint64_t filled = 0;
    for_each(reads, at - odd, 0, piece, [&](std::uint64_t from, std::uint64_t, std::uint32_t of) {
      read_(of, from / per_byte_, slab.subspan(filled, run_bytes));
      filled += run_bytes;
    });
    std::uint64_t stride = run_bytes * per_byte_;
    for (std::size_t i = n_reads; i-- > 0;) {
      loops[i].from = stride;
      stride *= loops[i].n;
    }
    if (per_byte_ == 1) {
      copy_bytes(std::move(loops), slab.data(), out.data());
    } else if (odd != 0 || !copy_words(loops, slab.data(), out.data())) {
      copy_nibbles(loops, odd, slab.data(), out);
    }
  }

  std::span<const Step> steps_;
  std::uint64_t per_byte_;
  const ReadPiece& read_;
  std::vector<std::uint64_t> sizes_;  // units of one turn of each step
  std::size_t first_turned_;
  Scratch slab_, turns_;
};

}  // namespace

Nest::Nest(std::uint32_t unit_bits, std::vector<Step> steps) : per_byte_(unit_bits == 4 ? 2 : 1) {
  INGOT_CHECK(unit_bits == 4 || (unit_bits > 0 && unit_bits % 8 == 0));
  INGOT_CHECK(per_byte_ == 1 || (!steps.empty() && steps.back().n % 2 == 0));
  if (unit_bits > 8) {
    for (Step& step : steps) step.stride *= unit_bits / 8;
    steps.push_back({.n = unit_bits / 8, .stride = 1});
  }
  for (const Step& step : steps) {
    n_units_ *= step.n;
    if (step.n == 1) continue;
    Step* const last = steps_.empty() ? nullptr : &steps_.back();
    if (last != nullptr && last->stride == step.n * step.stride &&
        last->pieces == step.n * step.pieces) {
      *last = {.n = last->n * step.n, .stride = step.stride, .pieces = step.pieces};
    } else {
      steps_.push_back(step);
    }
  }
  if (steps_.empty()) steps_.push_back({.n = 1, .stride = 1});
  // Nibbles are moved by whole words, where there are any.
  for (std::size_t i = per_byte_ == 1 ? 0 : steps_.size(); i-- > 0;) {
    const Step step = steps_[i];
    const bool is_side = i + 1 == steps_.size() || step.stride == 1;
    if (!is_side || step.n <= kWordNibbles || step.n % kWordNibbles != 0) continue;
    steps_[i] = {.n = step.n / kWordNibbles, .stride = step.stride * kWordNibbles};
    steps_.insert(steps_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                  {.n = kWordNibbles, .stride = step.stride});
  }
}

void Nest::gather(std::uint64_t offset, std::span<std::byte> out, const ReadPiece& read) const {
  const std::uint64_t end = (offset + out.size()) * per_byte_;
  INGOT_CHECK(offset <= n_bytes() && end <= n_units_);
  if (out.empty()) return;
  Gathering(steps_, per_byte_, read).range(0, 0, 0, offset * per_byte_, end, out);
}

}  // namespace ingot::formats
