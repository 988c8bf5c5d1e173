#pragma once

#include <string>

#include "verify/report/report.h"

namespace ingot::verify {

/// `weights.cosine[nvfp4] >= 0.996`.
std::string gate_text(const Gate& gate);

/// One sentence: what fails first, or what was compared and held.
std::string verdict_sentence(const Report& report);

/// What it was compared with: "source against output", with names and schemes.
std::string compared_sentence(const Report& report);

}  // namespace ingot::verify
