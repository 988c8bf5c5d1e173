#include <algorithm>
#include <array>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/rules/loader_rules.h"
#include "cli/commands/commands.h"
#include "cli/flags/flag_table.h"
#include "convert/recipe/default_recipes.h"
#include "formats/base/error.h"
#include "formats/base/figures.h"
#include "formats/base/spelling.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/engine_limits.h"
#include "formats/family/family.h"
#include "formats/json/json.h"
#include "formats/records/layout.h"
#include "formats/storage/encoding.h"
#include "quantize/scheme.h"
#include "verify/gates/gate.h"

namespace ingot::cli {

using formats::Json;
using formats::json_list;

namespace {

// The tables to be shown have one object per row, whose keys are the columns.
Json scheme_rows() {
  return json_list(formats::schemes(), [](const formats::SchemeFacts& facts) -> Json {
    const quantize::Scheme* arithmetic = quantize::find_scheme(facts.id);
    return {{"name", facts.name},
            {"to", facts.to_word},
            {"decodes", arithmetic != nullptr && arithmetic->decode != nullptr},
            {"encodes", arithmetic != nullptr && arithmetic->encode != nullptr},
            {"summary", facts.summary}};
  });
}

// One row per dialect and scheme; the first of its activations is the default.
Json dialect_rows() {
  Json rows = Json::array();
  for (const formats::Dialect* dialect : formats::dialects()) {
    for (const formats::SchemeFacts& facts : formats::schemes()) {
      const formats::StorageRow* first = formats::find_storage(*dialect, facts.id);
      if (first == nullptr) continue;
      Json activations = Json::array();
      for (const formats::StorageRow& row : dialect->storage) {
        if (row.scheme == facts.id)
          activations.push_back(formats::activations_name(row.activations));
      }
      rows.push_back({{"name", dialect->name},
                      {"scheme", facts.name},
                      {"activations", activations},
                      {"parts", json_list(first->parts, [](const formats::PartRow& part) {
                         return part.suffix.substr(1);
                       })}});
    }
  }
  return rows;
}

Json family_rows() {
  return json_list(formats::families(), [](const formats::Family* family) -> Json {
    return {
        {"name", family->name},
        {"model_types", json_list(family->model_types, [](std::string_view type) { return type; })},
        {"summary", family->summary}};
  });
}

Json layout_rows() {
  return json_list(formats::layouts(), [](const formats::Layout& layout) -> Json {
    return {{"name", layout.name}, {"summary", layout.summary}};
  });
}

Json recipe_rows() {
  Json rows = json_list(convert::default_recipe_lines(),
                        [](const convert::DefaultRecipeLine& line) -> Json {
                          return {{"to", formats::scheme_facts(line.to).to_word},
                                  {"dialect", line.dialect.empty() ? "any" : line.dialect},
                                  {"tensors", convert::role_group_name(line.group)},
                                  {"treatment", convert::treatment_name(line.treatment)},
                                  {"reason", line.reason}};
                        });
  rows.push_back({{"to", "any"},
                  {"dialect", "any"},
                  {"tensors", convert::role_group_name(convert::RoleGroup::kNever)},
                  {"treatment", convert::treatment_name(convert::Treatment::kLeave)},
                  {"reason",
                   "embedding, head, norms, router and its bias, weights_proj, k_norm, eh_proj: "
                   "loaders build them unquantized"}});
  return rows;
}

// What released engines refuse, or load with an option alone.
Json engine_rows() {
  return json_list(formats::engine_limits(), [](const formats::EngineLimit& limit) -> Json {
    return {{"engine", formats::engine_name(limit.engine)},
            {"dialect", limit.dialect},
            {"scheme", formats::scheme_facts(limit.scheme).name},
            {"activations", limit.activations ? activations_name(*limit.activations) : "any"},
            {"of", formats::engine_scope_name(limit.scope)},
            {"option", limit.option},
            {"loads", limit.instead},
            {"reason", limit.reason}};
  });
}

// What can be gated, with the demands that are made when nobody says anything.
Json metric_rows() {
  const verify::Thresholds defaults = verify::default_thresholds({});
  return json_list(verify::metrics(), [&](const verify::Metric& metric) -> Json {
    Json limits = Json::array();
    for (const verify::Gate& gate : defaults.gates) {
      if (gate.metric != metric.name) continue;
      limits.push_back(gate.group.empty() ? fmt::format("{}", gate.limit)
                                          : fmt::format("{}:{}", gate.group, gate.limit));
    }
    return {{"name", metric.name},
            {"bound", metric.bound == verify::Bound::kAtLeast ? "at least" : "at most"},
            {"defaults", limits},
            {"summary", metric.summary}};
  });
}

// What `check` reports, by rule.
Json rule_rows() {
  return json_list(check::loader_rules(), [](const check::LoaderRule& rule) -> Json {
    return {{"name", rule.name},
            {"dialect", rule.dialect.empty() ? "any" : rule.dialect},
            {"loaders", rule.loaders},
            {"severity", check::severity_name(rule.severity)},
            {"rule", rule.rule}};
  });
}

struct Table {
  std::string_view name;
  Json (*rows)();
};
constexpr std::array kTables = {Table{"schemes", scheme_rows},  Table{"dialects", dialect_rows},
                                Table{"families", family_rows}, Table{"layouts", layout_rows},
                                Table{"recipes", recipe_rows},  Table{"engines", engine_rows},
                                Table{"metrics", metric_rows},  Table{"rules", rule_rows}};

std::string cell_text(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.empty() || value == "") return "-";
  if (!value.is_array()) return value.get<std::string>();
  return fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), " "));
}

