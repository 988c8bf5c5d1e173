#include "cli/inspect_tensor.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "cli/inspect_summary.h"
#include "formats/base/checked.h"
#include "formats/base/figures.h"
#include "formats/base/parallel.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"
#include "quantize/scheme.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using formats::StoredTensor;
using formats::TensorSource;
using quantize::TensorStatistics;

namespace {

// Elements decoded at a time by one thread.
constexpr std::uint64_t kBandElements = std::uint64_t{1} << 20;
// Rows of the histogram; values below are counted together.
constexpr std::size_t kHistogramRows = 20;

// The pieces in which a matrix is decoded: whole rows, or runs of whole blocks where a row is
// longer than a band.
struct Bands {
  std::uint64_t rows = 0, cols = 0, row_step = 1, col_step = 1;

  Bands(const formats::Shape& shape, std::uint64_t block_cols) {
    cols = shape.empty() ? 1 : shape.back();
    const std::uint64_t elements = formats::element_count(shape).value_or(0);
    rows = elements == 0 ? 0 : elements / cols;
    // A scale over whole rows or tensors limits nothing; an even number of 4-bit codes fills bytes.
    const std::uint64_t unit =
        block_cols > kBandElements ? 2 : std::max<std::uint64_t>(block_cols, 1);
    col_step = std::max(round_down(kBandElements, unit), unit);
    if (cols <= col_step) {
      col_step = std::max<std::uint64_t>(cols, 1);
      row_step = std::max<std::uint64_t>(kBandElements / col_step, 1);
    }
  }
  [[nodiscard]] std::uint64_t count() const {
    return ceil_div(rows, row_step) * ceil_div(cols, col_step);
  }
};

std::string histogram_text(const TensorStatistics& statistics) {
  std::vector<std::size_t> exponents;
  std::uint64_t most = 0;
  for (std::size_t e = TensorStatistics::kExponents; e-- > 0;) {
    if (statistics.in_exponent(e) == 0) continue;
    exponents.push_back(e);
    most = std::max(most, statistics.in_exponent(e));
  }
  if (exponents.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    const std::uint64_t n = statistics.in_exponent(exponents[i]);
    if (i >= kHistogramRows) {
      below += n;
      continue;
    }
    const auto cells =
        static_cast<std::size_t>(40.0 * static_cast<double>(n) / static_cast<double>(most) + 0.5);
    const std::string power =
        exponents[i] == 0 ? "subnormal" : fmt::format("2^{}", static_cast<int>(exponents[i]) - 127);
    rows.push_back({power, count_text(n), std::string(cells, '#')});
  }
  if (below > 0) rows.push_back({"smaller", count_text(below)});
  return "  magnitudes from\n" + text_table(rows, {true, true, false});
}

std::string statistics_text(const TensorStatistics& statistics) {
  const double share = statistics.count() == 0 ? 0
                                               : 100 * static_cast<double>(statistics.zeros()) /
                                                     static_cast<double>(statistics.count());
  std::string text =
      fmt::format("  values  {}, {} zero ({:.2f}%), {} NaN, {} infinite\n",
                  count_text(statistics.count()), count_text(statistics.zeros()), share,
                  count_text(statistics.nans()), count_text(statistics.infinities()));
  text += fmt::format("  range   {} to {}, amax {}\n", statistics.min(), statistics.max(),
                      statistics.amax());
  text += fmt::format("  mean    {:.6g}, rms {:.6g}\n", statistics.mean(), statistics.rms());
  return text + histogram_text(statistics);
}

}  // namespace

