#pragma once

#include <span>
#include <string_view>

#include "formats/family/family.h"
#include "formats/family/usual_rows.h"

namespace ingot::formats {

/// The usual meaning of a tensor's name.
struct UsualSpelling {
  Role role = Role::kOther;
  bool is_known = false;  ///< false: no spelling that is known; the role is kOther
  /// Several matrices in one, whose rows follow one another: queries, keys and values; gate and up.
  /// The role is that of the first.
  bool is_joint = false;
};

/// Judges a pattern, as families have it, by the words of role names and by their place (attention,
/// experts, shared experts, outside the layers). `n_sides` is the number of dimensions, since a
/// stack of experts and one matrix may be called alike.
UsualSpelling usual_spelling(std::string_view pattern, std::size_t n_sides = 2);
/// True if a pattern is the name of a part of the experts of a layer, all in one tensor.
bool is_called_stack(std::string_view pattern);

/// The text of a pattern after the number of a layer; the whole name outside of layers.
std::string_view behind_layer(std::string_view pattern);

/// The name of a matrix of one expert where it is not stacked.
struct SingleExpert {
  std::string_view word;
  Role role{};
};
/// The matrices of single experts that a stack of this name joins, in the order of its outputs.
std::span<const SingleExpert> usual_singles(std::string_view stack);

/// The name without the ending of weights.
std::string_view stem_of(std::string_view name);
/// The module of a weight, with the dot behind it; empty for names without a dot.
std::string_view module_of(std::string_view name);
/// True for names that end as those of biases.
bool is_bias_name(std::string_view name);
/// True for matrices of a recurrence.
bool is_of_recurrence(Role role);

/// The usual row of a name. Joined rows are not cut, since their order is not known.
UsualRow usual_row(const UsualSpelling& spelling);

}  // namespace ingot::formats
