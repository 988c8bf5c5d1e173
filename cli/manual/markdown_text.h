#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/terminal.h"

namespace ingot::cli {

/// How a word that is wider than a line is shown: it has a line of its own, or is cut.
enum class LongWords : std::uint8_t { kWhole, kCut };
/// The words of a text in lines of at most `width` columns; one empty line for none.
std::vector<std::string> filled_lines(std::string_view text, std::size_t width,
                                      LongWords long_words = LongWords::kWhole);

/// Markdown as text of at most `width` columns (40 at least): paragraphs and lists filled, tables
/// with their cells filled, code as it is and never cut, links as their words. It knows what docs/
/// use: headings, paragraphs, lists of one depth, tables, fenced code, code spans, emphasis, links.
/// `bold` is put around headings.
std::string markdown_text(std::string_view markdown, std::size_t width, const Emphasis& bold);

}  // namespace ingot::cli
