#pragma once

#include <span>
#include <string>

#include "verify/weights/weight_pair.h"

namespace ingot::verify {

/// Why values of the output are misrounded, where one cause explains them: with it taken into
/// account, at most a hundredth of them is left. In words for a report ("scales computed in BF16
/// arithmetic"); empty where none does. Looks at the rows of `band`. `others`: scales of the
/// weights that loaders fuse with this one.
std::string misrounding_cause(const PairSide& source, const PairSide& output,
                              const WeightBand& band, std::span<const OtherScale> others);

}  // namespace ingot::verify
