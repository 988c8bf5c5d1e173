#pragma once

#include <string>

#include "convert/quality_report.h"
#include "formats/json/json.h"

namespace ingot::cli {

/// The error tables at the end of a conversion; empty when nothing was quantized.
std::string quality_text(const convert::QualityReport& report);
formats::Json quality_json(const convert::QualityReport& report);

}  // namespace ingot::cli
