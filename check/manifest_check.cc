#include "check/manifest_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "formats/base/hash.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/json/json.h"

namespace ingot::check {

using formats::kManifestName;
using formats::kRecordsName;
using formats::Manifest;
using formats::ManifestFile;
using formats::RankEntry;
using formats::SlicingRecord;
using formats::TensorHash;
using formats::TensorRecord;

namespace {

// Stored tensors of each file, in the order of their data.
std::vector<std::vector<std::uint32_t>> tensors_by_file(const StoredWeights& weights) {
  const auto stored = weights.stored;
  std::vector<std::vector<std::uint32_t>> by_file(weights.bytes.files().size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    by_file[stored[i].file].push_back(static_cast<std::uint32_t>(i));
  }
  for (auto& tensors : by_file) {
    std::sort(tensors.begin(), tensors.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(stored[a].offset, a) < std::pair(stored[b].offset, b);
    });
  }
  return by_file;
}

using Pieces = std::map<std::pair<std::string_view, std::string_view>,
                        std::map<std::uint64_t, const TensorHash*>>;

// The pieces that the records tell of, by file and stored tensor, in the order of their bytes.
Pieces recorded_pieces(std::span<const TensorRecord> records) {
  Pieces pieces;
  for (const TensorRecord& record : records) {
    for (const TensorHash& tensor : record.output) {
      if (tensor.piece)
        pieces[{tensor.file, tensor.piece->of}].emplace(tensor.piece->offset, &tensor);
    }
  }
  return pieces;
}

// Appends the pieces of a stored tensor; false: they do not fill it.
bool append_pieces(const formats::StoredTensor& stored,
                   const std::map<std::uint64_t, const TensorHash*>& of_tensor,
                   std::vector<formats::StoredTensor>& out) {
  const std::size_t before = out.size();
  std::uint64_t end = 0;
  for (const auto& [offset, recorded] : of_tensor) {
    const auto n_bytes = formats::byte_count(stored.dtype, recorded->shape);
    if (offset != end || !n_bytes || *n_bytes > stored.n_bytes - end) break;
    formats::StoredTensor& piece = out.emplace_back(stored);
    piece.name = recorded->name;
    piece.shape = recorded->shape;
    piece.offset += offset;
    piece.n_bytes = *n_bytes;
    end += *n_bytes;
  }
  if (out.size() - before == of_tensor.size() && end == stored.n_bytes) return true;
  out.resize(before);
  return false;
}

// Stored tensors as the records know them: each piece as one of its own. One that its pieces do
// not fill stays, and is none of the manifest's.
std::vector<formats::StoredTensor> in_pieces(const StoredWeights& weights, const Pieces& pieces) {
  std::vector<formats::StoredTensor> split;
  for (const formats::StoredTensor& stored : weights.stored) {
    const auto found = pieces.find({weights.bytes.files()[stored.file].name, stored.name});
    if (found == pieces.end() || !append_pieces(stored, found->second, split))
      split.push_back(stored);
  }
  return split;
}

// The files, against the manifest.
class ManifestCheck {
 public:
  ManifestCheck(const std::filesystem::path& directory, const Manifest& manifest,
                CheckResult& result)
      : directory_(directory), manifest_(manifest), result_(result) {}

  void sizes() {
    for (const auto* list : {&manifest_.files, &manifest_.side_files}) {
      for (const ManifestFile& file : *list) has_size(file);
    }
  }

  void side_files(const HashingOptions& options) {
    for (const ManifestFile& file : manifest_.side_files) {
      if (!has_size(file, false)) continue;
      collect(result_, file.name, [&] {
        const Hash128 hash = hash_file(directory_ / file.name, options);
        if (hash != file.hash) differs(file.name, "", file.hash, hash);
      });
    }
  }

