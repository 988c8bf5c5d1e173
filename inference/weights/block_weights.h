#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// The weights of one block of a layer, or those outside the layers, found by what they are for.
/// Throws as WeightStore does.
class BlockWeights {
 public:
  /// `number` as in TensorRule::block. `store` must outlive this.
  explicit BlockWeights(const WeightStore& store, std::optional<std::uint32_t> layer = {},
                        std::uint8_t number = 0)
      : store_(store), layer_(layer), number_(number) {}

  [[nodiscard]] const WeightStore& store() const { return store_; }
  /// REQUIRES: it is of a layer.
  [[nodiscard]] std::uint32_t layer() const { return layer_.value(); }

  [[nodiscard]] std::string name(WeightRole role, std::optional<std::uint32_t> part = {}) const {
    WeightPlace of_part = place(role);
    of_part.part = part;
    return store_.name_of(of_part);
  }
  [[nodiscard]] bool has(WeightRole role) const { return store_.has(place(role)); }
  [[nodiscard]] bool expects(WeightRole role) const { return store_.expects(place(role)); }

  [[nodiscard]] Linear linear(WeightRole role, std::size_t rows, std::size_t cols) const {
    return store_.linear(name(role), rows, cols);
  }
  /// Reads a part of a weight of `rows_of_whole` x `cols_of_whole`.
  [[nodiscard]] Linear linear(WeightRole role, std::size_t rows_of_whole, std::size_t cols_of_whole,
                              Range rows, Range cols) const {
    return store_.linear(name(role), rows_of_whole, cols_of_whole, rows, cols);
  }
  /// Several weights of one tensor, one behind the other, as WeightStore::linears() reads them.
  using Rows = SectionRows;
  [[nodiscard]] std::vector<Linear> linears(WeightRole role, std::initializer_list<Rows> sections,
                                            std::size_t cols) const {
    return store_.linears(name(role), {sections.begin(), sections.size()}, cols);
  }
  [[nodiscard]] std::vector<float> vector(WeightRole role, const formats::Shape& shape) const {
    return store_.vector(name(role), shape);
  }
  /// Reads the values `mine` of a vector of `n`.
  [[nodiscard]] std::vector<float> vector_part(WeightRole role, std::size_t n, Range mine) const {
    return store_.vector_part(name(role), n, mine);
  }

 private:
  [[nodiscard]] WeightPlace place(WeightRole role) const {
    return {.role = role, .layer = layer_, .block = number_};
  }

  const WeightStore& store_;
  std::optional<std::uint32_t> layer_;
  std::uint8_t number_;
};

}  // namespace ingot::inference
