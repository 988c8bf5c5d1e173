#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/container/tensor.h"

// Names of a nested text model. Families have rows for `model.layers.N...`; names of a checkpoint
// may have a prefix before that. All outputs keep the names of the checkpoint.

namespace ingot::formats {

struct Family;

/// Finds the prefix of the text model's names among those of a checkpoint, and whether it is in
/// place of `model.`.
void find_text_prefix(const Family& family, std::span<const StoredTensor> stored,
                      ModelConfig& config);

/// Adds to num_nextn_predict_layers the MTP layers whose names a checkpoint has behind those that
/// its config promises. `config` has its prefix.
void count_mtp_layers(const Family& family, std::span<const StoredTensor> stored,
                      ModelConfig& config);

/// How many MTP layers config.json itself promises, where names have more; nullopt where it
/// promises all, or has no key for their number and the family names them apart (Qwen3-Next).
std::optional<std::uint64_t> understated_mtp(const Family& family, const ModelConfig& config);

/// A checkpoint's name as the family's rows have it.
std::string text_model_name(std::string_view stored, const TextNesting& nesting);

/// A name of the family's rows as this checkpoint has it.
std::string stored_text_name(std::string_view name, const TextNesting& nesting);

/// The names by which configs list a module of this checkpoint: its own, that of only the text
/// model, and that of transformers' modules in memory.
std::vector<std::string> module_aliases(std::string_view module, const TextNesting& nesting);

}  // namespace ingot::formats
