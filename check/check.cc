#include "check/check.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "engines/verdicts.h"
#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/base/pattern.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/dialect/input_major.h"
#include "formats/experts/expert_views.h"
#include "formats/family/families.h"
#include "formats/files/folder.h"
#include "formats/files/hub_cache.h"
#include "formats/first_layers.h"
#include "formats/json/json.h"
#include "formats/kept_experts.h"
#include "formats/places/turned.h"
#include "formats/records/layout.h"
#include "formats/records/manifest.h"
#include "formats/storage/stack_form.h"
#include "formats/storage/unread_codes.h"
#include "shard/join/rank_directories.h"
#include "shard/join/source.h"

namespace ingot::check {

using formats::Checkpoint;
using formats::kManifestName;
using formats::kRecordsName;
using formats::Manifest;
using formats::ManifestFile;
using formats::RankEntry;
using formats::SlicingRecord;
using formats::SourceFile;
using formats::StoredTensor;
using formats::TensorHash;
using formats::TensorRecord;

namespace {

// Runs `body` and adds the error that it ends with to `result`, with `file` as its file unless that
// is empty. kInterrupted is thrown on.
void collect(CheckResult& result, const std::string& file, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    result.findings.push_back(finding_of(error));
    if (!file.empty()) result.findings.back().file = file;
  }
}

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
  const bool is_turned = of_tensor.begin()->second->piece->is_turned;
  std::uint64_t end = 0, rows = 0;
  for (const auto& [offset, recorded] : of_tensor) {
    const auto n_bytes = formats::byte_count(stored.dtype, recorded->shape);
    if (!n_bytes || *n_bytes > stored.n_bytes - end || recorded->piece->is_turned != is_turned)
      break;
    if (is_turned) {
      const formats::Shape& shape = recorded->shape;
      if (stored.shape.size() != 2 || shape.size() != 2 || shape[1] != stored.shape[0] ||
          formats::dtype_bits(stored.dtype) != 8 || offset != rows)
        break;
      rows += shape[0];
    } else if (offset != end) {
      break;
    }
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
class StoredPieces final : public formats::ForwardedBytes {
 public:
  StoredPieces(const StoredWeights& weights, const Pieces& pieces)
      : ForwardedBytes(weights.bytes) {
    for (const formats::StoredTensor& stored : weights.stored) {
      const std::size_t first = stored_.size();
      const auto found = pieces.find({files()[stored.file].name, stored.name});
      if (found == pieces.end() || !append_pieces(stored, found->second, stored_)) {
        stored_.push_back(stored);
      } else if (found->second.begin()->second->piece->is_turned) {
        for (std::size_t i = first; i < stored_.size(); ++i)
          strides_.emplace(i, stored.shape.at(1));
      }
    }
  }

  [[nodiscard]] StoredWeights weights() const { return {.stored = stored_, .bytes = *this}; }

  void read(std::uint32_t index, const formats::StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    const auto stride = strides_.find(index);
    if (stride == strides_.end()) return bytes_->read(index, tensor, offset, out);
    const formats::TurnedRows turned{
        .rows = tensor.shape.at(0), .cols = tensor.shape.at(1), .stride = stride->second};
    turned.nest().gather(offset, out,
                         [&](std::uint32_t /*piece*/, std::uint64_t at, std::span<std::byte> run) {
                           read_file(tensor.file, tensor.offset + at, run);
                         });
  }

 private:
  std::vector<formats::StoredTensor> stored_;
  std::unordered_map<std::size_t, std::uint64_t> strides_;  // of turned pieces, by index
};

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

  void side_files(std::size_t threads) {
    for (const ManifestFile& file : manifest_.side_files) {
      if (!has_size(file, false)) continue;
      collect(result_, file.name, [&] {
        const Hash128 hash = hash_file(directory_ / file.name, threads);
        if (hash != file.hash) differs(file.name, "", file.hash, hash);
      });
    }
  }

  void weights(const StoredWeights& given, LinkedHashes& hashes, std::size_t threads) {
    std::vector<TensorRecord> records;
    collect(result_, std::string(kRecordsName), [&] {
      records = formats::read_tensor_records(directory_ / kRecordsName, manifest_.records_hash);
    });
    const Pieces pieces = recorded_pieces(records);
    std::optional<StoredPieces> split;
    if (!pieces.empty()) split.emplace(given, pieces);
    const StoredWeights weights = split ? split->weights() : given;
    Promised promised;
    for (const TensorRecord& record : records) {
      for (const TensorHash& tensor : record.output)
        promised.emplace(key_of(tensor.file, tensor.name), &tensor);
    }
    const std::vector<HashedTensor> hashed = hashes.hash_stored(directory_, weights, threads);
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

// Adds to `result` every difference between `directory` and its manifest: sizes and, when
// `options.hashes`, the bytes of every tensor, header and side file. `weights` may be null when
// they could not be opened, or are in the directories of ranks. Tensors of one name may be in
// several files.
void check_against_manifest(const std::filesystem::path& directory, const Manifest& manifest,
                            const StoredWeights* weights, const CheckOptions& options,
                            LinkedHashes& hashes, CheckResult& result) {
  ManifestCheck check(directory, manifest, result);
  check.sizes();
  if (!options.hashes) return;
  if (weights != nullptr) check.weights(*weights, hashes, options.threads);
  check.side_files(options.threads);
}

// Makes warnings of the findings that the manifest says were allowed when the checkpoint was
// written: refusals of engines whose tensor matches a pattern of `--allow engine-refuses`.
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

// Checks the directories that the top manifest of a sliced checkpoint lists, in its order: that
// each is there, and that its manifest has the known hash; adds the findings of `check_rank`.
// Reports other directories that look like a rank's. Findings go to `result`, their files behind
// the directory's name; counts are added up.
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

// The directory itself must be readable: anything else is a finding.
void require_readable(const std::filesystem::path& directory) {
  formats::require_directory(directory);
  std::error_code error;
  (void)names_in(directory, error);
  if (error) throw system_error(error.value(), "read directory", directory.string());
}

void count(const Checkpoint& checkpoint, CheckResult& result) {
  result.count(checkpoint.files(), checkpoint.stored().size());
  result.family = checkpoint.family().name;
  result.dialect = checkpoint.dialect().name;
}

// Faults of what was opened as findings, and its counts and remarks.
void take(const Opened& opened, CheckResult& result) {
  for (const Error& fault : opened.faults) result.findings.push_back(finding_of(fault));
  const bool is_understood = opened.model && opened.model->is_understood();
  result.has_unread_form =
      !is_understood && std::ranges::find(opened.faults, ErrorCode::kUnsupported, &Error::code) !=
                            opened.faults.end();
  if (!opened.model) return;
  count(*opened.model, result);
  for (const std::string& text : opened.model->remarks())
    result.findings.push_back(remark(text, opened.directory.string()));
}

RuleOptions rule_options(const CheckOptions& options) {
  return {.deep = options.deep,
          .threads = options.threads,
          .most_bytes = options.most_bytes,
          .tensor_parallel = options.tensor_parallel};
}

FindOptions find_options(const CheckOptions& options) {
  return {.family = options.family, .threads = options.threads};
}

// Adds findings of rules, each of which is told once: not where the structure has the same code at
// the same tensor, nor where another directory breaks the same rule at it.
void add_untold(std::vector<Finding> findings, CheckResult& result) {
  std::set<std::pair<std::string_view, std::string>> reported;
  for (const Finding& finding : result.findings) {
    if (!finding.rule.empty() || !finding.tensor.empty())
      reported.emplace(finding.rule.empty() ? error_code_name(finding.code) : finding.rule,
                       finding.tensor);
  }
  for (Finding& finding : findings) {
    if (!reported.contains({finding.rule, finding.tensor}) &&
        !reported.contains({error_code_name(finding.code), finding.tensor}))
      result.findings.push_back(std::move(finding));
  }
}

void add_rule_findings(const Checkpoint& checkpoint, const RuleOptions& options,
                       CheckResult& result) {
  collect(result, "", [&] {
    LoaderRules rules(checkpoint, options);
    add_untold(rules.run(), result);
    result.unread = rules.unread();
  });
}

// Manifest and records are read several times: a fault of theirs is told once.
void say_once(std::vector<Finding>& findings) {
  std::set<std::tuple<ErrorCode, std::string, std::string, std::string>> reported;
  std::erase_if(findings, [&](const Finding& finding) {
    const std::string file = std::filesystem::path(finding.file).filename().string();
    const bool is_ours = file == kManifestName || file == kRecordsName;
    return is_ours && !reported.emplace(finding.code, file, finding.tensor, finding.message).second;
  });
}

// The files model{i}-mp{N}.safetensors: the same names are in each of them, and the names are not
// the hub's, so they are no checkpoint that could be opened. Headers and contents of each file can
// be compared with the manifest all the same.
void check_shards(const std::filesystem::path& directory, const Manifest& manifest,
                  const CheckOptions& options, LinkedHashes& hashes, CheckResult& result) {
  constexpr std::string_view kWeightsSuffix = ".safetensors";
  std::vector<std::string> names = formats::list_file_names(directory);
  std::erase_if(names, [&](const std::string& name) { return !name.ends_with(kWeightsSuffix); });
  for (const formats::ManifestFile& file : manifest.files) {
    const bool is_below = std::filesystem::path(file.name).has_parent_path();
    if (is_below && stamp_of(directory / file.name)) names.push_back(file.name);
  }
  ErrorList faults;
  std::vector<formats::WeightsFile> files = formats::locate_files(names, directory, {});
  const std::vector<formats::StoredTensor> stored = read_headers(files, options.threads, faults);
  for (const Error& fault : faults.errors()) result.findings.push_back(finding_of(fault));
  const formats::CheckpointFiles bytes(std::move(files));
  result.count(bytes.files(), stored.size());
  const StoredWeights weights{.stored = stored, .bytes = bytes};
  check_against_manifest(directory, manifest, &weights, options, hashes, result);
}

// The top manifest may have records of its own.
void check_records(const std::filesystem::path& directory, const Manifest& manifest,
                   CheckResult& result) {
  std::error_code ignored;
  const std::filesystem::path path = directory / kRecordsName;
  if (manifest.n_tensors == 0 && !std::filesystem::exists(path, ignored)) return;
  collect(result, std::string(kRecordsName),
          [&] { (void)formats::read_tensor_records(path, manifest.records_hash); });
}

// A checkpoint, or the directory of one rank.
CheckResult check_unsliced(const Opened& opened, const CheckOptions& options,
                           LinkedHashes& hashes) {
  CheckResult result;
  result.has_manifest = opened.manifest.has_value();
  take(opened, result);
  if (opened.model && opened.model->is_understood())
    add_rule_findings(*opened.model, rule_options(options), result);
  if (opened.manifest) admit_allowed(*opened.manifest, result);
  if (opened.manifest && options.manifest) {
    // Words of AWQ and GPTQ that a job kept are recorded by the names that the files have.
    std::optional<Checkpoint> words;
    if (opened.model && formats::input_major_dialect(opened.model->config()) != nullptr) {
      collect(result, "", [&] {
        words.emplace(
            Checkpoint::open(opened.directory, {.family = std::string(formats::kAsStored)}));
      });
    }
    const std::optional<Checkpoint>& stored = words ? words : opened.model;
    std::optional<StoredWeights> weights;
    if (stored) weights.emplace(StoredWeights{.stored = stored->stored(), .bytes = stored->bytes()});
    check_against_manifest(opened.directory, *opened.manifest, weights ? &*weights : nullptr,
                           options, hashes, result);
  }
  say_once(result.findings);
  return result;
}

CheckResult check_alone(const std::filesystem::path& directory, const CheckOptions& options,
                        LinkedHashes& hashes, bool may_be_sliced);

// A sliced checkpoint as a whole: it has no tensors but those of its ranks' directories.
bool check_sliced(const std::filesystem::path& directory, const Manifest& manifest,
                  const CheckOptions& options, LinkedHashes& hashes, CheckResult& result) {
  const bool has_ranks = manifest.slicing && !manifest.slicing->ranks.empty();
  const formats::Layout* layout = formats::find_layout(manifest.layout);
  const bool has_shards = layout != nullptr && layout->has_shards();
  if (!has_ranks && !has_shards) return false;
  result.family = manifest.family;
  result.dialect = manifest.dialect;
  const std::size_t before = result.findings.size();
  collect(result, "", [&] { formats::require_finished_directory(directory); });
  if (result.findings.size() != before) return true;
  if (has_shards) {
    check_shards(directory, manifest, options, hashes, result);
    return true;
  }
  check_against_manifest(directory, manifest, nullptr, options, hashes, result);
  if (options.hashes) check_records(directory, manifest, result);
  // Ranks below a rank are not looked for: a link to the folder above would never end.
  const auto check_rank = [&](const std::filesystem::path& rank) {
    return check_alone(rank, options, hashes, false);
  };
  check_ranks(directory, *manifest.slicing, check_rank, result);
  return true;
}

CheckResult check_alone(const std::filesystem::path& directory, const CheckOptions& options,
                        LinkedHashes& hashes, bool may_be_sliced) {
  require_readable(directory);
  if (may_be_sliced) {
    CheckResult result;
    // A manifest that cannot be read is a finding.
    std::optional<Manifest> manifest;
    collect(result, "", [&] { manifest = formats::read_manifest(directory); });
    result.has_manifest = manifest.has_value();
    if (manifest && check_sliced(directory, *manifest, options, hashes, result)) return result;
  }
  return check_unsliced(open_unsliced(directory, find_options(options)), options, hashes);
}

}  // namespace

void CheckResult::count(std::span<const SourceFile> files, std::size_t n_stored) {
  n_files = files.size();
  n_tensors = n_stored;
  for (const SourceFile& file : files) n_bytes += file.n_bytes;
}

void add_directory(const std::string& name, const std::filesystem::path& path, CheckResult part,
                   CheckResult& whole) {
  whole.has_manifest = whole.has_manifest || part.has_manifest;
  whole.n_files += part.n_files;
  whole.n_tensors += part.n_tensors;
  whole.n_bytes += part.n_bytes;
  whole.n_hashed += part.n_hashed;
  const std::string prefix = path.string() + "/";
  for (Finding& finding : part.findings) {
    if (finding.file == path.string()) finding.file.clear();
    if (finding.file.starts_with(prefix)) finding.file.erase(0, prefix.size());
    finding.file = finding.file.empty() ? name : fmt::format("{}/{}", name, finding.file);
    whole.findings.push_back(std::move(finding));
  }
}

CheckResult check_checkpoint(const std::filesystem::path& directory, const CheckOptions& options) {
  LinkedHashes hashes(options.ledger);
  return check_alone(directory, options, hashes, true);
}

namespace {

/// A source as it was seen when it was converted: with its experts and scales of caches as the
/// records have them.
Checkpoint as_converted(Checkpoint source, std::span<const TensorRecord> records,
                        const Manifest& manifest) {
  formats::ExpertsHeld held;
  formats::CachesHeld caches{.names = {}, .are_made = formats::makes_caches(manifest)};
  for (const TensorRecord& record : records) {
    if (!record.output.empty() && formats::cache_scale_name(record.name))
      caches.names.insert(record.name);
    const auto role = formats::find_role(record.role);
    const auto scheme = formats::find_scheme(record.to);
    if (!role || !scheme || !formats::is_of_routed_expert(*role) || record.output.empty()) continue;
    if (formats::is_expert_stack(*role)) {
      held.stacks.emplace(record.name, formats::turns_stacks(*scheme));
    } else {
      held.has_singles = true;
    }
  }
  return formats::with_caches_as_in(formats::with_experts_as_in(std::move(source), held), caches);
}

// The end of the name of codes as AWQ and GPTQ store them.
constexpr std::string_view kWords = ".qweight";

}  // namespace

CheckResult check_is_source_of(const std::filesystem::path& given,
                               const std::filesystem::path& converted, std::size_t threads) {
  const std::filesystem::path source = formats::checkpoint_directory(given);
  require_readable(source);
  require_readable(converted);
  const std::optional<Manifest> manifest = formats::read_manifest(converted);
  if (!manifest) {
    throw Error(ErrorCode::kNotFound, "has no {}: it was not made by ingot convert", kManifestName)
        .in_file(converted.string());
  }
  if (!manifest->sources->is_null()) {
    throw Error(ErrorCode::kUnsupported,
                "was composed of several checkpoints, and none of them is its source (ingot verify "
                "RECIPE compares each tensor with its own)")
        .in_directory(converted.string());
  }
  const std::vector<TensorRecord> records =
      formats::read_tensor_records(converted / kRecordsName, manifest->records_hash);

  CheckResult result;
  result.has_manifest = true;
  const bool keeps_words = std::ranges::any_of(records, [](const TensorRecord& record) {
    return std::ranges::any_of(record.source, [](const formats::TensorHash& stored) {
      return stored.name.ends_with(kWords);
    });
  });
  Opened opened =
      open_unsliced(source, {.family = keeps_words
                                           ? std::string(formats::kAsStored)
                                           : formats::family_spec_of(converted, manifest->family),
                             .threads = threads});
  take(opened, result);
  if (!opened.model) return result;
  const auto is_error = [](const Finding& found) { return found.severity == Severity::kError; };
  if (std::ranges::none_of(result.findings, is_error)) {
    opened.model = as_converted(
        formats::with_experts_kept_as_in(
            formats::with_layers_as_in(std::move(*opened.model), *manifest), *manifest),
        records, *manifest);
  }
  const Checkpoint& checkpoint = *opened.model;

  const auto stored = checkpoint.stored();
  const std::vector<HashedTensor> hashed =
      hash_stored({.stored = stored, .bytes = checkpoint.bytes()}, threads);
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < stored.size(); ++i) by_name.emplace(stored[i].name, i);
  const std::set<std::string_view> unreadable = unreadable_files(checkpoint.files());
  for (const TensorRecord& record : records) {
    for (const formats::TensorHash& wanted : record.source) {
      const auto found = by_name.find(wanted.name);
      if (found == by_name.end()) {
        if (unreadable.contains(wanted.file)) continue;  // said once, of the file
        result.add(ErrorCode::kMissingTensor, wanted.file, wanted.name,
                   "was converted, but is not here");
        continue;
      }
      const std::size_t i = found->second;
      by_name.erase(found);
      const std::string& file = checkpoint.files()[stored[i].file].name;
      if (hashed[i].failure) {
        result.findings.push_back(finding_of(Error(*hashed[i].failure).in_tensor(wanted.name)));
      } else if (!hashed[i].hash) {
        result.add(ErrorCode::kMismatch, file, wanted.name, "has no data to compare");
      } else if (wanted.dtype != dtype_name(stored[i].dtype) || wanted.shape != stored[i].shape) {
        result.add(ErrorCode::kMismatch, file, wanted.name,
                   fmt::format("is {} {}, converted was {} {}", dtype_name(stored[i].dtype),
                               formats::shape_text(stored[i].shape), wanted.dtype,
                               formats::shape_text(wanted.shape)));
      } else if (*hashed[i].hash != wanted.hash) {
        result.add(ErrorCode::kMismatch, file, wanted.name,
                   fmt::format("its bytes have hash {}, the converted ones had {}",
                               hashed[i].hash->hex(), wanted.hash.hex()));
      }
      if (hashed[i].hash) ++result.n_hashed;
    }
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (!by_name.contains(stored[i].name)) continue;
    result.add(ErrorCode::kMismatch, checkpoint.files()[stored[i].file].name, stored[i].name,
               "was not there when the checkpoint was converted");
  }
  return result;
}

namespace {

// Slices without a manifest above them. Ranks that a user gathered have manifests of their own;
// shards that others made have nothing that they could be compared with.
CheckResult check_gathered(const std::filesystem::path& directory, const CheckOptions& options) {
  CheckResult result;
  for (const std::string& name : shard::rank_directories_in(directory)) {
    add_directory(name, directory / name, check_checkpoint(directory / name, options), result);
  }
  return result;
}

// A layout that is one engine's own is worth nothing where that engine does not load it.
void judge_by_own_engine(const Checkpoint& model, const engines::EngineInput& input,
                         const formats::Layout& layout, const engines::Serving& serving,
                         CheckResult& result) {
  const engines::EngineRow* own = engines::find_engine(layout.engine);
  if (own == nullptr) return;
  const auto rules = loader_rules();
  const auto row = std::ranges::find(rules, own->engine, &LoaderRule::engine);
  for (const engines::EngineVerdict& verdict : engines::believed_verdicts(model, input, serving)) {
    if (verdict.engine != own || verdict.loads) continue;
    result.findings.push_back(
        violation(ErrorCode::kUnsupported, "", verdict.tensor,
                  fmt::format("{}, for which the layout is, does not load it: {}", own->name,
                              verdict.reason)));
    result.findings.back().rule = row->name;
  }
}

void check_joined(const Opened& opened, const CheckOptions& options, CheckResult& result) {
  try {
    if (!opened.model) throw Error(opened.faults.back());
    const Checkpoint& model = *opened.model;
    const std::optional<Manifest> manifest = formats::read_manifest(model.directory());
    const formats::Layout* layout =
        formats::find_layout(manifest ? manifest->layout : "deepseek-mp");
    LoaderRules rules(model, rule_options(options));
    std::vector<Finding> findings = rules.run();
    std::erase_if(findings, [&](const Finding& finding) {
      return layout != nullptr && !is_about_layout(*find_loader_rule(finding.rule), *layout);
    });
    add_untold(std::move(findings), result);
    // Ranks that cut experts; linears are cut by as many or more.
    const engines::Serving serving{.tensor_parallel =
                                       manifest && manifest->slicing ? manifest->slicing->etp : 1};
    if (layout != nullptr)
      judge_by_own_engine(model, rules.engine_input(), *layout, serving, result);
    if (manifest) admit_allowed(*manifest, result);
    result.family = model.family().name;
    result.dialect = model.dialect().name;
    if (result.n_files == 0) result.count(model.files(), model.stored().size());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    Finding finding = finding_of(error);
    if (std::ranges::find(result.findings, finding.message, &Finding::message) ==
        result.findings.end())
      result.findings.push_back(std::move(finding));
  }
}

CheckResult check_file(const Opened& opened, const CheckOptions& options) {
  CheckResult result;
  take(opened, result);
  RuleOptions of_file = rule_options(options);
  of_file.is_folder = false;
  if (opened.model && opened.model->is_understood())
    add_rule_findings(*opened.model, of_file, result);
  return result;
}

}  // namespace

CheckResult check_directory(const Opened& opened, const CheckOptions& options) {
  const std::filesystem::path& directory = opened.directory;
  if (formats::is_weights_file(directory)) return check_file(opened, options);
  require_readable(directory);
  if (!opened.is_sliced) {
    LinkedHashes hashes(options.ledger);
    return check_unsliced(opened, options, hashes);
  }
  std::error_code failure;
  const bool has_top = std::filesystem::exists(directory / kManifestName, failure);
  CheckResult result =
      has_top ? check_checkpoint(directory, options) : check_gathered(directory, options);
  check_joined(opened, options, result);
  return result;
}

CheckResult check_directory(const std::filesystem::path& given, const CheckOptions& options,
                            const std::filesystem::path& config) {
  FindOptions find = find_options(options);
  find.config = config;
  return check_directory(open_found(given, find), options);
}

}  // namespace ingot::check
