#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "convert/recipe/composition.h"
#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// How the directories of a composition are opened.
struct ComposeOptions {
  /// Opens a checkpoint under a family, as formats::OpenOptions::family.
  std::function<formats::Checkpoint(const std::filesystem::path&, const std::string& family)> open;
  std::string family;  ///< family of all; empty: as their configs say
  std::size_t threads = 1;
};

/// Opens the directories of a recipe and composes the model that its rules choose. A tensor comes
/// from the source of the first rule that matches it; without one, from the base. Sets
/// Choices::composed, adds the edits to Choices::editors, and sets Choices::dialect where neither a
/// dialect, an engine nor --to decides it: the dialect of a giver, else any, that holds every
/// scheme.
///
/// Throws kInvalidArgument for a file in place of a directory, and for one directory under two
/// names; kMismatch, collected, for checkpoints that are not one model (family, config, shapes) and
/// for tokenizers or chat templates that differ, unless the base's are taken; kMissingTensor,
/// collected, for tensors that a rule takes from a source without them; kUnsupported for rank
/// slices, and where no dialect holds all schemes. Norms, embeddings and routers that differ are
/// remarks of the model, as are sources that give nothing.
std::shared_ptr<const formats::Checkpoint> compose(const Composition& words, Recipe& recipe,
                                                   const ComposeOptions& options);

}  // namespace ingot::convert
