#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "convert/run/band_encoder.h"
#include "formats/storage/block_scales.h"

namespace ingot::convert {

/// Bits of a finite number from the first to the last that is set; 0 of zero.
unsigned significant_bits(float value);

/// What numbers can be: at most so many significant bits, multiples of 2^unit, at most `largest` in
/// magnitude.
struct Bounds {
  unsigned bits = 0;
  int unit = std::numeric_limits<std::int16_t>::max();
  double largest = 0;

  void add(float number);
  [[nodiscard]] bool include(const Bounds& other) const;
};

/// Of the numbers of a plain scheme; those of F32 for any other.
Bounds plain_bounds(formats::SchemeId scheme);

/// What scales alone say of a tensor whose codes become others, or words of a plain scheme. Codes
/// are few: what they are in all is known of a scheme, and under given scales that bounds every
/// value. An output that holds all such values holds those that are there.
class ScaleProof : public PlannedValues {
 public:
  /// Throws what ScaleReader throws.
  ScaleProof(const Plan& plan, std::uint32_t index);

  std::uint32_t index;  ///< into Plan::tensors
  formats::ScaleReader scales;
  Bounds codes;  ///< as numbers

  /// Whether an output of scheme `to` holds any codes under such scales. `largest` is that of the
  /// values that share a scale of the output.
  [[nodiscard]] bool is_held(formats::SchemeId to, const Bounds& under, double largest) const;

  /// The same of rows of one matrix that begin where groups of the output do, group by group;
  /// `largest` is that of a fused set, where one scale is over all of it.
  [[nodiscard]] bool are_held(formats::SchemeId to, std::uint64_t first_row, std::uint64_t n_rows,
                              std::optional<double> largest) const;

  [[nodiscard]] Bounds all_scales() const;

  /// Calls visit(first row, rows) for runs of rows whose scales are read at once, whole groups of
  /// the output, until it says false. Whether it never did; false for plain schemes.
  template <typename Visit>
  bool all_rows(const Visit& visit) const {
    if (!scales.has_scales()) return false;
    const Run runs = rows_at_once();
    for (std::uint64_t matrix = 0; matrix < runs.n_rows; matrix += runs.per_matrix) {
      for (std::uint64_t row = 0; row < runs.per_matrix; row += runs.step)
        if (!visit(matrix + row, std::min(runs.step, runs.per_matrix - row))) return false;
    }
    return true;
  }

 private:
  struct Run {
    std::uint64_t n_rows, per_matrix, step;
  };
  [[nodiscard]] Run rows_at_once() const;
};

}  // namespace ingot::convert
