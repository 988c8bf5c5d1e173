#pragma once

#include <string>

namespace ingot::cli {

/// The text of `ingot --version`: ingot, what it links (versions of the libraries loaded, where
/// they can be asked), and the SIMD targets that this CPU can run. No newline at the end.
std::string versions_text();

}  // namespace ingot::cli
