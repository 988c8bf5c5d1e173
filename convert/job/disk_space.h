#pragma once

#include <cstdint>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Bytes of all weights files as they lie on the disk: files of several ranks once, or once per
/// rank without links. Exact.
std::uint64_t bytes_on_disk(const Plan& plan);

/// The same with a copy for each rank in any case.
std::uint64_t copied_bytes(const Plan& plan);

/// An upper bound of everything beside them: indices, records, manifests, configs, side files.
std::uint64_t side_bytes(const Plan& plan);

/// Disk that the output needs at its peak: the two together; with consume_source, source files that
/// are deleted on the way count back.
std::uint64_t peak_disk_bytes(const Plan& plan, bool consume_source);

}  // namespace ingot::convert
