#pragma once

#include <cstdint>
#include <filesystem>

#include "formats/checkpoint/checkpoint.h"
#include "verify/structure/structure_findings.h"

namespace ingot::verify {

/// Finds ("structure.input-scale") static scales of activations in the output that are not those
/// which a file of activation statistics (docs/formats.md) gives: of the range that weights have
/// together which loaders fuse, symmetric, or Ascend's asymmetric one. A module that the file does
/// not have is a warning. Returns how many were compared. Throws kCorrupt, kIo for the file.
std::uint64_t compare_input_scales(const formats::Checkpoint& output,
                                   const std::filesystem::path& statistics,
                                   StructureFindings& found);

}  // namespace ingot::verify
