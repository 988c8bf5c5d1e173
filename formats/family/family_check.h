#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/family/family.h"
#include "formats/yaml/yaml.h"

// Requirements on the rows of a family, one by one and all together.

namespace ingot::formats {

inline constexpr std::string_view kLayerMark = "{layer}";
inline constexpr std::string_view kMtpMark = "{mtp}";
inline constexpr std::string_view kExpertMark = "{expert}";

inline bool has_mark(std::string_view pattern, std::string_view mark) {
  return pattern.find(mark) != std::string_view::npos;
}

/// The mark of a number below a key of config.json, at the end of a word (`{split_ngram_parts}` in
/// `shard_{split_ngram_parts}`); empty without one.
std::string_view key_mark(std::string_view pattern);
/// How many numbers such a mark means.
Width count_of(std::string_view mark, const Family& family);

/// A row, and its values in the file.
struct FamilyRow {
  TensorRule rule = {};
  int line = 0;  ///< line of the row; 0: a row of the family that this one is like
  bool has_role = false, has_scope = false, has_shape = false, has_presence = false;
};

/// True if two rows have the same names in the same layers.
bool is_same_place(const TensorRule& a, const TensorRule& b);

/// A condition of `layers`: a key of config.json with values, or `listed_in` and `not_listed_in`.
LayerCondition read_layer_condition(const Yaml& value);

/// Refuses a name that has other characters than tensors' names do, a mark that occurs twice or,
/// unless it is that of a number below a key, is no whole word between dots. A number below a width
/// of the family may be a whole word, too.
void require_marks(const FamilyRow& row, const NamedWidths& widths);

/// Refuses rows that contradict themselves, and rows that conflict: two for one name in the same
/// layers, a number where others have a mark. Returns the prefix of the number of a layer where MTP
/// layers have other names, else the usual one.
std::string require_consistent(const std::vector<FamilyRow>& rows, std::string_view mtp_layers,
                               const Yaml& root);

}  // namespace ingot::formats
