#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

struct Manifest;

/// The first main layers of a model as a model of its own, without MTP layers: small enough to try
/// the way of a large one through engines. config.json says so many layers, and its lists, patterns
/// and numbers by layer end there; where the class derives kinds of layers from their number,
/// config.json says the kinds. All else is the source's. Throws kInvalidArgument where the model
/// has no more layers; kUnsupported for slices, for a family without rows, where a layer would be
/// of another kind or a tensor of another shape, and where one reads from a layer that is left out.
Checkpoint with_first_layers(std::shared_ptr<const Checkpoint> source, std::uint64_t n_layers);

/// The number of main layers that an output was made with by its manifest (`--layers`), or nullopt
/// for all of its source.
std::optional<std::uint64_t> recorded_layers(const Manifest& output);

/// The source with the layers that an output of it has by its manifest: all, or the first ones.
Checkpoint with_layers_as_in(Checkpoint source, const Manifest& output);

}  // namespace ingot::formats
