#include "delta/weights.h"

#include <algorithm>
#include <set>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/checkpoint_index.h"
#include "formats/container/safetensors.h"

namespace ingot::delta {

namespace fs = std::filesystem;
using formats::StoredTensor;

namespace {

constexpr std::uint64_t kMaxBaseIndexBytes = std::uint64_t{1} << 30;

std::vector<std::string> weights_names(const fs::path& directory) {
  std::set<std::string> names;
  const fs::path index = directory / formats::kIndexName;
  if (stamp_of(index)) {
    const auto parsed = formats::parse_checkpoint_index(read_text_file(index, kMaxBaseIndexBytes),
                                                        formats::kIndexName);
    for (const auto& [tensor, file] : parsed.weight_map) names.insert(file);
  } else {
    for (std::string& name : formats::list_file_names(directory)) {
      if (name.ends_with(formats::kWeightsSuffix)) names.insert(std::move(name));
    }
  }
  if (names.empty()) {
    throw Error(ErrorCode::kNotFound,
                "has no weights (of a checkpoint that was cut for ranks, give the directory of "
                "each rank)");
  }
  return {names.begin(), names.end()};
}

}  // namespace

Weights::Weights(const fs::path& directory, std::size_t threads) : directory_(directory) {
  try {
    formats::require_finished_directory(directory);
    std::vector<formats::WeightsFile> files =
        formats::locate_files(weights_names(directory), directory, {});
    ErrorList faults;
    stored_ = formats::read_headers(files, threads, faults);
    faults.throw_if_any();
    names_.emplace(stored_);
    const auto sorted = names_->sorted();
    const auto twice = std::ranges::adjacent_find(sorted, [&](std::uint32_t a, std::uint32_t b) {
      return stored_[a].name == stored_[b].name;
    });
    if (twice != sorted.end()) {
      throw Error(ErrorCode::kDuplicate,
                  "is in {} too: a delta changes tensors by their names (slices of ranks are put "
                  "together by ingot merge)",
                  files[stored_[*(twice + 1)].file].facts.name)
          .in_file(files[stored_[*twice].file].facts.name)
          .in_tensor(stored_[*twice].name);
    }
    bytes_.emplace(std::move(files));
  } catch (Error& error) {
    error.in_directory(directory.string());
    throw;
  }
}

const StoredTensor* Weights::find(std::string_view name) const {
  const auto found = names_->find(name);
  return found ? &stored_[*found] : nullptr;
}

ReadBytes Weights::reader(const StoredTensor& tensor) const {
  return [this, &tensor](std::uint64_t offset, std::span<std::byte> out) {
    bytes_->read_file(tensor.file, tensor.offset + offset, out);
  };
}

std::uint64_t Weights::n_bytes() const {
  std::uint64_t n = 0;
  for (const StoredTensor& tensor : stored_) n += tensor.n_bytes;
  return n;
}

std::vector<std::string> extra_names(const fs::path& directory) {
  ErrorList faults;
  std::set<std::string> names;
  for (formats::SideFile& file : formats::list_side_files(directory, faults).files)
    names.insert(std::move(file.path));
  faults.throw_if_any();
  for (const std::string& name : formats::checkpoint_names(directory)) {
    if (!name.ends_with(formats::kWeightsSuffix)) names.insert(name);
  }
  std::erase_if(names, [&](const std::string& name) { return !stamp_of(directory / name); });
  return {names.begin(), names.end()};
}

}  // namespace ingot::delta
