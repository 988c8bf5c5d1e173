#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/container/tensor.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"

namespace ingot::verify {

/// Statistics of the input [tokens, K] of one linear.
struct InputSummary {
  float min = 0, max = 0;          ///< 0 is always within
  std::vector<float> mean_square;  ///< [K], over all tokens
  [[nodiscard]] float amax() const { return max > -min ? max : -min; }
  /// The wider range, and the larger mean square of every column.
  void include(const InputSummary& other);
};

/// Sees the input of one linear, some tokens at a time. Mean squares are sums in double, token
/// after token, divided and rounded to FP32 once: how tokens are grouped, and threads, change no
/// bit.
class InputStatistics {
 public:
  explicit InputStatistics(std::size_t width) : square_sums_(width) {}

  void add(formats::MatrixView<const float> x, std::size_t threads);
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  /// At least one token must have been seen. kNonFinite for a NaN, an infinity, or a mean square
  /// beyond FP32.
  [[nodiscard]] InputSummary summary() const;

 private:
  std::uint64_t tokens_ = 0;
  float min_ = 0, max_ = 0;
  std::vector<double> square_sums_;
};

/// A part of a model that runs in one step: the embedding, a layer, or what is behind the layers.
struct ModelPart {
  enum class Kind : std::uint8_t { kEmbedding, kLayer, kHead };
  Kind kind = Kind::kHead;
  std::uint32_t layer = 0;  ///< number of a layer; else 0
  bool operator==(const ModelPart&) const = default;
};
inline constexpr ModelPart kEmbeddingPart{.kind = ModelPart::Kind::kEmbedding};
inline constexpr ModelPart kHeadPart{.kind = ModelPart::Kind::kHead};
constexpr ModelPart layer_part(std::uint32_t layer) {
  return {.kind = ModelPart::Kind::kLayer, .layer = layer};
}

/// A linear of a model whose input is measured. A stack of routed experts has modules under the
/// names of single experts, gate and up apart.
struct CalibratedModule {
  std::string name;        ///< `model.layers.3.mlp.experts.17.gate_proj`
  std::string weight;      ///< canonical name of its weight
  std::size_t matrix = 0;  ///< index of the matrix within a stack
  std::size_t width = 0;   ///< K
  formats::Role role{};
  const formats::TensorRule* rule = nullptr;  ///< row of the family
  ModelPart part;                             ///< part of the model that applies it
  std::optional<std::uint32_t> expert;        ///< id of a routed expert; else nullopt
};

/// Reasons why a weight has no statistics of inputs.
enum class Unmeasured : std::uint8_t {
  kNoLinear,     ///< weight of no linear that an engine quantizes: looked up, of a router, a vector
  kNotComputed,  ///< linear of a tower, or of a row that the forward pass does not read
  kIdleLayer,    ///< linear of an MTP layer that the forward pass leaves out
};
/// Returns why the inputs of a weight are not measured, or nullopt if they are.
std::optional<Unmeasured> why_unmeasured(const formats::LogicalTensor& tensor,
                                         const inference::ModelSpec& spec);

/// Every linear that the forward pass applies and that some dialect holds quantized, as the source
/// orders its tensors: those of attention, linear attention, state spaces and indexer, of
/// dense, shared and routed experts, of residual streams and of what layers are given, of the MTP
/// layer, and the heads. Throws kUnsupported where several layers compute with the same routed
/// experts.
std::vector<CalibratedModule> calibrated_modules(const formats::Checkpoint& source,
                                                 const inference::ModelSpec& spec);

/// True if an indexer's queries are made of the twin's input. The indexer runs only for documents
/// that are long enough, and those that go through a layer with them: the twin sees all.
bool is_twin_of_indexer(const CalibratedModule& queries, const CalibratedModule& twin);

/// Statistics of the linears of one layer, while it runs.
class LayerStatistics final : public inference::InputObserver {
 public:
  explicit LayerStatistics(std::size_t threads) : threads_(threads) {}

  /// Forgets everything and looks at these from now on.
  void begin(std::span<const CalibratedModule* const> modules, std::size_t n_experts);
  void see(std::string_view weight, std::size_t matrix,
           formats::MatrixView<const float> x) override;
  /// Counts the router's choices, and sees what experts give.
  [[nodiscard]] inference::Taps taps();

  [[nodiscard]] std::span<const std::int64_t> expert_tokens() const { return expert_tokens_; }
  /// By expert the mean, over the tokens that chose it, of weight times L2 norm of its output; 0
  /// without any.
  [[nodiscard]] std::vector<float> expert_saliency() const;
  /// One per module of begin(), in its order. Experts that no token reached have the maximum over
  /// their peers, of the same matrix, that some token did reach. An indexer's queries have those of
  /// their twin, where that saw more tokens.
  /// Throws kUnsupported, naming the layer or module, where no statistics exist.
  [[nodiscard]] std::vector<InputSummary> summaries() const;
  /// Bytes that the statistics of these modules take.
  static std::uint64_t memory(std::span<const CalibratedModule* const> modules);

 private:
  using Key = std::pair<std::string, std::size_t>;  // weight and matrix
  [[nodiscard]] const InputStatistics* seen(const CalibratedModule& module) const;

  std::size_t threads_;
  std::vector<const CalibratedModule*> modules_;
  std::map<Key, InputStatistics> statistics_;
  std::vector<std::int64_t> expert_tokens_;
  std::vector<double> weighted_norms_;  // by expert
};

}  // namespace ingot::verify
