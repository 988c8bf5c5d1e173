#include "formats/relaid/relaid_bytes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/base/checked.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint32_t);

/// Memory for input rows that are read together.
constexpr std::uint64_t kSlabBytes = std::uint64_t{4} << 20;

/// The number in each field of so many bits.
std::uint32_t in_each_field(std::uint32_t number, std::uint64_t bits) {
  return bits == 4 ? number * 0x11111111U : number * 0x01010101U;
}

/// Where AWQ puts the nibble of each of eight rows.
constexpr std::array<unsigned, kCodesPerWord> kInterleaved = {0, 4, 1, 5, 2, 6, 3, 7};

class RelaidBytes final : public StoredBytes {
 public:
  RelaidBytes(bool has_order, std::unique_ptr<StoredBytes> bytes,
              std::vector<InputMajorWeight> sources, std::vector<RelaidView> views)
      : has_order_(has_order),
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
    const RelaidView& view = views_.at(index);
    if (view.made == RelaidAs::kAsStored) return bytes_->read(index, view.original, offset, out);
    const InputMajorWeight& source = sources_[view.source];
    prove(view.source);
    if (view.made == RelaidAs::kDimensions) {
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
  void fill_rows(RelaidAs made, const InputMajorWeight& source, std::uint64_t first,
                 std::span<std::byte> out) const {
    if (made == RelaidAs::kScales) {
      copy_rows(source, source.scales, source.groups, first, out);
    } else if (made == RelaidAs::kZeros) {
      transpose(*source.zeros, source.groups, first, out);
      for_each_word(out, [&](std::uint32_t word) { return zeros_of(word, source); });
    } else if (!source.form.packs_rows) {
      copy_rows(source, source.codes, source.cols / source.form.codes_per_word(), first, out);
    } else {
      gather_codes(source, first, out);
    }
    if (made == RelaidAs::kBytes) {
      // Codes less 128 in two's complement: the top bit turned.
      for (std::byte& code : out) code ^= std::byte{0x80};
    }
  }

  /// Rows of `n` elements, as they are or transposed.
  void copy_rows(const InputMajorWeight& source, const StoredTensor& from, std::uint64_t n,
                 std::uint64_t first, std::span<std::byte> out) const {
    if (!source.is_output_major) return transpose(from, n, first, out);
    bytes_->read(0, from, first * n * (dtype_bits(from.dtype) / 8), out);
  }

  /// Elements [height, n] of a tensor [height, width], from column `first` of it on, as [n,
  /// height].
  void transpose(const StoredTensor& from, std::uint64_t height, std::uint64_t first,
                 std::span<std::byte> out) const {
    const std::size_t element = dtype_bits(from.dtype) / 8;
    const std::uint64_t n = out.size() / element / height;
    const std::vector<std::byte> slab = columns(from, height, first, n);
    element == sizeof(std::uint16_t) ? turn_over<sizeof(std::uint16_t)>(slab, height, n, out)
                                     : turn_over<sizeof(std::uint32_t)>(slab, height, n, out);
  }

  /// Elements of so many bytes, [height, n] as [n, height]: scales are F16, BF16 or F32, and words
  /// of codes I32. A size that the compiler knows makes a move of each copy: a release has billions
  /// of scales.
  template <std::size_t kBytes>
  static void turn_over(std::span<const std::byte> slab, std::uint64_t height, std::uint64_t n,
                        std::span<std::byte> out) {
    // Runs of rows, so that cache lines are written whole.
    constexpr std::uint64_t kRun = 32;
    for (std::uint64_t begin = 0; begin < height; begin += kRun) {
      const std::uint64_t end = std::min(begin + kRun, height);
      for (std::uint64_t i = 0; i < n; ++i) {
        for (std::uint64_t h = begin; h < end; ++h)
          std::memcpy(&out[(i * height + h) * kBytes], &slab[(h * n + i) * kBytes], kBytes);
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
                      &square.at(shift_of(i, source.form) / 4), kWordBytes);
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

  /// The bit position in AWQ's and GPTQ's words of rows.
  [[nodiscard]] static unsigned shift_of(std::uint64_t place, const InputMajorForm& form) {
    const auto at = static_cast<unsigned>(place);
    return static_cast<unsigned>(form.bits) * (form.is_interleaved ? kInterleaved.at(at) : at);
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

  /// The zero points of the rows of a word, in order and without bias.
  [[nodiscard]] std::uint32_t zeros_of(std::uint32_t word, const InputMajorWeight& source) const {
    const InputMajorForm& form = source.form;
    const std::uint32_t most = (1U << form.bits) - 1;
    std::uint32_t zeros = 0;
    for (std::uint64_t row = 0; row < form.codes_per_word(); ++row) {
      const std::uint32_t zero = (word >> shift_of(row, form) & most) + form.zero_bias;
      if (zero > most) {
        throw fault(*source.zeros, ErrorCode::kUnsupported,
                    fmt::format("holds a zero point of {}, which {} bits cannot (convert the "
                                "source to gptq_v2)",
                                zero, form.bits));
      }
      zeros |= zero << (form.bits * row);
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

  /// Checks, once, that the parts which the view leaves out have no effect.
  void prove(std::uint32_t index) const {
    if (is_proven_[index].load(std::memory_order_acquire)) return;
    const InputMajorWeight& source = sources_[index];
    const bool is_int8 = source.form.bits == 8;
    if (source.zeros && (source.form.is_symmetric || is_int8)) prove_zeros(source);
    if (source.order && (!has_order_ || is_int8)) prove_order(source);
    is_proven_[index].store(true, std::memory_order_release);
  }

  void prove_zeros(const InputMajorWeight& source) const {
    // In each field of a word: the middle code, and its value in the other checkpoint_format.
    const InputMajorForm& form = source.form;
    const std::uint32_t number = 1U << (form.bits - 1);
    const std::uint32_t middle = in_each_field(number, form.bits);
    const std::uint32_t one = in_each_field(1, form.bits);
    const bool is_v1 = form.zero_bias == 1;
    const std::uint32_t of_other_format = is_v1 ? middle + one : middle - one;
    bool all_middle = true, all_of_other_format = true;
    std::vector<std::byte> zeros(source.zeros->n_bytes);
    bytes_->read(0, *source.zeros, 0, zeros);
    for_each_word(zeros, [&](std::uint32_t word) {
      const std::uint32_t meant = zeros_of(word, source);
      all_middle = all_middle && meant == middle;
      all_of_other_format = all_of_other_format && meant == of_other_format;
      return word;
    });
    if (all_middle) return;
    if (form.is_symmetric && all_of_other_format && !source.is_output_major) {
      throw fault(
          *source.zeros, ErrorCode::kMismatch,
          is_v1 ? fmt::format("holds zero points of {} as gptq_v2 stores them, but config.json "
                              "says checkpoint_format gptq (set it to gptq_v2)",
                              number)
                : fmt::format("holds zero points of {} as gptq stores them, less 1, but "
                              "config.json says checkpoint_format gptq_v2 (set it to gptq)",
                              number));
    }
    if (form.is_symmetric) {
      throw fault(*source.zeros, ErrorCode::kMismatch,
                  fmt::format("holds zero points other than {}, but config.json says sym true "
                              "(correct it)",
                              number));
    }
    throw fault(*source.zeros, ErrorCode::kUnsupported,
                fmt::format("holds zero points other than {}: of weights of {} bits this version "
                            "reads symmetric ones (take the release that it was made from)",
                            number, form.bits));
  }

  void prove_order(const InputMajorWeight& source) const {
    std::vector<std::int32_t> order(source.cols);
    bytes_->read(0, *source.order, 0, std::as_writable_bytes(std::span(order)));
    for (std::uint64_t col = 0; col < source.cols; ++col) {
      if (std::int64_t{order[col]} == static_cast<std::int64_t>(col * source.groups / source.cols))
        continue;
      require_group(source, col, order[col]);
      if (source.form.has_order) {
        throw fault(*source.order, ErrorCode::kUnsupported,
                    fmt::format("puts column {} into group {}: of weights of {} bits this version "
                                "reads groups that are runs of columns (take the release that it "
                                "was made from)",
                                col, order[col], source.form.bits));
      }
      throw fault(*source.order, ErrorCode::kMismatch,
                  fmt::format("puts column {} into group {}, but config.json says desc_act false "
                              "(correct it)",
                              col, order[col]));
    }
  }

  const bool has_order_;
  const std::unique_ptr<StoredBytes> bytes_;
  const std::vector<InputMajorWeight> sources_;
  const std::vector<RelaidView> views_;
  mutable std::vector<std::atomic<bool>> is_proven_;
};

}  // namespace

// A tensor of the view, in the place of a stored one.
StoredTensor seen_as(const StoredTensor& stored, std::string_view suffix, DType dtype,
                     Shape shape) {
  StoredTensor seen = stored;
  seen.name = std::string(module_stem(stored.name)).append(suffix);
  seen.n_bytes = byte_count(dtype, shape).value();
  seen.dtype = dtype;
  seen.shape = std::move(shape);
  return seen;
}

std::unique_ptr<StoredBytes> relaid_bytes(bool has_order, std::unique_ptr<StoredBytes> bytes,
                                          std::vector<InputMajorWeight> sources,
                                          std::vector<RelaidView> views) {
  return std::make_unique<RelaidBytes>(has_order, std::move(bytes), std::move(sources),
                                       std::move(views));
}

}  // namespace ingot::formats
