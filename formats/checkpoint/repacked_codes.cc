#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/base/checked.h"
#include "formats/checkpoint/passes.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/config_groups.h"
#include "formats/dialect/input_major.h"
#include "formats/json/json.h"
#include "formats/places/nest.h"

// Integers in words, in the order of AWQ and GPTQ or four to a word, seen as the tensors that
// schemes read. Which weights they are is found by names and the config; the words are put into
// their order when they are read.

namespace ingot::formats {
namespace {

/// Codes of INT4 in a word.
constexpr std::uint64_t kCodesPerWord = 8;

/// A weight [rows, cols] as AWQ and GPTQ store it, or, of 8 bits, as compressed-tensors does.
struct InputMajorWeight {
  StoredTensor codes, scales;
  std::optional<StoredTensor> zeros, order;
  std::uint64_t rows = 0, cols = 0, groups = 0;
  InputMajorForm form = {};
  /// compressed-tensors: the words of a row follow each other.
  bool is_output_major = false;
};

/// The origin of a stored tensor of the view; kBytes: codes of 8 bits, less 128.
enum class RepackedAs : std::uint8_t { kAsStored, kCodes, kBytes, kScales, kZeros, kDimensions };
struct RepackedView {
  RepackedAs made = RepackedAs::kAsStored;
  std::uint32_t source = 0;  ///< index into the sources; not for kAsStored
  StoredTensor original;     ///< stored tensor, for kAsStored
};

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

class RepackedBytes final : public ForwardedBytes {
 public:
  RepackedBytes(bool has_order, std::unique_ptr<StoredBytes> bytes,
                std::vector<InputMajorWeight> sources, std::vector<RepackedView> views)
      : ForwardedBytes(std::move(bytes)),
        has_order_(has_order),
        sources_(std::move(sources)),
        views_(std::move(views)),
        is_proven_(sources_.size()) {}

  void read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
            std::span<std::byte> out) const override {
    if (out.empty()) return;
    const RepackedView& view = views_.at(index);
    if (view.made == RepackedAs::kAsStored) return bytes_->read(index, view.original, offset, out);
    const InputMajorWeight& source = sources_[view.source];
    prove(view.source);
    if (view.made == RepackedAs::kDimensions) {
      const std::array sides = {static_cast<std::int32_t>(source.rows),
                                static_cast<std::int32_t>(source.cols)};
      std::memcpy(out.data(), std::as_bytes(std::span(sides)).subspan(offset).data(), out.size());
      return;
    }
    const StoredTensor& from = view.made == RepackedAs::kScales  ? source.scales
                               : view.made == RepackedAs::kZeros ? *source.zeros
                                                                 : source.codes;
    const Nest nest = nest_of(view.made, source, from);
    const ReadPiece read_stored = [&](std::uint32_t, std::uint64_t at, std::span<std::byte> bytes) {
      bytes_->read(0, from, at, bytes);
    };
    if (view.made == RepackedAs::kZeros ||
        (view.made == RepackedAs::kCodes && source.form.bits < 4)) {
      // Whole words, of which the first and the last may be wanted in part.
      const std::uint64_t first = offset / kWordBytes;
      const std::uint64_t end = ceil_div(offset + out.size(), kWordBytes);
      std::vector<std::uint32_t> words(end - first);
      if (view.made == RepackedAs::kZeros) {
        read_zeros(source, first, words);
      } else {
        widen_codes(source, nest, first, words);
      }
      std::memcpy(out.data(), std::as_bytes(std::span(words)).data() + offset % kWordBytes,
                  out.size());
      return;
    }
    nest.gather(offset, out, read_stored);
    if (view.made == RepackedAs::kBytes) {
      // Codes less 128 in two's complement: the top bit turned.
      for (std::byte& code : out) code ^= std::byte{0x80};
    }
  }

 private:
  /// How a part of the view is made of a stored one.
  static Nest nest_of(RepackedAs made, const InputMajorWeight& source, const StoredTensor& from) {
    const InputMajorForm& form = source.form;
    if (source.is_output_major && made != RepackedAs::kZeros)
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
      throw fault_of(
          files(), *source.zeros, ErrorCode::kUnsupported,
          "holds a zero point of {}, which {} bits cannot (convert the source to gptq_v2)", zero,
          form.bits);
    }
    return zero;
  }

