#include "formats/checkpoint/relaid_codes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/checkpoint/input_major_parts.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint32_t);

/// Memory for input rows that are read together.
constexpr std::uint64_t kSlabBytes = std::uint64_t{4} << 20;

/// Rows of one scale have no order, which compressed-tensors would not take beside them; beside
/// weights of several groups they have one as these do, since engines want one form of experts.
bool has_order(const InputMajorLayout& layout, std::span<const InputMajorWeight> sources) {
  return layout.has_order &&
         std::any_of(sources.begin(), sources.end(),
                     [](const InputMajorWeight& source) { return source.groups > 1; });
}

/// What a stored tensor of the view is made of.
enum class Made : std::uint8_t { kAsStored, kCodes, kScales, kZeros, kDimensions };
struct View {
  Made made = Made::kAsStored;
  std::uint32_t source = 0;  ///< index into the sources; not of kAsStored
  StoredTensor original;     ///< of kAsStored
};

/// Where AWQ puts the nibble of each of eight rows.
constexpr std::array<unsigned, kCodesPerWord> kInterleaved = {0, 4, 1, 5, 2, 6, 3, 7};

class RelaidBytes final : public StoredBytes {
 public:
  RelaidBytes(const InputMajorLayout& layout, std::unique_ptr<StoredBytes> bytes,
              std::vector<InputMajorWeight> sources, std::vector<View> views)
      : layout_(layout),
        bytes_(std::move(bytes)),
        sources_(std::move(sources)),
        views_(std::move(views)),
        is_proven_(sources_.size()) {}

  [[nodiscard]] std::span<const SourceFile> files() const override { return bytes_->files(); }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return bytes_->header_bytes(file);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override { return bytes_->has_data(file); }
  void read_file(std::uint32_t file, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    bytes_->read_file(file, offset, out);
  }
  void close_file(std::uint32_t file) const override { bytes_->close_file(file); }