  void weights(const StoredWeights& given, LinkedHashes& hashes, const HashingOptions& options) {
    std::vector<TensorRecord> records;
    collect(result_, std::string(kRecordsName), [&] {
      records = formats::read_tensor_records(directory_ / kRecordsName, manifest_.records_hash);
    });
    const Pieces pieces = recorded_pieces(records);
    std::vector<formats::StoredTensor> split;
    if (!pieces.empty()) split = in_pieces(given, pieces);
    const StoredWeights weights{
        .stored = pieces.empty() ? given.stored : std::span(std::as_const(split)),
        .bytes = given.bytes};
    Promised promised;
    for (const TensorRecord& record : records) {
      for (const TensorHash& tensor : record.output)
        promised.emplace(key_of(tensor.file, tensor.name), &tensor);
    }
    const std::vector<HashedTensor> hashed = hashes.hash_stored(directory_, weights, options);
    const auto by_file = tensors_by_file(weights);
    for (std::uint32_t file = 0; file < by_file.size(); ++file) {
      const std::size_t before = result_.findings.size();
      for (const std::uint32_t i : by_file[file]) {
        tensor(weights.stored[i], weights.bytes.files()[file].name, hashed[i], promised,
               !records.empty());
      }
      // A tensor that differs makes its file differ: say it once.
      if (result_.findings.size() == before) whole_file(weights.bytes, file, by_file[file], hashed);
    }
    const std::set<std::string_view> unreadable = unreadable_files(weights.bytes.files());
    for (const TensorRecord& record : records) {
      for (const TensorHash& tensor : record.output) {
        // A file that cannot be read was told of, and is the cause.
        if (unreadable.contains(tensor.file)) continue;
        if (!promised.contains(key_of(tensor.file, tensor.name))) continue;
        result_.add(ErrorCode::kMissingTensor, tensor.file, tensor.name,
                    "is in the manifest, but not here");
      }
    }
  }

 private:
  // By file and name: files of several ranks have the same names.
  using Promised = std::unordered_map<std::string, const TensorHash*>;
  static std::string key_of(const std::string& file, const std::string& name) {
    return fmt::format("{}\n{}", file, name);
  }

  bool has_size(const ManifestFile& file, bool report = true) {
    std::error_code error;
    const std::uint64_t n_bytes = std::filesystem::file_size(directory_ / file.name, error);
    if (!error && n_bytes == file.n_bytes) return true;
    if (!report) return false;
    if (error) {
      result_.findings.push_back(
          finding_of(system_error(error.value(), "read a file of the manifest", file.name)));
    } else {
      result_.add(ErrorCode::kMismatch, file.name, "",
                  fmt::format("has {} bytes, the manifest says {}", n_bytes, file.n_bytes));
    }
    return false;
  }

  void differs(const std::string& file, const std::string& tensor, const Hash128& wanted,
               const Hash128& found) {
    result_.add(
        ErrorCode::kMismatch, file, tensor,
        fmt::format("its bytes have hash {}, the manifest says {} (changed since it was written: "
                    "convert or fetch it again)",
                    found.hex(), wanted.hex()));
  }

  void tensor(const formats::StoredTensor& stored, const std::string& file,
              const HashedTensor& hashed, Promised& promised, bool have_records) {
    const auto found = promised.find(key_of(file, stored.name));
    const TensorHash* wanted = found == promised.end() ? nullptr : found->second;
    if (wanted != nullptr) promised.erase(found);
    if (hashed.failure) {
      Finding finding = finding_of(*hashed.failure);
      finding.file = file;
      finding.tensor = stored.name;
      result_.findings.push_back(std::move(finding));
      return;
    }
    if (!hashed.hash) return;
    ++result_.n_hashed;
    if (wanted != nullptr) {
      if (wanted->dtype != dtype_name(stored.dtype) || wanted->shape != stored.shape) {
        result_.add(ErrorCode::kMismatch, file, stored.name,
                    fmt::format("is {} {}, the manifest says {} {}", dtype_name(stored.dtype),
                                formats::shape_text(stored.shape), wanted->dtype,
                                formats::shape_text(wanted->shape)));
      } else if (wanted->hash != *hashed.hash) {
        differs(file, stored.name, wanted->hash, *hashed.hash);
      }
    } else if (have_records && !constants_.contains(stored.name)) {
      result_.add(ErrorCode::kMismatch, file, stored.name, "is not in the manifest");
    }
  }

  void whole_file(const formats::StoredBytes& bytes, std::uint32_t index,
                  const std::vector<std::uint32_t>& tensors,
                  const std::vector<HashedTensor>& hashed) {
    const std::string& name = bytes.files()[index].name;
    const auto file = std::find_if(manifest_.files.begin(), manifest_.files.end(),
                                   [&](const ManifestFile& entry) { return entry.name == name; });
    if (file == manifest_.files.end()) {
      result_.add(ErrorCode::kMismatch, name, "", "is not in the manifest");
      return;
    }
    if (!bytes.has_data(index)) return;
    std::vector<Hash128> hashes;
    for (const std::uint32_t i : tensors) hashes.push_back(hashed[i].hash.value_or(Hash128{}));
    collect(result_, name, [&] {
      const Hash128 hash = formats::weights_file_hash(bytes.header_bytes(index), hashes);
      if (hash != file->hash) differs(name, "", file->hash, hash);
    });
  }

