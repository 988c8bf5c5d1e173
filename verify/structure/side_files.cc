#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/config_meaning.h"
#include "formats/json/json.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::SideFile;

namespace {

constexpr std::string_view kRule = "structure.side-file";
// What engines, tokenizers and transformers look for by name. Whatever it says, they follow it.
constexpr std::array<std::string_view, 20> kReadNames = {"adapter_config.json",
                                                         "added_tokens.json",
                                                         "chat_template.jinja",
                                                         "chat_template.json",
                                                         "generation_config.json",
                                                         "merges.txt",
                                                         "modules.json",
                                                         "params.json",
                                                         "preprocessor_config.json",
                                                         "processor_config.json",
                                                         "sentencepiece.bpe.model",
                                                         "special_tokens_map.json",
                                                         "spiece.model",
                                                         "tekken.json",
                                                         "tiktoken.model",
                                                         "tokenizer.json",
                                                         "tokenizer.model",
                                                         "tokenizer_config.json",
                                                         "vocab.json",
                                                         "vocab.txt"};
constexpr std::uint64_t kMaxJsonBytes = 64'000'000;
constexpr std::string_view kTemplate = "chat_template.jinja";
constexpr std::string_view kGeneration = "generation_config.json";
constexpr std::array<std::string_view, 4> kPaperNames = {"README", "LICENSE", "NOTICE", ".git"};
constexpr std::array<std::string_view, 7> kPaperSuffixes = {".md",  ".pdf", ".png", ".jpg",
                                                            ".svg", ".gif", ".webp"};

// For people: what loads the model does not open it.
bool is_paper(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return std::any_of(kPaperNames.begin(), kPaperNames.end(),
                     [&](std::string_view start) { return name.starts_with(start); }) ||
         std::any_of(kPaperSuffixes.begin(), kPaperSuffixes.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

bool is_read(const std::string& path) {
  return std::find(kReadNames.begin(), kReadNames.end(), path) != kReadNames.end();
}

// A member of a JSON file; null where there is no such file or member.
formats::Json json_member(const std::filesystem::path& path, std::string_view key) {
  try {
    return formats::config_member(formats::read_json_file(path, kMaxJsonBytes), key);
  } catch (const Error&) {
    return nullptr;
  }
}

// What transformers 5 writes anew without changing anything: the chat template in a file of its
// own, and a generation config that repeats config.json.
bool repeats_source(const std::filesystem::path& source, const std::filesystem::path& directory,
                    const std::string& path) {
  if (path == kGeneration) return json_member(directory / path, "_from_model_config") == true;
  if (path != kTemplate) return false;
  const formats::Json known = json_member(source / "tokenizer_config.json", "chat_template");
  return known.is_string() && known == read_text_file(directory / path, kMaxJsonBytes);
}

}  // namespace

SourceSideFiles::SourceSideFiles(const formats::Checkpoint& source, check::HashingOptions hashing)
    : directory_(source.directory()), hashing_(std::move(hashing)) {
  for (const SideFile& file : source.side_files()) sizes_.emplace(file.path, file.n_bytes);
}

const Hash128& SourceSideFiles::hash_of(const std::string& path) {
  const auto known = hashes_.find(path);
  if (known != hashes_.end()) return known->second;
  return hashes_.emplace(path, check::hash_file(directory_ / path, hashing_)).first->second;
}

void SourceSideFiles::compare(const std::filesystem::path& directory, const std::string& label,
                              StructureFindings& found) {
  const auto tell = [&](const std::string& path, ErrorCode code, std::string message) {
    found.tell(is_paper(path) ? check::Severity::kWarning : check::Severity::kError, kRule,
               Error(code, std::move(message)).in_file(label + path));
  };
  ErrorList faults;
  std::map<std::string, std::uint64_t> here;
  for (const SideFile& file : formats::list_side_files(directory, faults).files)
    here.emplace(file.path, file.n_bytes);
  for (const Error& fault : faults.errors()) found.error(kRule, fault);
  for (const auto& [path, n_bytes] : sizes_) {
    const auto at = here.find(path);
    if (at == here.end()) {
      tell(path, ErrorCode::kNotFound, "is missing: the source has it (copy it from there)");
    } else if (at->second != n_bytes) {
      tell(path, ErrorCode::kMismatch,
           fmt::format("has {} bytes, the source's has {} (copy it from there)", at->second,
                       n_bytes));
    } else if (check::hash_file(directory / path, hashing_) != hash_of(path)) {
      tell(path, ErrorCode::kMismatch, "holds other bytes than the source's (copy it from there)");
    }
  }
  for (const auto& [path, n_bytes] : here) {
    if (sizes_.contains(path)) continue;
    const bool counts = is_read(path) && !repeats_source(directory_, directory, path);
    found.tell(counts ? check::Severity::kError : check::Severity::kWarning, kRule,
               Error(ErrorCode::kMismatch,
                     fmt::format("stands beside the weights, but not in the source{}",
                                 counts ? ": loaders read it (remove it)" : ""))
                   .in_file(label + path));
  }
}

}  // namespace ingot::verify
