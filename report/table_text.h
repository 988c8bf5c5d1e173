#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/document.h"

namespace ingot {

/// How a word that is wider than a line is shown: it has a line of its own, or is cut.
enum class LongWords : std::uint8_t { kWhole, kCut };
/// The words of a text in lines of at most `width` columns; one empty line for none.
std::vector<std::string> filled_lines(std::string_view text, std::size_t width,
                                      LongWords long_words = LongWords::kWhole);

/// The first `n_rows` rows of a table in aligned columns, printable, below the titles if there are
/// any. Texts are filled where a row would be wider than `width`; 0: never. Where it is wider all
/// the same and has only texts, a row becomes a block of lines, a title and a text each.
std::string table_text(const Table& table, std::size_t width = 0, std::size_t n_rows = SIZE_MAX);

}  // namespace ingot
