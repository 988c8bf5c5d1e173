#pragma once

#include "convert/output/quality_report.h"
#include "formats/json/json_fwd.h"
#include "verify/report/document.h"

namespace ingot::cli {

/// What quantization cost, by scheme and role, and the `n_worst` worst tensors; empty when nothing
/// was quantized.
verify::Section quality_section(const convert::QualityReport& report, std::size_t n_worst);
formats::Json quality_json(const convert::QualityReport& report);

}  // namespace ingot::cli
