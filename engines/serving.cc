#include "engines/serving.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

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
  if (!reference.is_string()) return;  // a class that is missing is null
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

namespace {

constexpr std::uint64_t kWeightsPerDevice = 60'000'000'000;
constexpr std::uint64_t kMaxDevices = 1024;

std::uint64_t n_devices(std::uint64_t n_bytes) {
  std::uint64_t n = 1;
  while (n < kMaxDevices && n_bytes / n > kWeightsPerDevice) n *= 2;
  return n;
}

}  // namespace

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string serve_command(const EngineVerdict& verdict, const Served& checkpoint) {
  const EngineRow& engine = *verdict.engine;
  if (engine.command.empty()) return {};
  std::string command = fmt::format("{} {}", engine.command, shell_word(checkpoint.directory));
  const std::uint64_t n = n_devices(checkpoint.n_bytes);
  if (n > 1 && !engine.ranks_option.empty())
    command += fmt::format(" {} {}", engine.ranks_option, n);
  for (const std::string& option : verdict.options) command += " " + option;
  if (checkpoint.brings_code && !engine.code_option.empty())
    command += fmt::format(" {}", engine.code_option);
  return command;
}

}  // namespace ingot::engines
