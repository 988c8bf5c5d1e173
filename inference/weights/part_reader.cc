// Rows of a matrix follow each other in the file. Whole rows are read into place in bands, several
// at once, as a fast disk needs it. For some columns the rows are read whole all the same and cut
// in memory: a request per row would cost more than the bytes that it saves, until rows are longer
// than any model's.

#include "inference/weights/part_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/container/float8.h"
#include "formats/places/window.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/encoding.h"
#include "inference/weights/held_bytes.h"
#include "quantize/scheme.h"

namespace ingot::inference {

using formats::DType;
using formats::Encoding;
using formats::LogicalTensor;
using formats::Part;
using formats::ScaleReader;
using formats::SchemeId;
using formats::StoredTensor;
using formats::TensorSource;

namespace {

constexpr std::size_t kBandBytes = std::size_t{4} << 20;
/// The band of rows that are cut: as much as a processor's cache still holds when they are copied.
constexpr std::size_t kCutBandBytes = std::size_t{1} << 20;

/// body(i, scratch) for every band, on threads that may wait for the disk, each with so many bytes
/// of its own.
void for_each_band(std::size_t n_bands, std::size_t threads, std::size_t scratch_bytes,
                   const std::function<void(std::size_t, std::byte*)>& body) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&](std::size_t) {
    try {
      const HeldBytes scratch(scratch_bytes);
      for (std::size_t i = next++; i < n_bands; i = next++) {
        StopScope::check();
        body(i, scratch.data());
      }
    } catch (...) {
      next = n_bands;  // no thread takes another band
      throw;
    }
  };
  const std::size_t workers = std::min(threads, n_bands);
  if (workers <= 1) {
    work(0);
  } else {
    run_workers(workers, work);
  }
}

/// True if a weight is in memory as F32: its scheme is only read, or its columns have factors.
/// Kernels that multiply codes have no factors of columns.
bool is_read_as_values(const Encoding& encoding) {
  return formats::is_read_only(encoding.scheme) || encoding.stored.has(Part::kColumnFactor);
}

class PartReader {
 public:
  PartReader(const TensorSource& source, const LogicalTensor& tensor, const PartLayout& layout,
             std::byte* memory, std::atomic<std::uint64_t>& n_read)
      : source_(source), tensor_(tensor), layout_(layout), memory_(memory), n_read_(n_read) {}

  ReadPart run(std::size_t threads) {
    const bool is_decoded = is_read_as_values(tensor_.encoding);
    part_.weight = {.scheme = is_decoded ? SchemeId::kF32 : tensor_.encoding.scheme,
                    .codes = memory_ + layout_.codes.at,
                    .rows = layout_.range.rows.count,
                    .cols = layout_.range.cols.count,
                    .row_bytes = layout_.row_bytes};
    if (layout_.codes.n_bytes == 0) return part_;
    if (is_decoded) {
      read_values(threads);
      return part_;
    }
    read_scales();
    read_static();
    read_codes(threads);
    return part_;
  }

 private:
  void read(Part part, std::uint64_t offset, std::span<std::byte> out) {
    source_.read(tensor_.encoding.stored[part], offset, out);
    n_read_ += out.size();
  }

  template <typename T>
  T* at(const PartLayout::Section& section) {
    return reinterpret_cast<T*>(memory_ + section.at);
  }

