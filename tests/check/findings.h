#pragma once

#include "check/check.h"
#include "tests/support/test.h"

namespace ingot::check {

/// For matchers on findings.
inline void PrintTo(const Finding& finding, std::ostream* out) {
  *out << finding.rule << "|" << finding.file << "|" << finding.tensor << "|" << finding.message
       << " (" << error_code_name(finding.code) << ")\n";
}

}  // namespace ingot::check

namespace ingot::testing {

/// `rule|file|tensor|message`, a line for each finding.
inline std::string text_of(const std::vector<check::Finding>& findings) {
  std::string text;
  for (const check::Finding& finding : findings) {
    text += std::string(finding.rule) + "|" + finding.file + "|" + finding.tensor + "|" +
            finding.message + "\n";
  }
  return text;
}

/// Those but for the lack of a tokenizer: models that are made or kept for tests have none.
inline std::vector<check::Finding> but_tokenizer(std::vector<check::Finding> findings) {
  std::erase_if(findings,
                [](const check::Finding& finding) { return finding.rule == "tokenizer.present"; });
  return findings;
}

/// Expects one finding, and gives it.
inline check::Finding only(const std::vector<check::Finding>& findings) {
  EXPECT_THAT(findings, ::testing::SizeIs(1));
  return findings.empty() ? check::Finding() : findings.front();
}

}  // namespace ingot::testing
