#include "shard/join/slice_files.h"

#include <cerrno>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>
#include <sys/stat.h>

#include "formats/base/parallel.h"
#include "formats/container/safetensors.h"
#include "formats/records/manifest.h"
#include "shard/join/recorded_slices.h"

namespace ingot::shard {

using formats::StoredTensor;

namespace {

// Slices go to the join in portions of so many.
constexpr std::size_t kPortion = 4096;

// The stored tensors of files of one directory, until the records have told their places.
class Placing {
 public:
  Placing(SliceJoin& join, const WholeName& whole_name, ErrorList& faults)
      : join_(join), whole_name_(whole_name), faults_(faults) {
    found_.reserve(kPortion);
  }

  void open(const SliceFile& file) {
    OpenFile open{.index = file.index, .stored = {}, .is_placed = {}, .next = 0, .by_name = {}};
    try {
      open.stored = read_stored(join_, file.index);
    } catch (const Error& error) {
      faults_.add(error);
      return;
    }
    open.is_placed.resize(open.stored.size(), false);
    files_.emplace(file.name, std::move(open));
  }

  void place(const RecordedSlice& recorded) {
    const auto file = files_.find(recorded.file);
    // Hard links are placed by the directory that has them first.
    if (file == files_.end()) return;
    OpenFile& open = file->second;
    const auto at = open.find(recorded.name);
    if (!at) {
      return report(open, recorded.name,
                    Error(ErrorCode::kMismatch,
                          "the records promise it, but it is not here (changed since it was "
                          "written: run ingot check)"));
    }
    const StoredTensor& stored = open.stored[*at];
    open.is_placed[*at] = true;
    try {
      found_.push_back({.name = whole_name_(stored.name),
                        .kind = kind_of(stored, recorded.slice),
                        .file = open.index,
                        .offset = stored.offset,
                        .home_file = std::string(recorded.home_file)});
    } catch (const Error& error) {
      return report(open, recorded.name, error);
    }
    if (found_.size() == kPortion) flush();
  }

  void flush() {
    join_.add(found_);
    found_.clear();
  }

  /// Reports what no record has told of.
  void report_rest() {
    for (const auto& [name, open] : files_) {
      for (std::size_t i = 0; i < open.stored.size(); ++i) {
        if (open.is_placed[i]) continue;
        report(open, open.stored[i].name,
               Error(ErrorCode::kMismatch,
                     fmt::format("is not in {} (changed since it was written: run ingot check)",
                                 formats::kRecordsName)));
      }
    }
  }

 private:
  struct OpenFile {
    std::uint32_t index = 0;
    std::vector<StoredTensor> stored;
    std::vector<bool> is_placed;
    std::size_t next = 0;  // records mostly follow the order of the file
    std::unordered_map<std::string_view, std::size_t> by_name;  // once one does not

    std::optional<std::size_t> find(std::string_view name) {
      if (next < stored.size() && stored[next].name == name) return next++;
      if (by_name.empty()) {
        by_name.reserve(stored.size());
        for (std::size_t i = 0; i < stored.size(); ++i) by_name.emplace(stored[i].name, i);
      }
      const auto at = by_name.find(name);
      if (at == by_name.end()) return std::nullopt;
      next = at->second + 1;
      return at->second;
    }
  };

  void report(const OpenFile& open, std::string_view tensor, Error error) {
    faults_.add(error.in_file(join_.file(open.index).facts.name).in_tensor(tensor));
  }

  // Records that say the same share a slice, and tensors of one shape a kind.
  std::uint32_t kind_of(const StoredTensor& stored, const formats::SliceRecord* slice) {
    const std::tuple key(slice, stored.dtype, stored.shape);
    const auto known = kinds_.find(key);
    if (known != kinds_.end()) return known->second;
    const std::uint32_t kind = join_.kind(place_slice(stored.dtype, stored.shape, slice));
    kinds_.emplace(key, kind);
    return kind;
  }

  SliceJoin& join_;
  const WholeName& whole_name_;
  ErrorList& faults_;
  std::map<std::string, OpenFile, std::less<>> files_;
  std::map<std::tuple<const formats::SliceRecord*, formats::DType, formats::Shape>, std::uint32_t>
      kinds_;
  std::vector<FoundSlice> found_;
};

}  // namespace

std::vector<StoredTensor> read_stored(SliceJoin& join, std::uint32_t file) {
  const formats::WeightsFile& weights = join.file(file);
  const formats::WeightsHeader raw = formats::read_weights_header(weights);
  formats::SafetensorsHeader header =
      formats::parse_safetensors_header(raw.bytes, raw.file_bytes, weights.facts.name);
  join.set_facts(file, header.file_bytes, header.data_start);
  return std::move(header.tensors);
}

void add_recorded(SliceJoin& join, std::span<const SliceFile> files,
                  const std::filesystem::path& directory, const Hash128& records_hash,
                  const WholeName& whole_name, ErrorList& faults) {
  if (files.empty()) return;
  Placing placing(join, whole_name, faults);
  for (const SliceFile& file : files) placing.open(file);
  try {
    read_recorded_slices(directory / formats::kRecordsName, records_hash,
                         [&](const RecordedSlice& recorded) { placing.place(recorded); });
  } catch (const Error& error) {
    faults.add(error);
    return;
  }
  placing.flush();
  placing.report_rest();
}

void collect_parallel(std::size_t count, std::size_t threads, ErrorList& faults,
                      const std::function<void(std::size_t, ErrorList&)>& body) {
  std::vector<ErrorList> lists(count);
  parallel_for(count, threads, [&](std::size_t i) {
    try {
      body(i, lists[i]);
    } catch (const Error& error) {
      lists[i].add(error);
    }
  });
  for (const ErrorList& list : lists) {
    for (const Error& error : list.errors()) faults.add(error);
  }
}

std::pair<std::uint32_t, bool> FileNumbers::number(const std::filesystem::path& path,
                                                   std::string name,
                                                   std::optional<std::uint64_t> n_bytes,
                                                   std::uint32_t holder) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) {
      throw Error(
          ErrorCode::kNotFound,
          fmt::format("{} names it, but it is not here (fetch this file)", formats::kManifestName))
          .in_file(path.string());
    }
    throw system_error(errno, "read", path.string());
  }
  if (n_bytes && static_cast<std::uint64_t>(status.st_size) != *n_bytes) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("has {} bytes, {} says {} (fetch this file again)", status.st_size,
                            formats::kManifestName, *n_bytes))
        .in_file(path.string());
  }
  const auto [at, is_new] =
      by_inode_.try_emplace({std::uint64_t{status.st_dev}, std::uint64_t{status.st_ino}},
                            static_cast<std::uint32_t>(files_.size()));
  if (is_new) {
    formats::WeightsFile& file = files_.emplace_back();
    file.facts.name = std::move(name);
    file.path = path;
    holders_.push_back(holder);
  }
  return {at->second, is_new};
}

}  // namespace ingot::shard
