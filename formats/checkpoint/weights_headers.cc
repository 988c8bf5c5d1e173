#include "formats/checkpoint/weights_headers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/fault_lines.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/safetensors.h"
#include "formats/text/list_text.h"

namespace ingot::formats {

std::vector<WeightsFile> locate_files(const std::vector<std::string>& names,
                                      const std::filesystem::path& directory,
                                      const std::filesystem::path& consumed_headers) {
  std::vector<WeightsFile> files;
  for (const std::string& name : names) {
    WeightsFile& file = files.emplace_back();
    file.facts.name = name;
    file.path = directory / name;
    std::error_code failure;
    const bool is_here = std::filesystem::symlink_status(file.path, failure).type() !=
                         std::filesystem::file_type::not_found;
    if (!is_here && !consumed_headers.empty())
      file.saved_header = consumed_headers / (name + ".header");
  }
  return files;
}

std::vector<StoredTensor> read_headers(std::vector<WeightsFile>& files, std::size_t threads,
                                       ErrorList& faults) {
  std::vector<SafetensorsHeader> headers(files.size());
  std::vector<std::optional<Error>> failures(files.size());
  parallel_for(files.size(), std::max<std::size_t>(threads, 1), [&](std::size_t i) {
    try {
      const WeightsHeader raw = read_weights_header(files[i]);
      files[i].stamp = raw.stamp;
      headers[i] = parse_safetensors_header(raw.bytes, raw.file_bytes, files[i].facts.name);
    } catch (const Error& error) {
      failures[i] = error;
    }
  });
  std::size_t n_tensors = 0;
  for (const SafetensorsHeader& header : headers) n_tensors += header.tensors.size();
  std::vector<StoredTensor> stored;
  stored.reserve(n_tensors);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (failures[i]) faults.add(*failures[i]);
    files[i].facts.n_bytes = headers[i].file_bytes;
    files[i].facts.data_start = headers[i].data_start;
    for (StoredTensor& tensor : headers[i].tensors) {
      tensor.file = static_cast<std::uint32_t>(i);
      stored.push_back(std::move(tensor));
    }
    headers[i] = {};
  }
  return stored;
}

namespace {

/// Limit of the bytes of copies that are compared only for a report.
constexpr std::uint64_t kComparedBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kComparedAtOnce = std::uint64_t{4} << 20;

/// Copies of one tensor, by place in the list of all.
using Copies = std::span<const std::uint32_t>;

class CopyComparison {
 public:
  CopyComparison(const CopyChoice& choice, std::span<const StoredTensor> stored)
      : bytes_(choice.bytes), stored_(stored), is_limited_(!choice.merges_equal) {}

  /// Nullopt if they were not compared.
  std::optional<bool> are_equal(Copies copies) {
    const StoredTensor& first = stored_[copies.front()];
    for (const std::uint32_t other : copies.subspan(1)) {
      if (stored_[other].dtype != first.dtype || stored_[other].shape != first.shape) return false;
    }
    const std::uint64_t n_bytes = first.n_bytes;
    const auto is_here = [&](std::uint32_t i) { return bytes_->has_data(stored_[i].file); };
    if (bytes_ == nullptr || (is_limited_ && n_bytes > left_) ||
        !std::ranges::all_of(copies, is_here))
      return std::nullopt;
    left_ -= std::min(left_, n_bytes);
    return std::ranges::all_of(copies.subspan(1), [&](std::uint32_t other) {
      return have_same_bytes(first, stored_[other]);
    });
  }

 private:
  [[nodiscard]] bool have_same_bytes(const StoredTensor& a, const StoredTensor& b) const {
    for (std::uint64_t at = 0; at < a.n_bytes; at += kComparedAtOnce) {
      const std::uint64_t n = std::min(kComparedAtOnce, a.n_bytes - at);
      std::vector<std::byte> of_a(n), of_b(n);
      bytes_->read(0, a, at, of_a);
      bytes_->read(0, b, at, of_b);
      if (of_a != of_b) return false;
    }
    return true;
  }

