#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/family/family.h"
#include "formats/family/proposal/named_layers.h"
#include "formats/family/proposal/neighbours.h"

namespace ingot::formats {

/// A class of the model in transformers: what it says of tensors, by the names of some of them.
struct ModelClass {
  /// Words of its tensor-parallel plan (`tp_plan`).
  std::map<std::string, std::string> plan = {};
  /// Names of its own parameters, of which a tensor is one.
  std::map<std::string, std::string> names = {};
  /// Tensors that several of its parameters are joined in, and how (kJoinedQuestion's answers).
  std::map<std::string, std::string> joined = {};
  /// Stacks of experts that it reads as they are stored, and their order in it.
  std::vector<std::string> stacks = {};
  StackOrder order = StackOrder::kNone;
  GateUpOrder gate_up = GateUpOrder::kHalves;
};

/// The knowledge of a class about kinds of tensors, by the patterns of their names.
class ClassPlan {
 public:
  ClassPlan(const ModelClass& known, const NamedLayers& named);

  /// The word of its tensor-parallel plan; empty where it has none.
  [[nodiscard]] std::string_view word(const std::string& pattern) const;
  /// The cut that the word means; nullopt for words for forms of computation: outputs that are
  /// gathered, the latent of keys and values.
  [[nodiscard]] std::optional<Cut> cut(const std::string& pattern) const;
  /// The pattern of the class's own parameter; the given one where that is not known.
  [[nodiscard]] const std::string& meant(const std::string& pattern) const;
  /// The order in which several parameters are joined; empty where that is not known.
  [[nodiscard]] std::string_view joined(const std::string& pattern) const;
  /// True for a stack of experts that it reads as it is stored.
  [[nodiscard]] bool reads_stack(const std::string& pattern) const {
    return stacks_.contains(pattern);
  }
  /// Leaves out rows that fit and are cut in another way, where others are cut as the plan says.
  void choose(const std::string& pattern, std::vector<NeighbourRow>& rows) const;

 private:
  using Texts = std::map<std::string, std::string>;
  static std::string_view find(const Texts& texts, const std::string& pattern);

  Texts words_, names_, joined_;
  std::set<std::string> stacks_;
};

}  // namespace ingot::formats