  void require_group(const InputMajorWeight& source, std::uint64_t col, std::int32_t group) const {
    if (group >= 0 && std::cmp_less(group, source.groups)) return;
    throw fault_of(files(), *source.order, ErrorCode::kCorrupt,
                   "puts column {} into group {}, of {} (fetch the file again)", col, group,
                   source.groups);
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
    std::vector<std::uint32_t> words(source.zeros->n_bytes / kWordBytes);
    bytes_->read(0, *source.zeros, 0, std::as_writable_bytes(std::span(words)));
    if (source.is_output_major) {  // four rows to a word; the last word may have fewer
      for (std::uint64_t i = 0; i < source.rows * source.groups; ++i) {
        const std::uint64_t row = i / source.groups;
        const std::uint32_t word = words[row / 4 * source.groups + i % source.groups];
        all_middle = all_middle && (word >> (8 * (row % 4)) & 0xFFU) == middle;
      }
      all_of_other_format = false;
    } else {
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
    if (all_of_other_format && is_v1) {
      throw fault_of(files(), *source.zeros, ErrorCode::kMismatch,
                     "holds zero points of {} as gptq_v2 stores them, but config.json says "
                     "checkpoint_format gptq (set it to gptq_v2)",
                     middle);
    }
    if (all_of_other_format) {
      throw fault_of(files(), *source.zeros, ErrorCode::kMismatch,
                     "holds zero points of {} as gptq stores them, less 1, but config.json says "
                     "checkpoint_format gptq_v2 (set it to gptq)",
                     middle);
    }
    throw fault_of(files(), *source.zeros, ErrorCode::kMismatch,
                   "holds zero points other than {}, but config.json says sym true (correct it)",
                   middle);
  }

  void prove_order(const InputMajorWeight& source) const {
    std::vector<std::int32_t> order(source.cols);
    bytes_->read(0, *source.order, 0, std::as_writable_bytes(std::span(order)));
    for (std::uint64_t col = 0; col < source.cols; ++col) {
      if (std::int64_t{order[col]} == static_cast<std::int64_t>(col * source.groups / source.cols))
        continue;
      require_group(source, col, order[col]);
      throw fault_of(
          files(), *source.order, ErrorCode::kMismatch,
          "puts column {} into group {}, but config.json says desc_act false (correct it)", col,
          order[col]);
    }
  }

  const bool has_order_;
  const std::vector<InputMajorWeight> sources_;
  const std::vector<RepackedView> views_;
  mutable std::vector<std::atomic<bool>> is_proven_;
};

/// A tensor of the view, in the place of a stored one of the same module.
StoredTensor viewed_as(const StoredTensor& stored, std::string_view suffix, DType dtype,
                       Shape shape) {
  StoredTensor seen = stored;
  seen.name = std::string(module_stem(stored.name)).append(suffix);
  seen.n_bytes = byte_count(dtype, shape).value();
  seen.dtype = dtype;
  seen.shape = std::move(shape);
  return seen;
}

/// Puts a view in the place of the stored tensors. `has_order`: some group order is among them.
void see_repacked(bool has_order, std::vector<InputMajorWeight> sources,
                  std::vector<StoredTensor> seen, std::vector<RepackedView> views, Draft& draft) {
  draft.forget_names();
  draft.stored = std::move(seen);
  draft.bytes = std::make_unique<RepackedBytes>(has_order, std::move(draft.bytes),
                                                std::move(sources), std::move(views));
}

/// The stored tensors that are parts of such weights, found by their names: `X.qweight`,
/// `X.scales`, `X.qzeros` and `X.g_idx`.
class InputMajorParts {
 public:
  enum Kind : std::size_t { kCodes, kScales, kZeros, kOrder, kKinds };
  /// Parts of a weight by kind; null: there is none.
  using OfWeight = std::array<const StoredTensor*, kKinds>;