  const std::filesystem::path& directory_;
  const Manifest& manifest_;
  const std::set<std::string, std::less<>> constants_ = manifest_.constants();
  CheckResult& result_;
};

constexpr std::string_view kRankPrefix = "rank-";

/// Why a rank's manifest is not the one that is meant, as far as it tells.
std::string reason(const std::filesystem::path& path, const SlicingRecord& slicing,
                   std::size_t rank) {
  try {
    const std::optional<formats::Manifest> manifest = formats::read_manifest(path);
    if (!manifest || !manifest->slicing || !manifest->slicing->rank)
      return "it is not the manifest of a rank: copy this directory again";
    if (manifest->slicing->job != slicing.job)
      return "it is of another conversion: copy this directory again from the one that is meant";
    if (manifest->slicing->rank->rank != rank) {
      return fmt::format("it is that of rank {}: put the directories in their places",
                         manifest->slicing->rank->rank);
    }
  } catch (const Error&) {
    // The check of the rank reports the fault.
  }
  return "changed since it was written: copy this directory again";
}

void check_manifest(const SlicingRecord& slicing, std::size_t rank,
                    const std::filesystem::path& path, CheckResult& result) {
  const RankEntry& entry = slicing.ranks[rank];
  const std::string file = fmt::format("{}/{}", entry.directory, kManifestName);
  collect(result, file, [&] {
    const Hash128 hash = hash_file(path / kManifestName);
    if (hash == entry.manifest_hash) return;
    result.add(ErrorCode::kMismatch, file, "",
               fmt::format("has hash {}, the manifest of all ranks says {} ({})", hash.hex(),
                           entry.manifest_hash.hex(), reason(path, slicing, rank)));
  });
}

void check_others(const std::filesystem::path& directory, const SlicingRecord& slicing,
                  CheckResult& result) {
  std::set<std::string_view> listed;
  for (const RankEntry& entry : slicing.ranks) listed.insert(entry.directory);
  for (const std::string& name : formats::list_file_names(directory)) {
    std::error_code failure;
    if (!name.starts_with(kRankPrefix) || listed.contains(name) ||
        !std::filesystem::is_directory(directory / name, failure))
      continue;
    result.add(ErrorCode::kMismatch, name, "",
               fmt::format("is not one of the {} directories in {} (move it away)",
                           slicing.ranks.size(), kManifestName));
  }
}

}  // namespace

void collect(CheckResult& result, const std::string& file, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    result.findings.push_back(finding_of(error));
    if (!file.empty()) result.findings.back().file = file;
  }
}

void check_against_manifest(const std::filesystem::path& directory, const Manifest& manifest,
                            const StoredWeights* weights, const CheckOptions& options,
                            LinkedHashes& hashes, CheckResult& result) {
  ManifestCheck check(directory, manifest, result);
  check.sizes();
  if (!options.hashes) return;
  const HashingOptions hashing{.threads = options.threads,
                               .stop_requested = options.stop_requested};
  if (weights != nullptr) check.weights(*weights, hashes, hashing);
  check.side_files(hashing);
}

void admit_allowed(const Manifest& manifest, CheckResult& result) {
  try {
    std::vector<Pattern> allowed;
    for (const std::string& text : manifest.allowed("engine-refuses")) allowed.emplace_back(text);
    for (Finding& finding : result.findings) {
      const LoaderRule* rule = find_loader_rule(finding.rule);
      const bool is_refusal =
          rule != nullptr && rule->is_allowable && finding.severity == Severity::kError;
      if (!is_refusal || std::none_of(allowed.begin(), allowed.end(), [&](const Pattern& pattern) {
            return pattern.matches(finding.tensor);
          }))
        continue;
      finding.severity = Severity::kWarning;
      finding.message += " (allowed when it was converted)";
    }
  } catch (const Error& error) {
    result.findings.push_back(finding_of(Error(error).in_file(std::string(kManifestName))));
  }
}

void check_ranks(const std::filesystem::path& directory, const SlicingRecord& slicing,
                 const std::function<CheckResult(const std::filesystem::path&)>& check_rank,
                 CheckResult& result) {
  for (std::size_t rank = 0; rank < slicing.ranks.size(); ++rank) {
    const std::string& name = slicing.ranks[rank].directory;
    const std::filesystem::path path = directory / name;
    std::error_code failure;
    if (!std::filesystem::is_directory(path, failure)) {
      result.add(ErrorCode::kNotFound, name, "",
                 fmt::format("is missing: the directory of rank {} (copy it here, or check the "
                             "others one by one)",
                             rank));
      continue;
    }
    check_manifest(slicing, rank, path, result);
    CheckResult found;
    collect(found, "", [&] { found = check_rank(path); });
    add_directory(name, path, std::move(found), result);
  }
  check_others(directory, slicing, result);
}

}  // namespace ingot::check
