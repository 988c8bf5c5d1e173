#include "convert/job/resume.h"

#include <algorithm>

#include "check/stored_hashes.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"

namespace ingot::convert {

Hash128 hash_of_slice(const std::filesystem::path& path, const PlannedSlice& slice) {
  const Fd file = Fd::open_for_reading(path);
  const auto read = [&](std::uint32_t /*piece*/, std::uint64_t at, std::span<std::byte> out) {
    file.read_exact(out, slice.offset + at);
  };
  return check::hash_range(slice.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
    if (!slice.turned.is_turned()) return read(0, offset, out);
    slice.turned.nest().gather(offset, out, read);
  });
}

namespace {

// True if the parts of a tensor are those that an earlier run read.
bool has_same_source(const Plan& plan, const PlannedTensor& planned, const TensorResult& record) {
  const std::vector<std::uint32_t> all = plan.stored_of(planned);
  for (std::size_t p = 0; p < all.size(); ++p) {
    const formats::StoredTensor& stored = plan.source.stored()[all[p]];
    if (!plan.source.has_data(stored.file)) continue;
    const Hash128 now =
        check::hash_range(stored.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
          plan.source.read(all[p], offset, out);
        });
    if (p >= record.source.size() || now != record.source[p]) return false;
  }
  return true;
}

// True if `test` holds for an item, or another one of its fused set.
template <typename Test>
bool any_of_set(const Plan& plan, std::uint32_t item, const Test& test) {
  const std::uint32_t set = plan.tensors[item].fused_set;
  return set == PlannedTensor::kNone ? test(item) : std::ranges::any_of(plan.fused_sets[set], test);
}

}  // namespace

bool verify_tensor(const PlannedTensor& planned, const Plan& plan, const OutputPaths& paths,
                   const std::vector<std::vector<Hash128>>& expected) {
  if (expected.size() != planned.n_parts) return false;
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    for (const PlannedSlice& slice : slices_of(plan, planned, p)) {
      if (!is_here(plan, slice)) continue;
      if (slice.hash >= expected[p].size()) return false;
      try {
        const Hash128 found = hash_of_slice(paths.staged / plan.member_path(slice.member), slice);
        if (found != expected[p][slice.hash]) return false;
      } catch (const Error& error) {
        // A file that is missing or short did not survive; its items are done again.
        if (error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kCorrupt)
          return false;
        throw;
      }
    }
  }
  return true;
}

std::vector<std::uint32_t> surviving_items(const Plan& plan, const OutputPaths& paths,
                                           const JournalContents& earlier,
                                           const SourceStamps::Changes& changed,
                                           std::size_t threads) {
  std::vector<std::uint32_t> items;
  for (const auto& [item, record] : earlier.items) {
    if (item < plan.tensors.size()) items.push_back(item);
  }
  std::vector<char> is_gone(plan.tensors.size(), 0);
  const auto try_each = [&](const auto& stands) {
    parallel_for(items.size(), threads, [&](std::size_t i) {
      const std::uint32_t item = items[i];
      is_gone[item] = stands(plan.tensors[item], earlier.items.at(item)) ? 0 : 1;
    });
  };
  try_each([&](const PlannedTensor& planned, const TensorResult& record) {
    if (changed.of_source.empty()) return true;
    // Slices are joined from files of other names.
    const bool is_doubtful =
        !plan.source.is_whole() ||
        std::ranges::any_of(plan.source_files_of(planned), [&](std::uint32_t file) {
          return changed.of_source.contains(plan.source.files()[file].name);
        });
    return !is_doubtful || has_same_source(plan, planned, record);
  });
  const auto is_consumed = [&](std::uint32_t item) {
    return std::ranges::any_of(plan.source_files_of(plan.tensors[item]),
                               [&](std::uint32_t file) { return !plan.source.has_data(file); });
  };
  std::erase_if(items, [&](std::uint32_t item) {
    return any_of_set(plan, item, [&](std::uint32_t of_set) { return is_gone[of_set] != 0; }) ||
           // The influence of such a file is not seen in the source.
           (changed.of_options && !any_of_set(plan, item, is_consumed));
  });
  try_each([&](const PlannedTensor& planned, const TensorResult& record) {
    return verify_tensor(planned, plan, paths, record.output);
  });
  std::erase_if(items, [&](std::uint32_t item) { return is_gone[item] != 0; });
  return items;
}

}  // namespace ingot::convert
