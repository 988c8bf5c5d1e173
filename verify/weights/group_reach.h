#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "formats/container/tensor.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/encoding.h"
#include "verify/weights/element_run.h"
#include "verify/weights/element_sums.h"

namespace ingot::verify {

/// How far the codes of groups that share a scale reach. Half a step grows with the scale, so
/// values on a needlessly coarse grid are not misrounded: their largest code tells.
struct GroupReach {
  std::uint64_t groups = 0;  ///< groups that rounding changed; others do well with any scale
  std::uint64_t coarse = 0;  ///< groups, of these, whose largest code is below the reach of rules
  double least = 1;          ///< least ratio of the largest code to the code that rules reach
  float scale = 0;           ///< scale of a tensor that has only one; else 0
  bool fills = false;        ///< the codes of such a tensor reach as far as rules do

  void add(const GroupReach& next);
  friend bool operator==(const GroupReach&, const GroupReach&) = default;
};

/// The least that the largest code of a group under this scale is, by the rules of any program: 126
/// of 127 in INT8 (the others round a scale in BF16); 240 of 448 in FP8 (the largest of its other
/// form); 4 of 6 in NVFP4, unless half the scale would be no better; half the largest under a power
/// of two (MXFP4: 4 of 6 by our rule, but others round exponents up). 0 without codes.
float least_reach(formats::SchemeId scheme, float scale);

/// Up to here a rule does not let scales shrink with the values: 2^-23 in INT8; in FP8 1e-4 over
/// the least code that a search gives the largest value, 240, rounded up to a power of two; the end
/// of exponents in others.
float floor_scale(formats::SchemeId scheme);

/// The most that all values which rounding changed can add to the squared error over `source2` if
/// their scales are floor_scale(): half the least step each. As good as 0 for any but tiny values.
/// The scheme must have codes.
double error2_at_floor(formats::SchemeId scheme, const ElementSums& sums);

/// The groups of one tensor of the output, held against least_reach. Groups at the least scale that
/// a rule gives are excepted: they hold next to nothing. Safe from many threads.
class GroupCodes {
 public:
  /// For weights in this encoding and shape. `is_sampled`: not all rows are seen, so that groups of
  /// several rows tell nothing.
  GroupCodes(const formats::Encoding& encoding, const formats::Shape& shape, bool is_sampled);

  /// Looks at a tile whose first column begins a group. `global` as ScaleReader has it. Adds the
  /// reach of groups that lie in it to `found`.
  void see(const ElementRun& tile, const std::optional<formats::GlobalScale>& global,
           GroupReach& found);
  /// The reach of all other groups, when everything was seen. Gives memory back.
  GroupReach finish();

 private:
  void see_within(const ElementRun& tile, float global, GroupReach& found) const;
  void see_shared(const ElementRun& tile);
  /// True if these groups were found to be rounded and to reach as far as rules do: more of their
  /// values cannot change that.
  [[nodiscard]] bool are_settled(std::size_t first, std::size_t n) const;

  formats::SchemeId scheme_;
  bool is_judged_ = false;
  bool is_within_tiles_ = false;
  // By scale, of groups that several tiles hold: the largest code over the reach of rules, and
  // whether any value was rounded. Atomic, since the largest is the same in any order.
  std::size_t shared_ = 0;  ///< number of groups that several tiles hold
  std::once_flag begun_;
  std::unique_ptr<std::atomic<float>[]> reach_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> is_rounded_;
  std::atomic<float> scale_ = 0;
};

}  // namespace ingot::verify