  void read_codes(std::size_t threads) {
    const Range& rows = layout_.range.rows;
    const Range& cols = layout_.range.cols;
    const std::size_t whole_row = layout_.matrix_cols * layout_.code_bits / 8;
    const std::size_t into_row = cols.first * layout_.code_bits / 8;
    const std::uint64_t first =
        (std::uint64_t{layout_.range.matrix} * layout_.matrix_rows + rows.first) * whole_row;
    std::byte* out = at<std::byte>(layout_.codes);
    if (layout_.row_bytes == whole_row) {
      const std::size_t total = layout_.codes.n_bytes;
      for_each_band(ceil_div(total, kBandBytes), threads, 0, [&](std::size_t band, std::byte*) {
        const std::size_t begin = band * kBandBytes;
        read(Part::kWeight, first + begin, {out + begin, std::min(kBandBytes, total - begin)});
      });
      return;
    }
    const std::size_t band_rows = std::max<std::size_t>(kCutBandBytes / whole_row, 1);
    const std::size_t n_bands = ceil_div(rows.count, band_rows);
    const auto cut = [&](std::size_t band, std::byte* scratch) {
      const std::size_t begin = band * band_rows;
      const std::size_t n = std::min(band_rows, rows.count - begin);
      read(Part::kWeight, first + begin * whole_row + into_row,
           {scratch, (n - 1) * whole_row + layout_.row_bytes});
      for (std::size_t r = 0; r < n; ++r) {
        std::memcpy(out + (begin + r) * layout_.row_bytes, scratch + r * whole_row,
                    layout_.row_bytes);
      }
    };
    for_each_band(n_bands, threads, std::min(band_rows, rows.count) * whole_row, cut);
  }

  // Decodes a weight that is_read_as_values(). Infinite values might vanish behind an activation
  // function.
  void read_values(std::size_t threads) {
    const Range& rows = layout_.range.rows;
    const Range& cols = layout_.range.cols;
    const ScaleReader reader(source_, tensor_);
    const std::size_t code_bits = formats::scheme_facts(tensor_.encoding.scheme).code_bits;
    const std::size_t whole_row = layout_.matrix_cols * code_bits / 8;
    const std::size_t band_rows = std::max<std::size_t>(kCutBandBytes / whole_row, 1);
    const auto decode = [&](std::size_t band, std::byte* scratch) {
      const std::size_t begin = band * band_rows, n = std::min(band_rows, rows.count - begin);
      const std::uint64_t first =
          std::uint64_t{layout_.range.matrix} * layout_.matrix_rows + rows.first + begin;
      read(Part::kWeight, first * whole_row, {scratch, n * whole_row});
      const ScaleReader::Range range = reader.range_of(first, n);
      const std::vector<float> scales = reader.read(range);
      const std::vector<std::uint8_t> zeros = reader.read_zeros(range);
      const CodedMatrix codes = {.scheme = tensor_.encoding.scheme,
                                 .codes = scratch,
                                 .rows = n,
                                 .cols = layout_.matrix_cols,
                                 .row_bytes = whole_row,
                                 .first_row = first,
                                 .scales = scales,
                                 .first_scale_row = range.first,
                                 .rows_per_matrix = layout_.matrix_rows,
                                 .scale_cols = reader.cols(),
                                 .block_rows = tensor_.encoding.block_rows,
                                 .block_cols = tensor_.encoding.block_cols,
                                 .zeros = zeros,
                                 .group_order = reader.group_order(),
                                 .column_factors = reader.column_factors()};
      float* out = at<float>(layout_.codes) + begin * cols.count;
      quantize::decode(codes.part(0, n, cols.first, cols.count),
                       {.data = out, .rows = n, .cols = cols.count, .stride = cols.count});
      require_finite({out, n * cols.count});
    };
    for_each_band(ceil_div(rows.count, band_rows), threads,
                  std::min(band_rows, rows.count) * whole_row, decode);
  }

