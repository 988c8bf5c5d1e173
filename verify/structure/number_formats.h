#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "verify/structure/model_parameters.h"

namespace ingot::verify {

/// Finds ("structure.config") what a config.json of the output says of how numbers are held and
/// computed with that neither the source says nor the output's tensors show: a dtype, a quantized
/// cache of keys and values, a `scale_fmt` that was lost.
void compare_number_formats(const formats::Checkpoint& source, const formats::Checkpoint& output,
                            const OutputConfig& config, StructureFindings& found);

}  // namespace ingot::verify
