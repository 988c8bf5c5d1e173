#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/storage/block_scales.h"

namespace ingot::convert {

/// The gift of a directory that a recipe of several sources names.
enum class GiverKind : std::uint8_t {
  kBase,     ///< whatever no rule takes from elsewhere
  kSource,   ///< the tensors of the rules that name it
  kOverlay,  ///< stored tensors in place of the base's of the same names, or next to these
  kEdits,    ///< values, which are encoded as the base has the tensor
};

/// The name of the directory of edits, in recipes and for `--source`.
inline constexpr std::string_view kEditsName = "edits";

/// A directory that a recipe names.
struct NamedDirectory {
  GiverKind kind{};
  std::string name;
  std::filesystem::path path;  ///< absolute, or relative to the working directory
  std::string given;           ///< the text in the recipe; may be the name of a model on the hub
  int line = 0;                ///< line in the recipe, from 1; 0: `--source` gave it
};

/// The words of a recipe for `ingot compose` about its sources.
struct Composition {
  std::string where;  ///< the recipe's file
  /// The base first, then sources and overlays in the order of the recipe, edits last.
  std::vector<NamedDirectory> givers;
  /// `side-files: base`: the base's tokenizer and chat template are taken where others differ.
  bool takes_base_side_files = false;
  /// `fused: rescale`: NVFP4 weights that loaders fuse get one global scale where theirs differ.
  bool rescales = false;

  /// Takes `NAME=DIR` of `--source`: another path for a name of the recipe. Throws
  /// kInvalidArgument for an unknown name.
  void replace(std::string_view text);
};

/// An overlay of the base, or the edits, for the manifest.
struct OverlayFacts {
  GiverKind kind{};
  std::string name;
  std::filesystem::path directory;
  std::string licence;  ///< licence in its card; empty: it tells none
};

/// The facts about the tensors of a composed checkpoint that a plan needs: it opens no file.
struct ComposedFacts {
  std::vector<OverlayFacts> overlays;  ///< overlays in their order, then the edits
  /// Global scales of NVFP4 weights that loaders fuse and several checkpoints gave, by name.
  std::map<std::string, formats::GlobalScale> globals;
  std::set<std::string> inputs;  ///< weights whose scales of activations are an overlay's, by name
  bool rescales = false;         ///< Composition::rescales
  bool takes_base_side_files = false;  ///< Composition::takes_base_side_files
};

}  // namespace ingot::convert
