#include "formats/checkpoint/relaid_codes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "formats/base/checked.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kCodesPerWord = 8;
constexpr std::string_view kCodesSuffix = ".qweight";
constexpr DTypeSet kScaleDtypes = {DType::kF16, DType::kBf16, DType::kF32};
/// Memory for input rows that are read together.
constexpr std::uint64_t kSlabBytes = std::uint64_t{4} << 20;

/// One weight as it stands in the files.
struct Source {
  StoredTensor codes, scales, zeros;
  std::optional<StoredTensor> order;
  std::uint64_t rows = 0, cols = 0, groups = 0;
};

/// Rows of one scale have no order, which compressed-tensors would not take beside them.
bool has_order(const InputMajorLayout& layout, std::span<const Source> sources) {
  return layout.has_order && std::any_of(sources.begin(), sources.end(),
                                         [](const Source& source) { return source.groups > 1; });
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
              std::vector<Source> sources, std::vector<View> views)
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
    const Source& source = sources_[view.source];
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
  void fill_rows(Made made, const Source& source, std::uint64_t first,
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
    for (std::uint64_t h = 0; h < height; ++h) {
      for (std::uint64_t i = 0; i < n; ++i)
        std::memcpy(&out[(i * height + h) * element], &slab[(h * n + i) * element], element);
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
  void gather_codes(const Source& source, std::uint64_t first, std::span<std::byte> out) const {
    const std::uint64_t words = source.cols / kCodesPerWord;
    const std::uint64_t n = out.size() / sizeof(std::uint32_t) / words;
    const std::uint64_t first_word = first / kCodesPerWord;
    const std::uint64_t n_words = ceil_div(first + n, kCodesPerWord) - first_word;
    const std::vector<std::byte> slab = columns(source.codes, source.cols, first_word, n_words);
    std::vector<std::uint32_t> gathered(n * words, 0);
    for (std::uint64_t col = 0; col < source.cols; ++col) {
      for (std::uint64_t row = 0; row < n; ++row) {
        const std::uint64_t of = first + row;
        std::uint32_t word = 0;
        std::memcpy(&word, &slab[(col * n_words + of / kCodesPerWord - first_word) * sizeof word],
                    sizeof word);
        const std::uint32_t code = word >> shift_of(of % kCodesPerWord) & 15U;
        gathered[row * words + col / kCodesPerWord] |= code << (4 * (col % kCodesPerWord));
      }
    }
    std::memcpy(out.data(), gathered.data(), out.size());
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
  [[nodiscard]] std::uint32_t zeros_of(std::uint32_t word, const Source& source) const {
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

  /// Looks, once, whether what the view leaves out says nothing.
  void prove(std::uint32_t index) const {
    if (is_proven_[index].load(std::memory_order_acquire)) return;
    const Source& source = sources_[index];
    if (layout_.is_symmetric) {
      constexpr std::uint32_t kAllEight = 0x88888888U;
      std::vector<std::byte> zeros =
          columns(source.zeros, source.groups, 0, source.zeros.shape.back());
      for_each_word(zeros, [&](std::uint32_t word) {
        if (zeros_of(word, source) == kAllEight) return word;
        throw fault(source.zeros, ErrorCode::kMismatch,
                    "holds zero points other than 8, but config.json says sym true (correct it)");
      });
    }
    if (source.order && !layout_.has_order) {
      std::vector<std::int32_t> order(source.cols);
      bytes_->read(0, *source.order, 0, std::as_writable_bytes(std::span(order)));
      for (std::uint64_t col = 0; col < source.cols; ++col) {
        if (std::int64_t{order[col]} ==
            static_cast<std::int64_t>(col * source.groups / source.cols))
          continue;
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
  const std::vector<Source> sources_;
  const std::vector<View> views_;
  mutable std::vector<std::atomic<bool>> is_proven_;
};

/// Finds the parts of weights by their names.
class Finder {
 public:
  Finder(const InputMajorLayout& layout, std::span<const SourceFile> files,
         std::span<const StoredTensor> stored, ErrorList& faults)
      : layout_(layout), files_(files), stored_(stored), faults_(faults) {
    for (std::uint32_t i = 0; i < stored.size(); ++i) by_name_.emplace(stored[i].name, i);
  }

  /// The parts of `X`, whose codes are stored tensor `codes`; nothing where they make no weight.
  std::optional<Source> find(const StoredTensor& codes, std::string_view stem) {
    const StoredTensor* scales = part(codes, stem, ".scales", true);
    const StoredTensor* zeros = part(codes, stem, ".qzeros", true);
    const StoredTensor* order = part(codes, stem, ".g_idx", layout_.has_order);
    if (scales == nullptr || zeros == nullptr || (layout_.has_order && order == nullptr)) return {};
    Source source{.codes = codes, .scales = *scales, .zeros = *zeros, .order = std::nullopt};
    if (order != nullptr) source.order = *order;
    if (!has_dtypes(source) || !has_shapes(source)) return {};
    return source;
  }

 private:
  void fault(const StoredTensor& tensor, ErrorCode code, std::string message) {
    faults_.add(
        Error(code, std::move(message)).in_file(files_[tensor.file].name).in_tensor(tensor.name));
  }

  const StoredTensor* part(const StoredTensor& codes, std::string_view stem,
                           std::string_view suffix, bool is_needed) {
    const auto found = by_name_.find(std::string(stem).append(suffix));
    if (found != by_name_.end()) return &stored_[found->second];
    if (is_needed) {
      fault(codes, ErrorCode::kMissingTensor,
            fmt::format("is packed, but there is no '{}{}' (a file missing? fetch it again)", stem,
                        suffix));
    }
    return nullptr;
  }

  bool has_dtypes(const Source& source) {
    bool fits = true;
    const auto require = [&](const StoredTensor& tensor, DTypeSet dtypes) {
      if (dtypes.has(tensor.dtype)) return;
      fits = false;
      fault(tensor, ErrorCode::kDtypeMismatch,
            fmt::format("is {}, must be {}", dtype_name(tensor.dtype), dtypes.text()));
    };
    require(source.codes, {DType::kI32});
    require(source.zeros, {DType::kI32});
    require(source.scales, kScaleDtypes);
    if (source.order) require(*source.order, {DType::kI32});
    return fits;
  }

  bool has_shapes(Source& source) {
    bool fits = true;
    const auto require = [&](const StoredTensor& tensor, const Shape& wanted) {
      if (tensor.shape == wanted) return;
      fits = false;
      fault(
          tensor, ErrorCode::kShapeMismatch,
          fmt::format("has shape {}, beside scales of {} it must have {}", shape_text(tensor.shape),
                      shape_text(source.scales.shape), shape_text(wanted)));
    };
    const auto refuse_scales = [&](std::string message) {
      fault(source.scales, ErrorCode::kShapeMismatch, std::move(message));
      return false;
    };
    if (source.scales.shape.size() != 2 || source.codes.shape.size() != 2)
      return refuse_scales(fmt::format("has shape {}, codes of {} need [groups, rows]",
                                       shape_text(source.scales.shape),
                                       shape_text(source.codes.shape)));
    source.groups = source.scales.shape[0];
    source.rows = source.scales.shape[1];
    const std::uint64_t front = source.codes.shape[0];
    source.cols = layout_.packs_rows ? front : checked_mul(front, kCodesPerWord).value_or(0);
    if (source.rows == 0 || source.cols == 0 || source.groups == 0 ||
        source.rows % kCodesPerWord != 0 || source.rows > kMaxSide || source.cols > kMaxSide ||
        source.cols % (source.groups * kCodesPerWord) != 0) {
      return refuse_scales(fmt::format(
          "has shape {}: {} columns are not {} equal groups of whole words for rows in eights",
          shape_text(source.scales.shape), source.cols, source.groups));
    }
    require(source.codes, layout_.packs_rows ? Shape{source.cols, source.rows / kCodesPerWord}
                                             : Shape{source.cols / kCodesPerWord, source.rows});
    require(source.zeros, {source.groups, source.rows / kCodesPerWord});
    if (source.order) require(*source.order, {source.cols});
    const std::uint64_t claimed = layout_.group_size.value_or(0);
    const std::uint64_t size = source.cols / source.groups;
    if (layout_.group_size && size != (claimed == 0 ? source.cols : claimed)) {
      fault(source.scales, ErrorCode::kMismatch,
            fmt::format("has a scale per {} columns, but config.json says group_size {} (correct "
                        "it)",
                        size, claimed));
      fits = false;
    }
    return fits;
  }

  static constexpr std::uint64_t kMaxSide = std::numeric_limits<std::int32_t>::max();
  const InputMajorLayout& layout_;
  std::span<const SourceFile> files_;
  std::span<const StoredTensor> stored_;
  ErrorList& faults_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;
};

}  // namespace

std::unique_ptr<StoredBytes> relay_codes(const InputMajorLayout& layout,
                                         std::unique_ptr<StoredBytes> bytes,
                                         std::vector<StoredTensor>& stored, ErrorList& faults) {
  std::vector<Source> sources;
  std::unordered_map<std::string, std::uint32_t> source_of;  // by stem
  Finder finder(layout, bytes->files(), stored, faults);
  for (const StoredTensor& tensor : stored) {
    if (!tensor.name.ends_with(kCodesSuffix)) continue;
    const auto stem = tensor.name.substr(0, tensor.name.size() - kCodesSuffix.size());
    if (auto source = finder.find(tensor, stem)) {
      source_of.emplace(stem, static_cast<std::uint32_t>(sources.size()));
      sources.push_back(std::move(*source));
    }
  }
  InputMajorLayout seen_layout = layout;
  seen_layout.has_order = has_order(layout, sources);
  std::vector<StoredTensor> seen;
  std::vector<View> views;
  for (const StoredTensor& tensor : stored) {
    const std::size_t dot = tensor.name.rfind('.');
    const std::string stem = tensor.name.substr(0, std::min(dot, tensor.name.size()));
    const std::string_view part = std::string_view(tensor.name).substr(stem.size());
    const auto found = source_of.find(stem);
    const auto add = [&](std::string_view suffix, Made made, DType dtype, Shape shape) {
      StoredTensor& one = seen.emplace_back(tensor);
      one.name = stem + std::string(suffix);
      one.n_bytes = byte_count(dtype, shape).value();
      one.dtype = dtype;
      one.shape = std::move(shape);
      views.push_back({.made = made, .source = found->second, .original = tensor});
    };
    if (found == source_of.end()) {
      seen.push_back(tensor);
      views.push_back({.made = Made::kAsStored, .source = 0, .original = tensor});
      continue;
    }
    const Source& source = sources[found->second];
    const Shape groups = {source.rows, source.groups};
    if (part == kCodesSuffix) {
      add(".weight_packed", Made::kCodes, DType::kI32, {source.rows, source.cols / kCodesPerWord});
      add(".weight_shape", Made::kDimensions, DType::kI32, {2});
    } else if (part == ".scales") {
      add(".weight_scale", Made::kScales, tensor.dtype, groups);
    } else if (part == ".qzeros") {
      if (!layout.is_symmetric)
        add(".weight_zero_point", Made::kZeros, DType::kI32,
            {source.rows / kCodesPerWord, source.groups});
    } else if (part == ".g_idx") {
      if (seen_layout.has_order) add(".weight_g_idx", Made::kAsStored, DType::kI32, {source.cols});
    } else {
      seen.push_back(tensor);
      views.push_back({.made = Made::kAsStored, .source = 0, .original = tensor});
    }
  }
  stored = std::move(seen);
  return std::make_unique<RelaidBytes>(seen_layout, std::move(bytes), std::move(sources),
                                       std::move(views));
}

}  // namespace ingot::formats
