#pragma once

#include <cstddef>
#include <cstdint>

#include "verify/report/document.h"
#include "verify/report/report.h"

namespace ingot::verify {

/// For whom a report is written.
enum class Form : std::uint8_t {
  kText,  ///< a terminal: what is wrong, and a summary of the rest
  kCard,  ///< a model card: the same, with every gate and what was compared
  kPage,  ///< every figure, drawn and in tables
};

/// The report as a list of sections, which every writer takes; `n_worst` tensors and layers.
Document report_document(const Report& report, Form form, std::size_t n_worst);

/// Its parts: sections in order, none for levels that did not run.
using Sections = std::vector<Section>;
void add_layer_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections);
void add_weight_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections);
void add_output_section(const Report& report, Form form, Sections& sections);

/// Drawings, as HTML.
Drawing draw_hidden_states(const Report& report);
Drawing draw_overlaps(const LayersReport& layers);
Drawing draw_heat_map(const WeightsReport& weights);
Drawing draw_histograms(const WeightsReport& weights);

/// "fp8-block → nvfp4", or the one scheme.
std::string change_text(std::string_view from, std::string_view to);

}  // namespace ingot::verify
