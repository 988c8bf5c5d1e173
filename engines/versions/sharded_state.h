#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/container/safetensors.h"
#include "formats/storage/encoding.h"

// The demands of loaders of the format sharded_state: the keys of the state dict of a rank after
// duplicates were left out; for vLLM before it processes the weights, for SGLang after.

namespace ingot::engines {

/// An engine with such a loader.
struct StateEngine {
  std::string_view word;     ///< EngineRow::word
  std::string_view name;     ///< `vLLM`
  std::string_view version;  ///< versions that load the files: others have other parameters
  bool has_stages = false;   ///< file names tell stages of a pipeline
  bool has_drafts = false;   ///< known way of loading the model for multi-token prediction
};
/// The engine of this word, which must be one of a layout of such files.
const StateEngine& state_engine(std::string_view word);

/// How an engine holds a module, whatever the config says of its quantization.
enum class StateForm : std::uint8_t {
  kAsStored,  ///< module in the scheme of the checkpoint
  kPlain,     ///< module that is never quantized
  kDecoded,   ///< module that is never quantized: a checkpoint's codes are decoded as they load
  kSplit,     ///< module that is split by its rows behind the loading, so that they come first
};

/// The place of a stored tensor of the hub in the state dict. The tensors of one key follow one
/// another along the first dimension of the key, or of an expert in it.
struct StatePlace {
  std::string key;
  std::uint32_t place = 0;       ///< among the tensors of the key; of a stack: expert by expert
  std::uint32_t n_places = 1;    ///< tensors of the key; of a stack: 0
  std::uint32_t per_expert = 0;  ///< tensors of one expert in a stack: gate and up, or down
  StateForm form{};
  formats::DType plain = formats::DType::kBf16;  ///< dtype of an element that is not quantized
  bool is_draft = false;  ///< part of the model for multi-token prediction, which is loaded apart
};

/// The place of a stored tensor (`model.layers.1.mlp.gate_proj.weight_scale`) of a family. nullopt
/// for names that the engine's models do not have.
std::optional<StatePlace> state_place(const StateEngine& engine, std::string_view stored_name,
                                      std::string_view family, const formats::ModelConfig& config);

/// True if the engines' models of this family are known here.
bool has_state_of(std::string_view family);

/// True if its stages of a pipeline each have embedding, last norm and head, and not only the first
/// or the last one.
bool has_ends_on_every_stage(const StateEngine& engine, std::string_view family);

/// True if the engine builds an indexer in a layer of such a family; nullopt for families whose
/// model has none. Layers without one share that of an earlier layer. vLLM looks at
/// `index_topk_pattern`, else at `index_topk_freq` and `index_skip_topk_offset`, never at
/// `indexer_types`, which SGLang looks at first; layers for multi-token prediction have one always.
/// Source: models/deepseek_v32/attention.py:167, 0.32; configs/model_config.py of SGLang 0.5.23.
std::optional<bool> builds_indexer(const StateEngine& engine, std::string_view family,
                                   const formats::ModelConfig& config, std::uint64_t layer);

/// A key that no checkpoint fills; each element is `value`.
struct StateConstant {
  formats::TensorSpec spec;
  float value = 1;
};
/// Keys of a decoder layer: scales and zero points of the attention and its cache. Some are there
/// only with a quantization_config of `dialect`; empty: config.json has none.
std::vector<StateConstant> state_constants(const StateEngine& engine, std::string_view family,
                                           std::string_view dialect, std::uint32_t layer,
                                           const formats::ModelConfig& config);

/// A scheme as a rank's files hold it.
struct StateScheme {
  formats::SchemeId scheme{};
  std::string_view dialect;       ///< empty: any
  std::string_view kernels = {};  ///< kernels for which the tensors are as they are
  /// Input scales of experts that vLLM creates for weight-only schemes too, and that nothing fills:
  /// the ends of their names; empty: none.
  std::string_view idle_input = {};
  /// True if linear layers hold their codes with the inputs first, and experts do not.
  bool turns_linears = false;
};
/// The row of a scheme; null: the files do not hold it.
const StateScheme* find_state_scheme(const StateEngine& engine, formats::SchemeId scheme,
                                     std::string_view dialect);

/// First layers of the stages into which vLLM divides a model, then the number of layers: equal
/// numbers, and the rest to stages before the last, from behind. Source: vllm/distributed/utils.py,
/// get_pp_indices, 0.32.
std::vector<std::uint32_t> state_stages(std::uint32_t n_layers, std::uint32_t pp);

/// Both engines pad the vocabulary to a multiple of this. Source: vocab_parallel_embedding.py of
/// vLLM 0.32, and of SGLang 0.5.23.
inline constexpr std::uint64_t kStateVocabMultiple = 64;

}  // namespace ingot::engines
