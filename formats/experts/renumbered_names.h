#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"

// Names of experts under other numbers.

namespace ingot::formats {

/// The names of the parts of one expert's tensor, with a place for its number.
class ExpertName {
 public:
  /// REQUIRES: a tensor of one expert, with its row.
  ExpertName(const Checkpoint& source, const LogicalTensor& tensor);
  /// The name with this number in place of the expert's own; nullopt for a name without it.
  [[nodiscard]] std::optional<std::string> with(std::uint32_t number, std::string_view name) const;
  /// The text before the number.
  [[nodiscard]] const std::string& head() const { return head_; }

 private:
  std::string head_, number_;  ///< text before the number, and that itself
};

/// Names of experts in the lists of a description of a quantization: module names, and patterns
/// with wildcards or in regular expressions, in which dots may be escaped.
class ExpertNumbers {
 public:
  /// Numbers the experts of each layer that stay by their places in its list.
  ExpertNumbers(const Checkpoint& source,
                const std::map<std::uint32_t, std::vector<std::uint32_t>>& kept);

  /// The name in new numbers; nullopt where it is that of a dropped expert. Throws kUnsupported for
  /// an expert's number in several layers that do not agree about it.
  [[nodiscard]] std::optional<std::string> renumbered(std::string_view name) const;
  /// Returns the name that a module of the model with fewer experts has in the whole one.
  [[nodiscard]] std::string original(std::string_view name) const;
  /// Renumbers the names in lists and keys at any depth, and leaves out those of dropped experts.
  void renumber(Json& description) const;

 private:
  [[nodiscard]] std::optional<std::uint32_t> layer_of(const std::string& plain) const;

  std::map<std::uint32_t, std::vector<std::uint32_t>> kept_;
  std::vector<std::string> expert_words_, layer_words_;  ///< words before numbers, with their dot
  std::string mtp_prefix_;
  std::uint64_t n_main_;
};

}  // namespace ingot::formats
