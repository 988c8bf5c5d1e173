#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/document.h"
#include "report/rows.h"
#include "verify/gates/report.h"

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
/// Errors and warnings of the structure; `side`, where it is given, is whose.
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

}  // namespace ingot::verify
