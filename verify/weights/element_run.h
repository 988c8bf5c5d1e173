#pragma once

#include "formats/container/tensor.h"
#include "quantize/scheme.h"
#include "verify/weights/element_row.h"
#include "verify/weights/element_sums.h"

namespace ingot::verify {

/// Rows of one tensor on both sides.
struct ElementRun {
  formats::MatrixView<const float> source, output;  ///< decoded
  /// The run that `output` was decoded from: compare_elements() reads its scales and where it lies.
  quantize::CodedMatrix stored;
  StepGrid grid;  ///< grid of the output's scheme
};

/// Compares value by value and adds to `sums`. A value is misrounded when it is farther from the
/// source than grid.limit steps, a step being the distance to the neighbouring code on the source's
/// side times the scale; under a scale that is no positive number, when it differs at all. It is
/// saturated instead when its code is the largest and the source lies beyond; with zero points,
/// when it is the first or the last.
///
/// Order of the sums: one piece is a row by 2048 columns, counted from the run's first. Within it
/// differences, products and the sums over 128 columns are FP32 in 16 lanes (column modulo 16);
/// lanes are added up in double from there on, folded by halves (0+8, 1+9, ...; 0+4, ...), and
/// pieces are added in order of rows, then columns. output2 and product follow from the sums of
/// source^2, source x error and error^2. Pieces that FP32 cannot sum (numbers that are not finite,
/// a sum of source^2 outside of 2^-60 ... 2^120, an error larger than half the source's norm),
/// scales outside of 2^-100 ... 2^100 and groups that are no multiple of 16 columns are summed in
/// double from column to column. So every SIMD target gives the same bits.
void compare_elements(const ElementRun& run, ElementSums& sums);

/// Adds the saturated values of a run that was compared to ElementSums::cut_source2 and
/// cut_product, in double from column to column. Counts those as misrounded that keep less of
/// themselves than a search leaves of any.
void sum_cut_off(const ElementRun& run, ElementSums& sums);

/// Compares contiguous BF16 words of both sides as compare_elements() does; decodes only pieces
/// that differ or that FP32 cannot sum. Returns true if all words are the same.
bool compare_words(const quantize::CodedMatrix& source, const quantize::CodedMatrix& output,
                   ElementSums& sums);

namespace scalar {
void compare_elements(const ElementRun& run, ElementSums& sums);  ///< the specification
}

}  // namespace ingot::verify
