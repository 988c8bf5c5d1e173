#include "library/decoded_bands.h"

#include <algorithm>
#include <array>
#include <vector>

#include "formats/base/parallel.h"
#include "formats/storage/block_scales.h"
#include "quantize/scheme.h"

namespace ingot::library {

bool decode_bands(
    const formats::TensorSource& source, const formats::LogicalTensor& tensor, std::size_t threads,
    const std::function<void(const verify::WeightBand&, std::span<const float>)>& visit,
    RowRange rows) {
  const formats::Encoding& encoding = tensor.encoding;
  if (encoding.scheme == formats::SchemeId::kRaw) return false;
  const formats::ScaleReader scale_reader(source, tensor, {.allow_zero = true});
  const std::array<std::uint64_t, 2> group = {encoding.block_rows, encoding.block_cols};
  const verify::WeightBands bands(tensor.shape, group, group, 1);
  parallel_for(bands.count(), threads, [&](std::size_t i) {
    verify::WeightBand band = bands.band(i);
    const std::uint64_t end = std::min(band.row + band.rows, rows.end);
    band.row = std::max(band.row, rows.begin);
    if (band.row >= end) return;
    band.rows = end - band.row;
    std::vector<std::byte> codes;
    const verify::EncodedBand read = verify::read_band(
        {source, tensor}, band, encoding.block_cols > 0 ? &scale_reader : nullptr, codes);
    std::vector<float> values(band.rows * band.cols);
    quantize::decode(
        read.run,
        {.data = values.data(), .rows = band.rows, .cols = band.cols, .stride = band.cols});
    visit(band, values);
  });
  return true;
}

}  // namespace ingot::library
