#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/places/window.h"

namespace ingot::formats {

/// The place of a linear layer's weight: outputs of one matrix of a logical tensor.
struct LayerPlace {
  std::uint32_t tensor = 0;  ///< index into tensors()
  std::uint64_t matrix = 0;  ///< number in a stack
  Window outputs;            ///< the layer's, among those of the matrix
  std::uint64_t n_inputs = 0;
  bool is_turned = false;  ///< the matrix is [inputs, outputs]
};

/// The routed experts of a layer, of which a module has a parameter for all: the projections that
/// it holds, and the order of their outputs.
struct ExpertParameter {
  std::uint32_t layer = 0;
  std::vector<Role> members;
  GateUpOrder order = GateUpOrder::kHalves;
};

/// Finds the layers of a model by the names that other programs give them: names in its files,
/// names of transformers' modules in memory, and the usual words of experts.
class LayerPlaces {
 public:
  /// `model` must outlive this.
  explicit LayerPlaces(const Checkpoint& model);

  /// The tensor of this name, as `model.embed_tokens.weight`; nullopt: there is none.
  [[nodiscard]] std::optional<std::uint32_t> tensor(std::string_view name) const;
  /// True if a tensor of this name may be the one that the model has, or would have, as `stored`.
  [[nodiscard]] bool may_be(std::string_view name, std::string_view stored) const;
  /// The place of a linear layer by its module's name; nullopt: the model has none of that name.
  [[nodiscard]] std::optional<LayerPlace> linear(std::string_view module) const;
  /// The parameter `leaf` (`gate_up_proj`, `w2`) of a module of experts; nullopt for others.
  [[nodiscard]] std::optional<ExpertParameter> experts(std::string_view module,
                                                       std::string_view leaf) const;
  /// The place of a projection of one expert; nullopt: it is not here.
  [[nodiscard]] std::optional<LayerPlace> expert(std::uint32_t layer, Role member,
                                                 std::uint32_t expert) const;
  [[nodiscard]] std::uint64_t n_experts() const { return model_.config().n_routed_experts; }

 private:
  [[nodiscard]] std::optional<NameGrammar::Match> match(std::string_view name) const;
  [[nodiscard]] std::optional<LayerPlace> section(std::string_view module) const;

  const Checkpoint& model_;
  NameGrammar grammar_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;
  std::map<std::pair<std::uint32_t, Role>, std::uint32_t> stacks_;  // by layer
  /// By layer, role and expert.
  std::map<std::pair<std::pair<std::uint32_t, Role>, std::uint32_t>, std::uint32_t> singles_;
};

}  // namespace ingot::formats