std::string table_names() {
  return names_of(kTables, &Table::name);
}

// As docs/ have it: names in backticks.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::string text = fmt::format("| {} |\n|", fmt::join(rows.front(), " | "));
  for (std::size_t i = 0; i < rows.front().size(); ++i) text += "---|";
  for (std::size_t i = 1; i < rows.size(); ++i) {
    text += fmt::format("\n| `{}` | {} |", rows[i].front(),
                        fmt::join(rows[i].begin() + 1, rows[i].end(), " | "));
  }
  return text + "\n";
}

int run_list(std::string_view what, bool json, bool markdown) {
  const auto table = std::find_if(kTables.begin(), kTables.end(),
                                  [&](const Table& row) { return row.name == what; });
  if (table == kTables.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} (there are the tables {}){}",
                            what.empty() ? "which table is to be listed?"
                                         : fmt::format("there is no table '{}'", what),
                            table_names(), did_you_mean(what, kTables, &Table::name)));
  }
  const Json rows = table->rows();
  if (json) {
    std::cout << formats::json_text(
        {{"schema", 1}, {"command", "list"}, {std::string(what), rows}});
    return kExitDone;
  }
  std::vector<std::vector<std::string>> text = {{}};
  for (const auto& [key, unused] : rows.at(0).items()) text[0].push_back(key);
  for (const Json& row : rows) {
    text.emplace_back();
    for (const Json& value : row) text.back().push_back(cell_text(value));
  }
  std::cout << (markdown ? markdown_table(text) : text_table(text, {}));
  return kExitDone;
}

}  // namespace

std::function<int()> declare_list(FlagTable& table) {
  struct ListFlags {
    std::string what;
    bool json = false, markdown = false;
  };
  auto flags = std::make_shared<ListFlags>();
  table.add(FlagGroup::kCommon, {{"table",
                                  &flags->what,
                                  fmt::format("which table: {}", table_names()),
                                  {.words = words_of(kTables, &Table::name)}}});
  table.add(FlagGroup::kReport, {json_flag(&flags->json),
                                 {"--markdown",
                                  &flags->markdown,
                                  "a table in Markdown, as docs/ have it",
                                  {.excludes = {"--json"}}}});
  table.footer =
      "Examples:\n"
      "  ingot list schemes\n"
      "  ingot list rules --markdown\n"
      "  ingot list families --json";
  return [flags] { return run_list(flags->what, flags->json, flags->markdown); };
}

}  // namespace ingot::cli
