#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/modules/built_modules.h"
#include "formats/base/pattern.h"

// How engines look modules up in the lists of a config: by name, by component or by pattern, with
// one policy an engine for modules that are made of several.

namespace ingot::engines {

/// Answer whether a list has a module; kTorn where it has some of its members, which engines
/// refuse.
enum class Listed : std::uint8_t { kNo, kYes, kTorn };

/// Answers by a test of names: all members are in the list, some, or none.
Listed members_listed(const BuiltModule& module, const std::function<bool(std::string_view)>& has);

/// DeepSeek's lists as vLLM reads them: by whole names (utils/quant_utils.py:617).
Listed listed_in_vllm(const BuiltModule& module, std::span<const std::string> entries);
/// DeepSeek's lists as SGLang reads them: by whole components of names (quantization/utils.py:48,
/// 71).
Listed listed_in_sglang(const BuiltModule& module, std::span<const std::string> entries);

/// ModelOpt's list of modules that are left out.
class ExcludedModules {
 public:
  /// Expressions that do not compile match nothing. vLLM's models that rename entries (all but
  /// DeepSeek's) read `X*` as `X` and as `X.*`: modelopt.py:266.
  ExcludedModules(std::vector<std::string> entries, Engine engine, bool renames);
  [[nodiscard]] Listed find(const BuiltModule& module) const;

 private:
  [[nodiscard]] bool in_vllm(const BuiltModule& module) const;
  [[nodiscard]] bool in_sglang(const BuiltModule& module) const;

  std::vector<std::string> entries_;
  std::vector<Pattern> patterns_;
  Engine engine_;
};

/// Every name by which an entry of a list may mean a linear layer, as the most generous engine
/// reads it: aliases of a nested text model, names in MTP layers and drafts, and of joined modules.
class ListableNames {
 public:
  ListableNames(const Checkpoint& checkpoint, std::span<const LinearModule> modules);
  /// True if an entry names a module, one above it, or a part of its name. True for an expression
  /// that does not compile.
  [[nodiscard]] bool has_any(const std::string& entry) const;

 private:
  std::set<std::string> names_;
};

/// The key of the list that all engines but transformers read; vLLM reads only a list that is not
/// empty.
const char* exemption_key(const Json& block, Engine engine);

}  // namespace ingot::engines
