#pragma once

#include <cstdint>
#include <optional>

#include "formats/checkpoint/checkpoint.h"
#include "formats/records/manifest.h"
#include "verify/structure/structure_findings.h"

namespace ingot::verify {

/// Finds logical tensors of the source that the output lacks ("structure.missing"), has twice
/// ("structure.twice") or in another shape ("structure.shape"), and those of the output that the
/// source does not have ("structure.extra"). Returns how many were looked for.
///
/// MTP layers ("structure.mtp"): missing altogether they are one error where the output's config
/// promises them. A config that promises none is a warning: dropping them is legitimate, and
/// nothing is said where the output's manifest says that it was asked for (`--mtp drop`).
std::uint64_t compare_tensors(const formats::Checkpoint& source, const formats::Checkpoint& output,
                              const std::optional<formats::Manifest>& manifest,
                              StructureFindings& found);

}  // namespace ingot::verify
