#pragma once

#include <string>

#include "formats/json.h"
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

/// Finds ("structure.config") every key whose value is not the source's, nested ones by their path.
/// Left out is what conversion derives: quantization_config and compression_config, which loader
/// rules compare with the tensors, and num_nextn_predict_layers (tensor_pairs.h). Who saved the
/// file, and with what, is no parameter of the model; another dtype is a warning. Absent and null
/// are the same; RoPE may be spelled as transformers 4 or as transformers 5 does.
void compare_model_parameters(const formats::Json& source, const OutputConfig& output,
                              StructureFindings& found);

}  // namespace ingot::verify
