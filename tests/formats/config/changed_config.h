#pragma once

#include "formats/config/model_config.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "tests/support/test.h"

namespace ingot::testing {

inline formats::ModelConfig reference(const formats::Family& family) {
  return formats::parse_model_config(family.reference_config, "reference");
}

inline const formats::Family& family_named(std::string_view name) {
  const formats::Family* family = formats::find_family(name);
  EXPECT_NE(family, nullptr) << name;
  return *family;
}

/// The reference config with some keys changed.
inline formats::ModelConfig changed(const formats::Family& family, const formats::Json& keys) {
  formats::Json config = reference(family).raw;
  for (const auto& [key, value] : keys.items()) config[key] = value;
  return formats::parse_model_config(config.dump(), "changed");
}

}  // namespace ingot::testing
