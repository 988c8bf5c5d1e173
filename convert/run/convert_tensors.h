#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "convert/output/staged_files.h"
#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"
#include "convert/run/memory_plan.h"

namespace ingot::convert {

class GivenTensors;

/// The tensors of a plan that are still to be converted, and the means to convert them.
struct TensorRun {
  const Plan& plan;
  StagedFiles& staged;
  MemoryPlan memory;
  std::size_t threads = 1;
  bool direct_io = true;
  bool lossless_only = false;          ///< throws ValueLost for the first value that is not held
  GivenTensors* given = nullptr;       ///< says which tensors are here; null: all are
  const std::vector<char>& done;       ///< flag per tensor: an earlier run has written it
  /// Flag per file of the plan: it is staged whole, and not opened. Empty: none is.
  const std::vector<char>& whole_files;
  std::vector<TensorResult>& results;  ///< result per tensor: given where `done`, else filled
  /// (bytes done, bytes in all) of the output; called from several threads.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  /// Tensors whose bytes are on disk now, ascending. Called by one thread at a time.
  std::function<void(const std::vector<std::uint32_t>&)> durable;
  std::function<void(const std::string&)> log;
};

struct StageReport {
  double seconds = 0;  ///< seconds of all threads together
  std::uint64_t n_bytes = 0;
};

struct TensorRunReport {
  StageReport read, compute, write, hash;
  double thread_seconds = 0;  ///< seconds of the threads that read and compute, from begin to end
  bool direct_io = false;
  bool has_reserved = true;  ///< false: the file system cannot reserve the bytes of a file
};

/// Writes every weights file: fused sets and single tensors in the order of the plan, each file's
/// header before the first tensor in it. The result is the same bytes for any number of threads,
/// any budget and any tensors in `done`. Throws the failure that is first in plan order, naming
/// file and tensor; complete tensors are durable then.
TensorRunReport convert_tensors(const TensorRun& run);

}  // namespace ingot::convert