  InputMajorParts(const InputMajorLayout& layout, Draft& draft) : layout_(layout), draft_(draft) {
    for (const StoredTensor& tensor : draft.stored) {
      if (const std::size_t kind = kind_of(tensor.name); kind < kKinds)
        parts_[module_stem(tensor.name)].at(kind) = &tensor;
    }
    std::erase_if(parts_, [&](const auto& item) { return !is_packed(item.second); });
  }

  /// The parts of the weight that a stored tensor is a part of; null when it is of none.
  [[nodiscard]] const OfWeight* find(const StoredTensor& tensor) const {
    if (kind_of(tensor.name) == kKinds) return nullptr;
    const auto found = parts_.find(module_stem(tensor.name));
    return found == parts_.end() ? nullptr : &found->second;
  }

  /// True if every part that the layout needs is here.
  [[nodiscard]] bool is_whole(const OfWeight& parts) const { return lacking(parts) == kKinds; }

  /// The weight of these parts; nullopt, and reported, where they make none: one is missing
  /// (kMissingTensor), has another shape, group or number of bits than the config says
  /// (kShapeMismatch, kMismatch) or dtype (kDtypeMismatch), or bits that are not read
  /// (kUnsupported, once for each entry of the config).
  std::optional<InputMajorWeight> weight_of(const OfWeight& parts) {
    if (const std::size_t lacks = lacking(parts); lacks < kKinds) {
      const StoredTensor& first =
          **std::ranges::find_if(parts, [](const auto* part) { return part; });
      if (draft_.is_complete) {
        draft_.fault(first, ErrorCode::kMissingTensor,
                     "is {}, but there is no '{}{}' (a file missing? fetch it again)",
                     parts[kCodes] == nullptr ? "of a packed weight" : "packed",
                     module_stem(first.name), kSuffixes.at(lacks));
      }
      return {};
    }
    InputMajorWeight weight{.codes = *parts[kCodes],
                            .scales = *parts[kScales],
                            .zeros = *parts[kZeros],
                            .order = std::nullopt,
                            .form = layout_.form_of(module_stem(parts[kCodes]->name))};
    if (parts[kOrder] != nullptr) weight.order = *parts[kOrder];
    if (!has_bits(weight) || !has_dtypes(weight) || !has_shapes(weight)) return {};
    return weight;
  }

  /// Reports a stored tensor that has the name under which another is read (kDuplicate).
  void require_free(const StoredTensor& made_of, const std::string& name) {
    const auto found = draft_.names().find(name);
    if (!found) return;
    draft_.fault(
        draft_.stored[*found], ErrorCode::kDuplicate,
        "is here as well as '{}', which is the same part (which one is meant? remove the other)",
        made_of.name);
  }

 private:
  static constexpr std::array<std::string_view, kKinds> kSuffixes = {".qweight", ".scales",
                                                                     ".qzeros", ".g_idx"};
  static constexpr DTypeSet kScaleDtypes = {DType::kF16, DType::kBf16, DType::kF32};
  /// weight_shape holds them as I32.
  static constexpr std::uint64_t kMaxSide = std::numeric_limits<std::int32_t>::max();

  /// kKinds for a name that is of no part.
  static std::size_t kind_of(std::string_view name) {
    const std::string_view suffix = name.substr(module_stem(name).size());
    return static_cast<std::size_t>(std::ranges::find(kSuffixes, suffix) - kSuffixes.begin());
  }

  /// Scales without other parts may be a parameter of that name, unless the other parts may be
  /// elsewhere.
  [[nodiscard]] bool is_packed(const OfWeight& parts) const {
    return !draft_.is_complete || parts[kCodes] != nullptr || parts[kZeros] != nullptr ||
           parts[kOrder] != nullptr;
  }

  /// The first kind that is needed and not here; kKinds: none.
  [[nodiscard]] std::size_t lacking(const OfWeight& parts) const {
    std::size_t kind = 0;
    const bool needs_order =
        parts[kCodes] != nullptr && layout_.form_of(module_stem(parts[kCodes]->name)).has_order;
    while (kind < kKinds && (parts.at(kind) != nullptr || (kind == kOrder && !needs_order))) ++kind;
    return kind;
  }

