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
  /// Gates that are not above their mean in a row by so many standard deviations become 0, and the
  /// others what they are above that.
  std::optional<float> least_deviation;
  /// Gates are at most this, and what they are multiplied with is within +- this.
  std::optional<float> limit;
  bool limits_silu = false;  ///< the limit is of silu(gate), not of the gate
  float alpha = 1.0F;        ///< gate * sigmoid(alpha * gate) in place of silu
  float up_offset = 0;       ///< number that is added to up
  /// Caps of the gate as a factor of its own sigmoid, and of up: cap tanh(value / cap).
  std::optional<float> gate_cap, up_cap;
  bool joins_in_f32 =
      false;  ///< flag: gate and up are joined in FP32, and their product is rounded
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
  bool ranks_logits = false;    ///< experts are chosen by logits and bias, not by scores and bias
  bool keeps_left_out = false;  ///< experts of groups that are left out may be chosen, as if by 0
  float logit_factor = 1.0F;    ///< factor of logits
  /// Width of a router that is an MLP over a state, which the layer before hands on; 0: a matrix.
  std::size_t inner = 0;
  bool scales_input = false;  ///< weights are those of an expert's input, not of its output
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
  /// Behind those, experts without tensors that give nothing.
  std::size_t skip_experts = 0;
  /// Shared experts, whose logits are behind the others: each is weighed as if it was chosen.
  std::size_t weighed_shared = 0;
  bool operator==(const RouterSpec&) const = default;

  /// Experts that the router chooses from.
  [[nodiscard]] std::size_t choices() const { return experts + identity_experts + skip_experts; }
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
  /// Routed experts work on states of this width, which a projection with a norm makes, and another
  /// one turns their sum into one of hidden states; 0: on hidden states.
  std::size_t pool = 0;
  /// Norm of what each routed expert gives, before its weight.
  std::optional<NormSpec> expert_norm;
  /// Layers share routers and routed experts, those of layer l mod this; 0: each has its own.
  std::size_t blocks = 0;
  bool operator==(const MixtureSpec&) const = default;

  /// The layer that has the router and the routed experts of a layer.
  [[nodiscard]] std::uint32_t home(std::uint32_t layer) const {
    return blocks > 0 ? layer % static_cast<std::uint32_t>(blocks) : layer;
  }
};

using BodySpec = std::variant<MlpSpec, MixtureSpec, MixerSpec>;

/// A residual block: x + f body(norm(x)), x + f norm(body(x)) or both, where f is the layer's
/// residual factor, or the same with streams in place of the sum.
struct BlockSpec {
  BodySpec body;
  /// Number of the block among those of a layer whose weights have the same roles.
  std::uint8_t number = 0;
  bool norms_input = true;
  std::optional<NormSpec> output_norm;
  std::size_t inputs = 1;  ///< inputs side by side that sources make for the body
  /// The sum is this times norm(x) + body(norm(x)), and x is left out.
  std::optional<float> normed_residual;
  float input_factor = 1.0F;   ///< factor of the body's input, behind the norm
  float output_factor = 1.0F;  ///< factor of the body's output
  float kept_factor = 1.0F;    ///< factor of x
  /// The body's output has two terms added: its normed input, and the norm of a product of this
  /// rank of that; 0: it has not.
  std::size_t residual_rank = 0;
  /// Both have a factor per value, which follow from the weights of a gate divided by this.
  std::optional<float> gate_temperature;
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
  bool scales_convolution = false;  ///< sums of a convolution and its input are / root(tokens + 1)
  /// Sources that make the inputs of the mixer, and of the feed-forward part, where the model has
  /// some (ModelSpec::sources).
  std::size_t mixer_sources = 0, feed_forward_sources = 0;
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

/// Streams of the residual: hyper-connections (hyper_connection.h), or predicted ones.
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
  /// Streams are those of PredictedStreams, of which layers compute one: this.
  std::optional<std::size_t> active;
  bool scales_active = false;  ///< layer inputs are gated by that stream times factors of the layer
  bool operator==(const HyperSpec&) const = default;
};

/// The parts before the first layer and behind the last one.
struct EndsSpec {
  bool tied_head = false;  ///< the embedding is the head, unless one is stored
  std::optional<NormSpec> embedding_norm;
  NormSpec final_norm;
  float embedding_factor = 1.0F;
  bool rounds_embedding_factor = false;  ///< embedding_factor is rounded to the type of the states
  float logit_divisor = 1.0F;            ///< divisor of normed states before the head
  float logit_factor = 1.0F;             ///< factor of logits
  std::optional<float> logit_cap;        ///< logits are cap tanh(logits / cap)
  /// Tokens in place of images and sound, which are embedded as `padding`.
  std::vector<std::size_t> placeholders;
  std::size_t padding = 0;
  /// The streams of the residual; without, it is one.
  std::optional<HyperSpec> hyper;
  bool operator==(const EndsSpec&) const = default;
};

/// Inputs that a token has in each layer (LayerInputs).
struct LayerInputSpec {
  std::size_t width = 0;  ///< values of an input
  std::size_t rows = 0;   ///< rows of their table; tokens beyond it have the first one
  bool operator==(const LayerInputSpec&) const = default;
};

/// Layers that are visited several times before those behind them (LoopMessages).
struct LoopSpec {
  std::size_t first = 0, end = 0, passes = 1;
  std::size_t rank = 0;  ///< inner width of the gates that take messages
  bool operator==(const LoopSpec&) const = default;
};

struct ModelSpec {
  std::string_view family;
  std::size_t vocab = 0;
  std::size_t stored_vocab = 0;  ///< rows of embedding and head: more where they were padded
  std::size_t hidden = 0;
  std::size_t max_positions = 0;
  NormSpec norm;  ///< norms of hidden states before blocks, and those of queries and keys
  std::vector<LayerSpec> layers;  ///< main layers, and behind them those for multi-token prediction
  std::size_t n_main = 0;
  /// The config has layers for multi-token prediction that are not of the kind that MtpLayer
  /// computes: `layers` lacks them.
  bool leaves_out_mtp = false;
  /// Values behind the streams that layers hand on: the state of a router, sources, or inputs of
  /// layers.
  std::size_t carried = 0;
  /// Sums of earlier runs of layers, of which blocks make their inputs (SourceMix); 0: none.
  std::size_t sources = 0;
  std::optional<LoopSpec> loop;  ///< loop of a model with sources
  std::optional<LayerInputSpec> layer_inputs;  ///< carried between layers
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
  /// How often a layer is visited.
  [[nodiscard]] std::size_t visits(std::size_t layer) const {
    return loop && layer >= loop->first && layer < loop->end ? loop->passes : 1;
  }
  /// Values of a token between two layers: its streams, and what is carried.
  [[nodiscard]] std::size_t stream_width() const { return shown_width() + carried; }
  /// Values of the streams.
  [[nodiscard]] std::size_t shown_width() const {
    return hidden * (ends.hyper ? ends.hyper->streams : 1);
  }
};

}  // namespace ingot::inference
