#pragma once

#include <string_view>

namespace ingot::cli {

/// Writes a page to stdout. On a terminal the program of PAGER shows it, if that is set.
void show_page(std::string_view text);

}  // namespace ingot::cli
