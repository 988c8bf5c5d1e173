#pragma once

#include "formats/storage/encoding.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// True if stacks of experts are output-major under a scheme, whatever their family's plain ones
/// are: if its groups run along the inputs, as square blocks do not.
inline bool turns_stacks(SchemeId scheme) {
  const SchemeFacts& facts = scheme_facts(scheme);
  return facts.quantized && facts.group_rows <= 1;
}

/// True if the tensor is no stack, or one in the order that its row and scheme say. Others are read
/// too, and written in that order.
inline bool is_usual_stack(const LogicalTensor& tensor) {
  return tensor.stack == StackOrder::kNone ||
         tensor.stack == stack_order(*tensor.rule, turns_stacks(tensor.encoding.scheme));
}

}  // namespace ingot::formats
