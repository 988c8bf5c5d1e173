#include "engines/own_code.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/json/json.h"

namespace ingot::engines {

using formats::Checkpoint;
using formats::Json;

namespace {

// Next to config.json.
constexpr std::array<std::string_view, 4> kFiles = {
    "tokenizer_config.json", "processor_config.json", "preprocessor_config.json",
    "video_preprocessor_config.json"};

void add_reference(std::string_view where, std::string_view role, const Json& reference,
                   std::vector<OwnClass>& found) {
  if (!reference.is_string()) return;  // null: no such class, as of a fast tokenizer
  const std::string& text = reference.get_ref<const std::string&>();
  std::string module;
  if (text.find("--") == std::string::npos) {
    module = text.substr(0, text.find('.')) + ".py";
  }
  found.push_back({.where = std::string(where), .role = std::string(role), .module = module});
}

void add_classes(std::string_view where, const Json& document, std::vector<OwnClass>& found) {
  const Json& map = formats::json_member(document, "auto_map");
  if (!map.is_object()) return;
  for (const auto& [role, value] : map.items()) {
    if (!value.is_array()) {
      add_reference(where, role, value, found);
      continue;
    }
    for (const Json& reference : value) add_reference(where, role, reference, found);
  }
}

}  // namespace

std::vector<OwnClass> own_classes(const Checkpoint& checkpoint) {
  std::vector<OwnClass> found;
  add_classes(formats::kConfigName, checkpoint.config().raw, found);
  for (const formats::SideFile& file : checkpoint.side_files()) {
    if (std::ranges::find(kFiles, file.path) == kFiles.end()) continue;
    try {
      add_classes(
          file.path,
          formats::read_json_file(checkpoint.directory() / file.path, formats::kMaxConfigBytes),
          found);
    } catch (const Error&) {
      continue;
    }
  }
  return found;
}

}  // namespace ingot::engines
