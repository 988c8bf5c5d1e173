// page_writer FILE passing|failing|comparison [LAYERS]: writes the page of a sample report, for
// page.py.
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "tests/verify/report/sample_report.h"

int main(int argc, char** argv) {
  if (argc < 3) return EXIT_FAILURE;
  const std::size_t n_layers = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 62;
  const std::string_view which = argv[2];
  std::ofstream(argv[1])
      << (which == "comparison"
              ? ingot::verify::comparison_html(ingot::testing::sample_comparison(n_layers))
              : ingot::verify::report_html(which == "passing"
                                               ? ingot::testing::passing_report(n_layers)
                                               : ingot::testing::failing_report(n_layers)));
  return EXIT_SUCCESS;
}
