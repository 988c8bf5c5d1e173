#pragma once

#include <span>
#include <string_view>

#include "formats/config/model_config.h"
#include "formats/family/family.h"
#include "inference/model/step/model_spec.h"

namespace ingot::inference {

/// What a family of formats/family computes. A row in a table: a new one is one file and one line
/// in families.cc.
struct ModelFamily {
  std::string_view name;  ///< as in formats
  ModelSpec (*spec)(const formats::ModelConfig& config);
};

std::span<const ModelFamily* const> model_families();

/// The numbers of a checkpoint's forward pass. kUnsupported naming the family and those that have
/// one; kCorrupt naming keys of config.json.
ModelSpec model_spec(const formats::Family& family, const formats::ModelConfig& config);

}  // namespace ingot::inference
