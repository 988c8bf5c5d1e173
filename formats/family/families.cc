#include "formats/family/families.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/config/key_defaults.h"
#include "formats/config/nested_config.h"
#include "formats/family/family_tables.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 20;
constexpr std::string_view kTextMark = "text:";
constexpr std::size_t kEmbedded = kEmbeddedFamilies.size();

constexpr FamilyEntry kGenericEntry = {
    .name = "generic",
    .summary = "any names, by --family generic: cast, copied and inspected, not understood",
    .model_types = ""};
const Family kGeneric = {.name = kGenericEntry.name,
                         .spec = kGenericEntry.name,
                         .summary = kGenericEntry.summary,
                         .model_types = {},
                         .architecture = {},
                         .rules = {}};

constexpr auto kEntries = [] {
  std::array<FamilyEntry, kEmbedded + 1> entries{};
  for (std::size_t i = 0; i < kEmbedded; ++i) {
    const EmbeddedFamily& family = kEmbeddedFamilies[i];
    entries[i] = {.name = family.name,
                  .summary = family.summary,
                  .model_types = family.model_types,
                  .can_be_synthesized = !family.reference_config.empty()};
  }
  entries.back() = kGenericEntry;
  return entries;
}();

/// A family that was read, under the name or spec that finds it.
struct Known {
  std::unique_ptr<const FamilyTable> table;
  Family family;
  std::string spec;
};

/// Reads a family when it is first asked for, and keeps it: checkpoints point to its rows.
class Library {
 public:
  const Family& embedded(std::size_t i) {
    // Recursive: a family may begin with the rows of another.
    const std::scoped_lock lock(mutex_);
    Known& known = embedded_[i];
    if (known.table) return known.family;
    const EmbeddedFamily& source = kEmbeddedFamilies[i];
    INGOT_CHECK(!is_reading_[i]);
    is_reading_[i] = true;
    known.table = parse_family(source.yaml, fmt::format("family {}", source.name));
    known.family = known.table->family();
    known.family.reference_config = source.reference_config;
    return known.family;
  }

  const Family& file(std::string_view path) {
    const std::string text = read_text_file(std::filesystem::path(path), kMaxFileBytes);
    return text_of(text, path, fmt::format("{}{}", kFamilyFileMark, path));
  }

  const Family& text_of(const std::string& text, std::string_view where, const std::string& spec) {
    for (std::size_t i = 0; i < kEmbedded; ++i) {
      if (kEmbeddedFamilies[i].yaml == text) return embedded(i);
    }
    const std::scoped_lock lock(mutex_);
    auto [found, is_new] = texts_.try_emplace(std::pair(spec, text));
    Known& known = found->second;
    if (known.table) return known.family;
    known.table = parse_family(text, where);
    known.family = known.table->family();
    known.spec = spec;
    known.family.spec = known.spec;
    known.family.file_hash = hash_bytes(std::as_bytes(std::span(text))).hex();
    return known.family;
  }

  const Family* added(const std::string& spec) {
    const std::scoped_lock lock(mutex_);
    const auto found = texts_.lower_bound(std::pair(spec, std::string()));
    return found == texts_.end() || found->first.first != spec ? nullptr : &found->second.family;
  }

  /// Null for a family without a table.
  const FamilyTable* table_of(const Family& family) {
    const std::scoped_lock lock(mutex_);
    for (const Known& known : embedded_) {
      if (&known.family == &family) return known.table.get();
    }
    for (const auto& [key, known] : texts_) {
      if (&known.family == &family) return known.table.get();
    }
    return nullptr;
  }

 private:
  std::recursive_mutex mutex_;
  std::array<Known, kEmbedded> embedded_;
  std::array<bool, kEmbedded> is_reading_{};
  std::map<std::pair<std::string, std::string>, Known> texts_;
};

Library& library() {
  static Library* const kept = new Library;  // rows may be read while the program ends
  return *kept;
}

}  // namespace

std::span<const FamilyEntry> family_entries() {
  return kEntries;
}

std::vector<std::string_view> model_types_of(const FamilyEntry& family) {
  constexpr std::string_view kBetween = ", ";
  std::vector<std::string_view> types;
  std::string_view rest = family.model_types;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(kBetween), rest.size());
    types.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + kBetween.size(), rest.size()));
  }
  return types;
}

std::span<const Family* const> families() {
  static const std::vector<const Family*> kAll = [] {
    std::vector<const Family*> all;
    for (std::size_t i = 0; i < kEmbedded; ++i) all.push_back(&library().embedded(i));
    all.push_back(&kGeneric);
    return all;
  }();
  return kAll;
}

const Family* find_family(std::string_view spec) {
  if (spec.starts_with(kFamilyFileMark))
    return &library().file(spec.substr(kFamilyFileMark.size()));
  if (spec.starts_with(kTextMark)) return library().added(std::string(spec));
  if (spec == kGeneric.name) return &kGeneric;
  const auto found = std::ranges::find(kEmbeddedFamilies, spec, &EmbeddedFamily::name);
  if (found == kEmbeddedFamilies.end()) return nullptr;
  return &library().embedded(static_cast<std::size_t>(found - kEmbeddedFamilies.begin()));
}

