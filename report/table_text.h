#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/document.h"

namespace ingot {

/// The words of a text in lines of at most `width` columns; one empty line for none. A word that is
/// wider has a line of its own.
std::vector<std::string> filled_lines(std::string_view text, std::size_t width);

/// The lines of a text, each filled into several where it is wider than `width` (0: any). What does
/// not fit its first line is behind the label that it begins with, else two columns further in. A
/// command to copy stays whole, and its remark has lines of its own.
std::string wrapped_text(std::string_view text, std::size_t width);

/// The first `n_rows` rows of a table in aligned columns, printable, below the titles if there are
/// any. Where a row would be wider than `width` (0: any), texts are filled. Where their words do
/// not fit, a row becomes a block of lines, a title and a text each; if it has numbers, columns are
/// left out from the right, and then `...` is in the middle of words.
std::string table_text(const Table& table, std::size_t width = 0, std::size_t n_rows = SIZE_MAX);

}  // namespace ingot
