#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "formats/storage/tensor_source.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "inference/weights/held_bytes.h"
#include "inference/weights/linear.h"
#include "quantize/coded_matrix.h"

namespace ingot::inference {

/// Part of a weight.
struct LinearPart {
  std::string name;        ///< canonical
  formats::Shape whole;    ///< the required shape of the weight: [rows, cols], of a stack [E, rows,
                           ///< cols]
  std::size_t matrix = 0;  ///< number of the matrix in a stack
  Range rows, cols;
};

/// The places of a part of an encoded weight in its stored tensors, and in the one run of memory
/// that will hold it. Bytes from the start of the run; a section of no bytes is not there.
struct PartLayout {
  struct Section {
    std::size_t at = 0, n_bytes = 0;
  };

  LinearPart range;
  std::size_t matrix_rows = 0, matrix_cols = 0;  ///< sizes of the whole matrix
  std::size_t code_bits = 0;  ///< bits of a code in memory; 32 for weights that are decoded there
  std::size_t row_bytes = 0;  ///< bytes of a row of the part
  /// Scale rows of the flattened weight and scale columns that the part needs, and the place of its
  /// first element in the first group of them.
  Range scale_rows, scale_cols;
  std::size_t first_row = 0, first_col = 0;

  Section codes;
  Section scales;        ///< F32, effective
  Section zeros;         ///< INT4: the code of zero under each scale
  Section group_order;   ///< INT4: of all columns of the matrix
  Section scale_codes;   ///< NVFP4 and MX: as stored
  Section scale_values;  ///< NVFP4: F32 of every scale code
  Section quant_bias;    ///< I32, one per row
  Section deq_scale;     ///< F32, one per row
  std::size_t n_bytes = 0;
};

/// Returns the places of a part. `with_static`: with the parts that a native product of statically
/// quantized INT8 needs. Throws kUnsupported for a scheme without numbers, and for columns that
/// begin elsewhere than at a multiple of 16 and of the group that shares a scale where that is
/// shorter than 128 and than a row. The range must lie within the weight.
PartLayout part_layout(const formats::LogicalTensor& tensor, const LinearPart& range,
                       bool with_static);

/// A part of a weight in memory that the caller holds.
struct ReadPart {
  CodedMatrix weight;
  StaticInt8 fixed;  ///< null where the layout has no room for them
};

/// Reads into `memory`, layout.n_bytes at an edge of HeldBytes::kAlignment, on at most `threads`
/// threads and adds the bytes taken from the source to `n_read`. Scales must be finite and above
/// zero (kBadScale with position and value), offsets of codes zero (kUnsupported).
ReadPart read_part(const formats::TensorSource& source, const formats::LogicalTensor& tensor,
                   const PartLayout& layout, std::byte* memory, std::size_t threads,
                   std::atomic<std::uint64_t>& n_read);

}  // namespace ingot::inference
