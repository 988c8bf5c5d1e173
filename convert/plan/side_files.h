#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// Throws kUnsupported, collected, for side files that are links to something outside the source: a
/// conversion would publish a copy of it. A snapshot of the hub's cache links to `../../blobs`,
/// which belongs to it.
void require_own_side_files(const formats::Checkpoint& source);

/// A remark when side files have so many bytes that they may not belong to the model.
std::vector<std::string> side_file_warnings(const formats::Checkpoint& source);

}  // namespace ingot::convert
