#pragma once

#include <optional>
#include <string>
#include <vector>

#include "check/rules/rule_input.h"
#include "formats/dialect/engines.h"
#include "formats/dialect/modelopt.h"

// What an engine reads out of a checkpoint's configs about one module.

namespace ingot::check {

/// A scheme (or `plain`, or `unknown scheme`), and the entry that says so.
struct Belief {
  std::string scheme, because;
};

/// The scheme in which a module is stored, in the words of Belief::scheme.
std::string stored_scheme(const LinearModule& module);

/// How an engine reads a checkpoint's configs. Of the dialects that is_readable() holds for.
class ConfigReader {
 public:
  /// Keeps all three.
  ConfigReader(const Checkpoint& checkpoint, const RuleFacts& facts, formats::Engine engine);

  /// Whether it is known here what engines read out of a config of this dialect.
  static bool is_readable(const Dialect& dialect);

  [[nodiscard]] Belief belief(const LinearModule& module) const;

 private:
  [[nodiscard]] bool is_vllm() const;
  [[nodiscard]] bool is_draft(const LinearModule& module) const;
  [[nodiscard]] std::string_view name_of(const LinearModule& module) const;
  [[nodiscard]] Belief by_groups(const LinearModule& module) const;
  [[nodiscard]] Belief by_modelopt(const LinearModule& module) const;
  [[nodiscard]] Belief by_description(const LinearModule& module) const;
  [[nodiscard]] Belief by_exemption(const LinearModule& module, SchemeId scheme) const;
  [[nodiscard]] SchemeId scheme_of_method() const;
  [[nodiscard]] bool has_fp4_experts() const;

  const Checkpoint& checkpoint_;
  const RuleFacts& facts_;
  formats::Engine engine_;
  std::vector<std::string> faults_;
  std::optional<formats::ModeloptBlock> modelopt_;
};

}  // namespace ingot::check
