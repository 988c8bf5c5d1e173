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

namespace ingot::formats {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint32_t);

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
    if (view.made == RelaidAs::kZeros) {
      // Whole words, of which the first and the last may be wanted in part.
      const std::uint64_t skipped = offset % kWordBytes;
      std::vector<std::byte> words(ceil_div(skipped + out.size(), kWordBytes) * kWordBytes);
      nest.gather(offset - skipped, words, read_stored);
      for_each_word(words, [&](std::uint32_t word) { return zeros_of(word, source); });
      std::memcpy(out.data(), &words[skipped], out.size());
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
