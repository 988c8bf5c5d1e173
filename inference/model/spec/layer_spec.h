#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "inference/model/spec/attention_specs.h"
#include "inference/model/spec/mixer_kind.h"
#include "inference/model/spec/mixer_specs.h"

// A model is a list of layers, a layer a list of residual blocks: all numbers that the forward pass
// needs, read once from config.json.

namespace ingot::inference {

/// How an MLP joins gate and up before down: silu(gate) * up, changed by what is said
/// here.
struct GateForm {
  bool is_gelu = false;  ///< gelu by tanh in place of silu
  /// xIELU, with four numbers of the layer. Only without a gate.
  bool is_xielu = false;
  float gate_factor = 1.0F;  ///< factor of gates, before all else
  /// Gates are at most this, and what they are multiplied with is within +- this.
  std::optional<float> limit;
  bool limits_silu = false;  ///< the limit is of silu(gate), not of the gate
  float alpha = 1.0F;        ///< gate * sigmoid(alpha * gate) in place of silu
  float up_offset = 0;       ///< number that is added to up
  bool operator==(const GateForm&) const = default;
};

/// An MLP: down(gated(gate x, up x)), or without a gate down(relu(up x)^2), unless `gate` names
/// another function.
struct MlpSpec {
  std::size_t width = 0;
  bool has_gate = true;
  GateForm gate;
  bool operator==(const MlpSpec&) const = default;
};

enum class GateScore : std::uint8_t {
  kSigmoid,
  kSoftmax,
  kSqrtSoftplus,  ///< sqrt(log(1 + e^x))
  kThresholds,    ///< the best ones in turn, each by its softmax among those left and near to it
};

struct RouterSpec {
  std::size_t experts = 0, topk = 0, groups = 1, topk_groups = 1;
  GateScore score = GateScore::kSoftmax;
  bool correction_bias = false;
  bool bias_of_logits = false;  ///< the router's bias is added to its logits
  bool scales_input = false;    ///< weights are those of an expert's input, not of its output
  bool normalize = false;
  bool by_length = false;  ///< weights are divided by the root of their squares' sum
  /// Number that is added to the sum that weights are divided by.
  float normalize_epsilon = 1e-20F;
  float scale = 1.0F;
  /// kThresholds: greatest distance from the best logit that counts as near, relative to the
  /// greater of both.
  float near = 0;
  /// A table has the experts of each token; the router scores those.
  bool has_table = false;
  /// Experts behind the others that have no tensors: they give their input back.
  std::size_t identity_experts = 0;
  /// Shared experts, whose logits are behind the others: each is weighed as if it was chosen.
  std::size_t weighed_shared = 0;
  bool operator==(const RouterSpec&) const = default;

  /// Experts that the router chooses from.
  [[nodiscard]] std::size_t choices() const { return experts + identity_experts; }
  /// Experts that the router scores.
  [[nodiscard]] std::size_t scored() const { return choices() + weighed_shared; }
};

/// A mixture of experts.
struct MixtureSpec {
  RouterSpec router;
  MlpSpec expert;
  bool has_biases = false;  ///< each projection of a routed expert has one
  /// All shared experts together; none where there are none.
  std::optional<MlpSpec> shared;
  /// An MLP next to the experts. Both take the layer's state as it is, each through a norm of its
  /// own, and so do their outputs before they are added; the router has one with a scale.
  std::optional<MlpSpec> dense;
  bool operator==(const MixtureSpec&) const = default;
};

using BodySpec = std::variant<MlpSpec, MixtureSpec, MixerSpec>;

/// A residual block: x + f body(norm(x)), x + f norm(body(x)) or both, where f is the layer's
/// residual factor, or the same with streams in place of the sum.
struct BlockSpec {
  BodySpec body;
  /// Number of the block among those of a layer whose weights have the same roles.
  std::uint8_t number = 0;
  bool norms_input = true;
  bool norms_output = false;
  /// The sum is this times norm(x) + body(norm(x)), and x is left out.
  std::optional<float> normed_residual;
  float input_factor = 1.0F;   ///< factor of the body's input, behind the norm
  float output_factor = 1.0F;  ///< factor of the body's output
  /// Takes the normed input of this block of the layer in place of an own one.
  std::optional<std::uint8_t> input_of;
  bool operator==(const BlockSpec&) const = default;

