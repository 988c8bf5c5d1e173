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
#include "formats/places/nest.h"
#include "formats/relaid/forwarded_bytes.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint32_t);

/// The code that means zero where INT4 has no zero points.
constexpr std::uint32_t kMiddle = 8;

/// Field `at` of a stream of so many bits each, which may lie in two words.
std::uint32_t field_of(std::span<const std::uint32_t> words, std::uint64_t bits, std::uint64_t at) {
  const std::uint64_t first = at * bits, word = first / 32, shift = first % 32;
  std::uint64_t pair = words[word];
  if (shift + bits > 32) pair |= std::uint64_t{words[word + 1]} << 32;
  return static_cast<std::uint32_t>(pair >> shift) & ((1U << bits) - 1);
}

/// Places of the nibbles of eight rows in a word of AWQ.
constexpr std::array<unsigned, kCodesPerWord> kInterleaved = {0, 4, 1, 5, 2, 6, 3, 7};

class RelaidBytes final : public ForwardedBytes {
 public:
  RelaidBytes(bool has_order, std::unique_ptr<StoredBytes> bytes,
              std::vector<InputMajorWeight> sources, std::vector<RelaidView> views)
      : ForwardedBytes(std::move(bytes)),
        has_order_(has_order),
        sources_(std::move(sources)),
        views_(std::move(views)),
        is_proven_(sources_.size()) {}

