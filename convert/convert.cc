#include "convert/convert.h"

#include <optional>

#include <fmt/format.h>

#include "convert/job/execution.h"
#include "convert/job/job_identity.h"
#include "convert/output/apart.h"
#include "convert/output/model_card.h"
#include "convert/output/output_directory.h"
#include "convert/plan/passes.h"
#include "convert/plan/repair.h"
#include "convert/recipe/default_recipes.h"
#include "convert/recipe/engine_choice.h"
#include "convert/recipe/kv_ranges.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/config/nested_config.h"
#include "formats/first_layers.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "shard/join/rank_directories.h"
#include "shard/join/source.h"

// A conversion is a list of passes: read, decide, cut, place, check, execute, judge, publish. They
// are here in their order, each with the reason for its place.

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;

namespace {

// A remark when side files have so many bytes that they may not belong to the model: tokenizers,
// code and pictures of a release take some tens of megabytes.
void warn_of_side_files(Plan& plan) {
  constexpr std::uint64_t kMany = std::uint64_t{1} << 30;
  std::uint64_t n_bytes = 0;
  const formats::SideFile* largest = nullptr;
  for (const formats::SideFile& side : plan.source.side_files()) {
    n_bytes += side.n_bytes;
    if (largest == nullptr || side.n_bytes > largest->n_bytes) largest = &side;
  }
  if (n_bytes <= kMany) return;
  plan.warnings.push_back(
      fmt::format("files other than weights have {} bytes and are copied as they are, the largest "
                  "is {} with {} (move away files that do not belong to the model)",
                  n_bytes, largest->path, largest->n_bytes));
}

void warn_of_card(Plan& plan) {
  const SourceCard& card = plan.source_facts.card;
  if (card.is_too_long) {
    plan.warnings.push_back(
        fmt::format("{} is too long for a model card and stays as it is", kCardName));
  } else if (!card.fault.empty() && has_model_card(plan)) {
    plan.warnings.push_back(
        fmt::format("{}: its front matter is not understood, and only kept as text: {}", kCardName,
                    card.fault));
  }
}

}  // namespace

std::optional<formats::Manifest> recorded_manifest(const std::filesystem::path& directory) {
  auto manifest = formats::read_manifest(directory);
  const std::vector<std::string> ranks = shard::rank_directories_in(directory);
  if (!manifest && !ranks.empty()) manifest = formats::read_manifest(directory / ranks.front());
  return manifest;
}

// An output of ours says in its manifest how its own source was quantized.
formats::JsonValue remembered_quantization(const Checkpoint& source) {
  const Json& block = formats::quantization_block(source.config());
  if (!block.is_null()) return block;
  const auto manifest = formats::read_manifest(source.directory());
  return manifest ? *manifest->source_quantization : Json();
}

void allow_as_recorded(const std::filesystem::path& directory, Allowances& allow) {
  const auto manifest = recorded_manifest(directory);
  if (!manifest) return;
  for (const std::string_view kind : Allowances::kinds()) {
    for (const std::string& pattern : manifest->allowed(kind))
      allow.add(fmt::format("{}={}", kind, pattern));
  }
}

SourceFacts read_source_facts(const Checkpoint& source, const std::string& base_model) {
  SourceFacts facts{.quantization = remembered_quantization(source),
                    .has_head_apart = formats::has_head_apart(source),
                    .card = read_source_card(source, base_model)};
  for (const formats::Giver& giver : source.givers())
    facts.giver_cards.push_back(read_source_card(*giver.model, ""));
  return facts;
}

Plan plan_conversion(const Checkpoint& source, Recipe recipe, const PlanOptions& options) {
  // Read: the caller has opened the source, only headers and JSON. The last files that a plan
  // depends on are its manifest, its card, and the head of a model that is said to have none of
  // its own; later passes depend on nothing that could change.
  choose_for_engine(recipe, source, *options.layout);
  add_default_rules(recipe, source.family(), source.config(), target_dialect(recipe, source),
                    formats::narrower_dtype(source), formats::has_plain_only(source));
  SourceFacts facts = read_source_facts(source, recipe.choices.base_model);
  Plan plan = plan_with_alike_experts(source, std::move(recipe), options, std::move(facts));
  // An output of some layers or experts of a model has no more of them, and is compared with those.
  if (const auto manifest = recorded_manifest(source.directory())) {
    Choices& choices = plan.recipe.choices;
    if (!choices.n_layers) choices.n_layers = formats::recorded_layers(*manifest);
    const std::vector<formats::KeptExperts> earlier = formats::recorded_experts(*manifest);
    choices.kept_experts.insert(choices.kept_experts.begin(), earlier.begin(), earlier.end());
  }
  // A plain copy is accepted as its source was, and its records tell the next reader so.
  if (plan.is_copy()) allow_as_recorded(source.directory(), plan.recipe.allow);
  return plan;
}

