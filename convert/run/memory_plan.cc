#include "convert/run/memory_plan.h"

#include <algorithm>
#include <vector>

#include "convert/run/moments_factors.h"
#include "formats/base/error.h"

namespace ingot::convert {

namespace {

// Buffers of one thread, for a band of source and output, in addition to those of the encoder.
constexpr std::uint64_t kLoopBytes = std::uint64_t{4} << 20;
// Code, libraries and allocator of the process, measured with a plan of no tensors and rounded up.
constexpr std::uint64_t kProgramBytes = std::uint64_t{24} << 20;
constexpr std::uint64_t kMaxWindowBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMinWindowBytes = std::uint64_t{1} << 20;
// The least window of an output in many files: below it direct I/O costs more than spilling.
constexpr std::uint64_t kMinScatteredBytes = std::uint64_t{64} << 10;
// More memory than this in windows does not make the disk faster.
constexpr std::uint64_t kUsefulWindows = 24;

// A tensor scattered to many files fills a window in each, and each thread another two: the same
// memory in more and smaller windows. Where even the smallest are too few, windows are spilled.
void split_windows(MemoryPlan& memory, std::uint64_t least_windows, std::uint64_t open_targets) {
  if (open_targets <= 1) return;
  const std::uint64_t total = memory.window_bytes * memory.n_windows;
  const std::uint64_t wanted = std::max(least_windows, memory.threads * (open_targets + 2) + 2);
  while (memory.n_windows < wanted && memory.window_bytes > kMinScatteredBytes) {
    memory.window_bytes /= 2;
    memory.n_windows = total / memory.window_bytes;
  }
}

}  // namespace

MemoryPlan plan_memory(const Plan& plan, std::size_t most_threads, std::uint64_t mem_limit) {
  MemoryPlan memory;
  // Records and manifest are made when the windows are gone, so tables count once.
  memory.fixed_bytes = kProgramBytes + plan.sizes.table_bytes;
  const std::uint64_t of_worker = kLoopBytes + plan.sizes.band_bytes;
  // Two windows for each thread, and two more.
  const std::uint64_t per_thread = of_worker + 2 * kMinWindowBytes;
  const FactorMemory least_factors = factor_memory(plan, 1);
  const std::uint64_t least =
      memory.fixed_bytes + least_factors.least + 2 * kMinWindowBytes + per_thread;
  if (mem_limit < least) {
    throw Error(ErrorCode::kLimit,
                "this checkpoint takes more memory on one thread than {:.1f} MB; --mem-limit {}MB "
                "would be enough",
                static_cast<double>(mem_limit) / 1e6, (least + 999'999) / 1'000'000);
  }
  const std::uint64_t threads =
      std::min<std::uint64_t>(most_threads, 1 + (mem_limit - least) / per_thread);
  memory.threads = threads;
  memory.worker_bytes = threads * of_worker;
  const std::uint64_t least_windows = 2 * threads + 2;
  std::uint64_t available = mem_limit - memory.fixed_bytes - memory.worker_bytes;
  // At most half of the room beyond the least: windows and kept bytes have the other half.
  const std::uint64_t beyond = available - least_factors.least - least_windows * kMinWindowBytes;
  memory.factor_bytes =
      std::min(factor_memory(plan, threads).useful, least_factors.least + beyond / 2);
  available -= memory.factor_bytes;
  // Reading bytes once is worth up to half of the remaining memory; the windows need the rest.
  const std::size_t n_sets = plan.fused_sets.size();
  std::vector<std::uint64_t> sizes(n_sets);  // bytes of each set, then of each other tensor
  for (const PlannedTensor& planned : plan.tensors) {
    if (!plan.is_read(planned)) continue;
    const bool is_in_set = planned.fused_set != PlannedTensor::kNone;
    std::uint64_t& size = is_in_set ? sizes[planned.fused_set] : sizes.emplace_back();
    for (const std::uint32_t stored : plan.reread(planned))
      size += plan.source.stored()[stored].n_bytes;
  }
  const std::uint64_t most = (available - least_windows * kMinWindowBytes) / 2 / threads;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= most) {
      memory.kept_bytes = std::max(memory.kept_bytes, sizes[i]);
    } else if (i < n_sets) {
      ++memory.n_read_twice;
      memory.bytes_read_twice += sizes[i];
    }
  }
  available -= threads * memory.kept_bytes;
  memory.window_bytes = kMaxWindowBytes;
  while (available / memory.window_bytes < std::max<std::uint64_t>(least_windows, 8) &&
         memory.window_bytes > kMinWindowBytes) {
    memory.window_bytes /= 2;
  }
  const std::uint64_t n_files = std::clamp<std::uint64_t>(plan.files.size(), 1, threads);
  // The window in which a tensor ends waits for the next one of its file.
  memory.n_windows = std::min(available / memory.window_bytes,
                              std::max(kUsefulWindows, least_windows + n_files - 1));
  const std::uint64_t spare = memory.n_windows - std::min(memory.n_windows, least_windows);
  memory.files_at_once = std::min(n_files, 1 + spare);
  split_windows(memory, least_windows, plan.sizes.open_targets);
  return memory;
}

}  // namespace ingot::convert
