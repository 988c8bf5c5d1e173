#include "convert/job/resume.h"

#include <algorithm>
#include <functional>
#include <map>

#include "check/stored_hashes.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"

namespace ingot::convert {

namespace {

Hash128 hash_of_range(const std::filesystem::path& path, std::uint64_t begin, std::uint64_t n_bytes,
                      const CheckStop& check_stop) {
  const Fd file = Fd::open_for_reading(path);
  return check::hash_range(n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
    check_stop();
    file.read_exact(out, begin + offset);
  });
}

// Whether the parts of a tensor are what an earlier run read.
bool has_same_source(const Plan& plan, const PlannedTensor& planned, const TensorResult& record,
                     const CheckStop& check_stop) {
  const std::vector<std::uint32_t> all = plan.stored_of(planned);
  for (std::size_t p = 0; p < all.size(); ++p) {
    const formats::StoredTensor& stored = plan.source.stored()[all[p]];
    if (!plan.source.has_data(stored.file)) continue;
    const Hash128 now =
        check::hash_range(stored.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
          check_stop();
          plan.source.read(all[p], offset, out);
        });
    if (p >= record.source.size() || now != record.source[p]) return false;
  }
  return true;
}

}  // namespace

std::map<std::uint32_t, TensorResult> results_of_same_source(
    const Plan& plan, const std::map<std::uint32_t, TensorResult>& items,
    const std::set<std::string>& changed, const JobThreads& threads) {
  const auto reads_changed = [&](const PlannedTensor& planned) {
    return std::ranges::any_of(plan.source_files_of(planned), [&](std::uint32_t file) {
      return changed.contains(plan.source.files()[file].name);
    });
  };
  std::vector<std::uint32_t> doubtful;
  for (const auto& [item, record] : items) {
    if (changed.empty() || item >= plan.tensors.size()) continue;
    // Slices are joined from files of other names.
    if (!plan.source.is_whole() || reads_changed(plan.tensors[item])) doubtful.push_back(item);
  }
  std::vector<char> is_same(doubtful.size(), 0);
  parallel_for(doubtful.size(), threads.n, [&](std::size_t i) {
    is_same[i] =
        has_same_source(plan, plan.tensors[doubtful[i]], items.at(doubtful[i]), threads.check_stop)
            ? 1
            : 0;
  });
  std::map<std::uint32_t, TensorResult> kept = items;
  for (std::size_t i = 0; i < doubtful.size(); ++i) {
    if (is_same[i] != 0) continue;
    kept.erase(doubtful[i]);
    const std::uint32_t set = plan.tensors[doubtful[i]].fused_set;
    if (set == PlannedTensor::kNone) continue;
    for (const std::uint32_t index : plan.fused_sets[set]) kept.erase(index);
  }
  return kept;
}

std::map<std::uint32_t, TensorResult> results_without_source(
    const Plan& plan, const std::map<std::uint32_t, TensorResult>& items) {
  const auto is_consumed = [&](std::uint32_t item) {
    return std::ranges::any_of(plan.source_files_of(plan.tensors[item]),
                               [&](std::uint32_t file) { return !plan.source.has_data(file); });
  };
  std::map<std::uint32_t, TensorResult> kept;
  for (const auto& [item, record] : items) {
    if (item >= plan.tensors.size()) continue;
    const std::uint32_t set = plan.tensors[item].fused_set;
    const bool stays =
        set == PlannedTensor::kNone
            ? is_consumed(item)
            : std::any_of(plan.fused_sets[set].begin(), plan.fused_sets[set].end(), is_consumed);
    if (stays) kept.emplace(item, record);
  }
  return kept;
}

bool verify_tensor(const PlannedTensor& planned, const Plan& plan, const OutputPaths& paths,
                   const std::vector<std::vector<Hash128>>& expected, const CheckStop& check_stop) {
  if (expected.size() != planned.n_parts) return false;
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    for (const PlannedSlice& slice : slices_of(plan, planned, p)) {
      if (slice.hash >= expected[p].size()) return false;
      try {
        const Hash128 found = hash_of_range(paths.staged / plan.member_path(slice.member),
                                            slice.offset, slice.n_bytes, check_stop);
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

std::vector<std::uint32_t> verify_journal(const Plan& plan, const OutputPaths& paths,
                                          const std::map<std::uint32_t, TensorResult>& items,
                                          const JobThreads& threads) {
  std::vector<std::pair<std::uint32_t, const TensorResult*>> claims;
  for (const auto& [item, hashes] : items) {
    if (item < plan.tensors.size()) claims.emplace_back(item, &hashes);
  }
  std::vector<char> good(claims.size(), 0);
  parallel_for(claims.size(), threads.n, [&](std::size_t i) {
    good[i] = verify_tensor(plan.tensors[claims[i].first], plan, paths, claims[i].second->output,
                            threads.check_stop)
                  ? 1
                  : 0;
  });
  std::vector<std::uint32_t> verified;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (good[i] != 0) verified.push_back(claims[i].first);
  }
  return verified;
}

}  // namespace ingot::convert