  const StoredBytes* bytes_;
  std::span<const StoredTensor> stored_;
  bool is_limited_;
  std::uint64_t left_ = kComparedBytes;
};

// The remedy for copies.
std::string_view remedy_of(std::optional<bool> are_equal, bool has_indexed) {
  if (!are_equal) return "ingot repair leaves one out where their bytes are equal";
  if (*are_equal) return "their bytes are equal (ingot repair leaves one out)";
  return has_indexed ? "their bytes differ (fetch the files again, or ingot repair --allow "
                       "duplicate-tensor=PATTERN takes the copy that the index names)"
                     : "their bytes differ (fetch files and index again)";
}

}  // namespace

void settle_copies(const CopyChoice& choice, std::span<const SourceFile> files,
                   std::vector<StoredTensor>& stored, StoredNames& names,
                   std::vector<std::string>& remarks, ErrorList& faults) {
  CopyComparison comparison(choice, stored);
  std::map<std::string_view, std::string_view> homes;  // files of tensors with copies, by the index
  std::vector<Copies> all;
  for (Copies left = names.sorted(); !left.empty();) {
    const std::string& name = stored[left.front()].name;
    const auto end =
        std::ranges::find_if(left, [&](std::uint32_t i) { return stored[i].name != name; });
    const auto n = static_cast<std::size_t>(end - left.begin());
    if (n > 1) {
      all.push_back(left.first(n));
      homes.emplace(name, std::string_view());
    }
    left = left.subspan(n);
  }
  if (all.empty()) return;
  if (choice.index != nullptr) {
    for (const auto& [tensor, file] : choice.index->weight_map) {
      if (const auto home = homes.find(tensor); home != homes.end()) home->second = file;
    }
  }
  std::vector<bool> is_left_out(stored.size(), false);
  std::vector<std::string> settled;
  for (const Copies copies : all) {
    const std::string& name = stored[copies.front()].name;
    const auto indexed = std::ranges::find(copies, homes.at(name), [&](std::uint32_t i) {
      return std::string_view(files[stored[i].file].name);
    });
    const std::uint32_t kept = indexed == copies.end() ? copies.front() : *indexed;
    std::vector<std::string_view> holders;
    for (const std::uint32_t copy : copies) {
      is_left_out[copy] = copy != kept;
      if (copy != kept) holders.push_back(files[stored[copy].file].name);
    }
    const bool is_allowed = indexed != copies.end() && choice.by_index != nullptr &&
                            std::ranges::any_of(*choice.by_index, [&](const Pattern& pattern) {
                              return pattern.matches(name);
                            });
    const std::optional<bool> are_equal = is_allowed ? std::nullopt : comparison.are_equal(copies);
    if (is_allowed || (choice.merges_equal && are_equal == true)) {
      settled.push_back(fmt::format("'{}'", name));
      continue;
    }
    faults.add(Error(ErrorCode::kDuplicate, "is also in {}{}; {}", fmt::join(holders, " and "),
                     indexed == copies.end()
                         ? std::string()
                         : fmt::format(", {} names this file", choice.index->name),
                     remedy_of(are_equal, indexed != copies.end()))
                   .in_file(files[stored[kept].file].name)
                   .in_tensor(name));
  }
  if (!settled.empty()) {
    remarks.push_back(fmt::format(
        "{}{} stood in several files: one copy is taken", settled.front(),
        settled.size() == 1 ? std::string() : fmt::format(" and {} more", settled.size() - 1)));
  }
  std::size_t i = 0;
  std::erase_if(stored, [&](const StoredTensor&) { return is_left_out[i++]; });
  names = StoredNames(stored);
}

namespace {

// Names after the first: "; so it is with 'b', 'c' and 12 more".
std::string others_of(const std::vector<std::string_view>& names) {
  return names.size() < 2 ? std::string()
                          : "; so it is with " + list_text(std::span(names).subspan(1), 4, "'");
}

}  // namespace

