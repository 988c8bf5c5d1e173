#pragma once

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/check.h"
#include "tests/check/rank_directory.h"
#include "tests/check/spelled_checkpoint.h"
#include "tests/support/temp_dir.h"

// What the tests of rank directories share: models that 2 ranks can cut, and how to check one rank.

namespace ingot::testing {

using check::CheckResult;
using check::Finding;
using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SynthOptions;

inline const EditableCheckpoint& fp8_model() {
  static const EditableCheckpoint model = make_synthetic(even_widths);
  return model;
}

inline EditableCheckpoint plain_model() {
  static const EditableCheckpoint model = make_synthetic([](SynthOptions& options) {
    even_widths(options);
    options.fp8 = false;
  });
  return model;
}

inline EditableCheckpoint spelled_model(const Spelled& spelled) {
  return make_spelled(spelled, [](SynthOptions& options) {
    even_widths(options);
    options.fp8 = false;
  });
}

inline std::vector<std::string> finding_texts(const CheckResult& result) {
  std::vector<std::string> texts;
  for (const Finding& finding : result.findings) {
    texts.push_back(std::string(error_code_name(finding.code)) + " " + finding.file + " " +
                    finding.tensor + ": " + finding.message + " [" + std::string(finding.rule) +
                    "]");
  }
  return texts;
}

inline CheckResult check_rank(const RankDirectory& rank) {
  const TempDir dir;
  rank.write(dir / "rank");
  return check::check_checkpoint(dir / "rank", {.threads = 2});
}

// The one finding of a directory, which names tensor and facts.
inline void expect_finding(const RankDirectory& rank, ErrorCode code, const std::string& tensor,
                           std::initializer_list<std::string> facts) {
  const CheckResult result = check_rank(rank);
  ASSERT_EQ(result.findings.size(), 1U) << ::testing::PrintToString(finding_texts(result));
  const Finding& finding = result.findings.front();
  EXPECT_EQ(error_code_name(finding.code), error_code_name(code)) << finding.message;
  EXPECT_EQ(finding.tensor, tensor);
  for (const std::string& fact : facts) EXPECT_THAT(finding.message, ::testing::HasSubstr(fact));
}

inline const LogicalTensor& logical(const Checkpoint& checkpoint, std::string_view name) {
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no logical tensor " + std::string(name));
}

inline const std::string kGateOfDense = "model.layers.0.mlp.gate_proj.weight";
inline const std::string kDownOfDense = "model.layers.0.mlp.down_proj.weight";
inline const std::string kNormOfDense = "model.layers.0.input_layernorm.weight";
inline const std::string kUpOfExpert3 = "model.layers.1.mlp.experts.3.up_proj.weight";

}  // namespace ingot::testing
