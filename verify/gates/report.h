#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"
#include "formats/json/json_fwd.h"
#include "verify/gates/gate.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/draft_check.h"
#include "verify/outputs/greedy_check.h"
#include "verify/outputs/likelihood.h"
#include "verify/structure/compared_checkpoint.h"
#include "verify/structure/structure_check.h"
#include "verify/weights/weight_check.h"

namespace ingot::verify {

/// The parts that were compared, and the results. Holds no time and no path: the same inputs and
/// options give the same report.
struct Report {
  std::string tool_version;
  std::optional<CheckpointFacts> source;  ///< nullopt when a single checkpoint was looked at
  CheckpointFacts output;
  std::vector<SchemeChange> changes;  ///< changes from the source's schemes to the output's
  std::vector<Level> levels;          ///< levels that were asked for
  std::optional<StructureReport> structure;
  std::optional<WeightsReport> weights;
  std::optional<LayersReport> layers;
  std::optional<GreedyReport> greedy;
  std::optional<DraftReport> draft;
  std::optional<TextReport> text;
  std::string reference;  ///< the program that recorded the activations, or empty
  /// Levels that were asked for and could not be run, with the reason ("layers: the output could
  /// not be opened"). Each fails the report.
  std::vector<std::string> not_run;
  std::vector<check::Finding> faults;  ///< the reasons, in their order
  std::vector<std::string> warnings;
  /// The requests of the conversion that weights are judged by, or the assumption where none are
  /// recorded; empty: nothing out of the ordinary, or weights were not compared.
  std::string wanted;
  std::vector<GateResult> gates;
  bool was_read = true;  ///< the output could be opened
  /// Neither side is the reference: both are outputs, and a difference is no fault.
  bool is_difference = false;

  /// Every gate passed, and every level ran.
  [[nodiscard]] bool passed() const;
};

/// The first layer whose isolated cosine is below its gate, or nullopt.
std::optional<std::size_t> first_bad_layer(const Report& report);

/// `weights.cosine[nvfp4] >= 0.996`.
std::string gate_text(const GateResult& result);

/// Parts of the output, by their judgement: "weights of 361 tensors".
struct Coverage {
  std::vector<std::string> judged;      ///< parts that a gate was held against
  std::vector<std::string> measured;    ///< parts that no gate applied to
  std::vector<std::string> not_judged;  ///< parts of the output that none of the levels saw
};
Coverage coverage_of(const Report& report);

/// "PASS", "FAIL", or "NOT JUDGED" when no gate applied to anything.
std::string_view verdict_word(const Report& report);
/// One sentence: the first failure, or the parts that were compared and hold, those only measured,
/// and those that these levels cannot judge.
std::string verdict_sentence(const Report& report);
/// The two sides of the comparison: "source against output", with names and schemes.
std::string compared_sentence(const Report& report);

/// The keys of the report in documents, --json and ingot.verify.json. Infinite and undefined
/// numbers are null.
formats::Json report_json(const Report& report, std::size_t n_worst = 100);
/// For a terminal: at most kScreenLines lines, with the five worst tensors. When `n_worst` is
/// given, as many tensors and layers, and every other line.
std::string report_text(const Report& report, std::optional<std::size_t> n_worst = {},
                        std::size_t width = 0);
/// For a model card.
std::string report_markdown(const Report& report);
/// A page of its own.
std::string report_html(const Report& report);

}  // namespace ingot::verify
