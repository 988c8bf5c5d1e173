#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/rules/loader_rules.h"
#include "engines/verdicts.h"

namespace ingot::check {

using engines::Engine;
using enum ErrorCode;

namespace {

TEST(Findings, ComeOnceErrorsFirstAndKindsCounted) {
  Findings found("/models/out");
  const auto at = [](std::string_view tensor) {
    return violation(kMismatch, "", tensor, "differs");
  };
  found.warning("a", Error(kMismatch, "is odd").in_file("/models/out/config.json"));
  for (const std::string_view tensor : {"1", "2", "3"}) found.add(at(tensor), &found);
  for (const std::string_view tensor : {"x", "y", "x"}) found.add(at(tensor));
  const std::vector<Finding> all = found.take();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].tensor, "x");
  EXPECT_EQ(all[1].tensor, "y");
  EXPECT_EQ(all[2].message, "differs (so do 2 more of this kind)");
  EXPECT_EQ(all[3].file, "config.json");
  EXPECT_TRUE(found.take().empty());
}

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

TEST(EngineFindings, AMissingTokenizerIsAnOption) {
  Finding missing = violation(kNotFound, "tokenizer.json", "", "there is no tokenizer");
  missing.severity = Severity::kWarning;
  missing.rule = "tokenizer.present";
  EXPECT_EQ(findings_for(Engine::kVllm, {&missing, 1}).at(0).severity, Severity::kWarning);
  std::vector<engines::EngineVerdict> verdicts;
  for (const Engine engine : {Engine::kVllm, Engine::kSglang, Engine::kTrtllm}) {
    engines::EngineVerdict& verdict = verdicts.emplace_back();
    verdict.engine = &engines::newest(engine);
    verdict.loads = true;
  }
  deny_by_errors({&missing, 1}, verdicts);
  EXPECT_TRUE(verdicts[0].loads && verdicts[1].loads);
  EXPECT_THAT(verdicts[0].options, ::testing::ElementsAre("--skip-tokenizer-init"));
  EXPECT_THAT(verdicts[1].options, ::testing::ElementsAre("--skip-tokenizer-init"));
  EXPECT_FALSE(verdicts[2].loads) << "no option is known";
}

}  // namespace
}  // namespace ingot::check
