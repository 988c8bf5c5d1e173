#pragma once

#include <string>
#include <vector>

#include "formats/family/family.h"

namespace ingot::formats {

/// Keys of the text model in config.json that say something, could change what is computed, and are
/// in no place where a model of `family` looks: neither among those that all models read nor in
/// the family's file. They are sorted. For a family that a user forces on a model of another.
std::vector<std::string> unread_keys(const Family& family, const ModelConfig& config);

}  // namespace ingot::formats
