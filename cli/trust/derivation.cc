#include "cli/trust/derivation.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/convert.h"
#include "convert/job/job_identity.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/output_directory.h"
#include "convert/output/version.h"
#include "convert/recipe/composition.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "formats/composed.h"
#include "formats/family/families.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/json/members.h"
#include "formats/signed/bundle.h"
#include "library/options/flag_table.h"
#include "library/options/settings.h"

namespace ingot::cli {

namespace fs = std::filesystem;
using formats::FileDigest;
using formats::Json;
using formats::Statement;
using library::Conversion;

namespace {

constexpr const char* kRemedy = "it was changed, or is another version's";
constexpr const char* kExpertMap = "expert-map";
constexpr const char* kFamilyFile = "family-file";
constexpr const char* kFirstLayers = "layers";
// Settings of other commands than convert: the lists of all prunings that an output has behind it,
// true for a repair, and an object with the words of a composition.
constexpr const char* kKeptExperts = "kept-experts";
constexpr const char* kRepair = "repair";
constexpr const char* kComposition = "compose";

// The options that convert has for its output, to which settings are given; with `composes` the
// options of compose.
struct TargetTable {
  library::ConvertOptions options;
  FlagTable table;
  explicit TargetTable(bool composes = false) {
    options.composes = composes;
    library::declare_target(table, options);
  }
};

// Options whose values are files that decide bytes.
std::vector<std::string> file_options() {
  const TargetTable target;
  std::vector<std::string> names;
  for (const FlagTable::Row& row : target.table.rows) {
    const std::string name(key_of(row.flag));
    if (row.flag.rule.kind >= ValueKind::kFile && name != kExpertMap && name != kFamilyFile &&
        name != "recipe")
      names.push_back(name);
  }
  return names;
}

// Settings by names of options: those of slicing have another spelling in records.
void put_slicing(const Json& slicing, Json& settings) {
  for (const auto& [key, value] : slicing.items()) {
    std::string name = key == "stages" ? "pp-layers" : key;
    std::ranges::replace(name, '_', '-');
    settings[name] = value;
  }
  settings["links"] = slicing.at("links").get<bool>() ? "yes" : "no";
  const formats::Layout* layout = formats::find_layout(slicing.at("layout").get<std::string>());
  if (layout == nullptr || !layout->takes_mp) return;
  settings["mp"] = slicing.at("tp");
  for (const char* name : {"tp", "ep", "etp", "pp"}) settings.erase(name);
}

// The words of a recipe of several sources, with names in place of directories.
Json composition_recorded(const formats::Manifest& manifest, const Json& words) {
  Json composition = words;
  composition["rules"] = composition["givers"] = Json::array();
  for (const Json& rule : manifest.recipe->at("rules")) {
    if (rule.at("origin") != std::string_view("--recipe")) continue;
    composition["rules"].push_back({{"match", rule.at("match")},
                                    {"scheme", rule.at("scheme")},
                                    {"from", formats::text_at(rule, "from")}});
  }
  for (const Json& giver : *manifest.sources) {
    if (giver.at("name") != formats::kBaseGiver)
      composition["givers"].push_back(
          {{"name", giver.at("name")}, {"as", formats::text_at(giver, "as")}});
  }
  return composition;
}

// Settings that decide nothing in a repair, whose recipe has no choice but these.
Json repair_recorded(Json all, const Json& recipe) {
  Json settings = {{kRepair, true}, {"links", recipe.at("links")}};
  for (const char* name : {"family", kFamilyFile, "dialect", "allow"}) {
    if (all.contains(name)) settings[name] = all[name];
  }
  return settings;
}

Json settings_recorded(const formats::Manifest& manifest) {
  const Json& recipe = manifest.recipe;
  Json all = convert::settings_of(recipe);
  if (all.contains(kComposition)) {
    all[kComposition] = composition_recorded(manifest, all[kComposition]);
    for (const char* name : {"edits", "recipe"}) all.erase(name);
  }
  // The record of an adapter has the options that belong to it.
  if (all.contains("lora")) {
    const Json adapter = all["lora"].at(0);
    if (adapter.at("scale") != 1) all["lora-scale"] = adapter.at("scale");
    all["expert-b-order"] = formats::json_member(adapter, "expert_b_order");
  }
  for (const Json& rule : formats::json_member(all, "recipe")) all["rule"].push_back(rule);
  all.erase("recipe");
  if (all.contains("group-size") && all["group-size"] == 0) all["group-size"] = "row";
  all["family"] = manifest.family;
  if (recipe.contains("family_file")) {
    all.erase("family");
    all[kFamilyFile] = std::string(formats::kFamilyFileName);
  }
  const Json& shards = recipe.at("shards");
  if (shards.is_number()) all["max-shard-size"] = shards;
  for (const char* name : {"align", "files", "order"})
    all[name] = formats::json_member(recipe, name);
  if (recipe.contains("slicing")) put_slicing(recipe.at("slicing"), all);
  if (all.contains(kRepair)) all = repair_recorded(std::move(all), recipe);
  Json settings = Json::object();
  const std::vector<std::string> files = file_options();
  for (const auto& [name, value] : all.items()) {
    const bool is_file = std::ranges::find(files, name) != files.end();
    const bool is_unsaid = value.is_null() || value == false ||
                           (value.is_array() && value.empty()) ||
                           (!is_file && value == std::string_view());
    if (!is_unsaid) settings[name] = is_file ? Json() : value;
  }
  return settings;
}

// A rule of a file is one of the command line, when all are given there.
Json without_origins(Json recipe) {
  for (Json& rule : recipe["rules"]) {
    if (rule.at("origin") == std::string_view("--recipe")) rule["origin"] = "--rule";
  }
  return recipe;
}

// The recipe without what a manifest has in addition.
Json bare_recipe(const Json& recorded) {
  Json recipe = recorded;
  for (const char* key : convert::kOwnKeys) recipe.erase(key);
  recipe.erase("shards");
  return recipe;
}

void require_same_recipe(const Derivation& derivation, const convert::Plan& plan,
                         const fs::path& output) {
  if (derivation.recipe.is_null() || derivation.tool_version != convert::kVersion) return;
  if (without_origins(bare_recipe(derivation.recipe)) == without_origins(plan.recipe.to_json()))
    return;
  throw Error(ErrorCode::kMismatch,
              "its recipe is not the one that its options mean for this source: it was changed, or "
              "the source is another one, or a file that was given (--with)")
      .in_file((output / formats::kManifestName).string());
}

// The experts that a job kept, where it pruned: the last of the output's lists, unless the source
// has as many itself. `source`: its manifest.
std::optional<formats::KeptExperts> experts_kept_by(
    const Json& lists, const fs::path& output, const std::optional<formats::Manifest>& source) {
  const std::size_t n_lists = lists.size();
  const std::size_t n_earlier = source ? formats::recorded_experts(*source).size() : 0;
  if (n_lists == n_earlier) return std::nullopt;
  if (n_lists != n_earlier + 1) {
    throw Error(ErrorCode::kMismatch,
                "was pruned {} times, the source {} times: it was made from another one", n_lists,
                n_earlier)
        .in_file(output.string());
  }
  return formats::parse_kept_experts(lists.back(), output.string());
}

// Takes settings that all have to be flags of the table.
void take_known(const Json& settings, FlagTable& table, const fs::path& output) {
  for (const auto& [name, value] : settings.items()) {
    if (std::ranges::find(table.rows, name, [](const FlagTable::Row& row) {
          return key_of(row.flag);
        }) != table.rows.end())
      continue;
    throw Error(ErrorCode::kUnsupported,
                "was made with '{}', which is no option of what this version makes again", name)
        .in_file(output.string());
  }
  take_settings(settings, table);
}

Conversion repaired_again(const Json& settings, const fs::path& output, const GivenSource& given) {
  library::RepairOptions options;
  FlagTable table;
  library::declare_repair(table, options);
  take_known(settings, table, output);
  options.input = formats::checkpoint_directory(given.directory).string();
  // No bytes of a plan with links are made: those of links are the source's.
  options.links = "no";
  return library::plan_repair(options, given.threads).conversion;
}

// The sources and rules of a composition, from its record and the directories that are given.
void compose_again(const Json& words, std::map<std::string, std::string> directories,
                   const fs::path& output, const library::ConvertOptions& options,
                   library::ConversionRequest& request) {
  using convert::GiverKind;
  convert::Composition& composition = *request.composition;
  composition.where = output.string();
  composition.takes_base_side_files = formats::text_at(words, "side-files") == "base";
  composition.rescales = formats::text_at(words, "fused") == "rescale";
  std::set<std::string> sources = {std::string(formats::kBaseGiver)};
  const auto add = [&](GiverKind kind, std::string name, const std::string& path) {
    composition.givers.push_back(
        {.kind = kind, .name = std::move(name), .path = formats::checkpoint_directory(path)});
  };
  add(GiverKind::kBase, std::string(formats::kBaseGiver), options.input);
  for (const Json& giver : formats::json_member(words, "givers")) {
    const std::string name = formats::text_at(giver, "name"), as = formats::text_at(giver, "as");
    const GiverKind kind = as == formats::kAsOverlay ? GiverKind::kOverlay
                           : as == formats::kAsEdits ? GiverKind::kEdits
                                                     : GiverKind::kSource;
    if (kind == GiverKind::kSource) sources.insert(name);
    add(kind, name, directories[name]);
  }
  for (const Json& row : formats::json_member(words, "rules")) {
    convert::Rule& rule = request.recipe.rules.emplace_back(
        convert::make_rule(formats::text_at(row, "match"), formats::text_at(row, "scheme"),
                           convert::RuleOrigin::kRecipe));
    rule.from = formats::text_at(row, "from");
    if (rule.from.empty() || sources.contains(rule.from)) continue;
    throw Error(ErrorCode::kCorrupt, "a rule takes tensors from '{}', which is no source of it",
                rule.from)
        .in_file(composition.where);
  }
}

// The digests of a file, or of all files of a folder; names are those below it.
std::vector<FileDigest> input_digests(const fs::path& path, std::size_t threads) {
  if (fs::is_directory(path)) return source_digests(path, threads, {});
  return {
      {.name = path.filename().string(), .sha256 = formats::sha256_of_file(path), .n_bytes = 0}};
}

Json dependency(const FileDigest& file, std::string_view role, const std::string& uri) {
  Json row = formats::resource(file);
  if (!uri.empty()) row["uri"] = fmt::format("{}/{}", uri, file.name);
  row["annotations"] = {{"role", std::string(role)}};
  return row;
}

// Where the hub has the source: hf://ORG/NAME@COMMIT.
std::string hub_uri(const fs::path& source) {
  const auto snapshot = formats::hub_snapshot_at(source);
  return snapshot ? fmt::format("hf://{}@{}", snapshot->model, snapshot->commit) : std::string();
}

const Json& parameters_of(const Statement& statement, std::string_view where) {
  const Json& definition = formats::json_member(statement.predicate, "buildDefinition");
  if (statement.predicate_type != formats::kProvenancePredicate ||
      formats::text_at(definition, "buildType") != kConversionType) {
    throw Error(ErrorCode::kUnsupported, "is no statement about a conversion by ingot")
        .in_file(where);
  }
  return formats::json_member(definition, "externalParameters");
}

}  // namespace

void require_finished(const fs::path& output) {
  if (convert::output_state(output) != convert::OutputState::kUnfinished) return;
  throw Error(ErrorCode::kUnsupported, "is unfinished (continue its conversion with --resume)")
      .in_file(output.string());
}

std::vector<std::string> Derivation::inputs() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : settings->items()) {
    if (value.is_null()) names.push_back(name);
  }
  const Json& composition = formats::json_member(*settings, kComposition);
  for (const Json& giver : formats::json_member(composition, "givers"))
    names.push_back(formats::text_at(giver, "name"));
  return names;
}

