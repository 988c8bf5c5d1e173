#include "library/conversion.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "convert/convert.h"
#include "convert/job/part_journals.h"
#include "convert/output/apart.h"
#include "convert/output/output_directory.h"
#include "convert/output/version.h"
#include "convert/plan/repair.h"
#include "convert/recipe/kv_ranges.h"
#include "convert/run/memory/given_tensors.h"
#include "formats/base/error.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/files/hub_cache.h"
#include "formats/first_layers.h"
#include "formats/json/json.h"
#include "formats/kept_experts.h"
#include "formats/storage/unread_codes.h"
#include "formats/text/spelling.h"
#include "inference/family/model_family.h"
#include "library/answer.h"
#include "shard/cut/expert_map.h"
#include "shard/join/source.h"
#include "verify/gates/report.h"
#include "verify/verification.h"

namespace ingot::library {

using formats::Checkpoint;

namespace {

/// With --lossless-only the output is compared with the source before it is published: a gate over
/// every value of both sides.
void demand_no_loss(GateOptions& gate) {
  const std::vector<verify::Level> asked =
      gate.levels.empty() ? std::vector<verify::Level>() : verify::parse_levels(gate.levels);
  if (std::ranges::find(asked, verify::Level::kWeights) == asked.end())
    gate.levels += gate.levels.empty() ? "weights" : ",weights";
  gate.requirements.emplace_back("weights.relative_error<=0");
}

/// The settings of gates, for the journal; null without --verify.
formats::Json gate_settings(const GateOptions& gate) {
  if (gate.levels.empty()) return {};
  formats::Json settings = {{"verify", gate.levels}};
  if (!gate.thresholds.empty())
    settings["thresholds"] = std::filesystem::absolute(gate.thresholds).string();
  if (!gate.requirements.empty()) settings["require"] = gate.requirements;
  return settings;
}

/// Adds gates as gate_settings() has them. A demand of the same metric takes the place of an
/// earlier one.
void add_gates(const formats::Json& settings, GateOptions& gate) {
  const std::string levels = formats::text_at(settings, "verify");
  const bool is_more = !gate.levels.empty() && gate.levels != levels;
  gate.levels = is_more
                    ? names_of(verify::parse_levels(gate.levels + "," + levels), verify::level_name)
                    : levels;
  std::erase(gate.levels, ' ');
  if (settings.contains("thresholds")) gate.thresholds = formats::text_at(settings, "thresholds");
  for (const std::string& requirement : formats::strings_at(settings, "require")) {
    std::erase(gate.requirements, requirement);
    gate.requirements.push_back(requirement);
  }
}

/// Adds the gates of the runs that a run with own ones continues. Returns them all where that
/// changed something; else null.
formats::Json add_earlier(const convert::OutputPaths& paths, GateOptions& gate) {
  const formats::Json own = gate_settings(gate);
  if (own.is_null()) return {};
  gate = {};
  for (const convert::RunRecord& run : convert::runs_of(paths)) {
    if (!run.gate.is_null()) add_gates(run.gate, gate);
  }
  add_gates(own, gate);
  formats::Json all = gate_settings(gate);
  return all == own ? formats::Json() : all;
}

/// Throws for values that are not understood, and for a source that will not be there.
void require_valid(const GateOptions& gate, const JobOptions& job) {
  if (gate.levels.empty()) return;
  if (job.execute.consume_source) {
    throw Error(ErrorCode::kInvalidArgument,
                "--verify compares with the source, which --consume-source deletes");
  }
  verify::parse_levels(gate.levels);
  // A file or a demand that is not understood, too: before hours of work, not after.
  verify::make_thresholds({}, gate.thresholds, gate.requirements);
}

/// Throws for an adapter, which names experts by their old numbers, and for a job that would delete
/// the experts that are left out.
void require_pruning_fits(const ConvertOptions& options, const JobOptions& job) {
  const auto lora = options.target.options.find("--lora");
  if (lora != options.target.options.end() && !lora->second.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the adapter of --lora is made for the experts of the whole model (fold it in with "
                "ingot convert --lora first, and prune that output with --keep-map)");
  if (job.execute.consume_source)
    throw Error(ErrorCode::kInvalidArgument,
                "experts that are left out are in files that --consume-source would delete (delete "
                "the source yourself when ingot verify has passed)");
}

convert::ExpertSelection selection_of(const PruneOptions& options) {
  return {.keep = options.keep,
          .by = parse_word<convert::ExpertScore>("--by", options.by, convert::kExpertScores),
          .statistics = options.statistics,
          .keep_map = options.keep_map,
          .list = options.list};
}

struct OpenedCheckpoint {
  std::shared_ptr<const Checkpoint> source;
  std::string index_fault;
};

/// True if weights are missing that config.json promises. Layers for multi-token prediction may be
/// left out as a whole.
bool lacks_weights(const Checkpoint& source) {
  using formats::Gap;
  const formats::MissingTensors missing(source);
  return std::ranges::any_of(
      std::array{Gap::kMtpTensor, Gap::kIndexer, Gap::kCorrectionBias, Gap::kExpert, Gap::kOther},
      [&](Gap gap) { return !missing.of(gap).empty(); });
}

/// Opens by the index; where that fails, by the files that are here.
OpenedCheckpoint open_broken(const RepairOptions& options, const convert::Allowances& allow,
                             std::size_t threads) {
  formats::OpenOptions how{.family = options.family,
                           .allow_unknown = &allow.unknown_tensor,
                           .allow_duplicate = &allow.duplicate_tensor,
                           .merges_copies = true,
                           .threads = threads};
  const auto open = [&] {
    return std::make_shared<const Checkpoint>(Checkpoint::open(options.input, how));
  };
  try {
    return {open(), {}};
  } catch (const Error& error) {
    how.ignores_index = true;
    std::shared_ptr<const Checkpoint> source;
    try {
      source = open();
    } catch (const Error&) {
    }
    // A file that did not arrive is no fault of the index.
    if (source == nullptr || lacks_weights(*source)) throw;
    return {std::move(source), error.what()};
  }
}

}  // namespace

void add_gate(const ConvertOptions& options, JobOptions& job, const convert::Plan& plan,
              std::function<void(const verify::Report&, formats::Json document)> judged) {
  const GateOptions& gate = options.gate;
  if (gate.levels.empty()) return;
  // Hours later, when everything is converted, they could not be run.
  for (const verify::Level level : verify::parse_levels(gate.levels)) {
    if (verify::runs_model(level))
      (void)inference::model_spec(plan.source.family(), plan.source.config());
  }
  const auto& editors = plan.recipe.choices.editors;
  std::function<Checkpoint(Checkpoint)> source_bytes;
  if (const convert::GivenTensors* given = job.execute.given; given != nullptr)
    source_bytes = [given](Checkpoint opened) { return given->lent_view(std::move(opened)); };
  job.execute.inspect = [&options, &job, editors, source_bytes = std::move(source_bytes),
                         judged = std::move(judged)](const std::filesystem::path& staged) {
    const verify::Report report = verify::verify_pair(
        options.input, staged,
        {.levels = verify::parse_levels(options.gate.levels),
         .family = options.family,
         .source_bytes = source_bytes,
         .sources = options.directories,
         .editors = editors,
         .output_name =
             std::filesystem::absolute(job.output).lexically_normal().filename().string(),
         .thresholds = options.gate.thresholds,
         .requirements = options.gate.requirements,
         .threads = threads_of(job.execute.threads),
         .mem_limit = memory_budget(job.mem_limit),
         .tool_version = std::string(convert::kVersion)});
    Answer record;
    record.command = "verify";
    record.add(verify::report_json(report));
    formats::Json document = record.document();
    convert::Inspection inspection{.may_publish = report.passed(),
                                   .report = formats::json_text(document)};
    judged(report, std::move(document));
    return inspection;
  };
}

ConversionRequest read_target(const ConvertOptions& options) {
  ConversionRequest request{.recipe = {}, .plan = {}, .earlier_gates = {}};
  if (options.composes) {
    request.composition.emplace();
    request.recipe = make_recipe(options.target, &*request.composition);
    for (const std::string& text : options.sources) request.composition->replace(text);
  } else {
    request.recipe = make_recipe(options.target);
  }
  request.plan.shards = file_policy(options.files);
  read_slicing(options.slicing, request.plan);
  if (!options.part.empty() && options.part != kJoin)
    request.plan.part = convert::parse_job_part(options.part);
  return request;
}

ConversionRequest read_conversion(ConvertOptions& options, JobOptions& job) {
  convert::ExecuteOptions& execute = job.execute;
  if (execute.lossless_only) demand_no_loss(options.gate);
  execute.join = options.part == kJoin;
  execute.resume = execute.resume || execute.join;
  formats::Json earlier;
  if (execute.resume) earlier = add_earlier(convert::OutputPaths(job.output), options.gate);
  require_valid(options.gate, job);
  execute.gate = gate_settings(options.gate);
  ConversionRequest request = read_target(options);
  request.earlier_gates = std::move(earlier);
  convert::JobInputs inputs;
  if (request.composition) {
    options.input = request.composition->givers.front().path.string();
    for (const convert::NamedDirectory& giver : request.composition->givers) {
      inputs.folders.push_back(giver.path);
      options.directories[giver.name] = giver.path;
    }
    inputs.files.emplace_back(options.target.recipe_file);
  } else {
    inputs.folders.emplace_back(options.input);
  }
  convert::require_apart(inputs, job.output);
  return request;
}

convert::CacheOverlay write_kv_overlay(const ConvertOptions& options, const JobOptions& job,
                                       bool is_dry_run) {
  const convert::Recipe recipe = make_recipe(options.target);
  convert::JobInputs inputs{.folders = {options.input}};
  for (const convert::StampedFile& file : recipe.choices.kv_scales->files())
    inputs.files.push_back(file.path);
  convert::require_apart(inputs, job.output);
  const Checkpoint source = Checkpoint::open(formats::checkpoint_directory(options.input),
                                             {.family = options.named_family(),
                                              .allow_unknown = &recipe.allow.unknown_tensor,
                                              .threads = threads_of(job.execute.threads)});
  require_own_statistics(recipe.choices, source);
  convert::CacheOverlay overlay =
      convert::cache_overlay(source, *recipe.choices.kv_scales, recipe.choices.dialect);
  if (auto warning = recipe.choices.kv_scales->warning("--kv-scales"))
    overlay.warnings.push_back(std::move(*warning));
  if (!is_dry_run) convert::write_overlay(overlay, job.output, job.execute.force);
  return overlay;
}

Conversion plan_conversion(ConvertOptions& options, JobOptions& job, ConversionRequest request,
                           bool compares_replicas) {
  if (options.kv_scales_only) {
    throw Error(ErrorCode::kInvalidArgument,
                "--kv-scales-only writes no conversion that could be planned");
  }
  const std::size_t threads = threads_of(job.execute.threads);
  convert::Recipe& recipe = request.recipe;
  if (job.execute.consume_source && recipe.choices.n_layers) {
    throw Error(ErrorCode::kInvalidArgument,
                "--layers leaves tensors out, whose files --consume-source would delete");
  }
  if (options.prune.is_asked) require_pruning_fits(options, job);
  job.execute.stamps.add(options.input);
  if (!options.target.scales_from.empty())
    job.execute.stamps.add(options.target.scales_from, convert::ReadFor::kOption);
  const auto open_directory = [&](const std::filesystem::path& directory,
                                  const std::string& family) {
    return shard::open_source(
        directory,
        {.open = {.family = family,
                  .allow_unknown = &recipe.allow.unknown_tensor,
                  .allow_duplicate = &recipe.allow.duplicate_tensor,
                  .consumed_headers = job.execute.resume ? convert::consumed_headers_of(job.output)
                                                         : std::filesystem::path(),
                  .threads = threads},
         .compare_replicas = compares_replicas});
  };
  const auto open = [&](const std::string& family) {
    return open_directory(options.input, family);
  };
  if (options.family == kAutoFamily)
    options.family = settle_family(open, options.accept_family, recipe);
  if (request.composition) {
    for (const convert::NamedDirectory& giver : request.composition->givers)
      if (giver.kind != convert::GiverKind::kBase)
        job.execute.stamps.add(giver.path, convert::ReadFor::kOption);
    auto composed =
        convert::compose(*request.composition, recipe,
                         {.open = open_directory, .family = options.family, .threads = threads});
    return plan_conversion(options, std::move(request), std::move(composed), threads);
  }
  recipe.choices.prunes = options.prune.is_asked;
  auto opened = std::make_shared<const Checkpoint>(open(options.family));
  if (convert::is_copied_as_stored(*opened, recipe, request.plan)) {
    request.meaning = opened;
    opened = std::make_shared<const Checkpoint>(open(std::string(formats::kAsStored)));
  }
  if (job.execute.given != nullptr) opened = job.execute.given->source(std::move(opened));
  return plan_conversion(options, std::move(request), std::move(opened), threads);
}

Conversion plan_conversion(const ConvertOptions& options, ConversionRequest request,
                           std::shared_ptr<const Checkpoint> opened, std::size_t threads) {
  open_scales_from(options.target, options.family, threads, request.recipe.choices);
  require_own_statistics(request.recipe.choices, *opened);
  const std::shared_ptr<const Checkpoint> meaning = request.meaning;
  const std::shared_ptr<const Checkpoint> whole = meaning != nullptr ? meaning : opened;
  if (const auto n_layers = request.recipe.choices.n_layers)
    opened = std::make_shared<const Checkpoint>(formats::with_first_layers(opened, *n_layers));
  std::vector<std::string> remarks;
  if (options.prune.is_asked) {
    convert::SelectedExperts selected = convert::select_experts(
        *whole, meaning != nullptr ? *meaning : *opened, selection_of(options.prune));
    opened = std::make_shared<const Checkpoint>(
        formats::with_kept_experts(opened, selected.kept, meaning.get()));
    convert::SlicingOptions& slicing = request.plan.slicing;
    if (!slicing.expert_map.empty())
      slicing.expert_map =
          shard::map_of_kept(slicing.expert_map, slicing.expert_map_where, selected.kept);
    convert::keep_experts(request.recipe.choices, *whole, selected.kept);
    request.recipe.choices.kept_experts = {std::move(selected.kept)};
    request.recipe.choices.prunes = true;
    remarks = std::move(selected.remarks);
  }
  for (const auto& editor : request.recipe.choices.editors) {
    if (auto shaped = editor->reshaped(opened))
      opened = std::make_shared<const Checkpoint>(*std::move(shaped));
  }
  std::optional<convert::Budget> budget;
  if (options.bits)
    budget = convert::choose_schemes(
        opened, request.recipe, convert::budget_schemes(options.bits_from), *options.bits, threads);
  auto source = convert::as_written(std::move(opened), request.recipe, request.plan);
  convert::Plan plan = convert::plan_conversion(*source, std::move(request.recipe), request.plan);
  plan.warnings.insert(plan.warnings.end(), remarks.begin(), remarks.end());
  if (meaning != nullptr) plan.source_facts.family = &meaning->family();
  return {.source = std::move(source),
          .meaning = meaning,
          .plan = std::move(plan),
          .budget = std::move(budget)};
}

void declare_pruning(FlagTable& table, ConvertOptions& options) {
  PruneOptions& prune = options.prune;
  prune.is_asked = true;
  table.add(
      FlagGroup::kCommon,
      {{"--keep",
        &prune.keep,
        "experts that stay in each layer: a share below 1, as 0.75, or their number",
        {.excludes = {"--keep-map"}}},
       {"--by",
        &prune.by,
        "what experts are ranked by: saliency (router weight times size of the output, a mean over "
        "the expert's tokens), or tokens",
        {.words = {convert::kExpertScores.begin(), convert::kExpertScores.end()},
         .excludes = {"--keep-map"}}},
       {"--statistics",
        &prune.statistics,
        "directory that ingot calibrate wrote of this model, to rank experts by",
        {.excludes = {"--keep-map"}, .kind = ValueKind::kPath}},
       {"--keep-map",
        &prune.keep_map,
        "JSON with the experts that stay, by layer: {\"layers\": {\"3\": [0, 2, 5]}}",
        {.kind = ValueKind::kFile}}});
  table.add(
      FlagGroup::kComparison,
      {{"--measure", &prune.measure,
        "run the output next to the whole model: KL and drafts on built-in prompts (default: if "
        "the model has a forward pass here, and fits in --mem-limit)"},
       {"--text",
        &prune.text,
        "measure the perplexity of both on this text, too",
        {.kind = ValueKind::kFile}}});
}

void declare_target(FlagTable& table, ConvertOptions& options) {
  table.add(FlagGroup::kCommon, scheme_flags(options.target));
  table.add(FlagGroup::kSource,
            {family_flag(&options.family, kAutoFamilyHelp), family_file_flag(&options.family)});
  table.add(FlagGroup::kSource, {accept_flag(options.accept_family, options.family)});
  table.add(FlagGroup::kSource, {allow_flag(options.target)});
  if (options.composes)
    table.add(FlagGroup::kSource,
              {{"--source",
                &options.sources,
                "another directory for a name of the recipe, or for `base`; may be repeated",
                {.kind = ValueKind::kNamedCheckpoint}}});
  else
    table.add(
        FlagGroup::kTarget,
        {{"--bits",
          &options.bits,
          "average bits of a weight of the quantized linear layers, scales included: chooses among "
          "nvfp4, fp8 and bf16 by role and layer, by what each loses under the inputs of "
          "--importance, and prints the recipe",
          {.range = NumberRange{1, 16}, .needs = "--importance", .excludes = {"--to"}}},
         {"--bits-from",
          &options.bits_from,
          "the schemes that --bits chooses among, of nvfp4, fp8, bf16, int4, mxfp4 and int8; the "
          "default recipe of the first says which layers count",
          {.needs = "--bits", .value_name = "SCHEMES"}}});
  std::vector<Flag> choices = choice_flags(options.target);
  // The recipe of several sources has the rules: each says whose tensors it is about.
  if (options.composes)
    std::erase_if(
        choices, [](const Flag& flag) { return flag.name == "--rule" || flag.name == "--recipe"; });
  table.add(FlagGroup::kTarget, std::move(choices));
  table.add(
      FlagGroup::kTarget,
      {choice(
           options.target, "--experts",
           "routed experts: keep, stacked (one tensor for all of a layer), or separate (a tensor "
           "per expert and projection); default: as loaders of the target read them"),
       choice(
           options.target, "--layers",
           "0-K: only the first layers, and no MTP layers, as a model of its own, to try engines "
           "and jobs with"),
       choice(options.target, "--base-model",
              "ORG/NAME of the source on the hub, for the model card (default: its name in the "
              "hub's cache, else that of its own card)")});
  declare_files(table, options.files, "keep the source's files and their contents");
  declare_slicing(table, options.slicing);
}

void declare_rest(FlagTable& table, ConvertOptions& options, JobOptions& job) {
  table.add(
      FlagGroup::kJob,
      {{"--part",
        &options.part,
        "write only the files of part I of N, I from 0; all parts share the output's directory, "
        "and publish nothing; join: publish their output (ingot join)",
        {.words = {std::string(kJoin)}, .value_name = "I/N|join"}}});
  table.add(FlagGroup::kSource,
            {{"--base",
              &job.execute.base.output,
              "an output of an earlier version of the source: tensors whose source did not change "
              "are taken over from it, by the same recipe and version of ingot",
              {.kind = ValueKind::kFolder}},
             {"--base-source",
              &job.execute.base.source,
              "the source of --base: it is read and compared with the records of --base",
              {.needs = "--base", .kind = ValueKind::kFolder}}});
  options.slicing.base = &job.execute.base.output;
  if (!options.composes)
    table.add(
        FlagGroup::kTarget,
        {{"--kv-scales-only",
          &options.kv_scales_only,
          "write only the scales of --kv-scales, and the index and config that name them, to be "
          "put "
          "into the folder of the model",
          {.needs = "--kv-scales",
           .excludes = {"--to", "--rule", "--recipe", "--for", "--layers", "--experts", "--layout",
                        "--tp", "--ep", "--pp", "--mp", "--files", "--max-shard-size", "--part",
                        "--verify", "--lossless-only", "--resume", "--consume-source",
                        "--base"}}}});
  table.add(FlagGroup::kComparison,
            {{"--verify",
              &options.gate.levels,
              fmt::format("compare with the source before anything is "
                          "published: {}, or all; below a gate nothing is "
                          "published, and the exit code is 1",
                          names_of(verify::levels(), &verify::LevelFacts::name)),
              {.words = words_of(verify::levels(), &verify::LevelFacts::name)}},
             {"--lossless-only", &job.execute.lossless_only,
              "publish only an output that holds every value of the source exactly; else name the "
              "first tensor that loses one, and exit with 1"},
             {"--no-verify",
              &job.execute.no_verify,
              "with --resume: publish without the verification that the "
              "conversion began with (recorded in the manifest)",
              {.needs = "--resume", .excludes = {"--verify"}}}});
  declare_gates(table, options.gate.thresholds, options.gate.requirements,
                belongs_to("--verify", [&options, &job] {
                  return !options.gate.levels.empty() || job.execute.lossless_only;
                }));
}

void declare_repair(FlagTable& table, RepairOptions& options) {
  table.add(FlagGroup::kSource,
            {family_flag(&options.family, "model family instead of config.json's"),
             family_file_flag(&options.family), allow_flag(options.target)});
  table.add(FlagGroup::kTarget,
            {{"--dialect", &options.dialect,
              "layout of the quantized tensors, if it is not known any more: deepseek, "
              "compressed-tensors, modelopt, modelslim, mxfp4 (default: as it is recognized)"},
             {"--links",
              &options.links,
              "yes (default): unchanged files are hard links to those of the source; no: all are "
              "written",
              {.words = {"yes", "no"}}}});
}

Repair plan_repair(const RepairOptions& options, std::size_t threads) {
  if (shard::is_sliced(options.input)) {
    throw Error(ErrorCode::kUnsupported,
                "holds slices of ranks (put them together with ingot merge, repair that, and cut "
                "it again)")
        .in_file(options.input);
  }
  convert::Recipe recipe = make_recipe(options.target);
  OpenedCheckpoint opened = open_broken(options, recipe.allow, threads);
  const Checkpoint& source = *opened.source;
  if (source.dialect().is_read_only) {
    throw Error(ErrorCode::kUnsupported,
                "is in dialect {}, which is read and never written (ingot convert makes "
                "compressed-tensors of it)",
                source.dialect().name)
        .in_file(options.input);
  }
  recipe.choices.dialect = options.dialect.empty()
                               ? std::string(convert::repaired_dialect(source).name)
                               : options.dialect;
  recipe.choices.repair =
      std::make_shared<const convert::RepairFacts>(convert::read_repair_facts(source));
  convert::PlanOptions plan;
  plan.links = options.links == "yes";
  return {.conversion = {.source = opened.source,
                         .plan = convert::plan_conversion(source, std::move(recipe), plan)},
          .index_fault = std::move(opened.index_fault)};
}

}  // namespace ingot::library
