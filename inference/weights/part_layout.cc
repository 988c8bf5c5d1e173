#include "inference/weights/part_layout.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/weights/held_bytes.h"

namespace ingot::inference {
namespace {

using formats::Encoding;
using formats::LogicalTensor;
using formats::Part;
using formats::SchemeId;

constexpr std::size_t kShortestFreeGroup = 128;

// Kernels take a first column anywhere in a longer group: they look scales up per 16 columns.
void require_column(const LogicalTensor& tensor, std::size_t first, std::size_t whole_cols) {
  std::size_t step = kDotLanes;
  const std::uint64_t group = tensor.encoding.block_cols;
  if (group != 0 && group < kShortestFreeGroup && group < whole_cols)
    step = std::lcm(step, static_cast<std::size_t>(group));
  if (first % step == 0) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("cannot be read from column {} on: {} needs a multiple of {} (fewer "
                          "ranks of tensor parallelism)",
                          first, formats::scheme_facts(tensor.encoding.scheme).name, step))
      .in_tensor(tensor.name);
}

void lay_out_scales(const Encoding& encoding, PartLayout& layout) {
  const auto block_rows = static_cast<std::size_t>(encoding.block_rows);
  const auto block_cols = static_cast<std::size_t>(encoding.block_cols);
  const PartRange& range = layout.range;
  const std::size_t scale_rows_per_matrix = ceil_div(layout.matrix_rows, block_rows);
  const std::size_t first_row = range.rows.first / block_rows;
  const std::size_t end_row = ceil_div(range.rows.first + range.rows.count, block_rows);
  layout.scale_rows = {.first = range.matrix * scale_rows_per_matrix + first_row,
                       .count = end_row - first_row};
  layout.first_row = range.rows.first - first_row * block_rows;

  const std::size_t end_col = ceil_div(range.cols.first + range.cols.count, block_cols);
  if (block_cols >= layout.matrix_cols) {
    // One group to a row, in which no column stands out: the part begins a group of its own.
    layout.scale_cols = {.first = 0, .count = end_col};
    return;
  }
  // Scale columns in front are dropped only where what remains still begins at a multiple of 16.
  const std::size_t first_col = block_cols % kDotLanes == 0 ? range.cols.first / block_cols : 0;
  layout.scale_cols = {.first = first_col, .count = end_col - first_col};
  layout.first_col = range.cols.first - first_col * block_cols;
}

}  // namespace

PartLayout part_layout(const LogicalTensor& tensor, const PartRange& range, bool with_static) {
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
  layout.code_bits = facts.code_bits;
  const auto within = [](const Range& part, std::size_t whole) {
    return part.first <= whole && part.count <= whole - part.first;
  };
  INGOT_CHECK(within(range.rows, layout.matrix_rows) && within(range.cols, layout.matrix_cols));
  require_column(tensor, range.cols.first, layout.matrix_cols);
  if (range.cols.count * facts.code_bits % 8 != 0) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("cannot be read {} columns wide: two codes share a byte", range.cols.count))
        .in_tensor(tensor.name);
  }
  layout.row_bytes = range.cols.count * facts.code_bits / 8;

  const auto place = [&](PartLayout::Section& section, std::size_t n_bytes) {
    section = {.at = layout.n_bytes, .n_bytes = n_bytes};
    layout.n_bytes += round_up(n_bytes, HeldBytes::kAlignment);
  };
  place(layout.codes, range.rows.count * layout.row_bytes);
  if (range.rows.count == 0 || range.cols.count == 0) return layout;
  if (encoding.block_cols != 0) {
    lay_out_scales(encoding, layout);
    const std::size_t n_scales = layout.scale_rows.count * layout.scale_cols.count;
    if (facts.scale_dtype == formats::DType::kF32) {
      place(layout.scales, n_scales * sizeof(float));
    } else {
      place(layout.scale_codes, n_scales);
    }
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
