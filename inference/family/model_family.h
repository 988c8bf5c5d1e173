#pragma once

#include <span>
#include <string_view>

#include "formats/config/model_config.h"
#include "formats/family/family.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

/// What a family of formats/family computes. A new one is a function and a row in
/// families.cc.
struct ModelFamily {
  std::string_view name;  ///< as in formats
  ModelSpec (*spec)(const formats::ModelConfig& config);
};

std::span<const ModelFamily> model_families();

/// The numbers of a checkpoint's forward pass. kUnsupported naming the family and those that have
/// one; kCorrupt naming keys of config.json.
ModelSpec model_spec(const formats::Family& family, const formats::ModelConfig& config);

}  // namespace ingot::inference
