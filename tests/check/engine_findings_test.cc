#include "check/engine_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::check {

using engines::Engine;
using enum ErrorCode;

namespace {

TEST(EngineFindings, AreThoseOfTheEngine) {
  const auto finding = [](std::string_view rule) {
    Finding made = violation(kUnsupported, "", "", "x");
    made.severity = Severity::kWarning;
    made.rule = rule;
    return made;
  };
  const std::vector<Finding> all = {finding("engine.refused-by-vllm"),
                                    finding("engine.refused-by-sglang"), finding(""),
                                    finding("engine.options-of-vllm")};
  const std::vector<Finding> own = findings_for(Engine::kVllm, all);
  ASSERT_EQ(own.size(), 3U);
  EXPECT_EQ(own[2].severity, Severity::kWarning) << "it loads, and may be right";
  EXPECT_EQ(own[0].rule, "engine.refused-by-vllm");
  EXPECT_EQ(own[0].severity, Severity::kError);
  EXPECT_EQ(own[1].severity, Severity::kWarning);
  EXPECT_EQ(findings_for(Engine::kTransformers, all).size(), 1U);
}

}  // namespace
}  // namespace ingot::check
