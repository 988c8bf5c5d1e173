#include "delta/chain.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/files/folder.h"

namespace ingot::delta {

namespace fs = std::filesystem;
using formats::StoredTensor;

namespace {

constexpr std::size_t kChainPiece = std::size_t{1} << 20;

// The versions that were given, by number.
std::map<std::uint64_t, fs::path> given_versions(std::span<const fs::path> given,
                                                 std::uint64_t from) {
  std::map<std::uint64_t, fs::path> found;
  std::uint64_t last = 0;
  const auto add = [&](std::uint64_t number, const fs::path& path) {
    const auto [at, is_new] = found.emplace(number, path);
    if (!is_new && resolved_path(at->second) != resolved_path(path)) {
      throw Error(ErrorCode::kDuplicate, "is version {}, and so is {}", number, at->second.string())
          .in_file(path.string());
    }
    if (number < last) {
      throw Error(ErrorCode::kMismatch,
                  "is version {}, and was given behind version {}: out of "
                  "order",
                  number, last)
          .in_file(path.string());
    }
    last = number;
  };
  for (const fs::path& path : given) {
    const fs::path whole = resolved_path(path);
    formats::require_directory(whole);
    const auto siblings = versions_in(whole.parent_path());
    const auto own = std::ranges::find_if(siblings, [&](std::uint64_t number) {
      return version_name(number) == whole.filename().string();
    });
    if (own != siblings.end()) {
      if (*own < from) {
        throw Error(ErrorCode::kMismatch, "is version {}, and the base holds version {}", *own,
                    from)
            .in_file(path.string());
      }
      add(*own, path);
      continue;
    }
    const std::vector<std::uint64_t> versions = versions_in(whole);
    if (versions.empty()) {
      throw Error(ErrorCode::kNotFound,
                  "is neither a stream of versions (folders weight_v000001 and so on) nor one of "
                  "them")
          .in_file(path.string());
    }
    for (const std::uint64_t number : versions) add(number, path / version_name(number));
  }
  return found;
}

}  // namespace

bool Chain::has_record() const {
  return std::ranges::any_of(deltas, [](const Version& v) { return v.record.has_value(); });
}

Chain open_chain(const fs::path& base, std::span<const fs::path> given) {
  Chain chain;
  chain.from = state_of(base).value_or(0);
  const auto versions = given_versions(given, chain.from);
  chain.to = versions.rbegin()->first;
  if (chain.to < chain.from) {
    throw Error(ErrorCode::kMismatch, "holds version {}, and the last one given is version {}",
                chain.from, chain.to)
        .in_file(base.string());
  }
  std::uint64_t at = chain.to;
  std::uint64_t above = chain.to;
  while (at != chain.from) {
    const auto found = at < chain.from ? versions.end() : versions.find(at);
    if (found == versions.end()) {
      throw Error(ErrorCode::kMismatch,
                  "is on version {}, and the base holds version {} (give the versions between "
                  "them, or the checkpoint of version {})",
                  at, chain.from, at)
          .in_file(versions.at(above).string());
    }
    Version version = open_version(found->second);
    version.narrow_to(resolved_path(base).filename().string());
    if (version.is_full) {
      chain.full = std::move(version);
      break;
    }
    above = at;
    at = version.base;
    chain.deltas.insert(chain.deltas.begin(), std::move(version));
  }
  return chain;
}

/// One delta's part in a tensor, while it is read.
struct ChainReader::Stage {
  const Version* version = nullptr;
  const DeltaTensor* tensor = nullptr;  // null: not changed by it
  std::unique_ptr<Patch> patch;
  std::optional<Checksum> sum;
  std::optional<TensorHasher> hash;  // of the state after it
};

ChainReader::ChainReader(const Chain& chain, const Weights& base)
    : chain_(chain),
      base_(base),
      changed_(base.stored().size(), false),
      changed_files_(base.files().size(), false) {
  for (const Version& version : chain.deltas) {
    ErrorList faults;
    for (const DeltaTensor& tensor : version.tensors) {
      const StoredTensor* found = base.find(tensor.name);
      if (found == nullptr) {
        faults.add(ErrorCode::kMissingTensor, tensor.name,
                   "is changed by {}, and the base has no such tensor",
                   version_name(version.number));
        continue;
      }
      changed_[static_cast<std::size_t>(found - base.stored().data())] = true;
      changed_files_[found->file] = true;
    }
    if (version.record) {
      for (const RecordedTensor& tensor : version.record->tensors) {
        const StoredTensor* found = base.find(tensor.name);
        if (found == nullptr) {
          faults.add(ErrorCode::kMissingTensor, tensor.name, "is not in the base");
        } else if (formats::dtype_name(found->dtype) != tensor.dtype ||
                   found->shape != tensor.shape) {
          faults.add(ErrorCode::kMismatch, tensor.name, "is {} {} in the base, and {} {} in {}",
                     formats::dtype_name(found->dtype), formats::shape_text(found->shape),
                     tensor.dtype, formats::shape_text(tensor.shape), version_name(version.number));
        }
      }
      for (const StoredTensor& tensor : base.stored()) {
        if (version.record->find(tensor.name) == nullptr)
          faults.add(ErrorCode::kMismatch, tensor.name, "is in the base, and not in {}",
                     version_name(version.number));
      }
    }
    faults.throw_if_any();
  }
  find_leaders();
}

void ChainReader::find_leaders() {
  for (std::uint32_t file = 0; file < base_.files().size(); ++file)
    leaders_.push_back(base_.first_of(file));
  // Tensors by their place in files that are the same one.
  std::map<std::pair<std::uint32_t, std::uint64_t>, const StoredTensor*> first;
  for (const StoredTensor& tensor : base_.stored()) {
    const std::uint32_t leader = base_.first_of(tensor.file);
    const auto [at, is_new] = first.emplace(std::pair(leader, tensor.offset), &tensor);
    if (is_new || leader == tensor.file || tensor.n_bytes == 0) continue;
    const bool is_same = std::ranges::all_of(chain_.deltas, [&](const Version& version) {
      const DeltaTensor* one = version.find(at->second->name);
      const DeltaTensor* other = version.find(tensor.name);
      if (one == nullptr && other == nullptr && !version.record) return true;
      if (!version.record) return false;
      const RecordedTensor& a = *version.record->find(at->second->name);
      const RecordedTensor& b = *version.record->find(tensor.name);
      return a.base == b.base && a.next == b.next;
    });
    if (!is_same) leaders_[tensor.file] = tensor.file;
  }
}

bool ChainReader::is_changed(const StoredTensor& tensor) const {
  return changed_[static_cast<std::size_t>(&tensor - base_.stored().data())];
}

bool ChainReader::is_read(const StoredTensor& tensor,
                          const std::function<bool(std::uint32_t)>& wants_file) const {
  return leaders_[tensor.file] == tensor.file &&
         (is_changed(tensor) || chain_.has_record() || wants_file(tensor.file));
}

std::uint64_t ChainReader::n_read(const std::function<bool(std::uint32_t)>& wants_file) const {
  std::uint64_t n = 0;
  for (const StoredTensor& tensor : base_.stored()) {
    if (is_read(tensor, wants_file)) n += tensor.n_bytes;
  }
  return n;
}

std::vector<TensorState> ChainReader::run(
    std::size_t threads, const std::function<bool(std::uint32_t)>& wants_file,
    const std::function<void(const TensorPiece&)>& look,
    const std::function<void(std::uint64_t)>& progress) const {
  const auto stored = base_.stored();
  std::vector<TensorState> states(stored.size(),
                                  TensorState{.version = chain_.from, .checksum = {}});
  if (chain_.full) {
    for (TensorState& state : states) state.version = chain_.full->number;
  }
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t i = 0; i < stored.size(); ++i) {
    if (is_read(stored[i], wants_file)) wanted.push_back(i);
  }
  std::atomic<std::size_t> next = 0;
  std::atomic<std::uint64_t> done = 0;
  std::mutex mutex;
  std::size_t failed_at = wanted.size();
  std::exception_ptr failure;
  const auto report = [&](std::uint64_t n_bytes) {
    const std::uint64_t now = done += n_bytes;
    if (progress) progress(now);
  };
  const StopScope::Transfer scope;
  run_workers(std::max<std::size_t>(std::min(threads, wanted.size()), 1), [&](std::size_t worker) {
    const StopScope::Transfer::Guard guard(scope);
    while (true) {
      const std::size_t i = next++;
      {
        const std::lock_guard lock(mutex);
        if (i >= wanted.size() || failure) return;
      }
      try {
        states[wanted[i]] = run_tensor(wanted[i], worker, look, report);
      } catch (...) {
        const std::lock_guard lock(mutex);
        // Tensors begin in their order, so the first one that fails is always among these.
        if (i < failed_at) {
          failed_at = i;
          failure = std::current_exception();
        }
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
  std::map<std::pair<std::uint32_t, std::uint64_t>, const TensorState*> led;
  for (std::uint32_t i = 0; i < stored.size(); ++i) {
    const auto place = std::pair(leaders_[stored[i].file], stored[i].offset);
    if (stored[i].file == place.first) led.insert_or_assign(place, &states[i]);
  }
  for (std::uint32_t i = 0; i < stored.size(); ++i) {
    const auto place = std::pair(leaders_[stored[i].file], stored[i].offset);
    if (stored[i].file != place.first && stored[i].n_bytes > 0) states[i] = *led.at(place);
  }
  return states;
}

TensorState ChainReader::run_tensor(std::uint32_t index, std::size_t worker,
                                    const std::function<void(const TensorPiece&)>& look,
                                    const std::function<void(std::uint64_t)>& progress) const {
  const StoredTensor& tensor = base_.stored()[index];
  const bool is_patched = changed_[index];
  std::vector<Stage> stages(chain_.deltas.size());
  TensorHasher first_hash;
  const bool has_record = chain_.has_record();
  const Stage* at = nullptr;
  try {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      Stage& stage = stages[i];
      stage.version = &chain_.deltas[i];
      stage.tensor = stage.version->find(tensor.name);
      if (stage.tensor == nullptr) continue;
      at = &stage;
      stage.patch = Patch::open(stage.version->encoding, tensor.n_bytes,
                                stage.version->payload(*stage.tensor), stage.tensor->n_bytes);
      stage.sum.emplace(stage.version->checksum);
      if (has_record) stage.hash.emplace();
    }
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(kChainPiece, tensor.n_bytes));
    std::vector<std::byte> before(size), after(is_patched ? size : 0);
    for (std::uint64_t offset = 0; offset < tensor.n_bytes; offset += size) {
      StopScope::check();
      const auto n =
          static_cast<std::size_t>(std::min<std::uint64_t>(size, tensor.n_bytes - offset));
      const auto old_bytes = std::span(before).first(n);
      base_.bytes().read_file(tensor.file, tensor.offset + offset, old_bytes);
      if (has_record) first_hash.update(old_bytes);
      auto new_bytes = old_bytes;
      if (is_patched) {
        new_bytes = std::span(after).first(n);
        std::ranges::copy(old_bytes, new_bytes.begin());
        for (Stage& stage : stages) {
          if (stage.tensor == nullptr) continue;
          at = &stage;
          stage.patch->apply(new_bytes);
          stage.sum->update(new_bytes);
          if (stage.hash) stage.hash->update(new_bytes);
        }
      }
      if (look) look({worker, &tensor, offset, old_bytes, new_bytes, is_patched});
      progress(n);
    }
  } catch (Error& error) {
    // Reads of the base name its file.
    if (at != nullptr && error.file().empty()) error.in_file(at->version->directory.string());
    error.in_tensor(tensor.name);
    throw;
  }

  TensorState state{.version = chain_.full ? chain_.full->number : chain_.from, .checksum = {}};
  std::optional<Hash128> hash;
  if (has_record) hash = first_hash.finish();
  for (Stage& stage : stages) {
    const Version& version = *stage.version;
    const RecordedTensor* recorded = version.record ? version.record->find(tensor.name) : nullptr;
    if (recorded != nullptr && *hash != recorded->base) {
      throw Error(ErrorCode::kMismatch,
                  "is not the tensor from which {} was made: {} is no base of it (give the "
                  "checkpoint of version {})",
                  version_name(version.number), base_.directory().string(), version.base)
          .in_file(base_.file_of(tensor))
          .in_tensor(tensor.name);
    }
    if (stage.tensor == nullptr) continue;
    try {
      stage.patch->finish();
    } catch (Error& error) {
      error.in_file(version.directory.string()).in_tensor(tensor.name);
      throw;
    }
    if (stage.hash) hash = stage.hash->finish();
    std::string sum = stage.sum->finish();
    if (sum != stage.tensor->checksum || (recorded != nullptr && *hash != *recorded->next)) {
      throw Error(ErrorCode::kMismatch,
                  "becomes bytes of {} {}, and {} promises {} (another base, or a damaged delta)",
                  checksum_row(version.checksum).name, sum, version_name(version.number),
                  stage.tensor->checksum)
          .in_file(version.directory.string())
          .in_tensor(tensor.name);
    }
    state = {.version = version.number, .checksum = std::move(sum)};
  }
  return state;
}

}  // namespace ingot::delta
