#pragma once

#include "formats/base/fd.h"

namespace ingot {

/// Makes the content of `to` that of `from` by sharing its blocks (a reflink), which the file
/// system copies when one of both is written to. False, with `to` as it was, where it cannot.
[[nodiscard]] bool share_blocks(const Fd& from, const Fd& to);

}  // namespace ingot
