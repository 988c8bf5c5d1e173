#pragma once

#include <string>

#include "formats/json/json.h"
#include "verify/structure/structure_findings.h"

namespace ingot::verify {

/// A config.json of the output, which must describe the same model.
struct OutputConfig {
  const formats::Json& config;
  std::string file;  ///< for findings, e.g. `rank-00001-of-00004/config.json`
  /// What cuts pad (vocabulary, widths of MLPs) may be wider than in the source.
  bool may_be_padded = false;
  /// False for DeepSeek's own config, of which every key counts.
  bool is_hub = true;
};

/// Finds ("structure.config") every meaning (formats/config/config_meaning.h) that is not the source's, by
/// the keys that say it. Left out is what conversion derives: quantization_config, which loader
/// rules compare with the tensors, and num_nextn_predict_layers (tensor_pairs.h). A key that is not
/// known and that one side alone has is a warning. Absent and null are the same.
void compare_model_parameters(const formats::Json& source, const OutputConfig& output,
                              StructureFindings& found);

}  // namespace ingot::verify
