#pragma once

#include <string>

#include "formats/json/json_fwd.h"

namespace ingot::inference {

/// V3, R1 and V3.1 put all system messages first, wherever they stand, joined by a blank line.
std::string deepseek_system_text(const formats::Json& messages);

}  // namespace ingot::inference
