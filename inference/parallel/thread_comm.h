#pragma once

#include <cstdint>
#include <functional>

#include "inference/parallel/comm.h"
#include "shard/cut/topology.h"

namespace ingot::inference {

/// Runs body(rank, comm) for every rank of a topology, each on a thread of its own in this process.
/// A rank that throws releases those that wait for it; when all have ended, the failure of the
/// lowest rank that failed by itself is rethrown. Throws kLimit, before any body runs, when the
/// system has no such threads.
void run_ranks(const shard::Topology& topology,
               const std::function<void(std::uint32_t rank, Comm& comm)>& body);

}  // namespace ingot::inference