Derivation recorded_derivation(const fs::path& output) {
  const std::string where = (output / formats::kManifestName).string();
  const auto manifest = formats::read_manifest(output);
  if (!manifest) {
    throw Error(
        ErrorCode::kNotFound,
        "has no ingot.json that says how it was made (only outputs of ingot have one; those "
        "of ranks in the folder above them)")
        .in_file(output.string());
  }
  if (manifest->slicing && manifest->slicing->rank) {
    throw Error(ErrorCode::kUnsupported,
                "is the folder of one rank, and ranks are made together (give the folder above it)")
        .in_file(output.string());
  }
  try {
    return formats::read_members(where, kRemedy, [&] {
      return Derivation{.tool_version = manifest->tool_version,
                        .settings = settings_recorded(*manifest),
                        .recipe = manifest->recipe,
                        .source = manifest->source};
    });
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

Derivation stated_derivation(const Statement& statement, std::string_view where) {
  const Json& parameters = parameters_of(statement, where);
  const formats::JsonFields fields(parameters, where, "predicate.externalParameters");
  const formats::JsonFields run(statement.predicate, where, "predicate");
  Json settings = fields.get("settings");
  if (!settings.is_object()) fields.refuse("settings", "is no object");
  // Paths come from who derives it again, never from a statement.
  std::vector<std::string> files = file_options();
  files.emplace_back("recipe");
  for (const std::string& name : files) {
    if (settings.contains(name) && !settings.at(name).is_null())
      fields.refuse("settings", fmt::format("has a value for {}, which names a file", name));
  }
  return {.tool_version = run.child("runDetails").child("builder").child("version").text("ingot"),
          .settings = std::move(settings),
          .recipe = {},
          .source = {}};
}

std::map<std::string, std::string> GivenSource::by_name() const {
  std::map<std::string, std::string> paths;
  for (const std::string& text : inputs) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(text.starts_with("--") ? 2 : 0, equals);
    if (equals == std::string::npos || name.empty() || equals + 1 == text.size())
      throw Error(ErrorCode::kInvalidArgument, "--with '{}' is not OPTION=PATH", text);
    if (!paths.emplace(name.substr(0, name.find('=')), text.substr(equals + 1)).second)
      throw Error(ErrorCode::kInvalidArgument, "--with gives {} twice", name);
  }
  return paths;
}

Conversion plan_again(const Derivation& derivation, const fs::path& output,
                      const GivenSource& given) {
  std::map<std::string, std::string> paths = given.by_name(), directories;
  Json settings = *derivation.settings;
  std::vector<std::string> missing;
  for (const std::string& name : derivation.inputs()) {
    const auto found = paths.find(name);
    if (found == paths.end()) {
      missing.push_back(fmt::format("--with {}=PATH", name));
      continue;
    }
    if (settings.contains(name)) settings[name] = found->second;
    directories.insert(paths.extract(found));
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "{} was made with files that decide its bytes too: give {}", output.string(),
                fmt::join(missing, " "));
  }
  if (!paths.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--with {}: {} was made without this option",
                paths.begin()->first, output.string());
  }
  const auto taken = [&](const char* name, bool (Json::*is_fitting)() const) {
    Json value = formats::json_member(settings, name);
    settings.erase(name);
    if (value.is_null() || (value.*is_fitting)()) return value;
    throw Error(ErrorCode::kCorrupt, "its setting '{}' is of another kind than ingot writes", name)
        .in_file(output.string());
  };
  const Json map = taken(kExpertMap, &Json::is_structured),
             composition = taken(kComposition, &Json::is_object),
             kept_experts = taken(kKeptExperts, &Json::is_array);
  const bool is_repair = taken(kRepair, &Json::is_boolean) == true,
             is_redundant = taken("redundant-experts", &Json::is_boolean) == true,
             is_uneven = taken("uneven-experts", &Json::is_boolean) == true;
  if (settings.contains(kFamilyFile))
    settings[kFamilyFile] = (output / formats::kFamilyFileName).string();
  if (is_repair) {
    Conversion conversion = repaired_again(settings, output, given);
    require_same_recipe(derivation, conversion.plan, output);
    return conversion;
  }

  const auto source = convert::recorded_manifest(formats::checkpoint_directory(given.directory));
  // Layers that the source had lost before are no choice of this job.
  if (source) {
    const Json& choices = formats::json_member(source->recipe, "choices");
    if (formats::json_member(settings, kFirstLayers) == formats::json_member(choices, kFirstLayers))
      settings.erase(kFirstLayers);
  }
  TargetTable target(composition.is_object());
  take_known(settings, target.table, output);
  target.options.input = given.directory;
  const auto kept = experts_kept_by(kept_experts, output, source);
  target.options.prune.is_asked = kept.has_value();
  target.options.prune.list = kept;
  library::ConversionRequest request = library::read_target(target.options);
  if (composition.is_object())
    compose_again(composition, std::move(directories), output, target.options, request);
  // Words that were decided for a user are refused from one where they have no effect.
  request.recipe.given.clear();
  if (!map.is_null()) {
    convert::SlicingOptions& slicing = request.plan.slicing;
    slicing.expert_map = map.dump();
    slicing.expert_map_where = kExpertMap;
    slicing.redundant_experts = is_redundant;
    slicing.uneven_experts = is_uneven;
  }
  JobOptions job;
  job.execute.threads = given.threads;
  Conversion conversion = library::plan_conversion(target.options, job, std::move(request), false);
  require_same_recipe(derivation, conversion.plan, output);
  return conversion;
}

