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
#include "inference/family/parameters.h"

// Readers of config.json that families of the same kind share. Each refuses with the key.

namespace ingot::inference {

/// The most layers, experts and entries of lists that are plausible.
inline constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;

/// Limits of windows, of counts that may not be 0, and of those that may.
inline constexpr Limits kWindow = {0, 1 << 30};
inline constexpr Limits kFew = {1, kMaxCount};
inline constexpr Limits kNoneOrFew = {0, kMaxCount};

[[noreturn]] void refuse(ErrorCode code, const std::string& message);
/// Throws kCorrupt.
[[noreturn]] void refuse(const std::string& message);

/// The value, which must not be 0.
std::size_t required(std::uint64_t value, std::string_view key);
/// Numbers of heads and widths of one: products of two must not wrap around, and tables of a width
/// are made before any tensor could contradict it.
std::size_t of_heads(std::uint64_t value, std::string_view key);

/// Returns the keys of config.json that only the forward pass needs.
formats::JsonFields spec_fields(const formats::ModelConfig& config);
/// Returns the parameters of rope, in either spelling; nullopt where there are none.
std::optional<formats::JsonFields> rope_fields(const formats::ModelConfig& config);

/// The common beginning of every family: widths, ends, norms, and the feed-forward parts of its
/// layers. The family adds its mixers.
struct DecoderSpec {
  /// `activation` is the one that the family computes; configs without the key have it too.
  /// `config` must outlive this.
  explicit DecoderSpec(const formats::ModelConfig& config, std::string_view activation = "silu");

  const formats::ModelConfig& config;
  formats::JsonFields fields;  ///< parameters by config key, from spec_fields()
  ModelSpec spec;              ///< model without its layers
  std::vector<bool> is_moe;    ///< per layer, MTP layers included
  MlpSpec dense;
  /// Mixture of the layers that have one; nullopt: there is none.
  std::optional<MixtureSpec> mixture;
  std::uint64_t n_tables = 0;  ///< layers from the first on whose router has a table
  bool norms_input = true;     ///< value for each BlockSpec
  /// BlockSpec::output_norm of mixers, and of feed-forward parts.
  std::optional<NormSpec> mixer_output_norm, feed_forward_output_norm;
  bool norms_mixture = false;             ///< blocks with a mixture have an output norm
  bool is_weighed_by_depth = false;       ///< terms of sums have factors that follow from the depth
  std::optional<float> gate_temperature;  ///< value for each BlockSpec
  std::size_t short_convolution = 0;      ///< value for each LayerSpec
  bool scales_convolution = false;        ///< value for each LayerSpec
  std::size_t run = 0;                    ///< layers of a run, whose sum is a source; 0: no sources
  float residual_factor = 1.0F;           ///< value for each LayerSpec
  bool has_ngrams = false;                ///< LayerSpec::ngrams, of layers that the config lists

  /// Sets shared experts that are `width` wide together; none where it is 0.
  void share(std::uint64_t width);
  /// Leaves out the MTP layers, for families whose MTP layers are of another kind than MtpLayer.
  void leave_out_mtp();
  /// The dense MLP or the mixture of a layer.
  [[nodiscard]] BodySpec feed_forward(std::size_t layer) const;
};

/// Returns how queries grow with their positions: by rope's parameters, or by numbers of the file.
std::optional<GrowthSpec> growth_of(const formats::ModelConfig& config, Parameters& parameters);
/// Returns true for each layer with rope: by `no_rope_layers`, which has 1 for layers with rope, or
/// for all layers but every n-th.
std::vector<bool> rope_layers(const formats::JsonFields& fields, std::size_t n_layers);
/// The n-grams of a layer as the config has them, whose streams have `channels` values together;
/// nullopt where the layer has none.
std::optional<NgramSpec> ngram_spec(const formats::ModelConfig& config, std::uint32_t layer,
                                    std::size_t channels);
/// Reads the hyper-connections (`hc_*`), with the model's epsilon.
HyperSpec hyper_spec(const formats::JsonFields& fields, const NormSpec& norm);

}  // namespace ingot::inference