  bool has_bits(const InputMajorWeight& weight) {
    const std::uint64_t bits = weight.form.bits;
    const InputMajorOverride* said = layout_.override_of(module_stem(weight.codes.name));
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
      if (told_bits_.emplace(said, bits).second) {
        draft_.fault(weight.codes, ErrorCode::kUnsupported,
                     "is of {0} bits: quantization_config says bits {0} for '{1}', and this "
                     "version reads 2, 3, 4 and 8 (take the release that it was made from)",
                     bits, said == nullptr ? "" : said->key);
      }
      return false;
    }
    // Words of zero points hold rows, whose number the scales have.
    const Shape &zeros = weight.zeros->shape, &scales = weight.scales.shape;
    if (zeros.size() != 2 || scales.size() != 2 || scales.back() == 0) return true;
    for (const std::uint64_t other : {2UL, 3UL, 4UL, 8UL}) {
      if (other == bits || checked_mul(zeros.back(), 32) != checked_mul(scales.back(), other))
        continue;
      if (!told_bits_.emplace(said, other).second) return false;
      draft_.fault(
          weight.codes, ErrorCode::kMismatch,
          "is of {} bits by '{}' of shape {} for {} rows, but quantization_config says bits {} for "
          "it (is the config of these weights? GPTQModel has bits of single modules under dynamic)",
          other, weight.zeros->name, shape_text(zeros), scales.back(), bits);
      return false;
    }
    return true;
  }

  bool has_dtypes(const InputMajorWeight& weight) {
    bool fits = true;
    const auto require = [&](const StoredTensor& tensor, DTypeSet dtypes) {
      if (dtypes.has(tensor.dtype)) return;
      fits = false;
      draft_.fault(tensor, ErrorCode::kDtypeMismatch, "is {}, must be {}", dtype_name(tensor.dtype),
                   dtypes.text());
    };
    require(weight.codes, {DType::kI32});
    require(*weight.zeros, {DType::kI32});
    require(weight.scales, kScaleDtypes);
    if (weight.order) require(*weight.order, {DType::kI32});
    return fits;
  }

  bool has_shapes(InputMajorWeight& weight) {
    bool fits = true;
    const auto require = [&](const StoredTensor& tensor, const Shape& wanted) {
      if (tensor.shape == wanted) return;
      fits = false;
      draft_.fault(tensor, ErrorCode::kShapeMismatch,
                   "has shape {}, with scales of {} it must have {}", shape_text(tensor.shape),
                   shape_text(weight.scales.shape), shape_text(wanted));
    };
    if (weight.scales.shape.size() != 2 || weight.codes.shape.size() != 2) {
      draft_.fault(weight.scales, ErrorCode::kShapeMismatch,
                   "has shape {}, codes of {} need [groups, rows]", shape_text(weight.scales.shape),
                   shape_text(weight.codes.shape));
      return false;
    }
    weight.groups = weight.scales.shape[0];
    weight.rows = weight.scales.shape[1];
    const InputMajorForm& form = weight.form;
    const std::uint64_t front = weight.codes.shape[0];
    const std::uint64_t n = form.codes_per_unit(), words = form.words_per_unit();
    weight.cols = form.packs_rows ? front : checked_mul(front / words, n).value_or(0);
    const std::uint64_t claimed = form.group_size.value_or(0);
    if (claimed != 0 && claimed < weight.cols && weight.cols % claimed != 0 &&
        weight.groups == ceil_div(weight.cols, claimed)) {
      draft_.fault(weight.scales, ErrorCode::kUnsupported,
                   "has scales for {} groups of {} columns, and the last group has {} of the {} "
                   "columns only: this version reads whole groups (take the release that it was "
                   "made from, or quantize that with a group size that divides the columns)",
                   weight.groups, claimed, weight.cols % claimed, weight.cols);
      return false;
    }
    // Words of codes of less than 4 bits become several of INT4.
    const std::uint64_t step = std::min<std::uint64_t>(n, kCodesPerWord);
    if (weight.rows == 0 || weight.cols == 0 || weight.groups == 0 || weight.rows % n != 0 ||
        weight.cols % n != 0 || weight.rows > kMaxSide || weight.cols > kMaxSide ||
        weight.cols % (weight.groups * step) != 0) {
      draft_.fault(weight.scales, ErrorCode::kShapeMismatch,
                   "has shape {}: {} columns are not {} equal groups of whole words for rows in "
                   "multiples of {}",
                   shape_text(weight.scales.shape), weight.cols, weight.groups, n);
      return false;
    }
    require(weight.codes, form.packs_rows ? Shape{weight.cols, weight.rows / n}
                                          : Shape{weight.cols / n * words, weight.rows});
    require(*weight.zeros, {weight.groups, weight.rows / n * words});
    if (weight.order) require(*weight.order, {weight.cols});
    const std::uint64_t size = weight.cols / weight.groups;
    if (form.group_size && size != (claimed == 0 ? weight.cols : claimed)) {
      draft_.fault(weight.scales, ErrorCode::kMismatch,
                   "has a scale per {} columns, but config.json says group_size {} (correct it)",
                   size, claimed);
      fits = false;
    }
    return fits;
  }