Plan make_plan(const Checkpoint& source, Recipe recipe, const PlanOptions& options,
               SourceFacts source_facts) {
  shard::require_all_ranks(source);
  recipe.set_layers(source.config().num_hidden_layers);
  recipe.check_all_matched(source.tensors());
  const formats::Dialect& dialect = target_dialect(recipe, source);
  Plan plan{.source = source,
            .recipe = std::move(recipe),
            .options = options,
            .source_facts = std::move(source_facts),
            .target = {.dialect = &dialect}};
  plan.warnings = source.remarks();
  for (std::string& remark : plan.recipe.remarks(source.tensors()))
    plan.warnings.push_back(std::move(remark));
  const auto warn_of = [&](const auto& statistics, std::string_view option) {
    if (statistics == nullptr) return;
    if (auto text = statistics->warning(option)) plan.warnings.push_back(std::move(*text));
  };
  warn_of(plan.recipe.choices.activation_scales, "--activation-scales");
  warn_of(plan.recipe.choices.importance, "--importance");
  warn_of(plan.recipe.choices.kv_scales, "--kv-scales");
  // Decide: scheme and storage of every tensor, for the shapes of all else follow from them. An
  // option is idle only when every decision has gone without it.
  refuse_unknown(plan);
  decide(plan);
  refuse_idle_options(plan);
  mend_tensors(plan);
  // Cut: before there are parts, since --tp-fit may change the scheme of a tensor.
  slice_tensors(plan);
  keep_unread_codes(plan);
  // Place: sizes, then files, then offsets; only then is it known in which order the files fill.
  plan_parts(plan);
  assign_files(plan);
  lay_out_files(plan);
  deal_files(plan);
  keep_whole_files(plan);
  order_for_execution(plan);
  measure_plan(plan);
  // The JSON describes placed tensors, so it comes last.
  derive_json(plan);
  warn_of_side_files(plan);
  warn_of_card(plan);
  return plan;
}

namespace {

Claim take_claim(const Plan& plan, const OutputPaths& paths, const ExecuteOptions& options) {
  const Renewal renewal{.waiting = StopScope::check};
  Claim claim = plan.options.part ? Claim::take_part(paths, options.run, *plan.options.part,
                                                     options.resume, renewal)
                                  : Claim::take(paths, options.run, renewal);
  // Before anything else is written.
  require_unseen(inputs_of(plan), paths.output);
  return claim;
}

ExecuteReport execute_claimed(const Plan& plan, const std::filesystem::path& output,
                              const ExecuteOptions& options) {
  const OutputPaths paths(output);
  JobInputs bases;
  for (const std::filesystem::path& base : {options.base.output, options.base.source}) {
    if (!base.empty()) bases.folders.push_back(base);
  }
  require_apart(bases, output);
  if (!options.base.output.empty()) require_base(options.base);
  // Check: all refusals come before the first byte, by the same code as in a dry run. The claim
  // comes before any look into the output, so that no other run changes it.
  require_place(plan, output, options);
  // A finished output is opened without a claim, so that others can read it; with one if a killed
  // run left its folder, which goes with the claim.
  const bool is_read_only =
      options.resume && !options.force && output_state(output) == OutputState::kFinished &&
      !std::filesystem::exists(paths.partial) && !std::filesystem::exists(paths.swept);
  std::optional<Claim> claim;
  if (!is_read_only) claim.emplace(take_claim(plan, paths, options));
  Preflight checked = preflight(plan, output, options);
  require_space(plan, checked, output);
  checked.identity = require_resumable(plan, output, checked, options.threads);
  if (checked.is_finished) {
    if (claim && !plan.options.part) {
      clear_partial(paths);
      claim->give_back();
    }
    ExecuteReport report;
    report.already_done = true;
    return report;
  }
  // Another run has replaced the output that was finished a moment ago.
  if (!claim) claim.emplace(take_claim(plan, paths, options));
  // Files of other parts are left to them.
  if (!checked.earlier && !plan.options.part) clear_partial(paths);
  if (options.accepted) options.accepted();

  Execution execution(plan, *claim, options, std::move(checked));
  if (execution.is_complete()) return execution.publish_again();
  // Execute: the weights, and then the files with their hashes.
  execution.begin();
  if (!options.join) execution.convert_weights();
  if (plan.options.part) return execution.finish_part();
  execution.stage_beside_weights();
  // Judge: exactly the bytes that will be published are judged.
  if (!execution.passes_inspection()) return execution.report();
  // Publish: last of all, when neither the source nor the claim has changed meanwhile.
  return execution.publish();
}

}  // namespace

ExecuteReport execute(const Plan& plan, const std::filesystem::path& output,
                      const ExecuteOptions& options) {
  ExecuteReport report = execute_claimed(plan, output, options);
  if ((report.already_done || report.only_published) && options.inspect)
    report.refused = !options.inspect(output).may_publish;
  return report;
}

std::filesystem::path consumed_headers_of(const std::filesystem::path& output) {
  const OutputPaths paths(output);
  return std::filesystem::exists(paths.consumed) ? paths.consumed : std::filesystem::path();
}

bool is_done_without_source(const NamedSource& source, const std::filesystem::path& output,
                            const Recipe& recipe, const PlanOptions& plan,
                            const ExecuteOptions& options) {
  // --consume-source may be left out when a job is continued.
  if (!options.resume || !is_finished_of_deleted(source, output, recipe, plan)) return false;
  if (!options.gate.is_null()) {
    throw Error(ErrorCode::kInvalidArgument,
                "was converted, and then its files were deleted by --consume-source, so the output "
                "cannot be compared with it (leave out {}; ingot verify compares with another copy "
                "of the source)",
                options.lossless_only ? "--lossless-only" : "--verify")
        .in_file(source.directory.string());
  }
  remove_leftovers(output, options.run);
  return true;
}

void remove_leftovers(const std::filesystem::path& output, const RunName& run) {
  const OutputPaths paths(output);
  if (!std::filesystem::exists(paths.swept) && !std::filesystem::exists(paths.partial)) return;
  Claim claim = Claim::take(paths, run);
  clear_partial(paths);
  claim.give_back();
}

}  // namespace ingot::convert