  /// True if the body mixes tokens, rather than the values of each.
  [[nodiscard]] bool is_mixer() const { return std::holds_alternative<MixerSpec>(body); }
  /// The numbers of a kind of body; null where it is another one.
  template <typename Kind>
  [[nodiscard]] const Kind* as() const {
    if constexpr (std::is_same_v<Kind, MlpSpec> || std::is_same_v<Kind, MixtureSpec>) {
      return std::get_if<Kind>(&body);
    } else {
      const auto* mixer = std::get_if<MixerSpec>(&body);
      return mixer != nullptr ? mixer->as<Kind>() : nullptr;
    }
  }
};

struct LayerSpec {
  std::vector<BlockSpec> blocks;
  /// Tokens of the short convolutions, the row's own too: over keys, values, what attention gives
  /// and what feed-forward gives. 0: there are none.
  std::size_t short_convolution = 0;
  float residual_factor = 1.0F;     ///< factor of what a block adds
  std::optional<NgramSpec> ngrams;  ///< added before the first block
  bool operator==(const LayerSpec&) const = default;

  /// The first body of a kind; null without one.
  template <typename Kind>
  [[nodiscard]] const Kind* find() const {
    for (const BlockSpec& block : blocks) {
      if (const Kind* body = block.as<Kind>()) return body;
    }
    return nullptr;
  }
};

/// Hyper-connections (hyper_connection.h).
struct HyperSpec {
  std::size_t streams = 1;  ///< n
  std::size_t rank = 0;  ///< rank of GatedStreams, which read no number below; 0: full connections
  std::size_t rounds = 1;  ///< rounds of sinkhorn
  float eps = 1e-6F;
  float norm_eps = 1e-6F;
  bool learned_head =
      true;                ///< weights collapse the streams before the final norm; else their mean
  bool mixes = true;       ///< true: streams are mixed; false: each stays, and post has eps too
  float magnitude = 2.0F;  ///< largest value of the weights `post`
  bool operator==(const HyperSpec&) const = default;
};

/// The parts before the first layer and behind the last one.
struct EndsSpec {
  bool tied_head = false;  ///< the embedding is the head, unless one is stored
  bool norms_embedding = false;
  float embedding_factor = 1.0F;
  bool rounds_embedding_factor = false;  ///< embedding_factor is rounded to the type of the states
  float logit_divisor = 1.0F;            ///< divisor of normed states before the head
  float logit_factor = 1.0F;             ///< factor of logits
  std::optional<float> logit_cap;        ///< logits are cap tanh(logits / cap)
  std::optional<float> norm_eps;  ///< epsilon of the final norm, where it differs from the others'
  /// Tokens in place of images and sound, which are embedded as `padding`.
  std::vector<std::size_t> placeholders;
  std::size_t padding = 0;
  /// The streams of the residual; without, it is one.
  std::optional<HyperSpec> hyper;
  bool operator==(const EndsSpec&) const = default;
};

/// Norms of hidden states, queries and keys.
struct NormSpec {
  float eps = 1e-6F;
  float adds = 0;  ///< number that is added to the weights
  /// Layer norms for hidden states, with the biases that are there; else RMS norms.
  bool is_layer = false;
  bool operator==(const NormSpec&) const = default;
};

struct ModelSpec {
  std::string_view family;
  std::size_t vocab = 0;
  std::size_t stored_vocab = 0;  ///< rows of embedding and head: more where they were padded
  std::size_t hidden = 0;
  std::size_t max_positions = 0;
  NormSpec norm;
  std::vector<LayerSpec> layers;  ///< main layers, and behind them those for multi-token prediction
  std::size_t n_main = 0;
  /// The config has layers for multi-token prediction that are not of the kind that MtpLayer
  /// computes: `layers` lacks them.
  bool leaves_out_mtp = false;
  EndsSpec ends;

  /// True if two configs mean the same forward pass.
  bool operator==(const ModelSpec&) const = default;

  /// The first body of a kind in any layer; null without one.
  template <typename Kind>
  [[nodiscard]] const Kind* find() const {
    for (const LayerSpec& layer : layers) {
      if (const Kind* body = layer.find<Kind>()) return body;
    }
    return nullptr;
  }
  /// The router of mixtures; null without any.
  [[nodiscard]] const RouterSpec* router() const {
    const auto* mixture = find<MixtureSpec>();
    return mixture != nullptr ? &mixture->router : nullptr;
  }
  [[nodiscard]] bool is_moe(std::size_t layer) const {
    return layers[layer].find<MixtureSpec>() != nullptr;
  }
  /// The lightning indexer of any layer; null without one.
  [[nodiscard]] const IndexerSpec* indexer() const;
  /// The layer whose keys a layer reads: itself or an earlier one.
  [[nodiscard]] std::size_t keys_of(std::size_t layer) const;
  /// The last main layer that reads the keys of a layer.
  [[nodiscard]] std::size_t last_reader(std::size_t layer) const;
  /// True if a sequence has states in the cache, in addition to what each of its tokens has.
  [[nodiscard]] bool keeps_states() const;
  /// Values of a token between two layers.
  [[nodiscard]] std::size_t stream_width() const {
    return hidden * (ends.hyper ? ends.hyper->streams : 1);
  }
};

}  // namespace ingot::inference
