#pragma once

#include <string>
#include <string_view>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::cli {

/// The contents of a checkpoint, only from headers and config: the tables of `ingot inspect`, under
/// the name of the directory that was asked for.
std::string summary_text(std::string_view directory, const formats::Checkpoint& checkpoint);

}  // namespace ingot::cli