std::span<const NameAlias> aliases_of(const Family& family) {
  const FamilyTable* table = library().table_of(family);
  return table == nullptr ? std::span<const NameAlias>() : table->aliases();
}

JsonValue defaults_of(const Family& family) {
  const FamilyTable* table = library().table_of(family);
  return table == nullptr ? JsonValue() : JsonValue(table->defaults());
}

const Family& add_family(std::string_view yaml, std::string_view where) {
  const std::string text(yaml);
  const std::string hash = hash_bytes(std::as_bytes(std::span(text))).hex();
  return library().text_of(text, where, fmt::format("{}{}", kTextMark, hash));
}

namespace {

const Family* find_text_architecture(const ModelConfig& config) {
  const Json& list = json_member(text_keys(config), "architectures");
  if (config.text.key.empty() || !config.text.model_type.empty() || !list.is_array() ||
      list.empty() || !list.front().is_string())
    return nullptr;
  const auto all = families();
  const auto found =
      std::ranges::find(all, list.front().get_ref<const std::string&>(), &Family::architecture);
  return found == all.end() ? nullptr : *found;
}

/// Any class but that of Ling 2.5, as Ling 3 and transformers' own have it.
bool is_ling_3(const Family& /*family*/, const ModelConfig& config) {
  return !config.architecture.starts_with("BailingMoeV2");
}

/// A config without it says `use_mla` false, or a rank of 0 or null.
bool has_latent_attention(const Family& /*family*/, const ModelConfig& config) {
  const Json& keys = text_keys(config);
  const bool says_none = keys.contains("kv_lora_rank") || json_member(keys, "use_mla") == false;
  return config.kv_lora_rank != 0 || !says_none;
}

/// DeepSeek's code writes `deepseek_ref` whatever the model.
bool has_own_type_or_architecture(const Family& family, const ModelConfig& config) {
  return config.model_type == family.name || config.text.model_type == family.name ||
         config.architecture == family.architecture;
}

/// A name in config.json that several models have.
struct SharedName {
  std::string_view family;  ///< family of one of these models
  bool (*is_meant)(const Family& family, const ModelConfig& config);
  std::string_view other;  ///< the family of the other models; empty: no family here has them
};
constexpr std::array kSharedNames = {
    SharedName{"bailing_hybrid", is_ling_3, ""},
    SharedName{"deepseek_v4", has_own_type_or_architecture, ""},
    SharedName{"deepseek_v2", has_latent_attention, "deepseek_v2_mha"},
};

const Family* family_by_names(const ModelConfig& config) {
  static const std::map<std::string_view, std::size_t> kByType = [] {
    std::map<std::string_view, std::size_t> by_type;
    for (std::size_t i = 0; i < kEmbedded; ++i) {
      for (const std::string_view type : model_types_of(kEntries[i])) by_type.emplace(type, i);
    }
    return by_type;
  }();
  for (const std::string* type : {&config.model_type, &config.text.model_type}) {
    const auto found = kByType.find(*type);
    if (found != kByType.end()) return &library().embedded(found->second);
  }
  return find_text_architecture(config);
}

}  // namespace

const Family* family_of(const ModelConfig& config) {
  const Family* family = family_by_names(config);
  if (family == nullptr) return nullptr;
  const auto shared = std::ranges::find(kSharedNames, family->name, &SharedName::family);
  if (shared == kSharedNames.end() || shared->is_meant(*family, config)) return family;
  return shared->other.empty() ? nullptr : find_family(shared->other);
}

ModelConfig config_of(const Family& family, const ModelConfig& config) {
  const JsonValue defaults = defaults_of(family);
  return defaults.is_null() ? config : with_defaults(config, defaults);
}

bool names_key(const Family& family, std::string_view key) {
  constexpr std::string_view kLike = "\nlike: ";
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  const auto source = std::ranges::find(kEmbeddedFamilies, family.name, &EmbeddedFamily::name);
  if (source == kEmbeddedFamilies.end()) return true;
  const std::string_view text = source->yaml;
  for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    const std::size_t end = at + key.size();
    if ((at == 0 || !is_letter(text[at - 1])) && (end == text.size() || !is_letter(text[end])))
      return true;
  }
  const std::size_t like = text.find(kLike);
  if (like == std::string_view::npos) return false;
  const std::string_view name = text.substr(like + kLike.size());
  const Family* other = find_family(name.substr(0, name.find('\n')));
  return other != nullptr && names_key(*other, key);
}

std::string family_file_in(const std::filesystem::path& directory) {
  std::error_code failure;
  const std::filesystem::path path = directory / kFamilyFileName;
  // Not exists(): a link that leads nowhere is a broken file, not none.
  const auto type = std::filesystem::symlink_status(path, failure).type();
  if (type == std::filesystem::file_type::not_found || failure) return {};
  return std::string(kFamilyFileMark) + path.string();
}

std::string family_spec_of(const std::filesystem::path& directory, std::string_view recorded) {
  if (std::string file = family_file_in(directory); !file.empty()) return file;
  // A manifest comes with the checkpoint, so a path in it is no file of this host.
  const bool is_file = recorded.starts_with(kFamilyFileMark);
  return !is_file && find_family(recorded) != nullptr ? std::string(recorded) : std::string();
}

}  // namespace ingot::formats
