#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "inference/kernels/quantized/quantized_matmul.h"
#include "inference/weights/held_bytes.h"
#include "inference/weights/input_observer.h"
#include "inference/weights/linear.h"
#include "inference/weights/part_reader.h"

namespace ingot::inference {

/// Behind Linear, filled by WeightStore.
struct Linear::State {
  std::shared_ptr<const HeldBytes> memory;  ///< of this part, and perhaps of others beside it
  std::uint64_t n_bytes = 0;                ///< of this part
  ReadPart part;
  WeightRounding rounding = WeightRounding::kExact;
  /// How rows of x are quantized first; nothing: not at all.
  std::optional<ActivationFormat> activations;
  InputObserver* observer = nullptr;  ///< shown what the linear is applied to, as `name`, `matrix`
  std::string_view name;              ///< of the source's logical tensor
  std::size_t matrix = 0;
};

}  // namespace ingot::inference
