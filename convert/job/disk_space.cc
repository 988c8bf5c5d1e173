#include "convert/job/disk_space.h"

#include <algorithm>
#include <vector>

namespace ingot::convert {

std::uint64_t bytes_on_disk(const Plan& plan) {
  return plan.has_rank_directories() && !plan.options.links ? copied_bytes(plan)
                                                            : plan.sizes.bytes_out;
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
std::uint64_t rank_side_bytes(const Plan& plan, std::uint64_t shared_bytes) {
  std::uint64_t longest_name = 0;
  for (const formats::StoredTensor& stored : plan.source.stored())
    longest_name = std::max<std::uint64_t>(longest_name, stored.name.size());
  const std::uint64_t n_ranks = plan.slicing->topology.n_ranks();
  const std::uint64_t n_shared = plan.source.side_files().size() + 4;  // configs and description
  std::uint64_t n_bytes = 0;
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Member& member : file.members) {
      const std::uint64_t n_loading = member.ranks.size();
      const std::uint64_t entry = longest_name + file.name.size() + kRecordBytes;
      n_bytes += n_loading * (file.parts.size() * entry + kRecordBytes);
      if (!plan.options.links) n_bytes += (n_loading - 1) * kBlockBytes;
    }
  }
  // The manifest of a rank repeats the config of the whole and, in options and slicing, the map.
  const std::uint64_t map_bytes = formats::json_text(plan.slicing->experts.to_json()).size();
  const std::uint64_t own =
      plan.json.whole_config.size() + 4 * map_bytes + 16 * kRecordBytes + 4 * kBlockBytes;
  n_bytes += n_ranks * own;
  if (!plan.options.links) n_bytes += (n_ranks - 1) * (shared_bytes + n_shared * kBlockBytes);
  return n_bytes;
}

}  // namespace

std::uint64_t side_bytes(const Plan& plan) {
  std::uint64_t shared = plan.json.config.size() + plan.json.native_config.size();
  shared += plan.json.description.size();
  for (const formats::SideFile& file : plan.source.side_files()) shared += file.n_bytes;
  std::uint64_t n_bytes = std::uint64_t{1} << 20;
  n_bytes += plan.tensors.size() * kRecordBytes + shared + plan.json.index.size();
  n_bytes += (plan.n_members + plan.source.side_files().size()) * kBlockBytes;
  if (plan.has_rank_directories()) n_bytes += rank_side_bytes(plan, shared);
  return n_bytes;
}

std::uint64_t peak_disk_bytes(const Plan& plan, bool consume_source) {
  const std::uint64_t side = side_bytes(plan);
  if (!consume_source) return bytes_on_disk(plan) + side;

  // Output files are reserved whole when the first item starts in them; a source file comes back
  // after the last item that reads it.
  std::vector<std::size_t> waiting(plan.source.files().size(), 0);
  for (const PlannedTensor& planned : plan.tensors) {
    for (const std::uint32_t file : plan.source_files_of(planned)) ++waiting[file];
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
    for (const std::uint32_t file : plan.source_files_of(planned)) {
      if (--waiting[file] == 0) freed += plan.source.files()[file].n_bytes;
    }
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