  void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    if (out.empty()) return;
    const View& view = views_.at(index);
    if (view.made == Made::kAsStored) return bytes_->read(index, view.original, offset, out);
    const InputMajorWeight& source = sources_[view.source];
    prove(view.source);
    if (view.made == Made::kDimensions) {
      const std::array sides = {static_cast<std::int32_t>(source.rows),
                                static_cast<std::int32_t>(source.cols)};
      std::memcpy(out.data(), std::as_bytes(std::span(sides)).subspan(offset).data(), out.size());
      return;
    }
    // Whole rows of the view, of which the first and the last may be wanted in part.
    const std::uint64_t row_bytes = tensor.n_bytes / tensor.shape.front();
    const std::uint64_t step = std::max<std::uint64_t>(kSlabBytes / row_bytes, 1);
    for (std::uint64_t at = offset, end = offset + out.size(); at < end;) {
      const std::uint64_t first = at / row_bytes;
      const std::uint64_t n = std::min(step, ceil_div(end, row_bytes) - first);
      std::vector<std::byte> rows(n * row_bytes);
      fill_rows(view.made, source, first, rows);
      const std::uint64_t stop = std::min(end, (first + n) * row_bytes);
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(at - first * row_bytes), stop - at,
                  out.begin() + static_cast<std::ptrdiff_t>(at - offset));
      at = stop;
    }
  }

 private:
  /// Rows of the view from `first` on.
  void fill_rows(Made made, const InputMajorWeight& source, std::uint64_t first,
                 std::span<std::byte> out) const {
    if (made == Made::kScales) {
      transpose(source.scales, source.groups, first, out);
    } else if (made == Made::kZeros) {
      transpose(source.zeros, source.groups, first, out);
      for_each_word(out, [&](std::uint32_t word) { return zeros_of(word, source); });
    } else if (!layout_.packs_rows) {
      transpose(source.codes, source.cols / kCodesPerWord, first, out);
    } else {
      gather_codes(source, first, out);
    }
  }

  /// Elements [height, n] of a tensor [height, width], from column `first` of it on, as [n,
  /// height].
  void transpose(const StoredTensor& from, std::uint64_t height, std::uint64_t first,
                 std::span<std::byte> out) const {
    const std::size_t element = dtype_bits(from.dtype) / 8;
    const std::uint64_t n = out.size() / element / height;
    const std::vector<std::byte> slab = columns(from, height, first, n);
    // Runs of rows, so that cache lines are written whole.
    constexpr std::uint64_t kRun = 32;
    for (std::uint64_t begin = 0; begin < height; begin += kRun) {
      const std::uint64_t end = std::min(begin + kRun, height);
      for (std::uint64_t i = 0; i < n; ++i) {
        for (std::uint64_t h = begin; h < end; ++h)
          std::memcpy(&out[(i * height + h) * element], &slab[(h * n + i) * element], element);
      }
    }
  }

  /// Columns [first, first + n) of all rows of a tensor.
  [[nodiscard]] std::vector<std::byte> columns(const StoredTensor& from, std::uint64_t height,
                                               std::uint64_t first, std::uint64_t n) const {
    const std::size_t element = dtype_bits(from.dtype) / 8;
    const std::uint64_t width = from.shape.back();
    std::vector<std::byte> slab(height * n * element);
    if (n == width) {
      bytes_->read(0, from, 0, slab);
      return slab;
    }
    for (std::uint64_t h = 0; h < height; ++h) {
      bytes_->read(0, from, (h * width + first) * element,
                   std::span(slab).subspan(h * n * element, n * element));
    }
    return slab;
  }

  /// AWQ: eight rows of one column in a word become eight columns of one row.
  void gather_codes(const InputMajorWeight& source, std::uint64_t first,
                    std::span<std::byte> out) const {
    const std::uint64_t words = source.cols / kCodesPerWord;
    const std::uint64_t n = out.size() / kWordBytes / words;
    const std::uint64_t first_word = first / kCodesPerWord;
    const std::uint64_t n_words = ceil_div(first + n, kCodesPerWord) - first_word;
    const std::vector<std::byte> slab = columns(source.codes, source.cols, first_word, n_words);
    std::array<std::uint32_t, kCodesPerWord> square;
    for (std::uint64_t across = 0; across < words; ++across) {
      for (std::uint64_t down = 0; down < n_words; ++down) {
        for (std::uint64_t i = 0; i < kCodesPerWord; ++i) {
          const std::uint64_t col = across * kCodesPerWord + i;
          std::memcpy(&square.at(i), &slab[(col * n_words + down) * kWordBytes], kWordBytes);
        }
        turn(square);
        for (std::uint64_t i = 0; i < kCodesPerWord; ++i) {
          const std::uint64_t row = (first_word + down) * kCodesPerWord + i;
          if (row < first || row >= first + n) continue;
          std::memcpy(&out[((row - first) * words + across) * kWordBytes],
                      &square.at(shift_of(i) / 4), kWordBytes);
        }
      }
    }
  }

  /// Transposes eight words of eight codes, by halves.
  static void turn(std::array<std::uint32_t, kCodesPerWord>& square) {
    constexpr std::array<std::uint32_t, 3> kLower = {0x0F0F0F0FU, 0x00FF00FFU, 0x0000FFFFU};
    for (std::size_t side = 4, level = 2; side > 0; side /= 2, --level) {
      for (std::size_t i = 0; i < kCodesPerWord; ++i) {
        if ((i & side) != 0) continue;
        const std::uint32_t swapped =
            (square[i] >> (4 * side) ^ square[i + side]) & kLower.at(level);
        square[i] ^= swapped << (4 * side);
        square[i + side] ^= swapped;
      }
    }
  }

  [[nodiscard]] unsigned shift_of(std::uint64_t place) const {
    const auto at = static_cast<std::size_t>(place);
    return 4 * (layout_.is_interleaved ? kInterleaved[at] : static_cast<unsigned>(at));
  }

  template <typename Change>
  static void for_each_word(std::span<std::byte> words, const Change& change) {
    for (std::size_t at = 0; at < words.size(); at += sizeof(std::uint32_t)) {
      std::uint32_t word = 0;
      std::memcpy(&word, &words[at], sizeof word);
      word = change(word);
      std::memcpy(&words[at], &word, sizeof word);
    }
  }

  /// The zero points of eight rows, in order and without bias.
  [[nodiscard]] std::uint32_t zeros_of(std::uint32_t word, const InputMajorWeight& source) const {
    std::uint32_t zeros = 0;
    for (std::uint64_t row = 0; row < kCodesPerWord; ++row) {
      const std::uint32_t zero = (word >> shift_of(row) & 15U) + layout_.zero_bias;
      if (zero > 15) {
        throw fault(source.zeros, ErrorCode::kUnsupported,
                    "holds a zero point of 16, which four bits cannot (convert the source to "
                    "gptq_v2)");
      }
      zeros |= zero << (4 * row);
    }
    return zeros;
  }

  [[nodiscard]] Error fault(const StoredTensor& tensor, ErrorCode code, std::string message) const {
    return Error(code, std::move(message))
        .in_file(files()[tensor.file].name)
        .in_tensor(tensor.name);
  }

  void require_group(const InputMajorWeight& source, std::uint64_t col, std::int32_t group) const {
    if (group >= 0 && std::cmp_less(group, source.groups)) return;
    throw fault(*source.order, ErrorCode::kCorrupt,
                fmt::format("puts column {} into group {}, of {} (fetch the file again)", col,
                            group, source.groups));
  }

  /// Looks, once, whether what the view leaves out says nothing.
  void prove(std::uint32_t index) const {
    if (is_proven_[index].load(std::memory_order_acquire)) return;
    const InputMajorWeight& source = sources_[index];
    if (layout_.is_symmetric) {
      // Of eight rows: what means 8, and what an 8 becomes by the other checkpoint_format.
      constexpr std::uint32_t kEight = 0x88888888U, kOne = 0x11111111U;
      const bool is_v1 = layout_.zero_bias == 1;
      const std::uint32_t of_other_format = is_v1 ? kEight + kOne : kEight - kOne;
      bool all_eight = true, all_of_other_format = true;
      std::vector<std::byte> zeros =
          columns(source.zeros, source.groups, 0, source.zeros.shape.back());
      for_each_word(zeros, [&](std::uint32_t word) {
        const std::uint32_t meant = zeros_of(word, source);
        all_eight = all_eight && meant == kEight;
        all_of_other_format = all_of_other_format && meant == of_other_format;
        return word;
      });
      if (!all_eight && all_of_other_format) {
        throw fault(source.zeros, ErrorCode::kMismatch,
                    is_v1 ? "holds zero points of 8 as gptq_v2 stores them, but config.json says "
                            "checkpoint_format gptq (set it to gptq_v2)"
                          : "holds zero points of 8 as gptq stores them, less 1, but config.json "
                            "says checkpoint_format gptq_v2 (set it to gptq)");
      }
      if (!all_eight) {
        throw fault(source.zeros, ErrorCode::kMismatch,
                    "holds zero points other than 8, but config.json says sym true (correct it)");
      }
    }
    if (source.order && !layout_.has_order) {
      std::vector<std::int32_t> order(source.cols);
      bytes_->read(0, *source.order, 0, std::as_writable_bytes(std::span(order)));
      for (std::uint64_t col = 0; col < source.cols; ++col) {
        if (std::int64_t{order[col]} ==
            static_cast<std::int64_t>(col * source.groups / source.cols))
          continue;
        require_group(source, col, order[col]);
        throw fault(*source.order, ErrorCode::kMismatch,
                    fmt::format("puts column {} into group {}, but config.json says desc_act false "
                                "(correct it)",
                                col, order[col]));
      }
    }
    is_proven_[index].store(true, std::memory_order_release);
  }

  const InputMajorLayout layout_;
  const std::unique_ptr<StoredBytes> bytes_;
  const std::vector<InputMajorWeight> sources_;
  const std::vector<View> views_;
  mutable std::vector<std::atomic<bool>> is_proven_;
};

}  // namespace

