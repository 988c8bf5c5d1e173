#include "library/options/family_learning.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/family/families.h"
#include "formats/family/proposal/family_proof.h"
#include "formats/family/proposal/forward_text.h"
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

/// A family's text with other lines in front of its rows.
std::string with_lines(std::string yaml, std::string_view lines) {
  constexpr std::string_view kRows = "tensors:\n";
  yaml.insert(yaml.find(kRows), lines);
  return yaml;
}

/// A comparison of what is computed under a family with what was recorded of a model.
struct Difference {
  std::string why;          // the first difference; empty: there is none
  std::size_t n_right = 0;  // layers that give the recorded state where they are given one
  bool is_refused = false;  // nothing is computed: rows or config are not of this forward pass
};

Difference difference(const std::string& yaml, const ClassModel& model) {
  // Rounding in FP32; another model differs in the first digits.
  constexpr double kMostError = 1e-4, kMostDivergence = 1e-6;
  Difference found;
  try {
    const std::string family(formats::add_family(yaml, "the family that is tried").spec);
    const verify::ReferenceReport report = verify::compare_reference(
        shard::open_source(model.checkpoint, {.open = {.family = family}}), model.recorded,
        {.output_profile = inference::Profile::kF32, .threads = available_processors()});
    for (const verify::LayerAgreement& layer : report.layers.layers) {
      found.n_right += layer.isolated.relative_error <= kMostError ? 1 : 0;
      if (found.why.empty() && layer.accumulated.relative_error > kMostError)
        found.why = fmt::format("states of {} are {:.1g} away", verify::layer_title(layer),
                                layer.accumulated.relative_error);
    }
    if (!found.why.empty()) return found;
    const verify::LogitAgreement& logits = report.layers.logits;
    if (logits.tokens == 0 || logits.worst_kl > kMostDivergence) {
      found.why = "its logits are others";
    } else if (!report.greedy || report.greedy->equal != report.greedy->prompts.size()) {
      found.why = "its tokens are others";
    }
  } catch (const Error& error) {
    // A family whose forward pass cannot have these rows, or this config.
    found.why = error.message();
    std::ranges::replace(found.why, '\n', ' ');
    found.is_refused = true;
  }
  return found;
}

/// The search for the forward pass of a class's model: first those of families as they are, the
/// nearest first; then the mixers of one with the mixture, or the norms and ends, of another, those
/// first whose layers were right more often.
class Computation {
 public:
  Computation(const Checkpoint& source, const FamilyEvidence& evidence, const ClassModel& model,
              const LearnedFamily& learned)
      : source_(source), weights_(weights_of(source)), evidence_(evidence), model_(model) {
    std::vector<std::optional<GateUpOrder>> of_gates = {evidence.gate_up};
    if (is_open(learned, formats::kGateUpQuestion))
      of_gates = {GateUpOrder::kHalves, GateUpOrder::kInterleaved};
    std::vector<std::string> of_joined = {{}};
    if (is_open(learned, formats::kJoinedQuestion))
      of_joined = {std::string(formats::kJoinedInParts), std::string(formats::kJoinedInTurn)};
    for (const std::optional<GateUpOrder> gate_up : of_gates) {
      for (const std::string& joined : of_joined) orders_.push_back({gate_up, joined});
    }
    for (const formats::Family* family : learned.nearest) {
      if (family->forward != nullptr)
        tried_.push_back({family, formats::forward_text(*family, source.config())});
    }
  }

