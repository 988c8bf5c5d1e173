#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::formats {

/// The names under which engines look up a module of a multi-token prediction layer, where they
/// differ from the stored one; empty: they do not.
struct MtpNames {
  /// vLLM's name of the layer's head: without `shared_head` (models/deepseek_v32/nvidia/mtp.py:92;
  /// all others are alike).
  std::string head;
  /// vLLM's name of the layer's decoder in Step's models: with `mtp_block` behind the layer's
  /// number (step3p5_mtp.py:74).
  std::string block;
  /// SGLang's name of the first layer's decoder, of which it makes a model of one layer:
  /// `model.decoder.mlp.down_proj` for `model.layers.61.mlp.down_proj`. Read in SGLang 0.5.23,
  /// models/deepseek_nextn.py:119; glm4_moe_nextn.py, mimo_v2_nextn.py and others have the same.
  std::string draft;

  [[nodiscard]] std::vector<std::string> all() const;
};

/// Layers from `n_main_layers` on are for multi-token prediction; 0: only a head is known.
MtpNames mtp_names(std::string_view module, std::uint64_t n_main_layers);

}  // namespace ingot::formats