  void require_finite(std::span<const float> values) const {
    const auto bad =
        std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) return;
    throw Error(ErrorCode::kNonFinite, "holds a code that decodes to {} (fetch the file again)",
                *bad)
        .in_file(source_.files()[source_.stored()[tensor_.encoding.stored.weight()].file].name)
        .in_tensor(tensor_.name);
  }

  void read_scales() {
    if (layout_.scale_cols.count == 0) return;
    const ScaleReader reader(source_, tensor_);
    for (const Part part : {Part::kGlobal, Part::kOffset, Part::kDimensions, Part::kGroupOrder})
      count(part);
    CodedMatrix& weight = part_.weight;
    weight.block_rows = tensor_.encoding.block_rows;
    weight.block_cols = tensor_.encoding.block_cols;
    weight.first_row = layout_.first_row;
    weight.first_col = layout_.first_col;
    weight.scale_cols = layout_.scale_cols.count;
    if (layout_.scale_codes.n_bytes != 0) {
      read_scale_codes(reader);
      return;
    }
    const std::vector<float> scales =
        reader.read({.first = layout_.scale_rows.first, .n = layout_.scale_rows.count});
    const std::uint32_t stored = tensor_.encoding.stored.has(Part::kScale)
                                     ? tensor_.encoding.stored[Part::kScale]
                                     : tensor_.encoding.stored[Part::kDeqScale];
    n_read_ += scales.size() * formats::dtype_bits(source_.stored()[stored].dtype) / 8;
    float* out = at<float>(layout_.scales);
    weight.scales = {out, layout_.scales.n_bytes / sizeof(float)};
    const Range& cols = layout_.scale_cols;
    for (std::size_t r = 0; r < layout_.scale_rows.count; ++r)
      std::copy_n(scales.data() + r * reader.cols() + cols.first, cols.count, out + r * cols.count);
    read_zeros(reader);
  }

  void read_zeros(const ScaleReader& reader) {
    const Range& rows = layout_.scale_rows;
    const Range& cols = layout_.scale_cols;
    if (layout_.zeros.n_bytes != 0) {
      const std::vector<std::uint8_t> zeros =
          reader.read_zeros({.first = rows.first, .n = rows.count});
      n_read_ += zeros.size() / 2;
      auto* out = at<std::uint8_t>(layout_.zeros);
      part_.weight.zeros = {out, layout_.zeros.n_bytes};
      for (std::size_t r = 0; r < rows.count; ++r)
        std::copy_n(zeros.data() + r * reader.cols() + cols.first, cols.count,
                    out + r * cols.count);
    }
    // An order that is none leaves its room unused.
    if (const auto order = reader.group_order(); !order.empty()) {
      auto* out = at<std::uint32_t>(layout_.group_order);
      std::ranges::copy(order, out);
      part_.weight.group_order = {out, order.size()};
    }
  }

  // Bytes of a part that ScaleReader has read whole.
  void count(Part part) {
    if (!tensor_.encoding.stored.has(part)) return;
    n_read_ += source_.stored()[tensor_.encoding.stored[part]].n_bytes;
  }

  // Scale bytes stay as they are: widened, those of NVFP4 would take a quarter of the codes again.
  void read_scale_codes(const ScaleReader& reader) {
    const StoredTensor& stored = source_.stored()[tensor_.encoding.stored[Part::kScale]];
    const Range& rows = layout_.scale_rows;
    const Range& cols = layout_.scale_cols;
    const std::size_t whole_row = reader.cols();
    auto* out = at<std::uint8_t>(layout_.scale_codes);
    part_.weight.scale_codes = out;
    part_.weight.scale_values = table_of(stored.dtype, reader.global());

    const bool is_whole = cols.count == whole_row;
    const HeldBytes whole(is_whole ? 0 : rows.count * whole_row);
    std::byte* bytes = is_whole ? reinterpret_cast<std::byte*>(out) : whole.data();
    read(Part::kScale, std::uint64_t{rows.first} * whole_row, {bytes, rows.count * whole_row});
    for (std::size_t r = 0; !is_whole && r < rows.count; ++r)
      std::memcpy(out + r * cols.count, bytes + r * whole_row + cols.first, cols.count);
    require_good(reader, stored.dtype);
  }

  const float* table_of(DType dtype, const std::optional<formats::GlobalScale>& global) {
    std::array<std::byte, 256> codes;
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
    if (layout_.scale_values.n_bytes != 0) {
      float* values = at<float>(layout_.scale_values);
      formats::widen_scales(dtype, codes, global, {values, codes.size()});
      return values;
    }
    // Without a global scale a code means the same in every weight.
    static const std::array<float, 256> exponents = [&] {
      std::array<float, 256> values;
      formats::widen_scales(DType::kF8E8M0, codes, std::nullopt, values);
      return values;
    }();
    INGOT_CHECK(dtype == DType::kF8E8M0 || dtype == DType::kU8);
    return exponents.data();
  }

  // ScaleReader can name the fault, so it reads a row with a bad scale again.
  void require_good(const ScaleReader& reader, DType dtype) const {
    std::array<bool, 256> is_good;
    for (std::size_t code = 0; code < is_good.size(); ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      const bool is_stored_well = dtype == DType::kF8E4M3
                                      ? formats::kE4m3Values[byte] > 0 && byte != formats::kE4m3Nan
                                      : byte != formats::kE8m0Nan;
      const float effective = part_.weight.scale_values[code];
      is_good[code] = is_stored_well && std::isfinite(effective) && effective > 0;
    }
    const std::uint8_t* codes = part_.weight.scale_codes;
    const std::size_t n = layout_.scale_codes.n_bytes;
    const auto* bad =
        std::find_if(codes, codes + n, [&](std::uint8_t code) { return !is_good[code]; });
    if (bad == codes + n) return;
    const auto row = static_cast<std::size_t>(bad - codes) / layout_.scale_cols.count;
    static_cast<void>(reader.read({.first = layout_.scale_rows.first + row, .n = 1}));
    INGOT_CHECK(false);  // read() throws for such a code
  }

  void read_static() {
    const std::uint64_t first =
        std::uint64_t{layout_.range.matrix} * layout_.matrix_rows + layout_.range.rows.first;
    const std::size_t rows = layout_.range.rows.count;
    if (layout_.quant_bias.n_bytes != 0) {
      auto* out = at<std::int32_t>(layout_.quant_bias);
      read(Part::kQuantBias, first * sizeof *out, std::as_writable_bytes(std::span(out, rows)));
      part_.fixed.quant_bias = out;
    }
    if (layout_.deq_scale.n_bytes != 0) {
      const DType dtype = source_.stored()[tensor_.encoding.stored[Part::kDeqScale]].dtype;
      const std::size_t width = formats::dtype_bits(dtype) / 8;
      std::vector<std::byte> bytes(rows * width);
      read(Part::kDeqScale, first * width, bytes);
      auto* out = at<float>(layout_.deq_scale);
      formats::widen_scales(dtype, bytes, std::nullopt, {out, rows});
      require_good_deq({out, rows});
      part_.fixed.deq_scale = out;
    }
  }

  // With a weight_scale no other reader has checked these.
  void require_good_deq(std::span<const float> scales) const {
    for (std::size_t i = 0; i < scales.size(); ++i) {
      if (std::isfinite(scales[i]) && scales[i] > 0) continue;
      const StoredTensor& stored = source_.stored()[tensor_.encoding.stored[Part::kDeqScale]];
      throw Error(
          ErrorCode::kBadScale,
          "scale {} in row {} is {}; it must be finite and above zero (fetch the file again)",
          stored.name, layout_.range.rows.first + i, scales[i])
          .in_file(source_.files()[stored.file].name)
          .in_tensor(tensor_.name);
    }
  }

  const TensorSource& source_;
  const LogicalTensor& tensor_;
  const PartLayout& layout_;
  std::byte* memory_;
  std::atomic<std::uint64_t>& n_read_;
  ReadPart part_;
};

}  // namespace

