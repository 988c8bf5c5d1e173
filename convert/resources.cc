#include "convert/resources.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "convert/item_runner.h"
#include "formats/base/error.h"

namespace ingot::convert {

using formats::Checkpoint;

namespace {

// Code, libraries and allocator of the process, measured with a plan of no tensors and rounded up.
constexpr std::uint64_t kProgramBytes = std::uint64_t{24} << 20;
constexpr std::uint64_t kMaxWindowBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMinWindowBytes = std::uint64_t{1} << 20;
// More memory than this in windows does not make the disk faster.
constexpr std::uint64_t kUsefulWindows = 24;

}  // namespace

MemoryPlan plan_memory(const Plan& plan, const formats::TensorSource& source, std::size_t threads,
                       std::uint64_t mem_limit) {
  MemoryPlan memory;
  memory.threads = threads;
  // Records and manifest are made when the windows are gone, so tables count once.
  memory.fixed_bytes = kProgramBytes + plan.table_bytes;
  memory.worker_bytes = threads * item_runner_bytes(plan);
  const std::uint64_t least_windows = 2 * threads + 2;
  const std::uint64_t least =
      memory.fixed_bytes + memory.worker_bytes + least_windows * kMinWindowBytes;
  if (mem_limit < least) {
    throw Error(ErrorCode::kLimit, fmt::format("--mem-limit {} is too small: {} threads on this "
                                               "checkpoint need {} bytes (raise it, or "
                                               "lower --threads)",
                                               mem_limit, threads, least));
  }
  std::uint64_t available = mem_limit - memory.fixed_bytes - memory.worker_bytes;
  // Reading a group once is worth up to half of what is left; the windows need the rest.
  std::vector<std::uint64_t> sizes;
  for (std::size_t group = 0; group < plan.groups.size(); ++group)
    sizes.push_back(plan.group_bytes(source, group));
  const std::uint64_t most = (available - least_windows * kMinWindowBytes) / 2 / threads;
  for (const std::uint64_t size : sizes) {
    if (size <= most) {
      memory.group_bytes = std::max(memory.group_bytes, size);
    } else {
      ++memory.n_read_twice;
      memory.bytes_read_twice += size;
    }
  }
  available -= threads * memory.group_bytes;
  memory.window_bytes = kMaxWindowBytes;
  while (available / memory.window_bytes < std::max<std::uint64_t>(least_windows, 8) &&
         memory.window_bytes > kMinWindowBytes) {
    memory.window_bytes /= 2;
  }
  memory.n_windows =
      std::min(available / memory.window_bytes, std::max(kUsefulWindows, least_windows));
  return memory;
}

std::uint64_t peak_disk_bytes(const Plan& plan, const Checkpoint& source, bool consume_source) {
  // Records and manifest: a few hundred bytes per tensor before compression; side files once more.
  std::uint64_t side = std::uint64_t{1} << 20;
  side += plan.tensors.size() * 512 + plan.config_text.size() + plan.index_text.size();
  for (const formats::SideFile& file : source.side_files()) side += file.n_bytes;
  if (!consume_source) return plan.bytes_out + side;

  // Output files are reserved whole when the first item starts in them; a source file comes back
  // after the last item that reads it.
  std::vector<std::size_t> waiting(source.files().size(), 0);
  const auto for_each_source = [&](const PlannedTensor& planned, const auto& visit) {
    if (planned.action == Action::kDrop) return;
    source.tensors()[planned.tensor].encoding.stored.for_each(
        [&](formats::Part, std::uint32_t stored) { visit(source.stored()[stored].file); });
  };
  for (const PlannedTensor& planned : plan.tensors) {
    for_each_source(planned, [&](std::uint32_t file) { ++waiting[file]; });
  }
  std::vector<char> opened(plan.files.size(), 0);
  std::uint64_t used = side, freed = 0, peak = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    for (std::size_t p = 0; p < planned.n_parts; ++p) {
      const std::uint32_t file = planned.parts[p].file;
      if (opened[file] == 0) used += plan.files[file].n_bytes;
      opened[file] = 1;
    }
    peak = std::max(peak, used - std::min(used, freed));
    for_each_source(planned, [&](std::uint32_t file) {
      if (--waiting[file] == 0) freed += source.files()[file].n_bytes;
    });
  }
  // A deletion follows its items by a sync; two more output files may be open by then.
  std::uint64_t slack = 0;
  for (const PlannedFile& file : plan.files) slack = std::max(slack, file.n_bytes);
  return std::min(plan.bytes_out + side, peak + 2 * slack);
}

}  // namespace ingot::convert
