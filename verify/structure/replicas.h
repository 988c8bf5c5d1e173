#pragma once

#include <cstddef>
#include <functional>

#include "formats/checkpoint/checkpoint.h"
#include "verify/structure/structure_findings.h"

namespace ingot::verify {

/// Reads every tensor of which slices hold bytes more than once, and finds those whose replicas
/// differ ("structure.replica"). `output` was opened with shard::SourceOptions::compare_replicas;
/// of a checkpoint that is no slices joined, nothing is read. kInterrupted when stopped.
void compare_replicas(const formats::Checkpoint& output, std::size_t threads,
                      const std::function<bool()>& stop_requested, StructureFindings& found);

}  // namespace ingot::verify
