#include <algorithm>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "convert/recipe/default_recipes.h"
#include "convert/recipe/engine_choice.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/text/spelling.h"

namespace ingot::convert {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxRules = 10'000;
constexpr std::size_t kMaxDepth = 16;

[[noreturn]] void refuse(std::string_view where, const YAML::Mark& mark, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              mark.is_null() ? what : fmt::format("line {}: {}", mark.line + 1, what))
      .in_file(where);
}

[[noreturn]] void refuse(std::string_view where, const YAML::Node& node, const std::string& what) {
  refuse(where, node.Mark(), what);
}

// Goes over a document without building it, and refuses what could make the tree larger or deeper
// than its text: anchors, aliases and nesting. Recipes need neither. yaml-cpp itself limits its
// recursion.
class Gatekeeper final : public YAML::EventHandler {
 public:
  explicit Gatekeeper(std::string_view where) : where_(where) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++n_documents_ > 1) refuse(where_, mark, "holds more than one YAML document");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    require_plain(mark, anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    require_plain(mark, anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                const std::string&) override {
    require_plain(mark, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    require_plain(mark, anchor);
    descend(mark);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    require_plain(mark, anchor);
    descend(mark);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void require_plain(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor)
      refuse(where_, mark, "anchors and aliases are not accepted in a recipe");
  }
  void descend(const YAML::Mark& mark) {
    if (++depth_ > kMaxDepth) refuse(where_, mark, "is nested too deeply for a recipe");
  }

  std::string_view where_;
  std::size_t depth_ = 0, n_documents_ = 0;
};

// Runs what may refuse a word, and says in which line it stands.
template <typename Body>
void at_line(const YAML::Node& node, std::string_view where, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    refuse(where, node, error.message());
  }
}

void require_one_plain_document(const std::string& text, std::string_view where) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Gatekeeper gatekeeper(where);
  while (parser.HandleNextDocument(gatekeeper)) {
  }
}

std::string scalar(const YAML::Node& node, std::string_view where, std::string_view what) {
  if (!node.IsScalar()) refuse(where, node, fmt::format("{} is not a text", what));
  return node.Scalar();
}

void require_keys(const YAML::Node& map, const std::set<std::string>& known,
                  std::string_view where) {
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string key = scalar(entry.first, where, "a key");
    if (!known.contains(key)) {
      refuse(where, entry.first,
             fmt::format("unknown key '{}'{}", key, did_you_mean(key, known, std::identity())));
    }
    if (!seen.insert(key).second)
      refuse(where, entry.first, fmt::format("key '{}' is there twice", key));
  }
}

void read_rules(const YAML::Node& rules, std::string_view where, Recipe& recipe) {
  if (!rules.IsSequence()) refuse(where, rules, "rules is not a list");
  if (rules.size() > kMaxRules) refuse(where, rules, fmt::format("more than {} rules", kMaxRules));
  for (const YAML::Node& row : rules) {
    if (!row.IsMap()) refuse(where, row, "a rule is not a map of match and scheme");
    require_keys(row, {"match", "scheme"}, where);
    if (!row["match"] || !row["scheme"]) refuse(where, row, "a rule needs match and scheme");
    const std::string match = scalar(row["match"], where, "match");
    const std::string scheme = scalar(row["scheme"], where, "scheme");
    at_line(row, where, [&] {
      Rule& rule = recipe.rules.emplace_back(make_rule(match, scheme, RuleOrigin::kRecipe));
      rule.file = where;
      rule.line = row.Mark().line + 1;
    });
  }
}

void read_allowances(const YAML::Node& allow, std::string_view where, Recipe& recipe) {
  if (!allow.IsMap()) refuse(where, allow, "allow is not a map from kind to patterns");
  std::set<std::string> kinds;
  for (const std::string_view kind : Allowances::kinds()) kinds.emplace(kind);
  require_keys(allow, kinds, where);
  for (const auto& entry : allow) {
    const std::string kind = entry.first.Scalar();
    if (!entry.second.IsSequence())
      refuse(where, entry.second, fmt::format("allow.{} is not a list", kind));
    for (const YAML::Node& pattern : entry.second) {
      const std::string text = kind + "=" + scalar(pattern, where, "a pattern");
      at_line(pattern, where, [&] { recipe.allow.add(text); });
    }
  }
}

// What --dialect, --activations and so on say on the command line.
void read_choices(const YAML::Node& root, std::string_view where, Recipe& recipe) {
  Choices& choices = recipe.choices;
  const auto read = [&](const char* key, const auto& take) {
    const YAML::Node node = root[key];
    if (!node) return;
    const std::string text = scalar(node, where, key);
    at_line(node, where, [&] { take(text); });
    recipe.given.push_back(fmt::format("--{}", key));
  };
  read("for", [&](const std::string& text) { choices.engine = parse_engine(text); });
  read("dialect", [&](const std::string& text) {
    choices.dialect = text;
    (void)target_dialect(recipe, formats::default_dialect(formats::SchemeId::kFp8Block));
  });
  read("activations",
       [&](const std::string& text) { choices.activations = parse_activations(text); });
  read("fp8-grid", [&](const std::string& text) { choices.fp8_grid = parse_fp8_grid(text); });
  for (const char* key : {"search", "nvfp4-search"}) {
    read(key, [&](const std::string& text) {
      choices.search = parse_scale_search(text, fmt::format("--{}", key));
    });
  }
  read("group-size", [&](const std::string& text) { choices.group_size = parse_group_size(text); });
  read("via", [&](const std::string& text) { choices.via = parse_via(text); });
  read("quantize-attention", [&](const std::string& text) {
    if (!YAML::convert<bool>::decode(YAML::Node(text), choices.quantize_attention)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("quantize-attention '{}' is neither true nor false", text));
    }
  });
  if (!choices.quantize_attention) std::erase(recipe.given, "--quantize-attention");
  read("input-scale",
       [&](const std::string& text) { choices.input_scale = parse_input_scale(text); });
}

}  // namespace

Recipe parse_recipe(std::string_view yaml, std::string_view where) {
  if (yaml.size() > kMaxBytes) {
    const auto line = 1 + std::count(yaml.begin(), yaml.begin() + kMaxBytes, '\n');
    throw Error(ErrorCode::kInvalidArgument, fmt::format("line {}: is longer than 1 MiB", line))
        .in_file(where);
  }
  try {
    const std::string text(yaml);
    require_one_plain_document(text, where);
    const YAML::Node root = YAML::Load(text);
    Recipe recipe;
    if (root.IsNull()) return recipe;
    if (!root.IsMap()) refuse(where, root, "a recipe is a map of to, mtp, rules, allow and so on");
    require_keys(
        root,
        {"to", "mtp", "rules", "allow", "for", "dialect", "activations", "fp8-grid", "search",
         "nvfp4-search", "group-size", "via", "quantize-attention", "input-scale"},
        where);
    for (const char* key : {"to", "mtp"}) {
      if (!root[key]) continue;
      const std::string word = scalar(root[key], where, key);
      at_line(root[key], where, [&] {
        if (std::string_view(key) == "to") {
          recipe.to = parse_scheme_word(word, key);
        } else {
          recipe.mtp = parse_mtp_policy(word, key);
        }
      });
    }
    if (root["rules"]) read_rules(root["rules"], where, recipe);
    if (root["allow"]) read_allowances(root["allow"], where, recipe);
    read_choices(root, where, recipe);
    return recipe;
  } catch (const YAML::Exception& failure) {
    refuse(where, failure.mark, fmt::format("is not YAML: {}", failure.msg));
  }
}

}  // namespace ingot::convert
