#include "convert/recipe/source_card.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/ranges.h>

#include "formats/base/fd.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/yaml/yaml.h"

namespace ingot::convert {

using formats::Yaml;

namespace {

constexpr std::uint64_t kMaxCardBytes = std::uint64_t{8} << 20;
// A card with the results of hundreds of tests has some hundred KB.
constexpr formats::YamlLimits kMatterLimits{.bytes = std::size_t{1} << 20, .depth = 32};
constexpr std::size_t kMaxValues = 150, kMaxValueBytes = 250;
// Not `tags`: these tell of the source's own numbers, as `fp8` does.
constexpr std::array<std::string_view, 6> kKeptKeys = {
    "language", "library_name", "license", "license_link", "license_name", "pipeline_tag"};
constexpr std::string_view kQuantized = "quantized";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct CardParts {
  std::string_view matter, text;
};

// Front matter as the hub finds it: white space, a line ---, and the next line of these.
std::optional<CardParts> split(std::string_view card) {
  if (card.starts_with(kByteOrderMark)) card.remove_prefix(kByteOrderMark.size());
  const std::size_t begin = card.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || !card.substr(begin).starts_with("---"))
    return std::nullopt;
  const std::size_t matter = begin + 3;
  if (matter < card.size() && card[matter] != '\n' && card[matter] != '\r') return std::nullopt;
  for (std::size_t at = card.find("\n---", begin); at != std::string_view::npos;
       at = card.find("\n---", at + 1)) {
    std::size_t end = at + 4;
    if (end < card.size() && card[end] == '\r') ++end;
    if (end < card.size() && card[end] != '\n') continue;
    return CardParts{.matter = card.substr(matter, at + 1 - matter),
                     .text = card.substr(std::min(end + 1, card.size()))};
  }
  return std::nullopt;
}

// The texts of a value, none for any other.
std::vector<std::string> texts_of(const Yaml* value) {
  std::vector<std::string> texts;
  if (value == nullptr || value->is_null() || value->is_map()) return texts;
  if (value->is_text()) return {value->text("")};
  for (const Yaml& item : value->list("")) {
    if (!item.is_text()) return {};
    texts.push_back(item.text(""));
  }
  return texts;
}

bool is_short(const std::vector<std::string>& values) {
  return !values.empty() && values.size() <= kMaxValues &&
         std::ranges::all_of(values, [](const std::string& value) {
           return !value.empty() && value.size() <= kMaxValueBytes &&
                  std::ranges::none_of(value, [](unsigned char c) { return c < ' '; });
         });
}

void take_matter(const Yaml& matter, SourceCard& card) {
  if (!matter.is_map()) matter.refuse("front matter is not a map");
  for (const std::string_view key : kKeptKeys) {
    const Yaml* value = matter.find(key);
    std::vector<std::string> values = texts_of(value);
    if (is_short(values))
      card.kept.push_back(
          {.key = std::string(key), .values = std::move(values), .is_list = value->is_list()});
  }
  std::vector<std::string> models = texts_of(matter.find("base_model"));
  if (!card.base_models.empty() || !is_short(models) || !std::ranges::all_of(models, is_hub_model))
    return;
  card.base_models = std::move(models);
  // A model that was tuned is not its base in other numbers, whatever becomes of its own.
  if (texts_of(matter.find("base_model_relation")) == std::vector{std::string(kQuantized)})
    card.relation = kQuantized;
}

// The name of the source itself. A download to a folder (.cache/huggingface) keeps commits, no
// names. `_name_or_path` is the model that was loaded before this one was saved, tuned or not.
void take_names(const formats::Checkpoint& source, const std::string& base_model,
                SourceCard& card) {
  if (!base_model.empty()) {
    card.base_models = {base_model};
    card.is_named = true;
    card.relation = kQuantized;
    return;
  }
  if (const auto snapshot = formats::hub_snapshot_at(source.directory())) {
    card.base_models = {snapshot->model};
    card.commit = snapshot->commit;
    card.is_named = true;
    // The relations of the hub are adapter, finetune, merge and quantized. A cast to BF16 is the
    // last one too: the same model with other numbers, of which nothing was trained.
    card.relation = kQuantized;
    return;
  }
  const formats::Json& path = formats::json_member(*source.config().raw, "_name_or_path");
  if (path.is_string() && is_hub_model(path.get<std::string>()))
    card.base_models = {path.get<std::string>()};
}

}  // namespace

std::string licence_of(const SourceCard& card) {
  const auto said = [&](std::string_view key) {
    const auto found = std::ranges::find(card.kept, key, &CardEntry::key);
    return found == card.kept.end() ? std::string()
                                    : fmt::format("{}", fmt::join(found->values, ", "));
  };
  const std::string licence = said("license"), name = said("license_name");
  return licence.empty() || (licence == "other" && !name.empty()) ? name : licence;
}

bool is_hub_model(std::string_view name) {
  return name.find('@') == std::string_view::npos &&
         formats::parse_hub_name(std::string(name)).has_value();
}

SourceCard read_source_card(const formats::Checkpoint& source, const std::string& base_model) {
  SourceCard card;
  take_names(source, base_model, card);
  const auto& files = source.side_files();
  const auto readme = std::ranges::find(files, kCardName, &formats::SideFile::path);
  if (readme == files.end()) return card;
  card.is_too_long = readme->n_bytes > kMaxCardBytes;
  if (card.is_too_long) return card;
  card.text = read_text_file(source.directory() / kCardName, kMaxCardBytes);
  const auto parts = split(card.text);
  if (!parts) return card;
  try {
    take_matter(formats::parse_yaml(parts->matter, kCardName, kMatterLimits), card);
    card.text = std::string(parts->text);
  } catch (const Error& error) {
    card.fault = error.message();
  }
  return card;
}

}  // namespace ingot::convert