ReadPart read_part(const TensorSource& source, const LogicalTensor& tensor,
                   const PartLayout& layout, std::byte* memory, std::size_t threads,
                   std::atomic<std::uint64_t>& n_read) {
  return PartReader(source, tensor, layout, memory, n_read).run(threads);
}

namespace {

constexpr std::size_t kShortestFreeGroup = 128;

// Kernels take a first column anywhere in a longer group: they look scales up per 16 columns.
void require_column(const LogicalTensor& tensor, std::size_t first, std::size_t whole_cols) {
  std::size_t step = kDotLanes;
  const std::uint64_t group = is_read_as_values(tensor.encoding) ? 0 : tensor.encoding.block_cols;
  if (group != 0 && group < kShortestFreeGroup && group < whole_cols)
    step = std::lcm(step, static_cast<std::size_t>(group));
  if (first % step == 0) return;
  throw Error(ErrorCode::kUnsupported,
              "cannot be read from column {} on: {} needs a multiple of {} (fewer ranks of tensor "
              "parallelism)",
              first, formats::scheme_facts(tensor.encoding.scheme).name, step)
      .in_tensor(tensor.name);
}

void lay_out_scales(const Encoding& encoding, PartLayout& layout) {
  const LinearPart& range = layout.range;
  const std::uint64_t block_cols = encoding.block_cols;
  const formats::Covered rows = formats::cover({.first = range.rows.first, .n = range.rows.count},
                                               encoding.block_rows, layout.matrix_rows);
  const formats::Covered cols = formats::cover({.first = range.cols.first, .n = range.cols.count},
                                               block_cols, layout.matrix_cols);
  layout.scale_rows = {
      .first = range.matrix * ceil_div(layout.matrix_rows, encoding.block_rows) + rows.units.first,
      .count = rows.units.n};
  layout.first_row = rows.skipped;
  layout.scale_cols = {.first = cols.units.first, .count = cols.units.n};
  layout.first_col = cols.skipped;
  // The columns of any group may be at any place; and groups in front are dropped only where the
  // rest still begins at a multiple of 16.
  const bool is_long = block_cols % kDotLanes == 0 || block_cols >= layout.matrix_cols;
  if (!encoding.stored.has(Part::kGroupOrder) && is_long) return;
  layout.scale_cols = {.first = 0, .count = ceil_div(layout.matrix_cols, block_cols)};
  layout.first_col = range.cols.first;
}

}  // namespace

