#include <fmt/format.h>

#include "check/rules/loader_rule_bodies.h"
#include "formats/base/error.h"
#include "formats/dialect/engine_limits.h"
#include "formats/dialect/source_activations.h"

// What engines refuse of schemes and activations, and what they never build quantized.

namespace ingot::formats::rule_bodies {
namespace {

// What the config says of activations, or nothing where the lists that say it cannot be read: that
// is told by rows of their own.
std::optional<SourceActivations> activations_of(const Checkpoint& checkpoint) {
  try {
    return SourceActivations(checkpoint.config(), checkpoint.dialect(), checkpoint.description());
  } catch (const Error&) {
    return std::nullopt;
  }
}

EngineLimitsMet limits_met(const Checkpoint& checkpoint) {
  EngineLimitsMet met(checkpoint.dialect());
  // These engines load no slices.
  if (checkpoint.slicing() != nullptr) return met;
  const std::optional<SourceActivations> activations = activations_of(checkpoint);
  if (!activations) return met;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_quantized(tensor)) continue;
    met.add({.name = tensor.name,
             .rule = tensor.rule,
             .scheme = tensor.encoding.scheme,
             .activations = activations->of(tensor.name, tensor.encoding)});
  }
  return met;
}

std::string text_of(const EngineLimitsMet::Met& met) {
  const EngineLimit& limit = *met.limit;
  const std::string weight = fmt::format(
      "{}{}", scheme_facts(limit.scheme).name,
      limit.activations ? fmt::format(" with {} activations", activations_name(*limit.activations))
                        : "");
  const std::string others = met.count == 1 ? "" : fmt::format(" (so are {} more)", met.count - 1);
  if (!limit.option.empty()) {
    return fmt::format("is {}{}, which {} loads with {} only: {}", weight, others,
                       engine_name(limit.engine), limit.option, limit.reason);
  }
  return fmt::format("is {}{}, which {} refuses: {} (it loads {})", weight, others,
                     engine_name(limit.engine), limit.reason, limit.instead);
}

Finding finding_of(const EngineLimitsMet::Met& met) {
  return violation(ErrorCode::kUnsupported, "", met.first, text_of(met));
}

}  // namespace

void engine_refused_by_all(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const EngineLimitsMet limits = limits_met(checkpoint);
  if (!limits.is_refused_by_all()) return;
  for (const EngineLimitsMet::Met& met : limits.met()) {
    if (met.limit->option.empty()) report(finding_of(met));
  }
}

template <Engine kEngine>
void engine_refused_by(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const EngineLimitsMet limits = limits_met(checkpoint);
  const bool is_told = limits.is_refused_by_all();
  for (const EngineLimitsMet::Met& met : limits.met()) {
    if (met.limit->engine == kEngine && (!is_told || !met.limit->option.empty()))
      report(finding_of(met));
  }
}

template void engine_refused_by<Engine::kVllm>(const Checkpoint&, const RuleOptions&,
                                               const Report&);
template void engine_refused_by<Engine::kSglang>(const Checkpoint&, const RuleOptions&,
                                                 const Report&);

void plain_module(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || !is_quantized(tensor)) continue;
    if (can_be_quantized(checkpoint.dialect(), *tensor.rule)) continue;
    found.add(tensor.rule, at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kDtypeMismatch,
                              fmt::format("is {}, but loaders build this module unquantized",
                                          scheme_facts(tensor.encoding.scheme).name)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
