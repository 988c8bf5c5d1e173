#include <fmt/format.h>

#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"
#include "verify/report/verdict.h"

namespace ingot::verify {

std::string report_html(const Report& report) {
  // An icon of nothing keeps browsers from asking a server for one.
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n"
      "<title>{}: {}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
      verdict_word(report), html_text(report.output.name), html_style());
  for (const auto section :
       {html_verdict, html_gates, html_sides, html_findings, html_layers, html_router, html_schemes,
        html_heatmap, html_histogram, html_worst, html_outputs}) {
    page += section(report);
  }
  page += fmt::format("</main>\n<footer>ingot verify {}</footer>\n</body>\n</html>\n",
                      html_text(report.tool_version));
  return page;
}

}  // namespace ingot::verify
