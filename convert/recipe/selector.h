#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/base/pattern.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/roles.h"

namespace ingot::convert {

/// Words behind `role:`: the groups, and the roles.
std::vector<std::string_view> role_words();

/// The tensors that a rule is for: one or more terms with `&` between them, all of which must
/// match. A term is a pattern over names (a glob, or `re:EXPR`), `role:NAME` with the name of a
/// role or of a group of roles, or `layers:LIST`: numbers and ranges with commas between them,
/// where `last` means the last layer before the MTP layers, and `mtp` for these. No pattern has an
/// `&`.
class Selector {
 public:
  /// Throws kInvalidArgument for an empty term, an unknown role, with the groups that there are, or
  /// a list of layers that is none.
  explicit Selector(std::string_view text);

  /// Sets the layers of `last` and `mtp`. Until then these match no layer.
  void set_layers(std::uint64_t num_hidden_layers) { n_layers_ = num_hidden_layers; }

  [[nodiscard]] bool matches(const formats::LogicalTensor& tensor) const;
  /// True if the selector gives the whole name of a tensor that it matches, or its role.
  [[nodiscard]] bool names(const formats::LogicalTensor& tensor) const;
  /// True if a term is about roles or layers, which `ingot list roles` shows.
  [[nodiscard]] bool knows_family() const;
  /// `gives layers up to 99, and the last one is 5`; empty where these layers are all there.
  [[nodiscard]] std::string excess(std::span<const formats::LogicalTensor> tensors) const;
  /// Returns the text of the selector, as it was given.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  struct LayerRange {
    std::uint64_t first = 0, last = 0;
  };
  using Layers = std::vector<LayerRange>;
  using Term = std::variant<Pattern, formats::RoleSet, Layers>;

  Term parse_term(std::string_view text) const;
  Layers parse_layers(std::string_view list) const;
  [[nodiscard]] bool is_in(const Layers& layers, std::uint64_t layer) const;

  std::string text_;
  std::vector<Term> terms_;
  std::uint64_t n_layers_ = 0;
};

}  // namespace ingot::convert
