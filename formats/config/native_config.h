#pragma once

#include <string_view>

#include "formats/config/model_config.h"
#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// Name of the native config next to shards of layout deepseek-mp, where config.json stays that of
/// the hub. The file is never a side file: it is derived again where it is wanted.
inline constexpr std::string_view kNativeConfigName = "inference_config.json";

/// The config that DeepSeek's inference code reads (`ModelArgs` of its model.py), computed from the
/// config.json of the checkpoint that is written. That code refuses keys that it does not know, so
/// only those of its own files are there: `scale_fmt` when the scales are powers of two, `index_*`
/// with an indexer. The cache sizes are left to its defaults, and it applies YaRN only to a cache
/// longer than `original_seq_len`.
///
/// `is_fp8`: the linear layers are FP8 blocks, otherwise BF16.
///
/// Throws kUnsupported, naming the keys of config.json, for a model that the code would compute
/// differently: dense layers behind mixtures, RoPE other than plain or YaRN with equal mscale and
/// mscale_all_dim, expert weights divided by their sum other than exactly under sigmoid scores, an
/// rms_norm_eps other than 1e-6, biases in attention, a head tied to the embedding.
Json native_config(const ModelConfig& config, bool is_fp8);

}  // namespace ingot::formats
