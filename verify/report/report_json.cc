#include <cmath>
#include <optional>

#include "check/rules/loader_rules.h"
#include "report/rows.h"
#include "verify/gates/report.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;
using formats::json_list;

namespace {

// A checkpoint may have a hundred thousand tensors, and each may be missing.
constexpr std::size_t kFindings = 1000;

Json share_json(const SchemeShare& share) {
  return {{"scheme", share.scheme},
          {"tensors", share.tensors},
          {"elements", share.elements},
          {"bytes", share.bytes}};
}

Json structure_json(const StructureReport& structure) {
  return {
      {"tensors", structure.tensors},
      {"hashed", structure.hashed},
      {"manifest", structure.has_manifest},
      {"input_scales", structure.input_scales},
      {"summary", {{"errors", structure.errors()}, {"warnings", structure.warnings()}}},
      {"stacks", structure.stacks},
      {"errors", check::faults_json(structure.findings, check::Severity::kError, kFindings)},
      {"warnings", check::faults_json(structure.findings, check::Severity::kWarning, kFindings)}};
}

Json sums_json(const ElementSums& sums) {
  return {{"elements", sums.elements},
          {"exact", sums.exact},
          {"misrounded", sums.misrounded},
          {"saturated", sums.saturated},
          {"zeroed", sums.zeroed},
          {"nonfinite", sums.nonfinite},
          {"source_nonfinite", sums.source_nonfinite},
          {"cosine", sums.cosine()},
          {"relative_error", sums.relative_error()},
          {"sqnr_db", sums.sqnr_db()},
          {"mean_error", sums.mean_error()},
          {"fitted_scale", sums.fitted_scale()},
          {"max_error", sums.max_error},
          {"max_relative", sums.max_relative}};
}

Json weights_json(const WeightsReport& weights, std::size_t n_worst) {
  return {{"tensors", weights.tensors.size()},
          {"unmatched", weights.unmatched},
          {"sample", weights.sample},
          {"by_scheme_and_role", json_rows(by_scheme_and_role(weights))},
          {"by_layer_and_role", json_rows(by_layer_and_role(weights))},
          {"worst", json_rows(worst_tensors(weights, n_worst))}};
}

Json similarity_json(const Similarity& similarity) {
  return {{"mean", similarity.mean},
          {"median", similarity.median},
          {"worst", similarity.worst},
          {"mean_without_first", similarity.mean_without_first},
          {"worst_without_first", similarity.worst_without_first},
          {"worst_prompt", similarity.worst_prompt},
          {"worst_token", similarity.worst_token},
          {"relative_error", similarity.relative_error},
          {"max_error", similarity.max_error}};
}

Json layers_json(const Report& report) {
  const LayersReport& layers = *report.layers;
  const auto bad = first_bad_layer(report);
  return {{"source_profile", layers.source_profile},
          {"output_profile", layers.output_profile},
          {"prompts", layers.prompts},
          {"tokens", layers.tokens},
          {"first_bad_layer", or_null(bad)},
          {"layers", json_rows(layers.layers)},
          {"logits", row_of(layers.logits)},
          {"mtp_logits", layers.mtp_logits ? row_of(*layers.mtp_logits) : Json(nullptr)}};
}

Json prompt_json(const GreedyPrompt& prompt) {
  return {{"prompt", prompt.prompt.text},
          {"ids", prompt.prompt.ids},
          {"outcome", greedy_outcome_name(prompt.outcome)},
          {"source", prompt.source},
          {"output", prompt.output},
          {"source_text", prompt.source_text},
          {"output_text", prompt.output_text},
          {"first_difference", or_null(prompt.first_difference)},
          {"gap", prompt.gap},
          {"limit", prompt.limit}};
}

Json near_ties_json(const inference::NearTies& near) {
  return {{"router", near.router}, {"indexer", near.indexer}, {"argmax", near.argmax}};
}

Json greedy_json(const GreedyReport& greedy) {
  return {{"equal", greedy.equal},
          {"inconclusive", greedy.inconclusive},
          {"different", greedy.different},
          {"near_ties",
           {{"source", near_ties_json(greedy.source_near_ties)},
            {"output", near_ties_json(greedy.output_near_ties)}}},
          {"prompts", json_list(greedy.prompts, prompt_json)}};
}

Json interval_json(const std::optional<Interval>& interval) {
  return interval ? Json({interval->low, interval->high}) : Json(nullptr);
}

Json likelihood_json(const Likelihood& likelihood) {
  std::optional<Interval> interval = nll_of(likelihood).interval;
  if (interval) interval = {.low = std::exp(interval->low), .high = std::exp(interval->high)};
  return {{"documents", likelihood.documents},
          {"tokens", likelihood.tokens},
          {"nll", likelihood.nll},
          {"perplexity", likelihood.perplexity()},
          {"perplexity_interval", interval_json(interval)}};
}

Json draft_json(const DraftReport& draft) {
  return {
      {"tokens", draft.tokens},
      {"text", draft.of_given_text ? "given" : "answers"},
      {"source", {{"accepted", draft.source_accepted}, {"acceptance", draft.source_acceptance()}}},
      {"output", {{"accepted", draft.output_accepted}, {"acceptance", draft.output_acceptance()}}},
      {"loss", draft.loss()},
      {"interval", interval_json(draft.interval)}};
}

Json text_json(const TextReport& text) {
  const auto figure_json = [](const TextFigure& figure) {
    return Json{{"mean", figure.mean}, {"interval", interval_json(figure.interval)}};
  };
  return {{"source", text.source ? likelihood_json(*text.source) : Json(nullptr)},
          {"output", likelihood_json(text.output)},
          {"documents", text.documents},
          {"draws", kBootstrapDraws},
          {"kl", text.source ? figure_json(kl_of(text)) : Json(nullptr)},
          {"log_ratio", text.source ? figure_json(log_ratio_of(text)) : Json(nullptr)}};
}

}  // namespace