  ComputedFamily run(LearnedFamily& learned) {
    for (Tried& one : tried_) {
      const std::string lines =
          fmt::format("like: {}\nwithout: [\"*\"]\nforward: inherited\n", one.family->name);
      if (computes(one, lines, learned)) return {.forward = std::string(one.family->name)};
    }
    std::ranges::stable_sort(tried_, std::greater(), &Tried::n_right);
    for (Tried& one : tried_) {
      for (const bool is_of_mixture : {true, false}) {
        std::string refusal;
        std::size_t n_refused = 0;
        for (const Tried& other : tried_) {
          if (n_refused == kMostRefused) break;
          const formats::ForwardText& mixture = (is_of_mixture ? other : one).text;
          const formats::ForwardText& ends = (is_of_mixture ? one : other).text;
          const std::string lines = formats::joined_text(one.text, mixture, ends);
          if (!joined_.insert(lines).second) continue;
          if (computes(one, lines, learned))
            return {.forward = fmt::format("{} with the {} of {}", one.family->name,
                                           is_of_mixture ? "mixture" : "norms and ends",
                                           other.family->name)};
          n_refused = last_.is_refused && last_.why == refusal ? n_refused + 1 : 0;
          refusal = last_.why;
          if (joined_.size() == kMostJoined) return not_found();
        }
      }
    }
    return not_found();
  }

 private:
  // A family that is tried stays in memory.
  static constexpr std::size_t kMostJoined = 3000;
  // One fact that refuses mixers with so many others in turn is a fact about them.
  static constexpr std::size_t kMostRefused = 6;

  /// Orders of gates and ups in stacks, and of several matrices in one.
  using Orders = std::pair<std::optional<GateUpOrder>, std::string>;

  struct Tried {
    const formats::Family* family;
    formats::ForwardText text;
    std::size_t n_right = 0;
  };

  ComputedFamily not_found() const {
    return {.reason = fmt::format("no forward pass of {} families, or of two of them joined, gives "
                                  "its tokens and states{}",
                                  tried_.size(), closest_)};
  }

  /// True if it is computed with rows as this family has them, and these lines; then it is
  /// `learned`, unless it is computed whatever the order of stacks, which stays a question.
  bool computes(Tried& one, const std::string& lines, LearnedFamily& learned) {
    std::vector<LearnedFamily> agreeing;
    for (const Orders& order : orders_) {
      LearnedFamily found = rows_like(*one.family, order);
      found.yaml = with_lines(std::move(found.yaml), lines);
      last_ = difference(found.yaml, model_);
      if (last_.why.empty()) {
        agreeing.push_back(std::move(found));
        continue;
      }
      one.n_right = std::max(one.n_right, last_.n_right);
      if (!closest_.empty() && last_.n_right <= most_right_) continue;
      most_right_ = last_.n_right;
      closest_ = fmt::format("; under {}, the closest: {}", one.family->name, last_.why);
    }
    // Where the small model has single experts, or matrices, all orders agree: none is told.
    if (agreeing.size() == 1) learned = std::move(agreeing.front());
    return !agreeing.empty();
  }

  /// The family with rows of another one before others, which is kept.
  LearnedFamily rows_like(const formats::Family& family, const Orders& order) {
    const auto [kept, is_new] = learned_.try_emplace({family.name, order});
    if (!is_new) return kept->second;
    FamilyEvidence tried = evidence_;
    tried.preferred = family.name;
    tried.gate_up = order.first;
    tried.joined = order.second;
    if (!evidence_.gate_up) tried.gate_up_reason = "as the computed model has them";
    return kept->second = formats::learn_family(source_.config(), weights_, tried);
  }

  const Checkpoint& source_;
  std::vector<formats::UnknownWeight> weights_;
  const FamilyEvidence& evidence_;
  const ClassModel& model_;
  std::vector<Orders> orders_;
  std::vector<Tried> tried_;
  std::set<std::string> joined_;
  std::map<std::pair<std::string_view, Orders>, LearnedFamily> learned_;
  Difference last_;
  std::size_t most_right_ = 0;
  std::string closest_;
};

}  // namespace

ComputedFamily compute_family(const OpenUnder& open, const FamilyEvidence& evidence,
                              const ClassModel& model, LearnedFamily& learned) {
  const bool is_open_else = std::ranges::any_of(learned.questions, [](const auto& question) {
    return question.key != formats::kGateUpQuestion && question.key != formats::kJoinedQuestion;
  });
  if (is_open_else || !learned.faults.empty()) return {.reason = "rows are not settled"};
  const Checkpoint source = open("generic");
  return Computation(source, evidence, model, learned).run(learned);
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
