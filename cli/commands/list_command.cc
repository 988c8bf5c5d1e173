#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/rules/loader_rules.h"
#include "cli/commands/commands.h"
#include "cli/flags/gpus.h"
#include "cli/report/role_report.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/output_guard.h"
#include "cli/terminal/pager.h"
#include "cli/terminal/terminal.h"
#include "convert/recipe/built_in_recipes.h"
#include "convert/recipe/default_recipes.h"
#include "engines/limits.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "formats/family/family.h"
#include "formats/records/layout.h"
#include "formats/storage/encoding.h"
#include "formats/text/spelling.h"
#include "library/options/flag_table.h"
#include "quantize/scheme.h"
#include "report/rows.h"
#include "report/table_text.h"
#include "shard/join/source.h"
#include "verify/gates/gate.h"

namespace ingot::cli {

using formats::Json;
using formats::json_list;

namespace {

// The tables to be shown have one object per row, whose keys are the columns.
Json scheme_rows() {
  return json_list(formats::schemes(), [](const formats::SchemeFacts& facts) -> Json {
    return {{"name", facts.name},
            {"to", facts.to_word},
            {"decodes", facts.id != formats::SchemeId::kRaw},
            {"encodes", quantize::find_scheme(facts.id) != nullptr},
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
        if (row.scheme == facts.id && !row.is_read_only)
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
  return json_list(formats::family_entries(), [](const formats::FamilyEntry& family) -> Json {
    return {{"name", family.name},
            {"model_types", json_list(formats::model_types_of(family), std::identity())},
            {"summary", family.summary}};
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

// Rows of what engines read, each with its evidence.
Json load_rows() {
  Json rows = Json::array();
  for (const engines::EngineRow* engine : engines::engines()) {
    for (const engines::EngineLoad& load : engine->loads) {
      const engines::Evidence evidence = engine->evidence_of(load);
      rows.push_back({{"engine", engine->name},
                      {"for", engine->word},
                      {"scheme", formats::scheme_facts(load.scheme).name},
                      {"dialect", load.dialect.empty() ? "any" : load.dialect},
                      {"activations", load.activations ? activations_name(*load.activations) : ""},
                      {"known", engines::evidence_text(evidence)},
                      {"ran_in", engine->ran_in(evidence)},
                      {"read_in", engine->version},
                      {"option", load.option},
                      {"source", load.source},
                      {"id", engines::row_id(load)}});
    }
  }
  return rows;
}

// Families whose checkpoints each engine is known to take. Those without a row were not tried.
Json trial_rows() {
  Json rows = Json::array();
  for (const engines::EngineRow* engine : engines::engines()) {
    for (const engines::EngineFamily& of : engine->families) {
      Json schemes = Json::array();
      for (const formats::SchemeFacts& facts : formats::schemes()) {
        if (of.schemes.contains(facts.id)) schemes.push_back(facts.name);
      }
      rows.push_back({{"family", of.family},
                      {"engine", engine->name},
                      {"known", engine->known_text(engine->evidence_of(of))},
                      {"schemes", schemes}});
    }
  }
  return rows;
}

// Facts about each engine: the outputs of dialects that it loads, and those that it refuses, with
// reasons.
Json engine_rows() {
  return json_list(engines::engine_support(), [](const engines::EngineSupport& row) -> Json {
    const engines::EngineLimit* limit = row.limit;
    const bool is_any = limit != nullptr && !row.activations;
    return {{"engine", row.engine->name},
            {"dialect", row.dialect.empty() ? "any" : row.dialect},
            {"scheme", row.scheme ? formats::scheme_facts(*row.scheme).name : "any"},
            {"activations", row.activations ? activations_name(*row.activations)
                            : is_any        ? "any"
                                            : ""},
            {"family", limit == nullptr || limit->family.empty() ? "any" : limit->family},
            {"of", engines::engine_scope_name(limit == nullptr ? engines::EngineScope::kAny
                                                               : limit->scope)},
            {"result", engines::engine_support_text(row)},
            {"option", limit == nullptr ? "" : limit->option},
            {"loads", limit == nullptr ? "" : limit->instead},
            {"reason", limit == nullptr ? "" : limit->reason},
            {"source", row.load == nullptr ? "" : row.load->source},
            {"id", limit != nullptr      ? engines::row_id(*limit)
                   : row.load != nullptr ? engines::row_id(*row.load)
                                         : ""}};
  });
}

// Readings of configs that not every version has, and the packages by which engines read them.
Json reading_rows() {
  Json rows = Json::array();
  for (const engines::EngineRow* engine : engines::engines()) {
    const auto add = [&](std::string id, std::string_view says) {
      rows.push_back({{"engine", engine->name}, {"says", says}, {"id", std::move(id)}});
    };
    for (const engines::EngineReading reading : engine->readings)
      add(std::string(engines::reading_id(reading)), engines::reading_text(reading));
    for (const engines::EnginePin& pin : engine->pins)
      add(fmt::format("pin.{}", pin.package), fmt::format("{} {}", pin.package, pin.version));
  }
  return rows;
}

// Facts that the newest version of an engine does not share with another version.
Json change_rows(std::string_view since) {
  const engines::EngineRow& version = engines::engine_of(since);
  return json_list(engines::changes_since(version), [&](const engines::EngineChange& row) -> Json {
    return {{"engine", engines::newest(version.engine).name},
            {"since", version.name},
            {"change", row.was.empty()  ? "new"
                       : row.is.empty() ? "gone"
                                        : "changed"},
            {"id", row.id},
            {"was", row.was},
            {"is", row.is}};
  });
}

// Metrics that can be gated, with the default thresholds.
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

// Findings that `check` reports, by rule.
Json rule_rows() {
  return json_list(check::loader_rules(), [](const check::LoaderRule& rule) -> Json {
    return {{"name", rule.name},
            {"dialect", rule.dialect.empty() ? "any" : rule.dialect},
            {"loaders", rule.loaders},
            {"severity", check::severity_name(rule.severity)},
            {"rule", rule.rule}};
  });
}

Json gpu_rows() {
  return json_list(kGpus, [](const Gpu& gpu) -> Json {
    return {{"name", gpu.name},       {"memory_mib", gpu.memory_mib},
            {"native", gpu.native},   {"weight_only", gpu.weight_only},
            {"refused", gpu.refused}, {"summary", gpu.summary}};
  });
}

// The value that a flag has where it is not given; empty: none, or it depends on others.
std::string default_of(const Flag& flag) {
  return std::visit(
      [](const auto* target) -> std::string {
        using Target = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<Target, bool>) return "";
        if constexpr (std::is_same_v<Target, std::string> || std::is_arithmetic_v<Target>)
          return *target == Target() ? "" : fmt::format("{}", *target);
        return "";
      },
      flag.target);
}

// Options of every command, and words at their places.
Json option_rows() {
  const AllCommands all;
  Json rows = Json::array();
  for (const CommandWords& command : all.words()) {
    for (const FlagTable::Row& row : command.table->rows) {
      const Flag& flag = row.flag;
      std::string value = takes_value(flag) ? value_of(flag) : "";
      if (!flag.rule.choices.empty()) value = fmt::format("{}", fmt::join(flag.rule.choices, ", "));
      rows.push_back({{"option", flag.name},
                      {"command", command.name},
                      {"value", std::move(value)},
                      {"default", default_of(flag)},
                      {"group", heading_of(row.group)},
                      {"meaning", flag.help}});
    }
  }
  return rows;
}

struct ListTable {
  std::string_view name;
  Json (*rows)();
  Json (*rows_of)(const formats::Checkpoint& checkpoint) = nullptr;  ///< null: of none
};
constexpr std::array kTables = {
    ListTable{"schemes", scheme_rows},  ListTable{"dialects", dialect_rows},
    ListTable{"families", family_rows}, ListTable{"layouts", layout_rows},
    ListTable{"recipes", recipe_rows},  ListTable{"roles", role_rows, role_rows_of},
    ListTable{"loads", load_rows},      ListTable{"trials", trial_rows},
    ListTable{"engines", engine_rows},  ListTable{"readings", reading_rows},
    ListTable{"metrics", metric_rows},  ListTable{"rules", rule_rows},
    ListTable{"gpus", gpu_rows},        ListTable{"options", option_rows}};

std::string cell_text(const Json& value) {
  if (value.empty() || value == std::string_view()) return "-";
  if (!value.is_array()) return shown(value).text;
  return fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), " "));
}

std::string table_names() {
  return names_of(kTables, &ListTable::name);
}

struct ListFlags {
  std::string what, word, family, since;
  std::vector<std::string> more;
  bool markdown = false, yaml = false;
};

// The names for which a word of a filter is said: as it is, or a scheme or an engine in full.
std::vector<std::string> names_meant(const std::string& word) {
  std::vector<std::string> names = {lower_case(word)};
  if (const auto scheme = formats::find_scheme(names.front()))
    names.emplace_back(formats::scheme_name(*scheme));
  for (const engines::EngineRow* engine : engines::engine_versions()) {
    if (engine->word == names.front()) names.push_back(lower_case(engine->name));
  }
  return names;
}

// True if a cell names that: it is the cell, one of a list, or the front of a dotted name.
bool names_it(const Json& cell, const std::string& name) {
  if (cell.is_array())
    return std::ranges::any_of(cell, [&](const Json& item) { return names_it(item, name); });
  if (!cell.is_string()) return false;
  const std::string text = lower_case(cell.get<std::string>());
  return text.starts_with(name + ".") ||
         fmt::format(", {},", text).find(fmt::format(", {},", name)) != std::string::npos;
}

bool mentions(const Json& cell, const std::string& name) {
  return lower_case(cell_text(cell)).find(name) != std::string::npos;
}

// Returns the rows in which a cell names the word; if there are none, the row of the option with
// this name; else the rows with a cell in which the word occurs.
Json rows_with(const Json& rows, const std::string& word, std::string_view table) {
  struct Attempt {
    bool (*holds)(const Json& cell, const std::string& name);
    std::vector<std::string> names;
  };
  const std::vector<std::string> names = names_meant(word);
  for (const Attempt& attempt :
       {Attempt{names_it, names}, Attempt{names_it, {"--" + names.front()}},
        Attempt{mentions, names}}) {
    const auto names_word = [&](const Json& cell) {
      return std::ranges::any_of(attempt.names,
                                 [&](const auto& name) { return attempt.holds(cell, name); });
    };
    Json found = Json::array();
    std::ranges::copy_if(rows, std::back_inserter(found),
                         [&](const Json& row) { return std::ranges::any_of(row, names_word); });
    if (!found.empty()) return found;
  }
  std::set<std::string> known;
  for (const Json& row : rows) {
    for (const Json& cell : row) {
      if (cell.is_string()) known.insert(cell.get<std::string>());
    }
  }
  throw Error(ErrorCode::kInvalidArgument, "no row of {} has '{}' (ingot list {}){}", table,
              printable(word), table,
              did_you_mean(word, std::vector<std::string_view>(known.begin(), known.end())));
}

Json rows_of(const ListTable& table, const ListFlags& flags) {
  Json all = flags.since.empty() ? Json() : change_rows(flags.since);
  if (flags.word.empty()) return flags.since.empty() ? table.rows() : all;
  if (table.rows_of != nullptr) {
    if (!flags.more.empty()) refuse_idle("a second word", "ingot list of other tables");
    return table.rows_of(shard::open_source(
        flags.word, {.open = {.family = flags.family, .threads = available_processors()}}));
  }
  Json rows = rows_with(flags.since.empty() ? table.rows() : all, flags.word, table.name);
  for (const std::string& word : flags.more) rows = rows_with(rows, word, table.name);
  return rows;
}

// `ingot list families NAME --yaml`, `ingot list recipes NAME --yaml`
int run_list_yaml(const ListFlags& flags) {
  const auto* const recipe =
      std::ranges::find(convert::kBuiltInRecipes, flags.word, &convert::BuiltInRecipe::name);
  if (flags.what == "recipes" && recipe != convert::kBuiltInRecipes.end()) {
    write_data(recipe->yaml);
    return kExitDone;
  }
  const bool is_file = flags.word.starts_with(formats::kFamilyFileMark);
  const formats::Family* family = is_file ? nullptr : formats::find_family(flags.word);
  if (flags.what != "families" || family == nullptr || family->yaml.empty()) {
    std::vector<std::string_view> names =
        row_names(convert::kBuiltInRecipes, &convert::BuiltInRecipe::name);
    if (flags.what != "recipes")
      names = row_names(formats::family_entries(), &formats::FamilyEntry::name);
    throw Error(ErrorCode::kInvalidArgument,
                "--yaml prints a family or a recipe (ingot list families NAME --yaml); there is no "
                "{} '{}'{}",
                flags.what == "recipes" ? "recipe" : "family", flags.word,
                did_you_mean(flags.word, names));
  }
  write_data(family->yaml);
  return kExitDone;
}

int run_list(const ListFlags& flags) {
  if (flags.yaml) return run_list_yaml(flags);
  const std::string& what = flags.what;
  const auto table = std::find_if(kTables.begin(), kTables.end(),
                                  [&](const ListTable& row) { return row.name == what; });
  if (table == kTables.end()) {
    throw Error(
        ErrorCode::kInvalidArgument, "{} (there are the tables {}){}",
        what.empty() ? "which table is to be listed?" : fmt::format("there is no table '{}'", what),
        table_names(), did_you_mean(what, kTables, &ListTable::name));
  }
  const bool has_directory = !flags.word.empty() && table->rows_of != nullptr;
  if (!flags.family.empty() && !has_directory) refuse_idle("--family", "ingot list roles DIR");
  if (!flags.since.empty() && what != "engines") refuse_idle("--since", "ingot list engines");
  const Json rows = rows_of(*table, flags);
  if (answer().is_json) {
    answer().add({{flags.since.empty() ? what : "changes", rows}});
    return kExitDone;
  }
  if (rows.empty()) {
    out() << fmt::format("nothing changed since {}\n", flags.since);
    return kExitDone;
  }
  std::vector<Field> fields;
  for (const auto& [key, value] : rows.at(0).items()) {
    const bool is_number = value.is_number() && !flags.markdown;
    fields.push_back({is_number ? number(key) : Column(key), key, cell_text});
  }
  auto shown = table_of(rows, fields);
  // Names are in backticks.
  for (std::vector<Cell>& row : shown.rows) row.front().style = Style::kCode;
  show_page(flags.markdown ? markdown_table(shown) : table_text(shown, report_width()));
  return kExitDone;
}

}  // namespace

std::function<int()> declare_list(FlagTable& table) {
  auto flags = std::make_shared<ListFlags>();
  table.add(FlagGroup::kCommon, {{"table",
                                  &flags->what,
                                  fmt::format("which table: {}", table_names()),
                                  {.words = words_of(kTables, &ListTable::name)}},
                                 {"word",
                                  &flags->word,
                                  "only rows that name this, e.g. vllm; list roles: tensors of "
                                  "each role in this checkpoint",
                                  {.kind = ValueKind::kCheckpoint}},
                                 {"more", &flags->more, "only those that name these too"}});
  table.add(FlagGroup::kSource,
            {family_flag(&flags->family, kFamilyHelp), family_file_flag(&flags->family)});
  table.add(FlagGroup::kReport,
            {json_flag(&answer().is_json),
             {"--since", &flags->since,
              "list engines: what the newest version changed, e.g. since vllm:0.32"},
             {"--yaml",
              &flags->yaml,
              "list families NAME, list recipes NAME: as a file, to copy and change",
              {.excludes = {"--json"}, .is_for_people = true}},
             {"--markdown",
              &flags->markdown,
              "a table in Markdown, as docs/ have it",
              {.excludes = {"--json", "--yaml"}, .is_for_people = true}}});
  table.footer =
      "Examples:\n"
      "  ingot list schemes\n"
      "  ingot list roles DeepSeek-V3.2      tensors that --rule role:experts=... selects\n"
      "  ingot list loads                    forms that each engine reads, and how that is known\n"
      "  ingot list engines                  the same, and forms that it refuses, with the reason\n"
      "  ingot list trials                   families that each engine is known to take\n"
      "  ingot list engines vllm nvfp4       only rows that name both\n"
      "  ingot list rules --markdown\n"
      "  ingot list families --json\n"
      "  ingot list families glm_moe_dsa --yaml > my_model.yaml\n"
      "  ingot list recipes nvfp4-attention-fp8 --yaml > my_recipe.yaml";
  return [flags] { return run_list(*flags); };
}

}  // namespace ingot::cli
