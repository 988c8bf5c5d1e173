#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/json/json_fields.h"
#include "inference/family/model_family.h"

// Readers of config.json that families of the same kind share. Each refuses with the key.

namespace ingot::inference {

/// The most layers, experts and entries of lists that are plausible.
inline constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;

[[noreturn]] void refuse(ErrorCode code, const std::string& message);
/// kCorrupt.
[[noreturn]] void refuse(const std::string& message);

/// The value, which must not be 0.
std::size_t required(std::uint64_t value, std::string_view key);
/// Numbers of heads and widths of one: products of two must not wrap around, and tables of a width
/// are made before any tensor could contradict it.
std::size_t of_heads(std::uint64_t value, std::string_view key);

/// Keys of config.json that only the forward pass needs.
formats::JsonFields spec_fields(const formats::ModelConfig& config);
/// Parameters of rope, in either spelling; nullopt where there are none.
std::optional<formats::JsonFields> rope_fields(const formats::ModelConfig& config);

/// The common beginning of every family: widths, ends, norms, and the feed-forward parts of its
/// layers. The family adds its mixers.
struct DecoderSpec {
  /// `activation` is the one that the family computes; configs without the key have it too.
  /// `config` must outlive this.
  explicit DecoderSpec(const formats::ModelConfig& config, std::string_view activation = "silu");

  const formats::ModelConfig& config;
  formats::JsonFields fields;  ///< as spec_fields()
  ModelSpec spec;              ///< without layers
  std::vector<bool> is_moe;    ///< per layer, MTP layers included
  MlpSpec dense;
  std::optional<MixtureSpec> mixture;  ///< where any layer has one
  std::uint64_t n_tables = 0;          ///< layers from the first on whose router has a table
  bool norms_input = true;             ///< as of each BlockSpec
  bool norms_output = false;           ///< as of each BlockSpec
  bool norms_mixture = false;          ///< as BlockSpec::norms_output, only of the mixture
  std::size_t short_convolution = 0;   ///< as of each LayerSpec
  float residual_factor = 1.0F;        ///< as of each LayerSpec
  bool has_ngrams = false;             ///< LayerSpec::ngrams, of layers that the config lists

  /// Shared experts as wide as this together; none where it is 0.
  void share(std::uint64_t width);
  /// For families whose layers for prediction are not of the kind that MtpLayer computes.
  void leave_out_mtp();
  /// The dense MLP or the mixture of a layer.
  [[nodiscard]] BodySpec feed_forward(std::size_t layer) const;
};

/// Latent attention; rope is interleaved unless `rope_interleave` says otherwise. Without positions
/// the slice that would be rotated is not, and may be empty.
LatentSpec latent_attention(const formats::ModelConfig& config, bool has_positions = true);
/// How many of a head's values are rotated, and how they are paired.
struct GroupedRope {
  std::optional<std::size_t> dim = {};  ///< the first so many; without: all
  bool interleaved = false;
  bool may_be_long = true;  ///< longrope has the long factors for long contexts
};
/// Grouped-query attention with a norm per head; values are as wide as keys.
GroupedSpec grouped_attention(const formats::ModelConfig& config, const GroupedRope& rope = {});
/// The first values of a head that are rotated: `rotary_dim`, or what `partial_rotary_factor`, else
/// `if_missing`, makes of head_dim.
std::size_t rotated_dim(const formats::ModelConfig& config, double if_missing = 1);
/// `llama_4_scaling_beta` of the rope parameters.
std::optional<GrowthSpec> query_growth(const formats::ModelConfig& config);
/// Whether each layer has rope: `no_rope_layers`, which has 1 for those, or all but every n-th.
std::vector<bool> rope_layers(const formats::JsonFields& fields, std::size_t n_layers);
/// `interleaved` is its rope layout where the config does not say; `from_input` as in IndexerSpec.
IndexerSpec lightning_indexer(const formats::ModelConfig& config, const LatentSpec& latent,
                              bool interleaved, bool from_input = false);
/// Latent attention of a layer: with the indexer where that is the layer's own.
LatentSpec with_indexer(const formats::ModelConfig& config, LatentSpec latent,
                        const IndexerSpec& indexer, std::size_t layer);
/// The n-grams of a layer as the config has them, whose streams have `channels` values together;
/// nullopt where the layer has none.
std::optional<NgramSpec> ngram_spec(const formats::ModelConfig& config, std::uint32_t layer,
                                    std::size_t channels);
/// Hyper-connections (`hc_*`), with the model's epsilon.
HyperSpec hyper_spec(const formats::JsonFields& fields, const NormSpec& norm);

/// Families in other files.

}  // namespace ingot::inference