PartLayout part_layout(const LogicalTensor& tensor, const LinearPart& range, bool with_static) {
  const Encoding& encoding = tensor.encoding;
  const formats::SchemeFacts& facts = formats::scheme_facts(encoding.scheme);
  if (encoding.scheme == SchemeId::kRaw) {
    throw Error(ErrorCode::kUnsupported, "is of a dtype that nothing is computed with")
        .in_tensor(tensor.name);
  }
  INGOT_CHECK(tensor.shape.size() >= 2);
  PartLayout layout;
  layout.range = range;
  layout.matrix_rows = tensor.shape[tensor.shape.size() - 2];
  layout.matrix_cols = tensor.shape.back();
  layout.code_bits = is_read_as_values(encoding) ? 32 : facts.code_bits;
  const auto within = [](const Range& part, std::size_t whole) {
    return part.first <= whole && part.count <= whole - part.first;
  };
  INGOT_CHECK(within(range.rows, layout.matrix_rows) && within(range.cols, layout.matrix_cols));
  require_column(tensor, range.cols.first, layout.matrix_cols);
  if (range.cols.count * layout.code_bits % 8 != 0) {
    throw Error(ErrorCode::kUnsupported, "cannot be read {} columns wide: two codes share a byte",
                range.cols.count)
        .in_tensor(tensor.name);
  }
  layout.row_bytes = range.cols.count * layout.code_bits / 8;

  const auto place = [&](PartLayout::Section& section, std::size_t n_bytes) {
    section = {.at = layout.n_bytes, .n_bytes = n_bytes};
    layout.n_bytes += round_up(n_bytes, HeldBytes::kAlignment);
  };
  place(layout.codes, range.rows.count * layout.row_bytes);
  if (range.rows.count == 0 || range.cols.count == 0) return layout;
  if (encoding.block_cols != 0 && !is_read_as_values(encoding)) {
    lay_out_scales(encoding, layout);
    const std::size_t n_scales = layout.scale_rows.count * layout.scale_cols.count;
    if (formats::dtype_bits(facts.scale_dtype) > 8) {
      place(layout.scales, n_scales * sizeof(float));
    } else {
      place(layout.scale_codes, n_scales);
    }
    if (encoding.stored.has(Part::kZeroPoint)) place(layout.zeros, n_scales);
    if (encoding.stored.has(Part::kGroupOrder))
      place(layout.group_order, layout.matrix_cols * sizeof(std::uint32_t));
    if (encoding.stored.has(Part::kGlobal)) place(layout.scale_values, 256 * sizeof(float));
  }
  if (with_static && encoding.scheme == SchemeId::kInt8Channel) {
    // Added once to the sum of all parts.
    if (encoding.stored.has(Part::kQuantBias) && range.cols.first == 0)
      place(layout.quant_bias, range.rows.count * sizeof(std::int32_t));
    if (encoding.stored.has(Part::kDeqScale))
      place(layout.deq_scale, range.rows.count * sizeof(float));
  }
  return layout;
}

}  // namespace ingot::inference