  const InputMajorLayout& layout_;
  Draft& draft_;
  std::unordered_map<std::string_view, OfWeight> parts_;  // parts by stem
  /// Bits that have been reported, by the config's entry.
  std::set<std::pair<const InputMajorOverride*, std::uint64_t>> told_bits_;
};

/// Weights whose rows have one scale get no order: compressed-tensors would refuse it. Among
/// weights of several groups they get one as these do, since engines want one form of experts.
bool has_order(std::span<const InputMajorWeight> sources) {
  return std::ranges::any_of(sources, [](const InputMajorWeight& source) {
    return source.form.has_order && source.groups > 1 && source.form.bits <= 4;
  });
}

/// Changes the weights of an AWQ or GPTQ checkpoint.
void repack_input_major(const InputMajorLayout& layout, Draft& draft) {
  std::vector<InputMajorWeight> sources;
  InputMajorParts packed(layout, draft);
  std::unordered_map<const InputMajorParts::OfWeight*, std::optional<std::uint32_t>> source_of;
  for (const StoredTensor& tensor : draft.stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    if (parts == nullptr) continue;
    const auto [item, is_new] = source_of.try_emplace(parts);
    if (!is_new) continue;
    if (auto source = packed.weight_of(*parts)) {
      item->second = static_cast<std::uint32_t>(sources.size());
      sources.push_back(std::move(*source));
    }
  }
  const bool is_ordered = has_order(sources);
  std::vector<StoredTensor> seen;
  std::vector<RepackedView> views;
  for (const StoredTensor& tensor : draft.stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    if (parts == nullptr) {
      seen.push_back(tensor);
      views.push_back({.made = RepackedAs::kAsStored, .source = 0, .original = tensor});
      continue;
    }
    if (!source_of.at(parts)) continue;
    const std::uint32_t index = *source_of.at(parts);
    const InputMajorWeight& source = sources[index];
    const bool is_int8 = source.form.bits == 8;
    const auto add = [&](std::string_view suffix, RepackedAs made, DType dtype, Shape shape) {
      seen.push_back(viewed_as(tensor, suffix, dtype, std::move(shape)));
      packed.require_free(tensor, seen.back().name);
      views.push_back({.made = made, .source = index, .original = tensor});
    };
    if (&tensor == parts->at(InputMajorParts::kCodes) && is_int8) {
      add(".weight", RepackedAs::kBytes, DType::kI8, {source.rows, source.cols});
      add(".weight_shape", RepackedAs::kDimensions, DType::kI32, {2});
    } else if (&tensor == parts->at(InputMajorParts::kCodes)) {
      add(".weight_packed", RepackedAs::kCodes, DType::kI32,
          {source.rows, source.cols / kCodesPerWord});
      add(".weight_shape", RepackedAs::kDimensions, DType::kI32, {2});
    } else if (&tensor == parts->at(InputMajorParts::kScales)) {
      add(".weight_scale", RepackedAs::kScales, tensor.dtype, {source.rows, source.groups});
    } else if (&tensor == parts->at(InputMajorParts::kZeros) && !source.form.is_symmetric) {
      const std::uint64_t rows_per_word = is_int8 ? 4 : kCodesPerWord;
      add(".weight_zero_point", RepackedAs::kZeros, DType::kI32,
          {source.rows / rows_per_word, source.groups});
    } else if (&tensor == parts->at(InputMajorParts::kOrder) &&
               (is_int8 ? source.form.has_order && source.groups > 1 : is_ordered)) {
      add(".weight_g_idx", RepackedAs::kAsStored, DType::kI32, {source.cols});
    }
  }
  see_repacked(is_ordered, std::move(sources), std::move(seen), std::move(views), draft);
}

