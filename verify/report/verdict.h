#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "verify/report/report.h"

namespace ingot::verify {

/// `weights.cosine[nvfp4] >= 0.996`.
std::string gate_text(const Gate& gate);

/// What was looked at, by what came of it: "weights of 361 tensors".
struct Coverage {
  std::vector<std::string> judged;      ///< some gate was held against it
  std::vector<std::string> measured;    ///< no gate applied
  std::vector<std::string> not_judged;  ///< in the output, but seen by none of the levels
};
Coverage coverage_of(const Report& report);

/// "PASS", "FAIL", or "NOT JUDGED" when no gate applied to anything.
std::string_view verdict_word(const Report& report);

/// One sentence: what fails first, or what was compared and held, what was only measured, and what
/// these levels cannot judge.
std::string verdict_sentence(const Report& report);

/// What it was compared with: "source against output", with names and schemes.
std::string compared_sentence(const Report& report);

}  // namespace ingot::verify
