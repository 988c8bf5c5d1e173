#pragma once

#include <array>
#include <string>
#include <string_view>

#include "formats/family/family.h"

namespace ingot::formats {

/// Words of Cut and Fuse in family files, by number.
inline constexpr std::array<std::string_view, 4> kCutWords = {"replicated", "column", "row",
                                                              "vocab"};
inline constexpr std::array<std::string_view, 5> kFuseWords = {"none", "qa_kva", "gate_up",
                                                               "indexer_k", "qkv"};

/// The traits of a family's row unless its file says otherwise, by its role: most rows of a role
/// are alike in all families.
struct UsualRow {
  Cut cut = Cut::kReplicated;
  Fuse fuse = Fuse::kNone;
  bool is_linear = false;  ///< true: FP8 releases quantize tensors of the role
  /// Likely widths of outputs and inputs, with ", " between them, the usual one first; empty: none
  /// is usual, or there are no inputs.
  std::string_view out = {}, in = {};
};
/// The usual row of a role. Fine roles have none.
UsualRow usual_row(Role role);
/// The usual row of a role as a family file would say it: "quantized: true, cut: row, shape: [...]"
/// with a shape only if just one is usual; empty where nothing is usual.
std::string usual_text(Role role);
/// True if rows of a role that say no shape have `out` and `in`: just one of each is usual.
bool has_usual_shape(const UsualRow& usual);

}  // namespace ingot::formats
