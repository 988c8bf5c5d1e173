#pragma once

#include <array>
#include <cstdint>

#include "formats/container/tensor.h"

// The shapes that the scales of a weight may have: tools write "one for each row" in several ways.

namespace ingot::formats {

/// Rows and columns of numbers that share a scale.
using Block = std::array<std::uint64_t, 2>;

/// True if the shape is [] or [1].
bool is_one_value(const Shape& shape);

/// One value for each row: [rows, 1].
Shape per_row(const Shape& weight);
/// True if the scale is per_row(weight), or [rows].
bool is_per_row(const Shape& scale, const Shape& weight);

/// True if the scale is one value; for a stack one for each matrix, [matrices, 1, 1], since [1]
/// would be too few.
bool is_per_matrix(const Shape& scale, const Shape& weight);

/// True if the shape is that of one number, or for a stack of one in all or one for each matrix.
bool is_number(const Shape& shape, const Shape& weight);

/// [..., rows, 1, columns, 1] for the grid [..., rows, columns], as ModelOpt stores its scales.
Shape spread_shape(const Shape& grid);

/// True if the scale has a value for each block, in a grid or in one that is spread. One number per
/// row is not taken for a block as long as a row.
bool is_grid_of(const Block& block, const Shape& weight, const Shape& scale);

/// True if the scale is [rows, groups] for equal groups of whole words of eight codes.
bool is_per_chosen_group(const Shape& scale, const Shape& weight);

}  // namespace ingot::formats
