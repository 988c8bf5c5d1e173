#pragma once

#include <span>
#include <string_view>

namespace ingot::cli {

/// The choice that a mistyped word most likely meant, or nothing when none is near: fewest edits,
/// neighbouring letters swapped counting as one, at most a third of the word.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> choices);

}  // namespace ingot::cli
