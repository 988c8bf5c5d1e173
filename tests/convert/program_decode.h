#pragma once

#include <vector>

#include <gtest/gtest.h>

#include "formats/checkpoint/checkpoint.h"
#include "formats/storage/block_scales.h"
#include "quantize/scheme.h"

namespace ingot::testing {

/// The program's own reading of a matrix.
inline std::vector<float> decoded(const formats::Checkpoint& checkpoint,
                                  const formats::LogicalTensor& tensor) {
  const auto& stored = checkpoint.stored()[tensor.encoding.stored.weight()];
  std::vector<std::byte> codes(stored.n_bytes);
  checkpoint.read(tensor.encoding.stored.weight(), 0, codes);
  const formats::ScaleReader reader(checkpoint, tensor);
  const std::vector<float> scales = reader.read({.first = 0, .n = reader.rows()});
  const std::size_t rows = tensor.shape[0], cols = tensor.shape[1];
  std::vector<float> values(rows * cols);
  const auto faults =
      quantize::decode({.scheme = tensor.encoding.scheme,
                        .codes = codes.data(),
                        .rows = rows,
                        .cols = cols,
                        .row_bytes = codes.size() / rows,
                        .scales = scales,
                        .rows_per_matrix = rows,
                        .scale_cols = reader.cols(),
                        .block_rows = tensor.encoding.block_rows,
                        .block_cols = tensor.encoding.block_cols},
                       {.data = values.data(), .rows = rows, .cols = cols, .stride = cols});
  EXPECT_EQ(faults.nan_codes, 0U);
  return values;
}

}  // namespace ingot::testing
