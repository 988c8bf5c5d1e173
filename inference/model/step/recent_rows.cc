#include "inference/model/step/recent_rows.h"

#include <algorithm>

#include "formats/base/error.h"

namespace ingot::inference {

RecentRows::RecentRows(std::span<float> memory, std::size_t width)
    : memory_(memory), width_(width), capacity_(memory.size() / width) {
  INGOT_CHECK(capacity_ > 0 && capacity_ * width == memory.size());
}

Matrix RecentRows::followed_by(std::size_t position, std::size_t n,
                               MatrixView<const float> rows) const {
  INGOT_CHECK(n <= capacity_ && rows.cols == width_);
  Matrix joined(n + rows.rows, width_);
  for (std::size_t back = 1; back <= std::min(n, position); ++back) {
    const auto from = memory_.subspan((position - back) % capacity_ * width_, width_);
    std::ranges::copy(from, joined.row(n - back).begin());
  }
  for (std::size_t r = 0; r < rows.rows; ++r) {
    std::copy_n(rows.row(r), width_, joined.row(n + r).data());
  }
  return joined;
}

void RecentRows::keep(std::size_t position, MatrixView<const float> rows) {
  INGOT_CHECK(rows.cols == width_);
  for (std::size_t r = rows.rows - std::min(rows.rows, capacity_); r < rows.rows; ++r) {
    std::copy_n(rows.row(r), width_, memory_.data() + (position + r) % capacity_ * width_);
  }
}

}  // namespace ingot::inference
