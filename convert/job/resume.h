#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "convert/plan/plan.h"
#include "convert/recipe/source_stamps.h"

namespace ingot::convert {

/// The items of an earlier run that this one takes over, ascending: those whose bytes in the staged
/// files still hash to what the journal claims. Left out are items that read a file in
/// `changed.of_source` and have not the same source any more; and, where a file that an option
/// names has changed, items that can be made again, since no source file of theirs was consumed.
/// Tensors of a fused set have their sources in common.
std::vector<std::uint32_t> surviving_items(const Plan& plan, const OutputPaths& paths,
                                           const JournalContents& earlier,
                                           const SourceStamps::Changes& changed,
                                           std::size_t threads);

/// The hash of a slice that a file at `path` has where the plan has it, in the order of the whole.
Hash128 hash_of_slice(const std::filesystem::path& path, const PlannedSlice& slice);

/// True when the bytes of one item in the staged files hash to `expected`.
bool verify_tensor(const PlannedTensor& planned, const Plan& plan, const OutputPaths& paths,
                   const std::vector<std::vector<Hash128>>& expected);

}  // namespace ingot::convert