Json row_of(const GateResult& result) {
  return {{"metric", result.gate.metric},
          {"group", result.gate.group},
          {"bound", result.gate.bound == Bound::kAtLeast ? ">=" : "<="},
          {"limit", result.limit},
          {"origin", result.gate.origin},
          {"passed", result.passed},
          {"checked", result.checked},
          {"failed", result.failed},
          {"worst", result.worst},
          {"subject", result.subject}};
}

Json row_of(const SchemeChange& change) {
  return {{"from", change.from},
          {"to", change.to},
          {"roles", change.roles},
          {"tensors", change.tensors},
          {"source_bytes", change.source_bytes},
          {"output_bytes", change.output_bytes}};
}

Json row_of(const WeightGroup& group) {
  Json json = Json::object();
  if (!group.to.empty()) {
    json["from"] = group.from;
    json["to"] = group.to;
  } else {
    json["layer"] = or_null(group.layer);
  }
  json["role"] = group.role;
  json["tensors"] = group.tensors;
  json["identical"] = group.identical;
  json["least_cosine"] = group.least_cosine;
  json["worst_scale"] = group.worst_scale;
  json["worst"] = group.worst;
  json.update(sums_json(group.sums));
  json["step_histogram"] = group.sums.step_histogram;
  return json;
}

Json row_of(const TensorWeights* tensor) {
  Json json = {{"tensor", tensor->name},
               {"role", tensor->role},
               {"from", tensor->from},
               {"to", tensor->to},
               {"relation", relation_name(tensor->relation)},
               {"coarse_groups", tensor->reach.coarse},
               {"least_reach", tensor->reach.least},
               {"cause", tensor->cause}};
  json.update(sums_json(tensor->sums));
  return json;
}

