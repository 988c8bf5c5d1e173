#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/document.h"
#include "report/rows.h"
#include "report/svg.h"
#include "verify/compare/comparison.h"
#include "verify/gates/report.h"
#include "verify/layers/layer_check.h"

namespace ingot::verify {

/// For whom a report is written.
enum class Form : std::uint8_t {
  kText,  ///< a terminal: faults, and a summary of the rest
  kCard,  ///< a model card: the same, with every gate and the parts that were compared
  kPage,  ///< every figure, drawn and in tables
};

/// One column of a summary.
struct SummarySide {
  std::string title;
  const Report* report = nullptr;
};
struct Summary {
  std::string_view source_title = "source";
  std::vector<SummarySide> sides;
  bool is_judged = true;
};

/// "fp8-block → nvfp4", or the one scheme.
std::string change_text(std::string_view from, std::string_view to);
/// The column of change_text() of rows with "from" and "to".
Field change_field(std::string title);
/// "tiny-v32 (deepseek: fp8-block, bf16)".
std::string side_text(const CheckpointFacts& facts);
/// Errors and warnings of the structure. `side`: the name of the output; empty: there is one.
Remarks findings_of(const StructureReport& structure, std::string_view side = {});
/// Texts side by side in HTML, each under its title; the texts are HTML already.
struct Answer {
  std::string_view title;
  std::string html;
};
std::string answers_html(const std::vector<Answer>& answers);
/// The answers of the source and its outputs to a prompt, the first difference of each output
/// marked; `outputs` are of the same prompt.
std::string prompt_html(std::size_t number, const std::vector<std::string_view>& titles,
                        const std::vector<const GreedyPrompt*>& outputs);
/// Rows of the report, of which documents and tables are made.
formats::Json row_of(const GateResult& result);
formats::Json row_of(const SchemeChange& change);
formats::Json row_of(const WeightGroup& group);
formats::Json row_of(const TensorWeights* tensor);
formats::Json row_of(const ClippedCache& cache);
formats::Json row_of(const LayerAgreement& layer);
formats::Json row_of(const LogitAgreement& logits);
/// "prompt 1, token 5", where a row is farthest from the source.
std::string worst_place(const formats::Json& row);
/// The members of report_json() that hold measurements.
formats::Json measured_json(const Report& report, std::size_t n_worst);
formats::Json side_json(const CheckpointFacts& facts);

/// Parts of the report, which every writer takes: sections in order, none for levels that did not
/// run; `n_worst` tensors and layers.
using Sections = std::vector<Section>;
void add_summary_section(const Summary& summary, Sections& sections);
void add_layer_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections);
void add_weight_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections);
void add_output_section(const Report& report, Form form, Sections& sections);

/// Rows of the comparison, of which documents and tables are made.
formats::Json row_of(const PairedFigure& figure);
formats::Json row_of(const PairedGroup& group);
formats::Json row_of(const DemandResult& result);

/// The warnings about all sides, each once.
std::vector<std::string> warnings_of(const Comparison& comparison);

/// "+1.25", or which side is exact where the difference is infinite.
std::string signed_decibels(double value);

/// Layers with the results of the levels that ran, of both: on a page all, with curves, else
/// `n_worst` that are farthest apart. The comparison has a reference.
Section paired_layers_section(const Comparison& comparison,
                              const std::vector<PairedTensor>& tensors, Form form,
                              std::size_t n_worst);
/// Shows in colours which side is closer, by layer and role.
Section difference_map_section(const std::vector<PairedTensor>& tensors);

/// One line of a drawing over the layers.
struct Curve {
  std::string_view name, line, mark;  ///< styles of the last two
  double radius = 0;
  /// Value of the layer at this index.
  std::function<std::optional<double>(std::size_t)> value = {};
  std::function<double(double)> part = {};  ///< the place of a value: 0 at the bottom, 1 at the top
  std::function<std::string(double)> text = {};
};

/// The place of 1 - cosine between the decades of an axis.
struct DecadeAxis {
  int low = 0, high = 0;
  [[nodiscard]] double part(double cosine) const;
};
/// The decades around these cosines; values that are no numbers are left out.
DecadeAxis decade_axis(std::span<const double> cosines);

inline constexpr double kHiddenHeight = 340;
inline constexpr std::string_view kDistanceTitle = "1 − cosine (down is closer)";

/// A drawing with the layers from left to right, which must outlive it.
class LayerDrawing {
 public:
  static constexpr double kWidth = 860, kLeft = 62, kRight = kWidth - 64;

  /// `title` is written next to the upright axis.
  LayerDrawing(std::span<const LayerAgreement> layers, double height, std::string_view label,
               std::string_view title);

  [[nodiscard]] double x(std::size_t index) const;
  [[nodiscard]] double y(double part) const;
  [[nodiscard]] Svg& svg() { return svg_; }

  void draw_tick(double part, std::string_view text);
  void draw_decades(const DecadeAxis& axis);
  void draw_layers();
  /// Values that are no numbers break the line and are faults; absent ones are left out.
  void draw(const Curve& curve);

  [[nodiscard]] std::string finish() const;

 private:
  std::span<const LayerAgreement> layers_;
  double height_;
  Svg svg_;
};

/// The curve of a cosine of these layers, which it refers to, as it refers to the axis.
Curve cosine_curve(Curve named, std::span<const LayerAgreement> layers, const DecadeAxis& axis,
                   double (*cosine)(const LayerAgreement&));

}  // namespace ingot::verify
