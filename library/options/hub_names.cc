#include "library/options/hub_names.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "formats/base/error.h"
#include "formats/files/hub_cache.h"
#include "library/options/flag_table.h"

namespace ingot {

namespace fs = std::filesystem;

namespace {

// With the home directory for a leading ~, as the hub's own programs read it; empty where it is not
// set.
fs::path path_of(const char* variable) {
  const char* const value = std::getenv(variable);
  const std::string text = value == nullptr ? "" : value;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || (text != "~" && !text.starts_with("~/"))) return text;
  return std::string(home) + text.substr(1);
}

std::optional<std::string> opened(const std::string& given) {
  std::error_code failure;
  if (fs::exists(fs::symlink_status(given, failure))) return std::nullopt;
  const auto name = formats::parse_hub_name(given);
  if (!name) return std::nullopt;
  const fs::path cache = hub_cache();
  if (const auto snapshot = formats::find_hub_snapshot(cache, *name)) return snapshot->string();
  const std::string& model = name->model;
  throw Error(
      ErrorCode::kNotFound,
      "no such directory, and no model of that name in the hub's cache {} (fetch it: hf download "
      "{}{} --local-dir {})",
      cache.string(), model, name->revision == "main" ? "" : " --revision " + name->revision,
      model.substr(model.find('/') + 1))
      .in_file(given);
}

}  // namespace

fs::path hub_cache() {
  // The second is the older name of the first.
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const fs::path cache = path_of(variable); !cache.empty()) return cache;
  }
  if (const fs::path home = path_of("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path caches = path_of("XDG_CACHE_HOME"); !caches.empty())
    return caches / "huggingface" / "hub";
  const fs::path home = path_of("HOME");
  return home.empty() ? fs::path() : home / ".cache" / "huggingface" / "hub";
}

void open_hub_names(const FlagTable& table) {
  for (const FlagTable::Row& row : table.rows) {
    const Flag& flag = row.flag;
    if (!names_checkpoint(flag.rule.kind) || !table.is_given(flag.name)) continue;
    if (auto* const* path = std::get_if<fs::path*>(&flag.target)) {
      if (auto snapshot = opened((*path)->string())) **path = *std::move(snapshot);
    } else if (std::string* text = text_of(flag)) {
      if (auto snapshot = opened(*text)) *text = *std::move(snapshot);
    }
  }
}

}  // namespace ingot
