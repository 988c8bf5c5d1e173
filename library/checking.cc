#include "library/checking.h"

#include <utility>

#include <fmt/format.h>

#include "check/rules/loader_rules.h"
#include "convert/convert.h"
#include "convert/output/planned_checkpoint.h"
#include "convert/plan/repair.h"
#include "engines/verdicts.h"
#include "formats/family/families.h"
#include "formats/files/hub_cache.h"
#include "formats/records/layout.h"
#include "library/options/family_learning.h"
#include "shard/join/source.h"

namespace ingot::library {

using check::Severity;
using formats::Json;

void declare_check_options(FlagTable& table, CheckOptions& options) {
  options.threads = 0;
  table.add(FlagGroup::kCommon,
            {{"--deep", &options.deep,
              "read every tensor, FP8 weights for NaN codes, and tell the rates of reading"},
             {"--no-hashes", &options.no_hashes, "compare sizes with the manifest, not bytes"},
             {"--tp",
              &options.tensor_parallel,
              "also warn where a cut for so many tensor-parallel ranks would split a scale group, "
              "or leave experts so narrow that an engine is wrong",
              {.range = NumberRange{1, 1024}}},
             {"--engine",
              &options.engine,
              fmt::format("tell whether this engine loads it, and how it builds every linear "
                          "layer, by headers, JSON and small scales: {}; ENGINE:VERSION insists on "
                          "a version",
                          names_of(engines::engines(), &engines::EngineRow::word)),
              {.words = words_of(engines::engines(), &engines::EngineRow::word),
               .excludes = {"--deep", "--no-hashes", "--source-of"},
               .value_name = "ENGINE"}},
             {"--source-of",
              &options.source_of,
              "only tell whether this is the source of the directory CONVERTED",
              {.excludes = {"--deep", "--no-hashes", "--family", "--family-file", "--config"},
               .value_name = "CONVERTED",
               .kind = ValueKind::kCheckpoint}}});
  declare_source(table, options.family, options.config, kAutoFamilyHelp);
  table.add(FlagGroup::kJob, {threads_flag(&options.threads)});
}

namespace {

// Under --family auto the checkpoint is judged as the family that is made for it.
CheckOptions settled(CheckOptions options) {
  options.threads = threads_of(options.threads);
  options.hashes = !options.no_hashes;
  if (options.family != kAutoFamily) return options;
  const auto open = [&](const std::string& family) {
    return shard::open_source(options.directory,
                              {.open = {.family = family, .threads = options.threads},
                               .may_be_file = true,
                               .config = options.config});
  };
  formats::FamilyEvidence evidence;
  options.family =
      formats::add_family(learned_family(open, evidence).yaml, "the family made for it").spec;
  return options;
}

// True if the engine loads what `ingot repair` makes of the checkpoint, by a plan of it.
bool loads_when_repaired(const CheckOptions& options, const engines::EngineRow& engine) {
  try {
    const formats::Checkpoint source =
        formats::Checkpoint::open(formats::checkpoint_directory(options.directory),
                                  {.family = options.family, .merges_copies = true});
    if (source.dialect().is_read_only) return false;
    convert::Recipe recipe;
    recipe.choices.dialect = convert::repaired_dialect(source).name;
    recipe.choices.repair =
        std::make_shared<const convert::RepairFacts>(convert::read_repair_facts(source));
    const convert::Plan plan = convert::plan_conversion(source, std::move(recipe), {});
    const convert::Loadable repaired = convert::require_loadable(plan, options.threads);
    return std::ranges::any_of(repaired.engines, [&](const engines::EngineVerdict& verdict) {
      return verdict.engine->engine == engine.engine && verdict.loads;
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    return false;  // repair says so itself
  }
}

/// The options with which the engine takes slices in a layout of its own, none for a whole
/// checkpoint. Throws kUnsupported for other slices, and for a weights file by itself.
std::vector<std::string> options_of_slices(const check::Opened& opened,
                                           const engines::EngineRow& engine) {
  if (formats::is_weights_file(opened.directory))
    throw Error(ErrorCode::kUnsupported,
                "a weights file by itself is no checkpoint that engines load (name its folder)")
        .in_file(opened.directory.string());
  if (!opened.is_sliced) return {};
  const formats::Layout* layout =
      opened.manifest ? formats::find_layout(opened.manifest->layout) : nullptr;
  if (layout == nullptr || layout->engine != engine.word || !opened.manifest->slicing)
    throw Error(ErrorCode::kUnsupported,
                "slices of ranks are no checkpoint that {} loads (ingot merge makes one)",
                engine.name)
        .in_file(opened.directory.string());
  const formats::SlicingRecord& slicing = *opened.manifest->slicing;
  const bool is_sglang = engine.engine == engines::Engine::kSglang;
  std::vector<std::string> options = {"--load-format sharded_state",
                                      fmt::format("{} {}", engine.ranks_option, slicing.tp)};
  if (slicing.pp > 1) options.push_back(fmt::format("--pipeline-parallel-size {}", slicing.pp));
  if (slicing.ep > 1)
    options.push_back(is_sglang ? fmt::format("--ep-size {}", slicing.ep)
                                : std::string("--enable-expert-parallel"));
  // Where SGLang loads shared experts as routed ones, its stacks have one expert more.
  if (is_sglang && opened.model && opened.model->config().n_shared_experts > 0)
    options.emplace_back("--disable-shared-experts-fusion");
  return options;
}

// Judges by headers, JSON and small scales if the engine loads the checkpoint as it is meant.
Checked check_engine(CheckOptions options) {
  options.most_bytes = check::kSmallBytes;
  options.manifest = false;
  Checked checked;
  checked.engine = &engines::engine_of(options.engine);
  const check::Opened opened = check::open_found(
      options.directory,
      {.family = options.family, .threads = options.threads, .config = options.config});
  std::vector<std::string> of_slices = options_of_slices(opened, *checked.engine);
  checked.result = check::check_directory(opened, options);
  std::vector<check::Finding> all = std::exchange(checked.result.findings, {});
  checked.result.findings = check::findings_for(checked.engine->engine, all);
  // A fault that keeps it from opening is already a finding.
  engines::EngineVerdict verdict{.engine = checked.engine,
                                 .loads = true,
                                 .is_known = !checked.result.has_unread_form,
                                 .options = {},
                                 .tensor = {},
                                 .reason = {}};
  try {
    if (!opened.is_sound()) throw Error(opened.faults.front());
    checked.view =
        engines::engine_view(*opened.model, *checked.engine,
                             {.tensor_parallel = opened.is_sliced ? opened.manifest->slicing->etp
                                                                  : options.tensor_parallel});
    verdict = checked.view->verdict;
    verdict.options.insert(verdict.options.begin(), of_slices.begin(), of_slices.end());
    check::keep_misread(engines::misread_weights(*opened.model, *checked.engine), all);
    checked.result.findings = check::findings_for(checked.engine->engine, all);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted || checked.count(Severity::kError) == 0) throw;
  }
  std::vector<engines::EngineVerdict> judged = {std::move(verdict)};
  check::deny_by_errors(all, judged);
  if (checked.view) engines::deny_by_beliefs(checked.view->modules, judged.front());
  checked.verdict = std::move(judged.front());
  if (checked.view && !checked.verdict->loads)
    checked.is_mended_by_repair = loads_when_repaired(options, *checked.engine);
  return checked;
}

Json view_json(const Checked& checked) {
  const engines::EngineVerdict& verdict = *checked.verdict;
  const check::Unread& unread = checked.result.unread;
  return {{"engine", checked.engine->name},
          {"reads_weights", checked.view->verdict.loads},
          {"is_known", verdict.is_known},
          {"is_silent", verdict.is_silent},
          {"notes", verdict.notes},
          {"evidence", verdict.loads ? checked.engine->known_text(verdict.evidence) : ""},
          {"options", verdict.options},
          {"tensor", verdict.tensor},
          {"reason", verdict.reason},
          {"is_mended_by_repair", checked.is_mended_by_repair},
          {"unread", {{"tensors", unread.n_tensors}, {"bytes", unread.n_bytes}}},
          {"modules", formats::json_list(checked.view->modules, module_row)}};
}

}  // namespace

Json module_row(const engines::BelievedModules& row) {
  return {{"name", row.name},         {"count", row.count},     {"stored", row.stored},
          {"believed", row.believed}, {"because", row.because}, {"joined", row.joined},
          {"agrees", row.agrees()}};
}

Checked run_check(const CheckOptions& asked) {
  const CheckOptions options = settled(asked);
  if (!options.engine.empty()) return check_engine(options);
  if (!options.source_of.empty()) {
    return {.result =
                check::check_is_source_of(options.directory, options.source_of, options.threads)};
  }
  Checked checked;
  std::optional<Error> unread;
  try {
    // Before anything else has read the files into memory.
    if (options.deep) checked.rates = check::measure_reading(options.directory, options.threads);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    unread = error;
  }
  checked.result = check::check_directory(options.directory, options, options.config);
  // The rules name the tensors that they could not read.
  if (unread && checked.count(Severity::kError) == 0)
    checked.result.findings.push_back(check::finding_of(*unread));
  return checked;
}

Json check_json(const CheckOptions& options, const Checked& checked) {
  const check::CheckResult& result = checked.result;
  Json json = {{"directory", options.directory}};
  if (!options.source_of.empty()) json["source_of"] = options.source_of;
  json["family"] = result.family;
  json["dialect"] = result.dialect;
  json["files"] = result.n_files;
  json["tensors"] = result.n_tensors;
  json["bytes"] = result.n_bytes;
  json["has_manifest"] = result.has_manifest;
  json["hashed"] = result.n_hashed;
  if (checked.rates) {
    json["reading"] = {{"bytes", checked.rates->n_bytes},
                       {"cold_seconds", checked.rates->cold_seconds},
                       {"hot_seconds", checked.rates->hot_seconds}};
  }
  json["errors"] = check::faults_json(result.findings, Severity::kError);
  json["warnings"] = check::faults_json(result.findings, Severity::kWarning);
  json["passed"] =
      checked.engine == nullptr ? checked.count(Severity::kError) == 0 : checked.loads();
  if (checked.view) json["engine"] = view_json(checked);
  return json;
}

}  // namespace ingot::library
