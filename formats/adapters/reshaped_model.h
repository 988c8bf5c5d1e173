#pragma once

#include <memory>
#include <optional>

#include "formats/adapters/adapter_file.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

/// The model in the shape for which an adapter was trained; nullopt: it has that shape. Another
/// size of the vocabulary adds or cuts rows at its end, and config.json says it; added rows have
/// any numbers, since the adapter gives all of them. A head that is the embedding becomes its own
/// tensor, with the same numbers, where the adapter changes it. Throws, collected: an adapter with
/// several sizes (kShapeMismatch); rows that it does not give, and quantized weights
/// (kUnsupported).
std::optional<Checkpoint> with_shape_of(const AdapterFile& adapter,
                                        const std::shared_ptr<const Checkpoint>& model);

/// True if a tensor of the adapter takes the place of the head with the numbers that another gives
/// the embedding: a head that is the embedding stays so.
bool repeats_embedding(const AdapterFile& adapter, std::uint32_t head);

}  // namespace ingot::formats