constexpr std::string_view kPackedSuffix = ".weight_packed";

/// The compressed-tensors group of a module's packed integers; null where there is none.
const ConfigGroup* group_of_integers(const ConfigGroups& groups, std::string_view module) {
  const ConfigGroup* group = groups.stored_group(module);
  if (group == nullptr || !group->has_weights) return nullptr;
  const Json& weights = json_member(*group->json, "weights");
  const bool is_said = !json_member(weights, "type").is_null();
  return !is_said || text_at(weights, "type") == "int" ? group : nullptr;
}

std::uint64_t bits_of(const ConfigGroup& group) {
  const Json& bits = json_member(json_member(*group.json, "weights"), "num_bits");
  return bits.is_number_unsigned() ? bits.get<std::uint64_t>() : 8;
}

/// True if, by the config, all stored zero points are 128.
bool is_symmetric(const ConfigGroup& group) {
  return json_member(json_member(*group.json, "weights"), "symmetric") != false;
}

/// True if a scheme has such groups of columns: whole rows, or a run that INT8 blocks have.
bool is_known_group(std::uint64_t cols, std::uint64_t groups) {
  const std::uint64_t size = cols / groups;
  return groups == 1 || size == 32 || size == 64 || size == 128;
}

/// Changes weights that compressed-tensors packs in 8 bits. Reports packed weights of other than 4
/// and 8 bits (kUnsupported, once for each group of the config) and groups of columns that no
/// scheme has.
void repack_bytes(Draft& draft) {
  const auto is_packed = [](const StoredTensor& tensor) {
    return tensor.name.ends_with(kPackedSuffix) && tensor.dtype == DType::kI32;
  };
  if (std::ranges::none_of(draft.stored, is_packed)) return;
  std::vector<std::string> ignored;
  const ConfigGroups groups(quantization_block(draft.config), &ignored);
  std::set<const ConfigGroup*> unread;
  std::vector<InputMajorWeight> sources;
  std::unordered_map<const StoredTensor*, std::uint32_t> source_of;  // sources by part
  for (const StoredTensor& tensor : draft.stored) {
    if (!is_packed(tensor)) continue;
    const std::string stem = tensor.name.substr(0, tensor.name.size() - kPackedSuffix.size());
    const ConfigGroup* group = group_of_integers(groups, stem);
    if (group == nullptr || bits_of(*group) == 4) continue;
    if (bits_of(*group) != 8) {
      if (unread.insert(group).second) {
        draft.fault(
            tensor, ErrorCode::kUnsupported,
            "is of {0} bits: quantization_config says num_bits {0} in config_groups.{1}, and of "
            "packed integers this version reads 4 and 8 (take the release that it was made from)",
            bits_of(*group), group->name);
      }
      continue;
    }
    const auto part = [&](std::string_view suffix) {
      const auto found = draft.names().find(stem + std::string(suffix));
      return found ? std::optional(draft.stored[*found]) : std::nullopt;
    };
    const auto scales = part(".weight_scale");
    if (!scales) continue;
    InputMajorWeight source{.codes = tensor,
                            .scales = *scales,
                            .zeros = part(".weight_zero_point"),
                            .order = part(".weight_g_idx"),
                            .form = {.is_symmetric = is_symmetric(*group), .bits = 8},
                            .is_output_major = true};
    const Shape &words = tensor.shape, &grid = scales->shape;
    const bool has_sides = words.size() == 2 && grid.size() == 2 && grid[0] == words[0] &&
                           words[0] > 0 && words[1] > 0 && grid[1] > 0;
    source.cols = has_sides ? checked_mul(words[1], 4).value_or(0) : 0;
    if (source.cols == 0 || source.cols % grid[1] != 0 || !is_known_group(source.cols, grid[1])) {
      draft.fault(
          tensor, ErrorCode::kUnsupported,
          "is packed in 8 bits (num_bits 8 in config_groups.{}) with shape {} and scales of shape "
          "{}; this version reads matrices with a scale for each row or for 32, 64 or 128 columns",
          group->name, shape_text(words), shape_text(grid));
      continue;
    }
    source.rows = words[0];
    source.groups = grid[1];
    const auto has_form = [&](const std::optional<StoredTensor>& at, const Shape& shape,
                              DTypeSet dtypes) {
      if (!at || (at->shape == shape && dtypes.has(at->dtype))) return true;
      draft.fault(*at, ErrorCode::kShapeMismatch,
                  "is {} of shape {}, with codes of 8 bits it must be {} of shape {}",
                  dtype_name(at->dtype), shape_text(at->shape), dtypes.text(), shape_text(shape));
      return false;
    };
    if (!has_form(source.zeros, {ceil_div(source.rows, 4), source.groups}, {DType::kI32}) ||
        !has_form(source.order, {source.cols}, {DType::kI32}))
      continue;
    // The order of such a weight is a part of it: that of a run of columns decodes as any other.
    if (source.order) source.form.has_order = source.groups > 1;
    if (!draft.names().find(stem + ".weight_shape") && draft.is_complete) {
      draft.fault(
          tensor, ErrorCode::kMissingTensor,
          "is packed without its dimensions (there is no weight_shape; loaders unpack by it)");
    }
    for (const char* suffix : {".weight_packed", ".weight_zero_point", ".weight_g_idx"}) {
      if (const auto found = draft.names().find(stem + suffix))
        source_of.emplace(&draft.stored[*found], static_cast<std::uint32_t>(sources.size()));
    }
    if (const auto taken = draft.names().find(stem + ".weight")) {
      draft.fault(draft.stored[*taken], ErrorCode::kDuplicate,
                  "is here as well as '{}' (which one is meant? remove the other)", tensor.name);
    }
    sources.push_back(std::move(source));
  }
  if (sources.empty()) return;
  std::vector<StoredTensor> seen;
  std::vector<RepackedView> views;
  for (const StoredTensor& tensor : draft.stored) {
    const auto source = source_of.find(&tensor);
    if (source == source_of.end()) {
      seen.push_back(tensor);
      views.push_back({.made = RepackedAs::kAsStored, .source = 0, .original = tensor});
      continue;
    }
    const InputMajorWeight& weight = sources[source->second];
    const bool is_part = tensor.name.ends_with(".weight_zero_point")
                             ? !weight.form.is_symmetric
                             : tensor.name.ends_with(".weight_g_idx") && weight.form.has_order;
    if (is_packed(tensor)) {
      seen.push_back(viewed_as(tensor, ".weight", DType::kI8, {weight.rows, weight.cols}));
      views.push_back({.made = RepackedAs::kBytes, .source = source->second, .original = tensor});
    } else if (is_part) {
      seen.push_back(tensor);
      views.push_back({.made = RepackedAs::kAsStored, .source = 0, .original = tensor});
    }
  }
  see_repacked(/*has_order=*/false, std::move(sources), std::move(seen), std::move(views), draft);
}

}  // namespace

void repack_codes(Draft& draft) {
  std::optional<InputMajorLayout> layout;
  draft.is_understood = draft.attempt([&] { layout = input_major_layout(draft.config); });
  if (!draft.is_understood) return;
  if (layout) {
    repack_input_major(*layout, draft);
  } else {
    repack_bytes(draft);
  }
  draft.is_understood = std::ranges::none_of(draft.faults.errors(), [](const Error& fault) {
    return fault.code() == ErrorCode::kUnsupported || fault.code() == ErrorCode::kMismatch;
  });
}

std::vector<bool> parts_of_incomplete_weights(const InputMajorLayout& layout, Draft& draft) {
  const InputMajorParts packed(layout, draft);
  std::vector<bool> incomplete;
  for (const StoredTensor& tensor : draft.stored) {
    const InputMajorParts::OfWeight* const parts = packed.find(tensor);
    incomplete.push_back(parts != nullptr && !packed.is_whole(*parts));
  }
  return incomplete;
}

}  // namespace ingot::formats
