#include "convert/job/resources.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "convert/run/item_runner.h"
#include "formats/base/error.h"

namespace ingot::convert {

using formats::Checkpoint;

namespace {

// Code, libraries and allocator of the process, measured with a plan of no tensors and rounded up.
constexpr std::uint64_t kProgramBytes = std::uint64_t{24} << 20;
constexpr std::uint64_t kMaxWindowBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMinWindowBytes = std::uint64_t{1} << 20;
// Of an output in many files: below it direct I/O costs more than spilling.
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
  split_windows(memory, least_windows, plan.open_targets);
  return memory;
}

std::uint64_t bytes_on_disk(const Plan& plan) {
  return plan.has_rank_directories() && !plan.links ? copied_bytes(plan) : plan.bytes_out;
}

std::uint64_t copied_bytes(const Plan& plan) {
  std::uint64_t n_bytes = 0;
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Member& member : file.members)
      n_bytes += file.n_bytes * member.ranks.size();
  }
  return n_bytes;
}

namespace {

// Records and manifest: a few hundred bytes per tensor before compression.
constexpr std::uint64_t kRecordBytes = 512;
// A file system gives a file whole blocks.
constexpr std::uint64_t kBlockBytes = 4096;

// At most what stands in directories of ranks beside weights files: indices, records, manifests,
// and side files that are not linked but copied.
std::uint64_t rank_side_bytes(const Plan& plan, const Checkpoint& source,
                              std::uint64_t shared_bytes) {
  std::uint64_t longest_name = 0;
  for (const formats::StoredTensor& stored : source.stored())
    longest_name = std::max<std::uint64_t>(longest_name, stored.name.size());
  const std::uint64_t n_ranks = plan.slicing->topology.n_ranks();
  const std::uint64_t n_shared = source.side_files().size() + 4;  // configs and description
  std::uint64_t n_bytes = 0;
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Member& member : file.members) {
      const std::uint64_t n_loading = member.ranks.size();
      const std::uint64_t entry = longest_name + file.name.size() + kRecordBytes;
      n_bytes += n_loading * (file.parts.size() * entry + kRecordBytes);
      if (!plan.links) n_bytes += (n_loading - 1) * kBlockBytes;
    }
  }
  // The manifest of a rank repeats the config of the whole and, in options and slicing, the map.
  const std::uint64_t map_bytes = formats::json_text(plan.slicing->experts.to_json()).size();
  const std::uint64_t own =
      plan.whole_config_text.size() + 4 * map_bytes + 16 * kRecordBytes + 4 * kBlockBytes;
  n_bytes += n_ranks * own;
  if (!plan.links) n_bytes += (n_ranks - 1) * (shared_bytes + n_shared * kBlockBytes);
  return n_bytes;
}

}  // namespace

std::uint64_t side_bytes(const Plan& plan, const Checkpoint& source) {
  std::uint64_t shared = plan.config_text.size() + plan.native_config_text.size();
  shared += plan.description_text.size();
  for (const formats::SideFile& file : source.side_files()) shared += file.n_bytes;
  std::uint64_t n_bytes = std::uint64_t{1} << 20;
  n_bytes += plan.tensors.size() * kRecordBytes + shared + plan.index_text.size();
  n_bytes += (plan.n_members + source.side_files().size()) * kBlockBytes;
  if (plan.has_rank_directories()) n_bytes += rank_side_bytes(plan, source, shared);
  return n_bytes;
}

std::uint64_t peak_disk_bytes(const Plan& plan, const Checkpoint& source, bool consume_source) {
  const std::uint64_t side = side_bytes(plan, source);
  if (!consume_source) return bytes_on_disk(plan) + side;

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
      for (const PlannedPlace& place : plan.places_of(planned.parts[p])) {
        const PlannedFile& file = plan.files[place.file];
        if (opened[place.file] == 0) used += file.n_bytes * file.members.size();
        opened[place.file] = 1;
      }
    }
    peak = std::max(peak, used - std::min(used, freed));
    for_each_source(planned, [&](std::uint32_t file) {
      if (--waiting[file] == 0) freed += source.files()[file].n_bytes;
    });
  }
  // A deletion follows its items by a sync; two more output files may be open by then.
  std::uint64_t slack = 0;
  for (const PlannedFile& file : plan.files)
    slack = std::max(slack, file.n_bytes * file.members.size());
  // Copies are made when the source has gone.
  peak = std::max(peak, bytes_on_disk(plan) + side - std::min(bytes_on_disk(plan), freed));
  return std::min(bytes_on_disk(plan) + side, peak + 2 * slack);
}

}  // namespace ingot::convert
