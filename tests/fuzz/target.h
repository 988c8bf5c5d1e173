#pragma once

#include <cstddef>
#include <span>

namespace ingot::fuzz {

/// Feeds the parser of this executable with bytes from a stranger; one *_fuzz.cc per parser defines
/// it. True when the parser accepts them, false when it throws ingot::Error, which is the only
/// exception that is caught. On acceptance it also checks the parser's promises about its result,
/// and throws std::logic_error if that is broken.
bool accepts(std::span<const std::byte> input);

}  // namespace ingot::fuzz
