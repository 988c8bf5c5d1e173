#pragma once

#include "formats/storage/encoding.h"

namespace ingot::formats {

/// True if stacks of experts are output-major under a scheme, whatever their family's plain ones
/// are: if its groups run along the inputs, as square blocks do not.
inline bool turns_stacks(SchemeId scheme) {
  const SchemeFacts& facts = scheme_facts(scheme);
  return facts.quantized && facts.group_rows <= 1;
}

}  // namespace ingot::formats
