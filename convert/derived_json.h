#pragma once

#include "convert/plan.h"

namespace ingot::convert {

/// Fills the JSON texts of Plan from the tensors that it writes, and adds warnings about promises
/// of the source's config that its tensors do not keep. quantization_config and
/// num_nextn_predict_layers are derived; everything else of config.json is carried through. Ranks
/// get the config of the whole model, with the blocks that were retiled and the widths that were
/// padded.
void derive_json(const formats::Checkpoint& source, const Recipe& recipe, Plan& plan);

}  // namespace ingot::convert
