#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

/// The stored tensors of the weights files of a directory that need be no checkpoint: each is a
/// plain logical tensor of its own. Files of no known name count, an index does not. Throws,
/// collected, for files that cannot be read, a name in two of them (kDuplicate), none at all
/// (kMissingTensor).
Checkpoint open_loose_tensors(const std::filesystem::path& directory, std::size_t threads);

/// The model with the stored tensors of an overlay in place of its own of the same names, or next
/// to them: scales of caches and of activations, a corrected head. Encodings are recognised again,
/// so parts that are no parts of a weight here are refused. Files of the overlay are named
/// `NAME/FILE`. Throws kShapeMismatch for a tensor of another shape than the model's of that name,
/// kUnknownTensor for one that is none of the model's, kUnsupported for a model whose stored
/// tensors are seen in another form than they have (AWQ, GPTQ), and as Checkpoint::assemble().
Checkpoint with_overlay(std::shared_ptr<const Checkpoint> model, Giver overlay,
                        std::size_t threads);

}  // namespace ingot::formats
