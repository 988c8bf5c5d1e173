#include "formats/family/family_table.h"

namespace ingot::formats {

const Family kGeneric = {
    .name = "generic",
    .summary = "any names, by --family generic: cast, copied and inspected, not understood",
    .model_types = {},
    .architecture = "",
    .rules = {},
    .reference_config = ""};

}  // namespace ingot::formats
