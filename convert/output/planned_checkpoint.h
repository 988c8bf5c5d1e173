#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "check/rules/finding.h"
#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"
#include "engines/verdicts.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// Reads bytes of Plan::files[file] from an absolute offset, behind its header.
using ReadPlanned =
    std::function<void(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out)>;

/// The output of a plan as a checkpoint before a byte of it is written: its headers and its JSON,
/// and the bytes of tensors only where `read` has them. `rank` chooses a directory of layout
/// `ranks`. Without one it is the whole, which readers of slices put together whatever their
/// layout: under the names of the hub, before anything is retiled or padded. The plan and the
/// source must outlive it. Throws as Checkpoint::open would for such an output.
formats::Checkpoint planned_checkpoint(const Plan& plan, std::optional<std::uint32_t> rank,
                                       std::size_t threads, ReadPlanned read = {});

/// How loaders read an output.
struct Loadable {
  std::vector<check::Finding> warnings;  ///< findings of the loader rules
  /// About the whole: slices as they are put together. Where a rule finds an error for an engine,
  /// allowed or of the source as it may be, that engine does not load the output.
  std::vector<engines::EngineVerdict> engines;
};

/// Runs the loader rules over the planned output, headers and JSON only (the encoder judges every
/// code and scale), and reads small scales of codes that are kept: over the whole, whatever the
/// layout, and over the first rank of each stage where ranks have directories. Throws, collected,
/// the findings of rules of severity error that the source does not have itself, and everything
/// that the engine of --for, or the one whose own the layout is, does not load; returns all other
/// findings. Reads no codes.
Loadable require_loadable(const Plan& plan, std::size_t threads);

}  // namespace ingot::convert
