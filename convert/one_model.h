#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// Adds a fault for each fact by which `other` is no build of the model that `base` is: another
/// family, other numbers of layers, experts or heads, other widths, a tensor of another shape.
void require_one_model(const formats::Giver& base, const formats::Giver& other, ErrorList& faults);

/// Names what two builds of one model have differently and both can have: other values of
/// config.json, and norms, embeddings, heads and routers whose values are not equal. Reads those.
std::vector<std::string> differences_of(const formats::Giver& base, const formats::Giver& other,
                                        std::size_t threads);

/// Names of the tokenizer's files and chat templates that both have, and that do not say the same.
std::vector<std::string> differing_side_files(const formats::Checkpoint& base,
                                              const formats::Checkpoint& other);

}  // namespace ingot::convert
