#pragma once

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Fills the JSON texts of Plan from the tensors that it writes, and adds warnings about promises
/// of the source's config that its tensors do not keep. quantization_config and
/// num_nextn_predict_layers are derived; everything else of config.json is carried through. Ranks
/// get the config of the whole model, with the blocks that were retiled and the widths that were
/// padded. A file that says what the source's says is that of the source to the byte, any other has
/// its form.
void derive_json(const formats::Checkpoint& source, const Recipe& recipe, Plan& plan);

/// The source's, for an index of the output. Metadata are about the source's tensors, as
/// config.json is: an index of slices has them too, one of tensors that were converted or dropped
/// has not.
formats::IndexFrame index_frame(const Plan& plan, const formats::Checkpoint& source);

}  // namespace ingot::convert
