#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/container/tensor.h"

// Names of a nested text model. Families have rows for `model.layers.N...`; in a checkpoint a
// prefix may stand before them. Everything that is written keeps the names of the checkpoint.

namespace ingot::formats {

struct Family;

/// The prefix of the text model's names among those of a checkpoint, as TextNesting::prefix; empty
/// where there is none.
std::string find_text_prefix(std::span<const StoredTensor> stored);

/// Counts the MTP layers in the names of a checkpoint, from the first on, where its config has no
/// key for their number (Qwen3-Next's) and the family names these layers apart; else leaves
/// `config`, which has its prefix, as it is.
void count_named_mtp(const Family& family, std::span<const StoredTensor> stored,
                     ModelConfig& config);

/// A checkpoint's name as the family's rows have it.
std::string text_model_name(std::string_view stored, const TextNesting& nesting);

/// A name of the family's rows as this checkpoint has it.
std::string stored_text_name(std::string_view name, const TextNesting& nesting);

/// The names by which configs list a module of this checkpoint: its own, that of the text model
/// alone, and that of transformers' modules in memory.
std::vector<std::string> module_aliases(std::string_view module, const TextNesting& nesting);

}  // namespace ingot::formats
