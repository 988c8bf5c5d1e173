#include "check/manifest_check.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "formats/base/hash.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/weights_headers.h"

namespace ingot::formats {
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

// What the files are, against what the manifest says.
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

  void weights(const StoredWeights& weights, LinkedHashes& hashes, const HashingOptions& options) {
    std::vector<TensorRecord> records;
    collect(result_, std::string(kRecordsName), [&] {
      records = read_tensor_records(directory_ / kRecordsName, manifest_.records_hash);
    });
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
        result_.findings.push_back(violation(ErrorCode::kMissingTensor, tensor.file, tensor.name,
                                             "is in the manifest, but not here"));
      }
    }
  }

 private:
  // By file and name: in files for several ranks one name stands in each.
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
      result_.findings.push_back(
          violation(ErrorCode::kMismatch, file.name, "",
                    fmt::format("has {} bytes, the manifest says {}", n_bytes, file.n_bytes)));
    }
    return false;
  }

  void differs(const std::string& file, const std::string& tensor, const Hash128& wanted,
               const Hash128& found) {
    result_.findings.push_back(violation(
        ErrorCode::kMismatch, file, tensor,
        fmt::format("its bytes have hash {}, the manifest says {} (changed since it was written: "
                    "convert or fetch it again)",
                    found.hex(), wanted.hex())));
  }

  void tensor(const StoredTensor& stored, const std::string& file, const HashedTensor& hashed,
              Promised& promised, bool have_records) {
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
        result_.findings.push_back(violation(
            ErrorCode::kMismatch, file, stored.name,
            fmt::format("is {} {}, the manifest says {} {}", dtype_name(stored.dtype),
                        shape_text(stored.shape), wanted->dtype, shape_text(wanted->shape))));
      } else if (wanted->hash != *hashed.hash) {
        differs(file, stored.name, wanted->hash, *hashed.hash);
      }
    } else if (have_records) {
      result_.findings.push_back(
          violation(ErrorCode::kMismatch, file, stored.name, "is not in the manifest"));
    }
  }

  void whole_file(const StoredBytes& bytes, std::uint32_t index,
                  const std::vector<std::uint32_t>& tensors,
                  const std::vector<HashedTensor>& hashed) {
    const std::string& name = bytes.files()[index].name;
    const auto file = std::find_if(manifest_.files.begin(), manifest_.files.end(),
                                   [&](const ManifestFile& entry) { return entry.name == name; });
    if (file == manifest_.files.end()) {
      result_.findings.push_back(
          violation(ErrorCode::kMismatch, name, "", "is not in the manifest"));
      return;
    }
    if (!bytes.has_data(index)) return;
    std::vector<Hash128> hashes;
    for (const std::uint32_t i : tensors) hashes.push_back(hashed[i].hash.value_or(Hash128{}));
    collect(result_, name, [&] {
      const Hash128 hash = weights_file_hash(bytes.header_bytes(index), hashes);
      if (hash != file->hash) differs(name, "", file->hash, hash);
    });
  }

  const std::filesystem::path& directory_;
  const Manifest& manifest_;
  CheckResult& result_;
};

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
  const auto member = [](const Json& json, const char* name) {
    return json.is_object() && json.contains(name) ? json[name] : Json();
  };
  const Json patterns = member(member(manifest.recipe, "allow"), "engine-refuses");
  if (!patterns.is_array()) return;
  try {
    std::vector<Pattern> allowed;
    for (const Json& text : patterns)
      if (text.is_string()) allowed.emplace_back(text.get_ref<const std::string&>());
    for (Finding& finding : result.findings) {
      const bool is_refusal =
          finding.rule == "engine.refused-by-all" || finding.rule.ends_with(".plain-module");
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

}  // namespace ingot::formats