void relay_codes(const InputMajorLayout& layout, const RelaidModel& model, ErrorList& faults) {
  const std::vector<StoredTensor> stored = std::move(model.stored);
  std::vector<InputMajorWeight> sources;
  InputMajorParts packed(layout, {.stored = stored,
                                  .files = model.bytes->files(),
                                  .is_complete = model.is_complete,
                                  .faults = faults});
  std::unordered_map<const InputMajorParts::OfWeight*, std::optional<std::uint32_t>> source_of;
  for (const StoredTensor& tensor : stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    if (parts == nullptr) continue;
    const auto [item, is_new] = source_of.try_emplace(parts);
    if (!is_new) continue;
    if (auto source = packed.weight_of(*parts)) {
      item->second = static_cast<std::uint32_t>(sources.size());
      sources.push_back(std::move(*source));
    }
  }
  InputMajorLayout seen_layout = layout;
  seen_layout.has_order = has_order(layout, sources);
  std::vector<StoredTensor> seen;
  std::vector<View> views;
  for (const StoredTensor& tensor : stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    if (parts == nullptr) {
      seen.push_back(tensor);
      views.push_back({.made = Made::kAsStored, .source = 0, .original = tensor});
      continue;
    }
    if (!source_of.at(parts)) continue;
    const std::uint32_t index = *source_of.at(parts);
    const InputMajorWeight& source = sources[index];
    const std::string stem(module_stem(tensor.name));
    const auto add = [&](std::string_view suffix, Made made, DType dtype, Shape shape) {
      StoredTensor& one = seen.emplace_back(tensor);
      one.name = stem + std::string(suffix);
      packed.require_free(tensor, one.name);
      one.n_bytes = byte_count(dtype, shape).value();
      one.dtype = dtype;
      one.shape = std::move(shape);
      views.push_back({.made = made, .source = index, .original = tensor});
    };
    if (&tensor == parts->at(InputMajorParts::kCodes)) {
      add(".weight_packed", Made::kCodes, DType::kI32, {source.rows, source.cols / kCodesPerWord});
      add(".weight_shape", Made::kDimensions, DType::kI32, {2});
    } else if (&tensor == parts->at(InputMajorParts::kScales)) {
      add(".weight_scale", Made::kScales, tensor.dtype, {source.rows, source.groups});
    } else if (&tensor == parts->at(InputMajorParts::kZeros) && !layout.is_symmetric) {
      add(".weight_zero_point", Made::kZeros, DType::kI32,
          {source.rows / kCodesPerWord, source.groups});
    } else if (&tensor == parts->at(InputMajorParts::kOrder) && seen_layout.has_order) {
      add(".weight_g_idx", Made::kAsStored, DType::kI32, {source.cols});
    }
  }
  model.stored = std::move(seen);
  model.bytes = std::make_unique<RelaidBytes>(seen_layout, std::move(model.bytes),
                                              std::move(sources), std::move(views));
}

}  // namespace ingot::formats
