#include "formats/checkpoint/checkpoint_listing.h"

#include <algorithm>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "formats/base/fault_lines.h"
#include "formats/base/fd.h"
#include "formats/base/foreign_files.h"
#include "formats/base/printable.h"
#include "formats/checkpoint/passes.h"
#include "formats/config/native_config.h"
#include "formats/container/safetensors.h"
#include "formats/family/families.h"
#include "formats/files/folder.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "formats/signed/bundle.h"

namespace ingot::formats {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kHeaderSuffix = ".header";
// msmodelslim's: quant_model_weights and, with the type behind it, quant_model_weight_w8a8_dynamic.
constexpr std::string_view kModelslimIndexPrefix = "quant_model_weight";
constexpr std::string_view kShardKind = "model-*-of-*.safetensors";
// The published index of 92,425 tensors has 9 MB.
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 30;
// One line per stored tensor: of the largest released model 20 MB.
constexpr std::uint64_t kMaxDescriptionBytes = 256'000'000;

/// Bare names that end in `suffix`, without it, sorted.
std::vector<std::string> names_with_suffix(const fs::path& directory, std::string_view suffix) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries_in(directory)) {
    std::string name = entry.path().filename().string();
    if (!name.ends_with(suffix)) continue;
    name.resize(name.size() - suffix.size());
    names.push_back(std::move(name));
  }
  return names;
}

