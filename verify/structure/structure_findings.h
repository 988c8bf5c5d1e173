#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "check/rules/loader_rules.h"
#include "formats/base/error.h"

namespace ingot::verify {

/// What the tests of level `structure` find, in the order in which they find it.
class StructureFindings {
 public:
  /// Files and messages are told without `directory`, which is where the output lies.
  explicit StructureFindings(const std::filesystem::path& directory);

  /// `rule` must outlive the findings.
  void error(std::string_view rule, const Error& fact);
  void warning(std::string_view rule, const Error& fact);
  /// Of a loader rule, or without a rule.
  void add(formats::Finding finding);

  /// Errors first, otherwise in the order added; what was found twice, by one rule at one tensor in
  /// the same words, once. Leaves this empty.
  std::vector<formats::Finding> take();

 private:
  std::string prefix_, name_;
  std::vector<formats::Finding> findings_;
};

}  // namespace ingot::verify