void check_index(const CheckpointIndex& index, std::span<const StoredTensor> stored,
                 const StoredNames& names, std::span<const SourceFile> files, ErrorList& faults) {
  std::vector<bool> is_indexed(stored.size(), false);
  std::vector<std::string_view> misplaced, unnamed;
  std::string first_fact, first_file;
  for (const auto& [tensor, file] : index.weight_map) {
    const auto at = std::lower_bound(
        files.begin(), files.end(), file,
        [](const SourceFile& a, const std::string& name) { return a.name < name; });
    if (at == files.end() || at->name != file || at->data_start == 0) continue;
    const auto found = names.find(tensor);
    if (found) is_indexed[*found] = true;
    if (found && files[stored[*found].file].name == file) continue;
    if (misplaced.empty()) {
      first_file = file;
      first_fact = fmt::format(
          "{} says it is in this file, {}", index.name,
          found ? fmt::format("it is in {}", files[stored[*found].file].name) : "it is not there");
    }
    misplaced.push_back(tensor);
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (is_indexed[i] || names.find(stored[i].name) != i) continue;
    if (misplaced.empty() && unnamed.empty()) {
      first_file = files[stored[i].file].name;
      first_fact = fmt::format("is not named by {}", index.name);
    }
    unnamed.push_back(stored[i].name);
  }
  if (misplaced.empty() && unnamed.empty()) return;
  // All have one cause: the index is not of these files.
  const std::vector<std::string_view>& told = misplaced.empty() ? unnamed : misplaced;
  const std::string also =
      misplaced.empty() || unnamed.empty()
          ? ""
          : fmt::format("; of the files' tensors it does not name '{}'{}", unnamed.front(),
                        unnamed.size() == 1 ? "" : fmt::format(" and {} more", unnamed.size() - 1));
  faults.add(Error(ErrorCode::kMissingTensor, "{}{}{} (fetch index and file again; {})", first_fact,
                   others_of(told), also, kIndexRemedy)
                 .in_file(first_file)
                 .in_tensor(told.front()));
}

std::set<std::string_view> unreadable_files(std::span<const SourceFile> files) {
  std::set<std::string_view> unreadable;
  for (const SourceFile& file : files) {
    if (file.data_start == 0) unreadable.insert(file.name);
  }
  return unreadable;
}

std::vector<std::string> lost_names(const CheckpointIndex& index,
                                    std::span<const SourceFile> files) {
  std::set<std::string_view> readable;
  for (const SourceFile& file : files) {
    if (file.data_start != 0) readable.insert(file.name);
  }
  std::vector<std::string> lost;
  for (const auto& [tensor, file] : index.weight_map) {
    if (!readable.contains(file)) lost.push_back(tensor);
  }
  std::sort(lost.begin(), lost.end());
  return lost;
}

namespace {

/// Tensors of a file; none where the header cannot be read, as such a file is no part of a model.
std::vector<StoredTensor> tensors_of(const std::filesystem::path& directory,
                                     const std::string& file) {
  std::vector<WeightsFile> located = locate_files({file}, directory, {});
  ErrorList ignored;
  return read_headers(located, 1, ignored);
}

/// A file of the model that no list has, and a tensor of it that is nowhere else.
struct LostFile {
  std::string name, tensor;
};

Error refusal(const StrayCheck& check, const std::vector<LostFile>& lost) {
  const std::string others =
      lost.size() == 1 ? std::string() : fmt::format("; so it is with {} more", lost.size() - 1);
  const std::string& tensor = lost.front().tensor;
  const std::string fact =
      check.index_name.empty()
          ? fmt::format("is next to the weights without an index, and holds '{}'", tensor)
          : fmt::format("is not named by {}, nor is its tensor '{}'", check.index_name, tensor);
  return Error(ErrorCode::kMissingTensor, "{}{} (fetch {}, or move the file away; {})", fact,
               others, kIndexName, kIndexRemedy)
      .in_file(lost.front().name);
}

}  // namespace

void settle_strays(const StrayCheck& check, const std::vector<std::string>& files,
                   std::vector<LeftOut>& left_out, ErrorList& faults) {
  if (files.empty()) return;
  std::set<std::string> kinds;
  for (const StoredTensor& tensor : check.stored) kinds.insert(name_kind(tensor.name));
  const NameGrammar grammar(check.family, check.config);
  std::vector<LostFile> lost;
  for (const std::string& file : files) {
    const std::vector<StoredTensor> tensors = tensors_of(check.directory, file);
    const auto ours = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return !check.names.find(tensor.name) &&
             (kinds.contains(name_kind(tensor.name)) || grammar.match(tensor.name).has_value());
    });
    if (ours == tensors.end()) {
      left_out.push_back({.path = file, .reason = kUnlistedWeights});
    } else {
      lost.push_back({.name = file, .tensor = ours->name});
    }
  }
  if (!lost.empty()) faults.add(refusal(check, lost));
}

}  // namespace ingot::formats
