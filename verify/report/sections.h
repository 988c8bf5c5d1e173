#pragma once

#include <cstddef>
#include <cstdint>

#include "verify/gates/report.h"
#include "verify/report/document.h"

namespace ingot::verify {

/// For whom a report is written.
enum class Form : std::uint8_t {
  kText,  ///< a terminal: what is wrong, and a summary of the rest
  kCard,  ///< a model card: the same, with every gate and what was compared
  kPage,  ///< every figure, drawn and in tables
};

/// Parts of the report, which every writer takes: sections in order, none for levels that did not
/// run; `n_worst` tensors and layers.
using Sections = std::vector<Section>;
void add_layer_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections);
void add_weight_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections);
void add_output_section(const Report& report, Form form, Sections& sections);

}  // namespace ingot::verify
