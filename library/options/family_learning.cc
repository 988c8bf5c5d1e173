#include "library/options/family_learning.h"

#include <algorithm>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/family/families.h"
#include "formats/family/proposal/family_proof.h"
#include "formats/storage/encoding.h"
#include "shard/join/source.h"
#include "verify/layers/reference.h"
#include "verify/outputs/prompts.h"
#include "verify/weights/stack_sides.h"

namespace ingot::library {
namespace {

using formats::Checkpoint;
using formats::FamilyEvidence;
using formats::GateUpOrder;
using formats::LearnedFamily;
using formats::StackOrder;

bool quantizes(const convert::Recipe& recipe) {
  const auto is_quantized = [](const std::optional<formats::SchemeId>& scheme) {
    return scheme && formats::scheme_facts(*scheme).quantized;
  };
  return is_quantized(recipe.to) ||
         std::ranges::any_of(recipe.rules,
                             [&](const convert::Rule& rule) { return is_quantized(rule.scheme); });
}

std::vector<formats::UnknownWeight> weights_of(const Checkpoint& source) {
  std::vector<formats::UnknownWeight> weights;
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    formats::UnknownWeight& weight = weights.emplace_back();
    weight = {.name = tensor.name,
              .shape = &tensor.shape,
              .dtype = source.stored()[tensor.encoding.stored.weight()].dtype,
              .is_quantized = formats::scheme_facts(tensor.encoding.scheme).quantized,
              .block = {tensor.encoding.block_rows, tensor.encoding.block_cols}};
    tensor.encoding.stored.for_each(
        [&](formats::Part, std::uint32_t i) { weight.n_bytes += source.stored()[i].n_bytes; });
  }
  return weights;
}

bool is_open(const LearnedFamily& learned, std::string_view key) {
  return std::ranges::find(learned.questions, key, &formats::FamilyQuestion::key) !=
         learned.questions.end();
}

/// Adds what the values of stacks tell that is asked for. They are read as if they were stored in
/// one way, and say whether they are.
void measure_stacks(const OpenUnder& open, std::string_view yaml, FamilyEvidence& evidence,
                    const LearnedFamily& learned) {
  const Checkpoint read =
      open(std::string(formats::add_family(yaml, "the family that is tried").spec));
  if (is_open(learned, formats::kStackQuestion)) {
    for (const verify::StackSides& sides : verify::measure_stacks(read)) {
      if (!sides.is_told) continue;
      const StackOrder order =
          sides.is_as_row_says ? StackOrder::kOutputMajor : StackOrder::kInputMajor;
      // Stacks of one model that contradict one another tell nothing.
      if (evidence.order && *evidence.order != order) {
        evidence.order.reset();
        return;
      }
      evidence.order = order;
    }
    return;
  }
  if (const auto order = verify::measure_gate_up(read)) {
    evidence.gate_up = *order;
    evidence.gate_up_reason = *order == GateUpOrder::kHalves ? "in halves, as their values say"
                                                             : "in turn, as their values say";
  }
}

/// A family's text with the forward pass of another, and with none of its rows.
std::string with_forward(std::string yaml, std::string_view family) {
  constexpr std::string_view kRows = "tensors:\n";
  yaml.insert(yaml.find(kRows),
              fmt::format("like: {}\nwithout: [\"*\"]\nforward: inherited\n", family));
  return yaml;
}

/// True if ingot computes what was recorded of a model, under this family.
bool computes(const std::string& yaml, const ClassModel& model) {
  // Rounding in FP32; another model differs in the first digits.
  constexpr double kMostError = 1e-4, kMostDivergence = 1e-6;
  try {
    const std::string family(formats::add_family(yaml, "the family that is tried").spec);
    const verify::ReferenceReport report = verify::compare_reference(
        shard::open_source(model.checkpoint, {.open = {.family = family}}), model.recorded,
        {.output_profile = inference::Profile::kF32, .threads = available_processors()});
    const bool has_states = std::ranges::all_of(report.layers.layers, [](const auto& layer) {
      return layer.accumulated.relative_error <= kMostError;
    });
    const verify::LogitAgreement& logits = report.layers.logits;
    return has_states && logits.tokens > 0 && logits.worst_kl <= kMostDivergence && report.greedy &&
           report.greedy->equal == report.greedy->prompts.size();
  } catch (const Error&) {
    // A family whose forward pass cannot have these rows, or this config.
    return false;
  }
}

}  // namespace

