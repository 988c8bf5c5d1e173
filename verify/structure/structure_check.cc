#include "verify/structure/structure_check.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "check/check.h"
#include "check/rules/loader_rules.h"
#include "check/stored_hashes.h"
#include "formats/base/fd.h"
#include "formats/base/foreign_files.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/config/config_meaning.h"
#include "formats/config/native_config.h"
#include "formats/config/side_files.h"
#include "formats/dialect/dialect_words.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "shard/join/rank_directories.h"
#include "shard/join/source.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using check::Finding;
using check::Severity;
using formats::Checkpoint;
using formats::Json;
using formats::Manifest;
using formats::SideFile;

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kSideFileRule = "structure.side-file";
constexpr std::string_view kTemplate = "chat_template.jinja";
constexpr std::string_view kGeneration = "generation_config.json";
constexpr std::array<std::string_view, 2> kPaperNames = {"README", ".git"};
constexpr std::string_view kCard = "README.md";
constexpr std::array<std::string_view, 7> kPaperSuffixes = {".md",  ".pdf", ".png", ".jpg",
                                                            ".svg", ".gif", ".webp"};

// For people: loaders of the model do not open it.
bool is_paper(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return formats::is_licence(path) ||
         std::any_of(kPaperNames.begin(), kPaperNames.end(),
                     [&](std::string_view start) { return name.starts_with(start); }) ||
         std::any_of(kPaperSuffixes.begin(), kPaperSuffixes.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

// True for errors and findings that are no fault of the output: it could not be read.
bool is_of_reading(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kPermission || code == ErrorCode::kNoSpace;
}

// A member of a JSON file; null where there is no such file or member.
formats::Json member_of_file(const std::filesystem::path& path, std::string_view key) {
  try {
    return formats::json_member(formats::read_json_file(path, formats::kMaxConfigBytes), key);
  } catch (const Error& error) {
    if (is_of_reading(error.code())) throw;
    return nullptr;
  }
}

// True for files that transformers 5 writes again without a change of meaning: the chat template in
// a file of its own, and a generation config that repeats config.json.
bool repeats_source(const std::filesystem::path& source, const std::filesystem::path& directory,
                    const std::string& path) {
  if (path == kGeneration) return member_of_file(directory / path, "_from_model_config") == true;
  if (path != kTemplate) return false;
  const formats::Json known = member_of_file(source / "tokenizer_config.json", "chat_template");
  return known.is_string() && known == read_text_file(directory / path, formats::kMaxConfigBytes);
}

// The side files of the source (tokenizer, chat template, generation_config.json, ...), read once
// however many directories they are compared with.
class SourceSideFiles {
 public:
  SourceSideFiles(const formats::Checkpoint& source, std::size_t threads)
      : directory_(source.directory()), threads_(threads) {
    for (const SideFile& file : source.side_files()) sizes_.emplace(file.path, file.n_bytes);
  }

  // Finds ("structure.side-file") those that a directory lacks or has with other bytes, and those
  // that the source does not have. Papers (a readme, a licence, pictures) and further files that no
  // loader looks for are warnings. A model card that the conversion made differs; its manifest has
  // the hash. `label` is put before the names, e.g. `rank-00001-of-00004/`.
  void compare(const std::filesystem::path& directory, const std::string& label,
               const std::optional<Manifest>& manifest, check::Findings& found) {
    const bool has_own_card =
        manifest && std::ranges::find(manifest->side_files, kCard, &formats::ManifestFile::name) !=
                        manifest->side_files.end();
    const auto tell = [&](const std::string& path, ErrorCode code, std::string message) {
      found.tell(is_paper(path) ? check::Severity::kWarning : check::Severity::kError,
                 kSideFileRule, Error(code, std::move(message)).in_file(label + path));
    };
    ErrorList faults;
    std::map<std::string, std::uint64_t> here;
    for (const SideFile& file : formats::list_side_files(directory, faults).files)
      if (!has_own_card || file.path != kCard) here.emplace(file.path, file.n_bytes);
    for (const Error& fault : faults.errors()) found.error(kSideFileRule, fault);
    for (const auto& [path, n_bytes] : sizes_) {
      if (has_own_card && path == kCard) continue;
      const auto at = here.find(path);
      if (at == here.end()) {
        // The file describes codes that only the source has.
        if (formats::is_tool_description(path)) continue;
        tell(path, ErrorCode::kNotFound, "is missing: the source has it (copy it from there)");
      } else if (at->second != n_bytes) {
        tell(path, ErrorCode::kMismatch,
             fmt::format("has {} bytes, the source's has {} (copy it from there)", at->second,
                         n_bytes));
      } else if (check::hash_file(directory / path, threads_) != hash_of(path)) {
        tell(path, ErrorCode::kMismatch,
             "holds other bytes than the source's (copy it from there)");
      }
    }
    for (const auto& [path, n_bytes] : here) {
      // A card that the source lacks is no surprise: many tools write one.
      if (sizes_.contains(path) || path == kCard) continue;
      const bool counts = formats::is_read_by_name(path) && !repeats_source(directory_, directory, path);
      found.tell(counts ? check::Severity::kError : check::Severity::kWarning, kSideFileRule,
                 Error(ErrorCode::kMismatch, "is next to the weights, but not in the source{}",
                       counts ? ": loaders read it (remove it)" : "")
                     .in_file(label + path));
    }
  }

 private:
  const Hash128& hash_of(const std::string& path) {
    const auto known = hashes_.find(path);
    if (known != hashes_.end()) return known->second;
    return hashes_.emplace(path, check::hash_file(directory_ / path, threads_)).first->second;
  }

  fs::path directory_;
  std::size_t threads_;
  std::map<std::string, std::uint64_t> sizes_;
  std::map<std::string, Hash128> hashes_;
};

// A directory of the output that an engine opens: the output itself, or that of a rank.
struct LoadedDirectory {
  fs::path path;
  std::string label;  // "" or `rank-00001-of-00004/`
};

std::vector<LoadedDirectory> loaded_directories(const fs::path& output) {
  std::vector<LoadedDirectory> directories;
  if (shard::is_sliced(output)) {
    for (const std::string& name : shard::rank_directories_in(output))
      directories.push_back({.path = output / name, .label = name + "/"});
  }
  if (directories.empty()) directories.push_back({.path = output, .label = ""});
  return directories;
}

// check::check_directory tells of a manifest that cannot be read.
std::optional<Manifest> manifest_of(const fs::path& directory) {
  try {
    return formats::read_manifest(directory);
  } catch (const Error& error) {
    if (is_of_reading(error.code())) throw;
    return std::nullopt;
  }
}

class StructureCheck {
 public:
  StructureCheck(const ComparedCheckpoint& source, const check::Opened& output,
                 const StructureOptions& options)
      : source_(source),
        opened_(output),
        output_(output.directory),
        options_(options),
        may_untie_head_(formats::tied_head(source.model).has_value()),
        found_(output.directory) {}

  StructureReport run() {
    own_checks();
    const std::vector<LoadedDirectory> directories = loaded_directories(output_);
    SourceSideFiles side_files(source_.model, options_.threads);
    for (const LoadedDirectory& directory : directories) {
      const std::optional<Manifest> manifest = manifest_of(directory.path);
      // No file next to a single weights file is compared.
      const bool is_file = formats::is_weights_file(directory.path);
      if (!is_file || !options_.config.empty()) configs(directory, manifest);
      if (!is_file) side_files.compare(directory.path, directory.label, manifest, found_);
    }
    std::optional<Manifest> manifest = manifest_of(output_);
    if (!manifest) manifest = manifest_of(directories.front().path);
    tensors(manifest);
    report_.findings = found_.take();
    require_read();
    return std::move(report_);
  }

 private:
  void require_read() const {
    for (const Finding& finding : report_.findings) {
      if (finding.severity != Severity::kError || !is_of_reading(finding.code)) continue;
      throw Error(finding.code, finding.message)
          .in_file(finding.file)
          .in_tensor(finding.tensor)
          .in_directory(output_.string());
    }
  }

  // A single rank would lack nearly everything: that is one fact.
  bool is_one_rank_of(const Checkpoint& model) {
    if (model.slicing() == nullptr || source_.model.slicing() != nullptr) return false;
    found_.error(
        "structure.slice",
        Error(ErrorCode::kInvalidArgument,
              "holds only the tensors of rank {} of {} (name the directory above the ranks')",
              model.slicing()->rank->rank, model.slicing()->n_ranks)
            .in_file(formats::kManifestName));
    return true;
  }

  // The faults that show in the output without its source: as `ingot check`.
  void own_checks() {
    check::CheckResult checked = check::check_directory(opened_, {.family = options_.family,
                                                                  .hashes = options_.hashes,
                                                                  .threads = options_.threads,
                                                                  .ledger = options_.ledger});
    report_.hashed = checked.n_hashed;
    report_.has_manifest = checked.has_manifest;
    const formats::ConfigMeaning source(source_.model.config().raw);
    for (Finding& finding : checked.findings) {
      // Conversion does not mend contradictions within the source's config.
      const auto& known = source.contradictions();
      const bool is_contradiction =
          finding.rule == "config.contradiction" &&
          std::find(known.begin(), known.end(), finding.message) != known.end();
      if (is_contradiction || lacks_too(finding) ||
          (finding.rule == "model.tied-head" && formats::has_head_apart(source_.model))) {
        finding.severity = Severity::kWarning;
        finding.message += " (in the source, too)";
      }
      found_.add(std::move(finding));
    }
  }

  // True if the finding is about missing tensors, and the same ones are missing in the source.
  bool lacks_too(const Finding& finding) const {
    if (!finding.rule.ends_with(".complete")) return false;
    check::LoaderRules rules(source_.model, {.threads = options_.threads, .most_bytes = 0});
    return std::ranges::any_of(rules.run(*check::find_loader_rule(finding.rule)),
                               [&](const Finding& of_source) {
                                 return std::tie(of_source.tensor, of_source.message) ==
                                        std::tie(finding.tensor, finding.message);
                               });
  }

  std::optional<Json> read_config(const fs::path& path, const std::string& file) {
    try {
      return formats::read_json_file(path, formats::kMaxConfigBytes);
    } catch (const Error& error) {
      found_.error("structure.config", Error(error.code(), error.message()).in_file(file));
      return std::nullopt;
    }
  }

  void configs(const LoadedDirectory& directory, const std::optional<Manifest>& manifest) {
    const Json& wanted = source_.model.config().raw;
    if (!wanted.is_object()) return;
    const fs::path given = options_.config;
    const fs::path path = given.empty() ? directory.path / formats::kConfigName : given;
    const std::string file = directory.label + std::string(formats::kConfigName);
    const bool is_read = !opened_.is_sliced && opened_.is_sound() && given.empty();
    std::optional<Json> config = is_read ? opened_.model->config().raw : read_config(path, file);
    if (!config) return;
    const bool is_rank = manifest && manifest->slicing && manifest->slicing->rank;
    const Json whole = is_rank ? *manifest->slicing->rank->whole_config : Json();
    compare_model_parameters(wanted,
                             {.config = *config,
                              .file = file,
                              .may_be_padded = !whole.is_null(),
                              .may_untie_head = may_untie_head_,
                              .family = &source_.model.family()},
                             found_);
    if (!whole.is_null()) {
      compare_model_parameters(
          wanted,
          {.config = whole,
           .file = fmt::format("{}{} (whole_config)", directory.label, formats::kManifestName),
           .may_untie_head = may_untie_head_,
           .family = &source_.model.family()},
          found_);
    }
    native_config(directory, *config);
    configs_.emplace_back(file, std::move(*config));
  }

  // The file for DeepSeek's inference code follows from config.json.
  void native_config(const LoadedDirectory& directory, const Json& config) {
    const fs::path path = directory.path / formats::kNativeConfigName;
    std::error_code failure;
    if (!fs::exists(path, failure)) return;
    const std::string file = directory.label + std::string(formats::kNativeConfigName);
    const std::optional<Json> native = read_config(path, file);
    if (!native) return;
    try {
      const formats::ModelConfig typed =
          formats::parse_model_config(formats::json_text(config), formats::kConfigName);
      const Json wanted = formats::native_config(typed, typed.quantization.has_value());
      compare_model_parameters(wanted, {.config = *native, .file = file, .is_hub = false}, found_);
    } catch (const Error& error) {
      found_.error("structure.config", error);
    }
  }

  void tensors(const std::optional<Manifest>& manifest) {
    if (!opened_.is_sliced) {
      // Its faults are findings already.
      if (opened_.model) compare(*opened_.model, manifest);
      return;
    }
    std::optional<Checkpoint> model;
    try {
      model.emplace(shard::open_source(
          output_, {.open = {.family = family_of(options_.family, output_, manifest),
                             .threads = options_.threads},
                    .compare_replicas = true,
                    .config = options_.config}));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      found_.add(check::finding_of(error));
    }
    if (model) compare(*model, manifest);
  }

  void compare(const Checkpoint& model, const std::optional<Manifest>& manifest) {
    if (!model.is_understood() || is_one_rank_of(model)) return;
    report_.tensors = compare_tensors(source_.model, model, manifest, found_);
    if (!options_.activation_scales.empty()) {
      report_.input_scales =
          compare_input_scales(source_.model, model, options_.activation_scales, found_);
    }
    compare_activations(source_.model, model, wanted_of(manifest), found_);
    // An overlay may bring a cache of which the base says nothing.
    const bool makes_caches =
        manifest && (formats::makes_caches(*manifest) ||
                     (!manifest->sources->is_null() && !formats::cache_names_of(model).empty()));
    for (const auto& [file, config] : configs_)
      compare_number_formats(source_.model, model,
                             {.config = config, .file = file, .makes_caches = makes_caches},
                             found_);
    compare_replicas(model, options_.threads, found_);
  }

  const ComparedCheckpoint& source_;
  const check::Opened& opened_;
  const fs::path& output_;
  const StructureOptions& options_;
  bool may_untie_head_;
  std::vector<std::pair<std::string, Json>> configs_;  // of every directory that an engine opens
  check::Findings found_;
  StructureReport report_;
};

}  // namespace

std::uint64_t StructureReport::errors() const {
  return check::count_findings(findings, Severity::kError);
}

std::uint64_t StructureReport::warnings() const {
  return check::count_findings(findings, Severity::kWarning);
}

StructureReport check_structure(const ComparedCheckpoint& source, const check::Opened& output,
                                const StructureOptions& options) {
  return StructureCheck(source, output, options).run();
}

StructureReport check_structure(const ComparedCheckpoint& source, const fs::path& output,
                                const StructureOptions& options) {
  return check_structure(
      source,
      check::open_found(
          output, {.family = options.family, .threads = options.threads, .config = options.config}),
      options);
}

}  // namespace ingot::verify
