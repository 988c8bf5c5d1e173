// page_writer FILE passing|failing [LAYERS]: writes the page of a sample report, for page.py.
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "tests/verify/report/sample_report.h"

int main(int argc, char** argv) {
  if (argc < 3) return EXIT_FAILURE;
  const std::size_t n_layers = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 62;
  const bool is_passing = std::string_view(argv[2]) == "passing";
  std::ofstream(argv[1]) << ingot::verify::report_html(
      is_passing ? ingot::testing::passing_report(n_layers)
                 : ingot::testing::failing_report(n_layers));
  return EXIT_SUCCESS;
}
