#pragma once

#include <string>
#include <string_view>

#include "verify/report/report.h"

namespace ingot::verify {

/// Sections of the page, in its order; empty where their level did not run.
std::string html_verdict(const Report& report);
std::string html_gates(const Report& report);
std::string html_sides(const Report& report);
std::string html_findings(const Report& report);
std::string html_layers(const Report& report);
std::string html_router(const Report& report);
std::string html_schemes(const Report& report);
std::string html_heatmap(const Report& report);
std::string html_histogram(const Report& report);
std::string html_worst(const Report& report);
std::string html_outputs(const Report& report);

/// The page's style sheet.
std::string_view html_style();

}  // namespace ingot::verify