bool is_listed(const std::vector<std::string>& sorted, std::string_view name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

std::vector<std::string> present_files(const fs::path& directory,
                                       const fs::path& consumed_headers) {
  std::vector<std::string> names = names_with_suffix(directory, kWeightsSuffix);
  for (std::string& name : names) name += kWeightsSuffix;
  // A snapshot has links, also to files that did not arrive, or were removed.
  if (hub_snapshot_at(directory)) {
    std::error_code ignored;
    std::erase_if(names, [&](const auto& name) { return !fs::exists(directory / name, ignored); });
  }
  if (!consumed_headers.empty()) {
    for (std::string& name : names_with_suffix(consumed_headers, kHeaderSuffix))
      names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// The name of the index, or empty where there is none. Throws kDuplicate for several that are not
/// called as loaders expect.
std::string index_name(const fs::path& directory) {
  // Not exists(): a link that leads nowhere is a broken index, not none.
  std::error_code failure;
  if (fs::symlink_status(directory / kIndexName, failure).type() != fs::file_type::not_found)
    return std::string(kIndexName);
  std::vector<std::string> names = names_with_suffix(directory, kIndexSuffix);
  std::erase_if(names,
                [](const std::string& name) { return !name.starts_with(kModelslimIndexPrefix); });
  if (names.empty()) return {};
  if (names.size() > 1) {
    throw Error(ErrorCode::kDuplicate, "is an index, and so is {}{} (keep the one of this model)",
                names[1], kIndexSuffix)
        .in_file(names[0].append(kIndexSuffix));
  }
  return names[0].append(kIndexSuffix);
}

/// The index; nullopt where there is none.
std::optional<CheckpointIndex> read_index(const fs::path& directory) {
  const std::string name = index_name(directory);
  if (name.empty()) return std::nullopt;
  return parse_checkpoint_index(read_text_file(directory / name, kMaxIndexBytes), name);
}

// The first of several, for one fault: "'a.safetensors' and 29 more".
std::string first_of(const std::vector<std::string>& names) {
  return names.size() == 1 ? fmt::format("'{}'", names.front())
                           : fmt::format("'{}' and {} more", names.front(), names.size() - 1);
}

std::string nor_others(const std::vector<std::string>& names, std::string_view verb) {
  if (names.size() == 1) return {};
  return fmt::format(", nor {} {} more file{}", verb, names.size() - 1,
                     names.size() == 2 ? "" : "s");
}

// An index that is not of the files: one fault for each way in which that shows.
void tell_of_index(const std::vector<std::string>& missing, const std::vector<std::string>& unnamed,
                   Draft& draft) {
  const std::string& index = draft.index.name;
  ErrorList& faults = draft.faults;
  if (!missing.empty() && !unnamed.empty()) {
    faults.add(Error(ErrorCode::kNotFound,
                     "names files that are not here ({}), and does not name files that are ({}): "
                     "it is the index of other files ({})",
                     first_of(missing), first_of(unnamed), kIndexRemedy)
                   .in_file(index));
  } else if (!missing.empty()) {
    const auto fetch = hub_fetch(draft.directory);
    faults.add(
        Error(ErrorCode::kNotFound, "{} names it, but it is not here{} ({}; {})", index,
              nor_others(missing, "are"),
              fetch ? *fetch
                    : fmt::format("fetch {}", missing.size() == 1 ? "this file" : "these files"),
              kIndexRemedy)
            .in_file(missing.front()));
  } else if (!unnamed.empty()) {
    faults.add(Error(ErrorCode::kMissingTensor,
                     "is not named by {}{} (fetch the index again, or move the file away; {})",
                     index, nor_others(unnamed, "are"), kIndexRemedy)
                   .in_file(unnamed.front()));
  }
}

void take_indexed(const std::vector<std::string>& present, Draft& draft) {
  std::vector<std::string> named;
  for (const auto& [tensor, file] : draft.index.weight_map) {
    if (named.empty() || named.back() != file) named.push_back(file);
  }
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  std::set<std::string> kinds;
  std::vector<std::string> missing, unnamed;
  for (std::string& file : named) {
    kinds.insert(name_kind(file));
    (is_listed(present, file) ? draft.weights : missing).push_back(std::move(file));
  }
  draft.is_complete = missing.empty();
  for (const std::string& file : present) {
    if (is_listed(draft.weights, file)) continue;
    if (draft.weights.empty() || kinds.contains(name_kind(file))) {
      unnamed.push_back(file);
    } else if (file != kSingleFile) {
      draft.strays.push_back(file);
    } else {
      draft.faults.add(Error(ErrorCode::kMissingTensor,
                             "is not named by {}, and loaders would read it instead of the files "
                             "that are (move the file away, or the index and its files)",
                             draft.index.name)
                           .in_file(file));
    }
  }
  tell_of_index(missing, unnamed, draft);
}

void take_unindexed(const std::vector<std::string>& present, Draft& draft) {
  const fs::path& directory = draft.directory;
  ErrorList& faults = draft.faults;
  if (present.empty()) {
    draft.is_complete = false;
    const auto fetch = hub_fetch(directory);
    faults.add(Error(ErrorCode::kNotFound, "holds no weights: neither {} nor {}{}", kIndexName,
                     kSingleFile, fetch ? fmt::format(" ({})", *fetch) : "")
                   .in_file(directory.string()));
    return;
  }
  if (!is_listed(present, kSingleFile)) {
    draft.is_complete = false;
    faults.add(Error(ErrorCode::kNotFound,
                     "has {} .safetensors file(s), but neither {} nor {} (fetch the index, or "
                     "ingot repair makes one; --family generic reads them without)",
                     present.size(), kIndexName, kSingleFile)
                   .in_file(directory.string()));
    return;
  }
  draft.weights.emplace_back(kSingleFile);
  std::vector<std::string> shards;
  for (const std::string& file : present) {
    if (file == kSingleFile) continue;
    (name_kind(file) == kShardKind ? shards : draft.strays).push_back(file);
  }
  if (shards.empty()) return;
  const std::string others =
      shards.size() == 1 ? std::string() : fmt::format(", and so do {} more", shards.size() - 1);
  faults.add(Error(ErrorCode::kMissingTensor,
                   "is next to {} without an index{} (fetch {}, or move the file away; {})",
                   kSingleFile, others, kIndexName, kIndexRemedy)
                 .in_file(shards.front()));
}

/// Lists the files that have names which loaders expect, if there are any; else all.
void take_any(const std::vector<std::string>& present, Draft& draft) {
  const auto is_usual = [](const std::string& file) {
    return file == kSingleFile || name_kind(file) == kShardKind;
  };
  const bool has_usual = std::ranges::any_of(present, is_usual);
  for (const std::string& file : present)
    (!has_usual || is_usual(file) ? draft.weights : draft.strays).push_back(file);
}

// Throws for a folder whose files tell why it has no config.json.
void require_no_other_form(const fs::path& directory) {
  const std::vector<std::string> names = names_in(directory);
  const auto has = [&](const auto& is_sign) { return std::ranges::any_of(names, is_sign); };
  if (has([](const std::string& name) { return name == "params.json"; }) &&
      has([](const std::string& name) { return name.starts_with("consolidated"); })) {
    throw Error(ErrorCode::kUnsupported,
                "holds Mistral's own form, params.json and consolidated*.safetensors, which is not "
                "read (fetch config.json and model*.safetensors of the same release, or make them "
                "by transformers' convert_mistral_weights_to_hf.py; --family generic copies and "
                "casts its tensors by any names)")
        .in_file(directory.string());
  }
}

bool is_description_file(std::string_view name) {
  const auto all = dialects();
  return std::any_of(all.begin(), all.end(),
                     [&](const Dialect* dialect) { return name == dialect->description_file; });
}

bool is_ours_or_derived(std::string_view name) {
  return name == kConfigName || name == kNativeConfigName || name == kManifestName ||
         name == kRecordsName || name == kVerifyName || name == kAttestationName ||
         name == kModelSignatureName || name == kFamilyFileName || is_description_file(name);
}

// Adds the licences in a folder that is left out.
void add_licences(const fs::path& directory, const std::string& prefix, SideListing& listing) {
  for (const fs::directory_entry& entry : entries_in(directory)) {
    const std::string name = entry.path().filename().string();
    std::error_code failure;
    if (is_licence(name) && is_utf8(name) && entry.is_regular_file(failure))
      listing.files.push_back({.path = prefix + name, .n_bytes = entry.file_size(failure)});
  }
}

void collect_side_files(const fs::path& directory, const std::string& prefix, SideListing& listing,
                        ErrorList& faults) {
  for (const fs::directory_entry& entry : entries_in(directory)) {
    const std::string name = entry.path().filename().string();
    try {
      std::error_code failure;
      const fs::file_status own = entry.symlink_status(failure);
      if (!failure && own.type() == fs::file_type::directory) {
        const std::string path = prefix + name + "/";
        if (const std::string_view reason = left_out_reason(path); !reason.empty()) {
          listing.left_out.push_back({.path = path, .reason = reason});
          add_licences(entry.path(), path, listing);
        } else if (!name.starts_with('.')) {
          collect_side_files(entry.path(), path, listing, faults);
        }
        continue;
      }
      // Weights files at the top have been listed before.
      if (name.ends_with(kIndexSuffix) || (prefix.empty() && name.ends_with(kWeightsSuffix)))
        continue;
      if (const std::string_view reason = left_out_reason(prefix + name); !reason.empty()) {
        listing.left_out.push_back({.path = prefix + name, .reason = reason});
        continue;
      }
      if (prefix.empty() && is_ours_or_derived(name)) continue;
      const fs::file_status target = entry.status(failure);
      if (target.type() == fs::file_type::not_found) {
        throw Error(ErrorCode::kNotFound, "is a symbolic link that leads nowhere")
            .in_file(entry.path().string());
      }
      if (failure) throw system_error(failure.value(), "read", entry.path().string());
      if (target.type() == fs::file_type::directory) continue;
      if (!is_utf8(name)) {
        throw Error(ErrorCode::kUnsupported, "has a name that is not UTF-8 (rename or remove it)")
            .in_file(entry.path().string());
      }
      if (target.type() != fs::file_type::regular) {
        throw Error(ErrorCode::kInvalidArgument, "is not a regular file (move it away)")
            .in_file(entry.path().string());
      }
      const std::uintmax_t size = entry.file_size(failure);
      if (failure) throw system_error(failure.value(), "read", entry.path().string());
      listing.files.push_back({.path = prefix + name, .n_bytes = size});
    } catch (const Error& error) {
      faults.add(error);
    }
  }
}

}  // namespace

void require_directory(const fs::path& directory) {
  std::error_code failure;
  const fs::file_status status = fs::status(directory, failure);
  if (status.type() == fs::file_type::not_found) {
    throw Error(ErrorCode::kNotFound, "no such directory").in_file(directory.string());
  }
  if (failure) throw system_error(failure.value(), "read directory", directory.string());
  if (status.type() != fs::file_type::directory) {
    if (const std::string_view reason = left_out_reason(directory.filename().string());
        !reason.empty() && reason != kUnlistedWeights)
      throw Error(ErrorCode::kUnsupported,
                  "has {}; folders of safetensors files are read (fetch such a release)", reason)
          .in_file(directory.string());
    throw Error(ErrorCode::kInvalidArgument,
                "is not a directory (name the folder that holds config.json; inspect, check and "
                "verify take a .safetensors file too)")
        .in_file(directory.string());
  }
}

void require_finished_directory(const fs::path& directory) {
  require_directory(directory);
  std::error_code failure;
  const bool is_partial = fs::exists(directory / kPartialName, failure);
  if (failure) throw system_error(failure.value(), "read directory", directory.string());
  // All ranks below a directory may change with it.
  for (const fs::path& place : {directory, resolved_path(directory).parent_path()}) {
    if (!fs::exists(place / kPartialName / kDeltaJournalName, failure)) continue;
    throw Error(ErrorCode::kExists,
                "is half changed to another version (ingot delta apply, with this directory, "
                "finishes that)")
        .in_file(place.string());
  }
  if (is_partial) {
    throw Error(ErrorCode::kExists,
                "holds {}: an unfinished conversion (run the same command with --resume)",
                kPartialName)
        .in_file(directory.string());
  }
}

void require_links(const fs::path& directory) {
  if (hub_snapshot_at(directory)) return;
  std::vector<std::string> broken;
  for (const fs::directory_entry& entry : entries_in(directory)) {
    std::error_code failure;
    if (entry.is_symlink(failure) && entry.status(failure).type() == fs::file_type::not_found)
      broken.push_back(entry.path().filename().string());
  }
  if (broken.empty()) return;
  std::error_code failure;
  const fs::path first = directory / broken.front();
  const std::string target = fs::read_symlink(first, failure).string();
  throw Error(ErrorCode::kNotFound, "is a symbolic link to {}, which leads nowhere{} ({})", target,
              nor_others(broken, "are the targets of"),
              target.find("blobs/") != std::string::npos
                  ? "a snapshot of the hub's cache was copied without its blobs: copy with cp -rL, "
                    "or fetch the model with hf download --local-dir"
                  : "put the files themselves here")
      .in_file(first.string());
}

std::optional<std::string> read_config(const fs::path& directory, bool may_be_missing) {
  const fs::path path = directory / kConfigName;
  try {
    return read_text_file(path, kMaxConfigBytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    if (may_be_missing) return std::nullopt;
    require_no_other_form(directory);
    throw Error(ErrorCode::kNotFound, "is missing ({}; --family generic goes without)",
                hub_fetch(directory).value_or("fetch it"))
        .in_file(path.string());
  }
}

Json read_description(const fs::path& directory, const Dialect& dialect, bool bare) {
  if (dialect.description_file.empty()) return nullptr;
  const fs::path path = directory / dialect.description_file;
  // Not exists(): a link that leads nowhere is a broken file, not none.
  std::error_code failure;
  if (fs::symlink_status(path, failure).type() == fs::file_type::not_found) return nullptr;
  const std::string where = bare ? std::string(dialect.description_file) : path.string();
  Json description =
      parse_config(read_text_file(path, kMaxDescriptionBytes), where, JsonNumbers::kOfJson);
  if (!description.is_object())
    throw Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(where);
  return description;
}

void list_weights(Draft& draft) {
  const std::vector<std::string> present =
      present_files(draft.directory, draft.options.consumed_headers);
  std::optional<CheckpointIndex> index;
  if ((draft.options.ignores_index && !present.empty()) ||
      !draft.attempt([&] { index = read_index(draft.directory); })) {
    // An index that cannot be read has no list, but `check` may still look at the files.
    draft.weights = present;
  } else if (index) {
    draft.has_index = true;
    draft.index = std::move(*index);
    take_indexed(present, draft);
  } else if (draft.takes_any_names && !present.empty()) {
    take_any(present, draft);
  } else {
    take_unindexed(present, draft);
  }
}

std::set<std::string> checkpoint_names(const fs::path& directory) {
  std::set<std::string> names;
  const std::vector<std::string> all = list_file_names(directory);
  for (const std::string& name : all) {
    if (name == kSingleFile || name_kind(name) == kShardKind || name == kIndexName ||
        is_ours_or_derived(name))
      names.insert(name);
  }
  try {
    if (const std::optional<CheckpointIndex> index = read_index(directory)) {
      names.insert(index->name);
      for (const auto& [tensor, file] : index->weight_map)
        if (is_listed(all, file)) names.insert(file);
    }
  } catch (const Error&) {
    // Whoever reads the checkpoint is told.
  }
  return names;
}

IndexFrame read_index_frame(const fs::path& directory) {
  const fs::path path = directory / kIndexName;
  if (!stamp_of(path)) return {};
  return parse_checkpoint_index(read_text_file(path, kMaxIndexBytes), path.string()).frame;
}

std::vector<std::string> list_file_names(const fs::path& directory) {
  // A model of which only shapes are known is in no directory.
  std::error_code failure;
  if (!fs::exists(directory, failure)) return {};
  return names_with_suffix(directory, "");
}

SideListing list_side_files(const fs::path& directory, ErrorList& faults) {
  SideListing listing;
  collect_side_files(directory, "", listing, faults);
  const auto by_path = [](const auto& a, const auto& b) { return a.path < b.path; };
  std::sort(listing.files.begin(), listing.files.end(), by_path);
  std::sort(listing.left_out.begin(), listing.left_out.end(), by_path);
  return listing;
}

}  // namespace ingot::formats