  void read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
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
    const StoredTensor& from = view.made == RelaidAs::kScales  ? source.scales
                               : view.made == RelaidAs::kZeros ? *source.zeros
                                                               : source.codes;
    const Nest nest = nest_of(view.made, source, from);
    const ReadPiece read_stored = [&](std::uint32_t, std::uint64_t at, std::span<std::byte> bytes) {
      bytes_->read(0, from, at, bytes);
    };
    if (view.made == RelaidAs::kZeros || (view.made == RelaidAs::kCodes && source.form.bits < 4)) {
      // Whole words, of which the first and the last may be wanted in part.
      const std::uint64_t first = offset / kWordBytes;
      const std::uint64_t end = ceil_div(offset + out.size(), kWordBytes);
      std::vector<std::uint32_t> words(end - first);
      if (view.made == RelaidAs::kZeros) {
        read_zeros(source, first, words);
      } else {
        widen_codes(source, nest, first, words);
      }
      std::memcpy(out.data(), std::as_bytes(std::span(words)).data() + offset % kWordBytes,
                  out.size());
      return;
    }
    nest.gather(offset, out, read_stored);
    if (view.made == RelaidAs::kBytes) {
      // Codes less 128 in two's complement: the top bit turned.
      for (std::byte& code : out) code ^= std::byte{0x80};
    }
  }

 private:
  /// How a part of the view is made of a stored one.
  static Nest nest_of(RelaidAs made, const InputMajorWeight& source, const StoredTensor& from) {
    const InputMajorForm& form = source.form;
    if (source.is_output_major && made != RelaidAs::kZeros)
      return {8, {{.n = from.n_bytes, .stride = 1}}};
    if (&from != &source.codes || !form.packs_rows) {
      // Elements, or words of them, that are transposed.
      const std::uint64_t height = from.shape.front(), width = from.shape.back();
      return {dtype_bits(from.dtype), {{.n = width, .stride = 1}, {.n = height, .stride = width}}};
    }
    // Eight rows of one column in a word become eight columns of one row. AWQ puts row 2a + b of
    // them at place a + 4b.
    std::vector<Step> steps = {{.n = source.rows / kCodesPerWord, .stride = kCodesPerWord}};
    if (form.is_interleaved) {
      steps.insert(steps.end(), {{.n = kCodesPerWord / 2, .stride = 1}, {.n = 2, .stride = 4}});
    } else {
      steps.push_back({.n = kCodesPerWord, .stride = 1});
    }
    steps.push_back({.n = source.cols, .stride = source.rows});
    return {4, std::move(steps)};
  }

  /// Widens codes of 2 and 3 bits to words of INT4, from word `first` on; `nest` has the words that
  /// hold the codes, row after row.
  void widen_codes(const InputMajorWeight& source, const Nest& nest, std::uint64_t first,
                   std::span<std::uint32_t> out) const {
    const InputMajorForm& form = source.form;
    const std::uint64_t units_first = first * kCodesPerWord / form.codes_per_unit();
    const std::uint64_t units_end =
        ceil_div((first + out.size()) * kCodesPerWord, form.codes_per_unit());
    std::vector<std::uint32_t> words((units_end - units_first) * form.words_per_unit());
    nest.gather(units_first * form.words_per_unit() * kWordBytes,
                std::as_writable_bytes(std::span(words)),
                [&](std::uint32_t, std::uint64_t at, std::span<std::byte> bytes) {
                  bytes_->read(0, source.codes, at, bytes);
                });
    const std::uint32_t shift = form.is_symmetric ? kMiddle - (1U << (form.bits - 1)) : 0;
    const std::uint64_t skipped = first * kCodesPerWord - units_first * form.codes_per_unit();
    for (std::uint64_t i = 0; i < out.size(); ++i) {
      std::uint32_t word = 0;
      for (std::uint64_t code = 0; code < kCodesPerWord; ++code) {
        const std::uint32_t value =
            field_of(words, form.bits, skipped + i * kCodesPerWord + code) + shift;
        word |= value << (4 * code);
      }
      out[i] = word;
    }
  }

  /// The zero points of the rows of a word of the view, in order and without bias, for words from
  /// number `first` of [rows / rows of a word, groups] on.
  void read_zeros(const InputMajorWeight& source, std::uint64_t first,
                  std::span<std::uint32_t> out) const {
    const InputMajorForm& form = source.form;
    const unsigned bits = form.bits < 4 ? 4 : static_cast<unsigned>(form.bits);
    const std::uint64_t rows_per_word = 32 / bits;
    const std::uint64_t first_unit = first / source.groups * rows_per_word / form.codes_per_unit();
    const std::uint64_t end_row = ((first + out.size() - 1) / source.groups + 1) * rows_per_word;
    const std::uint64_t n_units = ceil_div(end_row, form.codes_per_unit()) - first_unit;
    const std::uint64_t n_words = n_units * form.words_per_unit();
    // Words of these rows, group after group.
    const std::uint64_t width = source.zeros->shape.back();
    std::vector<std::uint32_t> words(source.groups * n_words);
    for (std::uint64_t group = 0; group < source.groups; ++group) {
      bytes_->read(0, *source.zeros,
                   (group * width + first_unit * form.words_per_unit()) * kWordBytes,
                   std::as_writable_bytes(std::span(words).subspan(group * n_words, n_words)));
    }
    for (std::uint64_t i = 0; i < out.size(); ++i) {
      const std::uint64_t row = (first + i) / source.groups * rows_per_word;
      const auto of_group = std::span<const std::uint32_t>(words).subspan(
          (first + i) % source.groups * n_words, n_words);
      std::uint32_t word = 0;
      for (std::uint64_t r = 0; r < rows_per_word; ++r) {
        const std::uint64_t at = row - first_unit * form.codes_per_unit() + r;
        word |= zero_of(of_group, at, source) << (bits * r);
      }
      out[i] = word;
    }
  }

  /// The zero point of row `at` of those that `words` hold.
  [[nodiscard]] std::uint32_t zero_of(std::span<const std::uint32_t> words, std::uint64_t at,
                                      const InputMajorWeight& source) const {
    const InputMajorForm& form = source.form;
    const std::uint64_t place = form.is_interleaved ? at / kCodesPerWord * kCodesPerWord +
                                                          kInterleaved.at(at % kCodesPerWord)
                                                    : at;
    const std::uint32_t zero = field_of(words, form.bits, place) + form.zero_bias;
    if (zero >= 1U << std::max<std::uint64_t>(form.bits, 4)) {
      throw fault(*source.zeros, ErrorCode::kUnsupported,
                  fmt::format("holds a zero point of {}, which {} bits cannot (convert the source "
                              "to gptq_v2)",
                              zero, form.bits));
    }
    return zero;
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
    // An order of 8 bits is read by itself, weight by weight.
    const bool needs_order =
        source.form.bits == 8 ? source.form.has_order && source.groups > 1 : has_order_;
    if (source.zeros && source.form.is_symmetric) prove_zeros(source);
    if (source.order && !needs_order) prove_order(source);
    is_proven_[index].store(true, std::memory_order_release);
  }

  void prove_zeros(const InputMajorWeight& source) const {
    // The middle code, and its value in the other checkpoint_format.
    const InputMajorForm& form = source.form;
    const std::uint32_t middle = 1U << (form.bits - 1);
    const bool is_v1 = form.zero_bias == 1;
    const std::uint32_t of_other_format = is_v1 ? middle + 1 : middle - 1;
    bool all_middle = true, all_of_other_format = true;
    if (source.is_output_major) {  // four rows to a word; the last word may have fewer
      std::vector<std::uint32_t> words(source.zeros->n_bytes / kWordBytes);
      bytes_->read(0, *source.zeros, 0, std::as_writable_bytes(std::span(words)));
      for (std::uint64_t i = 0; i < source.rows * source.groups; ++i) {
        const std::uint64_t row = i / source.groups;
        const std::uint32_t word = words[row / 4 * source.groups + i % source.groups];
        all_middle = all_middle && (word >> (8 * (row % 4)) & 0xFFU) == middle;
      }
      all_of_other_format = false;
    } else {
      std::vector<std::uint32_t> words(source.zeros->n_bytes / kWordBytes);
      bytes_->read(0, *source.zeros, 0, std::as_writable_bytes(std::span(words)));
      const std::uint64_t width = source.zeros->shape.back();
      for (std::uint64_t group = 0; group < source.groups; ++group) {
        const auto of_group = std::span<const std::uint32_t>(words).subspan(group * width, width);
        for (std::uint64_t row = 0; row < source.rows; ++row) {
          const std::uint32_t zero = zero_of(of_group, row, source);
          all_middle = all_middle && zero == middle;
          all_of_other_format = all_of_other_format && zero == of_other_format;
        }
      }
    }
    if (all_middle) return;
    if (all_of_other_format) {
      throw fault(
          *source.zeros, ErrorCode::kMismatch,
          is_v1 ? fmt::format("holds zero points of {} as gptq_v2 stores them, but config.json "
                              "says checkpoint_format gptq (set it to gptq_v2)",
                              middle)
                : fmt::format("holds zero points of {} as gptq stores them, less 1, but "
                              "config.json says checkpoint_format gptq_v2 (set it to gptq)",
                              middle));
    }
    throw fault(*source.zeros, ErrorCode::kMismatch,
                fmt::format("holds zero points other than {}, but config.json says sym true "
                            "(correct it)",
                            middle));
  }

  void prove_order(const InputMajorWeight& source) const {
    std::vector<std::int32_t> order(source.cols);
    bytes_->read(0, *source.order, 0, std::as_writable_bytes(std::span(order)));
    for (std::uint64_t col = 0; col < source.cols; ++col) {
      if (std::int64_t{order[col]} == static_cast<std::int64_t>(col * source.groups / source.cols))
        continue;
      require_group(source, col, order[col]);
      throw fault(*source.order, ErrorCode::kMismatch,
                  fmt::format("puts column {} into group {}, but config.json says desc_act false "
                              "(correct it)",
                              col, order[col]));
    }
  }

  const bool has_order_;
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
