#include "formats/storage/scale_shapes.h"

#include "formats/storage/encoding.h"

namespace ingot::formats {

bool is_one_value(const Shape& shape) {
  return shape.empty() || shape == Shape{1};
}

Shape per_row(const Shape& weight) {
  Shape shape = weight;
  shape.back() = 1;
  return shape;
}

bool is_per_row(const Shape& scale, const Shape& weight) {
  Shape flat = weight;
  flat.pop_back();
  return scale == per_row(weight) || scale == flat;
}

bool is_per_matrix(const Shape& scale, const Shape& weight) {
  if (weight.size() == 2) return is_one_value(scale);
  Shape each = weight;
  each[each.size() - 2] = 1;
  each.back() = 1;
  return scale == each;
}

bool is_number(const Shape& shape, const Shape& weight) {
  const bool is_stack = weight.size() > 2;
  return is_one_value(shape) ||
         (is_stack && (is_per_matrix(shape, weight) || shape == Shape{weight.front()}));
}

Shape spread_shape(const Shape& grid) {
  Shape shape = grid;
  shape.insert(shape.end() - 1, 1);
  shape.push_back(1);
  return shape;
}

bool is_grid_of(const Block& block, const Shape& weight, const Shape& scale) {
  const Shape grid = block_scale_shape(weight, block[0], block[1]);
  const bool may_be_spread = scale.size() == grid.size() + 2;
  return block[0] > 1 ? scale == grid || (may_be_spread && scale == spread_shape(grid))
                      : scale == grid && scale.back() > 1;
}

bool is_per_chosen_group(const Shape& scale, const Shape& weight) {
  constexpr std::uint64_t kCodesOfWord = 8;
  if (weight.size() != 2 || scale.size() != 2 || scale.front() != weight.front()) return false;
  if (weight.back() == 0 || scale.back() == 0) return scale.back() == weight.back();
  return weight.back() % scale.back() == 0 && weight.back() / scale.back() % kCodesOfWord == 0;
}

}  // namespace ingot::formats