Json row_of(const ClippedCache& cache) {
  return {{"of", cache.of},
          {"values", cache.values},
          {"clipped", cache.clipped(cache.stored)},
          {"clipped_at_one", cache.clipped(cache.at_one)},
          {"relative_error", cache.relative_error(cache.stored)},
          {"relative_error_at_one", cache.relative_error(cache.at_one)}};
}

Json row_of(const LayerAgreement& layer) {
  return {{"layer", layer.layer},
          {"mtp", layer.is_mtp},
          {"isolated", similarity_json(layer.isolated)},
          {"accumulated", similarity_json(layer.accumulated)},
          {"router_overlap", or_null(layer.router_overlap)},
          {"indexer_overlap", or_null(layer.indexer_overlap)},
          {"cache", json_rows(layer.cache)}};
}

Json row_of(const LogitAgreement& logits) {
  if (logits.tokens == 0) return nullptr;
  return {{"tokens", logits.tokens},
          {"mean_kl", logits.mean_kl},
          {"worst_kl", logits.worst_kl},
          {"worst_prompt", logits.worst_prompt},
          {"worst_token", logits.worst_token},
          {"top1", logits.top1},
          {"top5", logits.top5},
          {"max_error", logits.max_error},
          {"source_nll", logits.source_nll},
          {"output_nll", logits.output_nll}};
}

Json side_json(const CheckpointFacts& facts) {
  return {{"name", facts.name},
          {"family", facts.family},
          {"dialect", facts.dialect},
          {"layout", facts.layout},
          {"topology", facts.topology},
          {"made_by", facts.made_by},
          {"fingerprint", facts.fingerprint},
          {"kind", facts.kind},
          {"tensors", facts.tensors},
          {"files", facts.files},
          {"bytes", facts.bytes},
          {"static_inputs", facts.static_inputs},
          {"schemes", json_list(facts.schemes, share_json)}};
}

Json measured_json(const Report& report, std::size_t n_worst) {
  Json json = {{"changes", json_rows(report.changes)}};
  if (report.structure) json["structure"] = structure_json(*report.structure);
  if (report.weights) json["weights"] = weights_json(*report.weights, n_worst);
  if (report.layers) json["layers"] = layers_json(report);
  if (report.greedy) json["greedy"] = greedy_json(*report.greedy);
  if (report.draft) json["draft"] = draft_json(*report.draft);
  if (report.text) json["text"] = text_json(*report.text);
  return json;
}

Json report_json(const Report& report, std::size_t n_worst) {
  const Coverage coverage = coverage_of(report);
  Json json = {{"passed", report.passed()},
               {"levels", json_list(report.levels, level_name)},
               {"verdict", verdict_word(report)},
               {"judged", coverage.judged},
               {"measured", coverage.measured},
               {"not_judged", coverage.not_judged},
               {"not_run", report.not_run},
               {"wanted", report.wanted},
               {"source", report.source ? side_json(*report.source) : Json(nullptr)},
               {"output", side_json(report.output)},
               {"reference", report.reference},
               {"gates", json_rows(report.gates)}};
  json.update(measured_json(report, n_worst));
  // A comparison has this for each side; here it is the document's own.
  Json errors = json_list(report.faults, check::fault_json);
  Json warnings = check::remarks_json(report.warnings);
  std::uint64_t n_errors = errors.size(), n_warnings = warnings.size();
  if (report.structure) {
    n_errors += report.structure->errors();
    n_warnings += report.structure->warnings();
    Json& structure = json["structure"];
    for (Json& fault : structure["errors"]) errors.push_back(std::move(fault));
    for (Json& fault : structure["warnings"]) warnings.push_back(std::move(fault));
    for (const char* key : {"errors", "warnings", "summary"}) structure.erase(key);
  }
  json.update({{"errors", std::move(errors)},
               {"warnings", std::move(warnings)},
               {"summary", {{"errors", n_errors}, {"warnings", n_warnings}}}});
  return as_document(std::move(json));
}

}  // namespace ingot::verify
