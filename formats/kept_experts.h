#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"

namespace ingot::formats {

struct Manifest;

/// The routed experts of a model that stay, by layer; MTP layers are behind the main ones.
struct KeptExperts {
  /// Number of experts in each layer of the source; the largest where layers differ.
  std::uint64_t n_experts = 0;
  /// Numbers of experts of the source, ascending: the one at place n is expert n of the output.
  std::map<std::uint32_t, std::vector<std::uint32_t>> layers;

  /// The document that parse_kept_experts() reads: `{"num_experts": 8, "layers": {"3": [0, 2]}}`.
  [[nodiscard]] JsonValue to_json() const;
};

/// Reads a list of the experts that stay: `{"num_experts": N, "layers": {"3": [0, 2, 5]}}`, or only
/// the object of layers; `num_experts` may be missing (0). A layer is its number, or a name such as
/// `model.layers.3.mlp`. Experts may be in any order. Throws kInvalidArgument, collected, naming
/// layer and expert: another form, a layer or an expert a second time.
KeptExperts parse_kept_experts(const Json& document, std::string_view where);

/// Throws kUnsupported for models without routed experts, of a family without rows, and for slices.
void require_experts(const Checkpoint& source);

/// The layers with routed experts that can be pruned: those that hold the config's number of them.
/// Draft layers with a number of their own are none.
std::vector<std::uint32_t> layers_to_prune(const Checkpoint& source);

/// Demands that a list can be taken: experts that exist, in every main layer with experts and in no
/// other one; as many in each layer, unless the config can say numbers by layer (in a family with a
/// width `experts_by_layer`); a number with which each token gets its experts, from equal groups.
/// An MTP layer that the list lacks gets the list of the last main layer. Adds to `remarks` what a
/// user should know. Throws kInvalidArgument, collected, with the nearest number of experts; else
/// like require_experts().
KeptExperts complete_list(const Checkpoint& source, KeptExperts kept,
                          std::vector<std::string>& remarks);

/// The number of experts nearest to `n`, and below all of them, with which each token gets its
/// experts; nullopt where there is none. `n` itself, if it fits.
std::optional<std::uint64_t> nearest_fit(const ModelConfig& config, std::uint64_t n);

/// The model with only these experts, which are renumbered in ascending order: their tensors or
/// slices of stacks under new numbers; their rows of routers and of all that has an entry for each;
/// tables of experts by token, whose dropped experts become the kept ones with the most similar
/// rows of the router (cosine in FP64; those that a token has already come last, and of equal ones
/// the first); numbers of experts in config.json and in its lists of names. All bytes are those of
/// the source, except tables. `kept` is as complete_list() returns it. `meaning` is the same model
/// under its family, where the source is opened without one: to be copied as its files have it.
/// Throws kUnsupported, naming the tensor, for what cannot be cut.
Checkpoint with_kept_experts(std::shared_ptr<const Checkpoint> source, const KeptExperts& kept,
                             const Checkpoint* meaning = nullptr);

/// True if a model has as many experts in each layer as a list keeps.
bool has_numbers_of(const ModelConfig& config, const KeptExperts& kept);

/// Returns the experts that an output was made with by its manifest (`ingot prune`), one list for
/// each time it was pruned; empty for all of its source.
std::vector<KeptExperts> recorded_experts(const Manifest& output);

/// The source with the experts that an output of it has by its manifest. Throws kMismatch where
/// numbers of experts differ from those that the lists begin with, or end with.
Checkpoint with_experts_kept_as_in(Checkpoint source, const Manifest& output);

}  // namespace ingot::formats