bool is_recorded_source(const Derivation& derivation, const Conversion& conversion,
                        std::size_t threads) {
  return derivation.source.is_null() ||
         convert::source_fingerprint(*conversion.source, nullptr, threads) == *derivation.source;
}

std::set<std::string, std::less<>> unstated_paths() {
  std::set<std::string, std::less<>> paths = formats::repository_paths();
  paths.emplace(formats::kAttestationName);
  paths.emplace(formats::kModelSignatureName);
  return paths;
}

std::vector<FileDigest> source_digests(
    const fs::path& source, std::size_t threads,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::set<std::string, std::less<>> ignored = unstated_paths();
  ignored.emplace(".cache");
  return formats::digest_files(source, {.ignored = std::move(ignored),
                                        .follows_links = true,
                                        .leaves_out =
                                            [](std::string_view name) {
                                              return !name.ends_with(".safetensors") &&
                                                     !formats::left_out_reason(name).empty();
                                            },
                                        .threads = threads,
                                        .progress = progress});
}

Statement provenance_of(const fs::path& output, const GivenSource& given,
                        const StatementFacts& facts) {
  const Derivation derivation = recorded_derivation(output);
  const fs::path source = formats::checkpoint_directory(given.directory);
  {
    const Conversion conversion = plan_again(derivation, output, given);
    // The fingerprint refuses the wrong directory before hours of digests, which are what counts.
    if (!is_recorded_source(derivation, conversion, given.threads)) {
      throw Error(ErrorCode::kMismatch, "is not the source that {} was made from", output.string())
          .in_file(source.string());
    }
  }
  Json dependencies = Json::array(), inputs = Json::object();
  const auto begin = [&](std::string_view phase) {
    if (facts.phase) facts.phase(phase);
  };
  begin("source");
  const std::string uri = facts.source_uri.empty() ? hub_uri(source) : facts.source_uri;
  for (const FileDigest& file : source_digests(source, given.threads, facts.progress))
    dependencies.push_back(dependency(file, "source", uri));
  for (const auto& [name, path] : given.by_name()) {
    const auto digests = input_digests(formats::checkpoint_directory(path), given.threads);
    inputs[name] = formats::json_list(digests, formats::resource);
    for (const FileDigest& file : digests) dependencies.push_back(dependency(file, name, ""));
  }
  begin("output");
  std::vector<FileDigest> files = formats::digest_files(
      output, {.ignored = unstated_paths(), .threads = given.threads, .progress = facts.progress});
  Json builder = {{"id", facts.builder_id}, {"version", {{"ingot", derivation.tool_version}}}};
  // A program of another version is not the one that converted.
  if (derivation.tool_version == convert::kVersion) {
    builder["builderDependencies"] = Json::array({formats::resource(
        {.name = "ingot", .sha256 = formats::sha256_of_file(facts.tool), .n_bytes = 0})});
  }
  return {.predicate_type = std::string(formats::kProvenancePredicate),
          .subjects = std::move(files),
          .predicate = Json{{"buildDefinition",
                             {{"buildType", std::string(kConversionType)},
                              {"externalParameters",
                               {{"settings", *derivation.settings}, {"inputs", std::move(inputs)}}},
                              {"resolvedDependencies", std::move(dependencies)}}},
                            {"runDetails", {{"builder", std::move(builder)}}}}};
}

void require_stated_inputs(const Statement& statement, std::string_view where,
                           const GivenSource& given) {
  const Json& inputs = formats::json_member(parameters_of(statement, where), "inputs");
  for (const auto& [name, path] : given.by_name()) {
    const auto digests = input_digests(formats::checkpoint_directory(path), given.threads);
    if (formats::json_member(inputs, name) == formats::json_list(digests, formats::resource))
      continue;
    throw Error(ErrorCode::kMismatch, "is not what {} says of --{}", where, name).in_file(path);
  }
}

std::vector<FileDigest> stated_source(const Statement& statement, std::string_view where) {
  (void)parameters_of(statement, where);
  std::vector<FileDigest> files;
  const Json& definition = formats::json_member(statement.predicate, "buildDefinition");
  for (const Json& row : formats::json_member(definition, "resolvedDependencies")) {
    if (formats::text_at(formats::json_member(row, "annotations"), "role") != "source") continue;
    files.push_back({.name = formats::text_at(row, "name"),
                     .sha256 = formats::text_at(formats::json_member(row, "digest"), "sha256"),
                     .n_bytes = 0});
  }
  return files;
}

}  // namespace ingot::cli