bool compute_family(const OpenUnder& open, FamilyEvidence evidence, const ClassModel& model,
                    LearnedFamily& learned) {
  const Checkpoint source = open("generic");
  const std::vector<formats::UnknownWeight> weights = weights_of(source);
  std::vector<std::optional<GateUpOrder>> orders = {evidence.gate_up};
  if (is_open(learned, formats::kGateUpQuestion))
    orders = {GateUpOrder::kHalves, GateUpOrder::kInterleaved};
  for (const formats::Family* family : learned.nearest) {
    if (family->forward == nullptr) continue;
    for (const std::optional<GateUpOrder>& order : orders) {
      FamilyEvidence tried = evidence;
      tried.preferred = family->name;
      tried.gate_up = order;
      if (!evidence.gate_up) tried.gate_up_reason = "as the computed model has them";
      LearnedFamily found = formats::learn_family(source.config(), weights, tried);
      found.yaml = with_forward(std::move(found.yaml), family->name);
      if (!computes(found.yaml, model)) continue;
      learned = std::move(found);
      return true;
    }
  }
  return false;
}

Flag accept_flag(bool& accept, const std::string& family) {
  return {"--accept-family",
          &accept,
          "--family auto: take the family without a look at it where its proof is not complete",
          {.idle = belongs_to("--family auto", [&family] { return family == kAutoFamily; })}};
}

LearnedFamily learned_family(const OpenUnder& open, FamilyEvidence& evidence) {
  const Checkpoint source = open("generic");
  const std::vector<formats::UnknownWeight> weights = weights_of(source);
  LearnedFamily learned = formats::learn_family(source.config(), weights, evidence);
  // The order of gates and ups is along a side that has to be known before.
  for (const std::string_view key : {formats::kStackQuestion, formats::kGateUpQuestion}) {
    if (!is_open(learned, key)) continue;
    FamilyEvidence tried = evidence;
    if (key == formats::kStackQuestion) tried.order = StackOrder::kOutputMajor;
    measure_stacks(open, formats::learn_family(source.config(), weights, tried).yaml, evidence,
                   learned);
    learned = formats::learn_family(source.config(), weights, evidence);
  }
  return learned;
}

std::string structure_proof(const LearnedFamily& learned) {
  return fmt::format("every tensor has a row and its shape, fused sets are whole{}{}",
                     learned.has_stacks ? ", the order of stacks is told" : "",
                     learned.n_answers == 0
                         ? ""
                         : fmt::format(", {} {} answered by the user", learned.n_answers,
                                       learned.n_answers == 1 ? "question was" : "questions were"));
}

std::string open_text(const LearnedFamily& learned) {
  std::string text;
  for (const formats::FamilyQuestion& question : learned.questions) {
    text += fmt::format("\n  {}: {} (--answer '{}={}'", question.key, question.text, question.key,
                        question.values.front());
    const std::span others = std::span(question.values).subspan(1);
    text += others.empty() ? ")" : fmt::format(", or {})", fmt::join(others, ", or "));
  }
  for (const std::string& fault : learned.faults) text += fmt::format("\n  {}", fault);
  return text;
}

std::string settle_family(const OpenUnder& open, bool accept, const convert::Recipe& recipe) {
  FamilyEvidence evidence;
  const LearnedFamily learned = learned_family(open, evidence);
  const bool is_proven = learned.is_proven();
  if (is_proven || accept) {
    const std::string yaml =
        is_proven ? formats::with_proof(learned.yaml, structure_proof(learned)) : learned.yaml;
    return std::string(formats::add_family(yaml, "the family made for it").spec);
  }
  if (!quantizes(recipe)) return "generic";
  throw Error(ErrorCode::kUnsupported,
              "its family is not proven, so nothing says which tensors may be quantized (ingot "
              "family learn DIR --out my_model.yaml takes answers; --accept-family takes it as it "
              "is):{}",
              open_text(learned))
      .in_file(open("generic").directory().string());
}

}  // namespace ingot::library
