#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "formats/config/config_meaning.h"
#include "formats/json/json.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::config_member;
using formats::config_text;
using formats::ConfigMeaning;
using formats::Json;
using formats::SaidValue;

namespace {

constexpr std::string_view kRule = "structure.config";
constexpr std::array<std::string_view, 3> kPadded = {"vocab_size", "intermediate_size",
                                                     "moe_intermediate_size"};

bool is_padded(std::string_view key, const Json& source, const Json& output) {
  return std::find(kPadded.begin(), kPadded.end(), key) != kPadded.end() &&
         source.is_number_unsigned() && output.is_number_unsigned() &&
         output.get<std::uint64_t>() >= source.get<std::uint64_t>();
}

/// The meanings that two sides have, and what either says; null where it says nothing of its own.
template <typename Visit>
void for_each_meaning(const ConfigMeaning::Values& source, const ConfigMeaning::Values& output,
                      const Visit& visit) {
  std::set<std::string_view> names;
  for (const auto* side : {&source, &output}) {
    for (const auto& [name, said] : *side) names.insert(name);
  }
  for (const std::string_view name : names) {
    const auto before = source.find(name);
    const auto after = output.find(name);
    visit(name, before == source.end() ? nullptr : &before->second,
          after == output.end() ? nullptr : &after->second);
  }
}

class Comparison {
 public:
  Comparison(const OutputConfig& output, StructureFindings& found)
      : output_(output), found_(found) {}

  void meanings(const Json& source) {
    const ConfigMeaning before(source), after(output_.config);
    for_each_meaning(before.known(), after.known(),
                     [&](std::string_view name, const SaidValue* from, const SaidValue* to) {
                       compare(name, from, to, /*is_known=*/true);
                     });
    for_each_meaning(before.unknown(), after.unknown(),
                     [&](std::string_view name, const SaidValue* from, const SaidValue* to) {
                       compare(name, from, to, /*is_known=*/false);
                     });
  }

  // DeepSeek's own config, of which every key counts.
  void keys(const Json& source) {
    std::set<std::string> names;
    for (const Json* side : {&source, &output_.config}) {
      for (const auto& [key, value] : side->items()) names.insert(key);
    }
    for (const std::string& key : names) {
      const Json& before = config_member(source, key);
      const Json& after = config_member(output_.config, key);
      if (before != after) tell(Severity::kError, differs(key, before, after));
    }
  }

 private:
  using Severity = check::Severity;

  static std::string differs(const std::string& path, const Json& source, const Json& output) {
    return fmt::format("{} is {}, in the source {}", path, config_text(output),
                       config_text(source));
  }

  void tell(Severity severity, std::string message) {
    const Error fact = Error(ErrorCode::kMismatch, std::move(message)).in_file(output_.file);
    severity == Severity::kError ? found_.error(kRule, fact) : found_.warning(kRule, fact);
  }

  // A key that nobody here knows may be new to the format, or nothing; one that both sides have
  // with other values is a change of somebody's.
  void compare(std::string_view name, const SaidValue* from, const SaidValue* to, bool is_known) {
    static const Json absent = nullptr;
    const Json& before = from == nullptr ? absent : *from->value;
    const Json& after = to == nullptr ? absent : *to->value;
    if (before == after) return;
    if (output_.may_be_padded && is_padded(name, before, after)) return;
    std::string message = differs(to == nullptr ? from->path : to->path, before, after);
    if (from != nullptr && to != nullptr && from->path != to->path)
      message += fmt::format(" ({})", from->path);
    const bool is_change = is_known || (from != nullptr && to != nullptr);
    if (!is_change) message += ": a key that this version does not know";
    tell(is_change ? Severity::kError : Severity::kWarning, std::move(message));
  }

  const OutputConfig& output_;
  StructureFindings& found_;
};

}  // namespace

void compare_model_parameters(const Json& source, const OutputConfig& output,
                              StructureFindings& found) {
  if (!source.is_object()) return;
  if (!output.config.is_object()) {
    found.error(kRule, Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(output.file));
    return;
  }
  Comparison comparison(output, found);
  output.is_hub ? comparison.meanings(source) : comparison.keys(source);
}

}  // namespace ingot::verify
