#include "check/check.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "check/manifest_check.h"
#include "check/stored_hashes.h"
#include "engines/view.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/experts/expert_views.h"
#include "formats/family/families.h"
#include "formats/files/hub_cache.h"
#include "formats/records/layout.h"
#include "formats/records/manifest.h"
#include "formats/storage/stack_form.h"
#include "shard/join/rank_directories.h"
#include "shard/join/source.h"

namespace ingot::check {

using formats::Checkpoint;
using formats::kManifestName;
using formats::kRecordsName;
using formats::Manifest;
using formats::SourceFile;
using formats::StoredTensor;
using formats::TensorRecord;

namespace {

// The directory itself must be readable: anything else is a finding.
void require_directory(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::directory_iterator listing(directory, error);
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
          .stop_requested = options.stop_requested,
          .tensor_parallel = options.tensor_parallel};
}

FindOptions find_options(const CheckOptions& options) {
  return {.family = options.family, .threads = options.threads};
}

// Adds findings of rules, each of which is told once: not where the structure has the same code at
// the same tensor, nor where another directory breaks the same rule at it.
void add_untold(std::vector<Finding> findings, CheckResult& result) {
  std::set<std::pair<std::string_view, std::string>> told;
  for (const Finding& finding : result.findings) {
    if (!finding.rule.empty() || !finding.tensor.empty())
      told.emplace(finding.rule.empty() ? error_code_name(finding.code) : finding.rule,
                   finding.tensor);
  }
  for (Finding& finding : findings) {
    if (!told.contains({finding.rule, finding.tensor}) &&
        !told.contains({error_code_name(finding.code), finding.tensor}))
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
  std::set<std::tuple<ErrorCode, std::string, std::string, std::string>> told;
  std::erase_if(findings, [&](const Finding& finding) {
    const std::string file = std::filesystem::path(finding.file).filename().string();
    const bool is_ours = file == kManifestName || file == kRecordsName;
    return is_ours && !told.emplace(finding.code, file, finding.tensor, finding.message).second;
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
    std::optional<StoredWeights> weights;
    if (opened.model) {
      weights.emplace(
          StoredWeights{.stored = opened.model->stored(), .bytes = opened.model->bytes()});
    }
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
  // Never as one that has ranks itself: a link to the directory above would have no end.
  const auto check_rank = [&](const std::filesystem::path& rank) {
    return check_alone(rank, options, hashes, false);
  };
  check_ranks(directory, *manifest.slicing, check_rank, result);
  return true;
}

CheckResult check_alone(const std::filesystem::path& directory, const CheckOptions& options,
                        LinkedHashes& hashes, bool may_be_sliced) {
  require_directory(directory);
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

/// A source as it was seen when it was converted: with its experts as the records have them.
Checkpoint as_converted(Checkpoint source, std::span<const TensorRecord> records) {
  formats::ExpertsHeld held;
  for (const TensorRecord& record : records) {
    const auto role = formats::find_role(record.role);
    const auto scheme = formats::find_scheme(record.to);
    if (!role || !scheme || !formats::is_of_routed_expert(*role) || record.output.empty()) continue;
    if (formats::is_expert_stack(*role)) {
      held.stacks.emplace(record.name, formats::turns_stacks(*scheme));
    } else {
      held.has_singles = true;
    }
  }
  return formats::with_experts_as_in(std::move(source), held);
}

}  // namespace

CheckResult check_is_source_of(const std::filesystem::path& given,
                               const std::filesystem::path& converted,
                               const HashingOptions& options) {
  const std::filesystem::path source = formats::checkpoint_directory(given);
  require_directory(source);
  require_directory(converted);
  const std::optional<Manifest> manifest = formats::read_manifest(converted);
  if (!manifest) {
    throw Error(ErrorCode::kNotFound, "has no {}: it was not made by ingot convert", kManifestName)
        .in_file(converted.string());
  }
  const std::vector<TensorRecord> records =
      formats::read_tensor_records(converted / kRecordsName, manifest->records_hash);

  CheckResult result;
  result.has_manifest = true;
  Opened opened = open_unsliced(
      source,
      {.family = formats::family_spec_of(converted, manifest->family), .threads = options.threads});
  take(opened, result);
  if (!opened.model) return result;
  if (result.findings.empty()) opened.model = as_converted(std::move(*opened.model), records);
  const Checkpoint& checkpoint = *opened.model;

  const auto stored = checkpoint.stored();
  const std::vector<HashedTensor> hashed =
      hash_stored({.stored = stored, .bytes = checkpoint.bytes()}, options);
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
  require_directory(directory);
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
