#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cli/terminal/terminal.h"

namespace ingot::cli {

/// Markdown as text of at most `width` columns (40 at least): paragraphs and lists filled, tables
/// with their cells filled, code as it is and never cut, links as their words. It knows what docs/
/// use: headings, paragraphs, lists of one depth, tables, fenced code, code spans, emphasis, links.
/// `bold` is put around headings.
std::string markdown_text(std::string_view markdown, std::size_t width, const Emphasis& bold);

}  // namespace ingot::cli