std::optional<TensorStatistics> tensor_statistics(const TensorSource& source,
                                                  const LogicalTensor& tensor,
                                                  std::size_t threads) {
  const quantize::Scheme* scheme = quantize::find_scheme(tensor.encoding.scheme);
  if (scheme == nullptr || scheme->decode == nullptr) return std::nullopt;
  const formats::ScaleReader scale_reader(source, tensor, {.allow_zero = true});
  const std::size_t code_bits = formats::scheme_facts(tensor.encoding.scheme).code_bits;
  const bool is_blocked = tensor.encoding.block_cols > 0;
  const Bands bands(tensor.shape, tensor.encoding.block_cols);
  const std::uint64_t bands_across = ceil_div(bands.cols, bands.col_step);

  TensorStatistics all;
  std::mutex mutex;
  parallel_for(bands.count(), threads, [&](std::size_t band) {
    const std::uint64_t row = band / bands_across * bands.row_step;
    const std::uint64_t col = band % bands_across * bands.col_step;
    const auto n_rows = static_cast<std::size_t>(std::min(bands.row_step, bands.rows - row));
    const auto n_cols = static_cast<std::size_t>(std::min(bands.col_step, bands.cols - col));
    std::vector<std::byte> bytes(n_rows * n_cols * code_bits / 8);
    source.read(tensor.encoding.stored.weight(), (row * bands.cols + col) * code_bits / 8, bytes);
    const formats::ScaleReader::Range range = scale_reader.range_of(row, n_rows);
    const std::vector<float> scales = scale_reader.read(range);
    std::vector<float> values(n_rows * n_cols);
    scheme->decode(
        {.weight = bytes.data(),
         .rows = n_rows,
         .cols = n_cols,
         .first_row = row,
         .first_col = col,
         .scales = scales,
         .first_scale_row = range.first,
         .rows_per_matrix = tensor.shape.size() >= 2 ? tensor.shape[tensor.shape.size() - 2] : 1,
         .scale_cols = is_blocked ? ceil_div(bands.cols, tensor.encoding.block_cols) : 0,
         .block_rows = tensor.encoding.block_rows,
         .block_cols = tensor.encoding.block_cols},
        {.data = values.data(), .rows = n_rows, .cols = n_cols, .stride = n_cols});
    TensorStatistics here;
    here.accumulate(values);
    const std::lock_guard lock(mutex);
    all.merge(here);
  });
  return all;
}

std::string tensor_text(const Checkpoint& checkpoint, const LogicalTensor& tensor,
                        const std::optional<TensorStatistics>& statistics) {
  std::string text = printable(tensor.name) + "\n";
  text += fmt::format("  role    {}", formats::role_name(role_of(tensor)));
  if (tensor.layer) text += fmt::format(", layer {}", *tensor.layer);
  if (tensor.expert) text += fmt::format(", expert {}", *tensor.expert);
  text += fmt::format("\n  scheme  {}", formats::scheme_facts(tensor.encoding.scheme).name);
  if (tensor.encoding.block_cols > 0) {
    text +=
        fmt::format(", blocks of {}x{}", tensor.encoding.block_rows, tensor.encoding.block_cols);
  }
  text += fmt::format("\n  shape   {}\n", formats::shape_text(tensor.shape));
  tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
    const StoredTensor& stored = checkpoint.stored()[index];
    text += fmt::format("  stored  {} {} {}, {} bytes at byte {} of {}\n", printable(stored.name),
                        formats::dtype_name(stored.dtype), formats::shape_text(stored.shape),
                        count_text(stored.n_bytes), stored.offset,
                        printable(checkpoint.files()[stored.file].name));
  });
  if (statistics) return text + statistics_text(*statistics);
  return text + "  values  not shown: this dtype is copied, never computed with\n";
}

Json statistics_json(const std::optional<TensorStatistics>& statistics) {
  if (!statistics) return nullptr;
  Json histogram = Json::array();
  for (std::size_t e = TensorStatistics::kExponents; e-- > 0;) {
    if (const std::uint64_t n = statistics->in_exponent(e); n > 0) {
      // Subnormal values stand below the smallest power that a normal F32 has.
      histogram.push_back(
          {{"exponent", e == 0 ? Json(nullptr) : Json(static_cast<int>(e) - 127)}, {"count", n}});
    }
  }
  return {{"count", statistics->count()}, {"zeros", statistics->zeros()},
          {"nans", statistics->nans()},   {"infinities", statistics->infinities()},
          {"min", statistics->min()},     {"max", statistics->max()},
          {"amax", statistics->amax()},   {"mean", statistics->mean()},
          {"rms", statistics->rms()},     {"histogram", std::move(histogram)}};
}

}  // namespace ingot::cli
