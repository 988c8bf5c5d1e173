#pragma once

#include <optional>
#include <string>

namespace ingot::verify {

struct Report;

/// For Report::warnings: what to say when more than a third of the greedy prompts are inconclusive.
std::optional<std::string> inconclusive_warning(const Report& report);

}  // namespace ingot::verify
