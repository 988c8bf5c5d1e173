#pragma once

#include "convert/plan.h"

namespace ingot::convert {

/// Fills Plan::config_text and Plan::index_text from the tensors that the plan writes, and adds
/// warnings about promises of the source's config that its tensors do not keep. quantization_config
/// and num_nextn_predict_layers are derived; everything else of config.json is carried through.
void derive_json(const formats::Checkpoint& source, const Recipe& recipe, Plan& plan);

}  // namespace ingot::convert
