#pragma once

#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"

// The kinds of blocks that a family's file names (forward_table.h).

namespace ingot::inference {

/// Reads a block of a layer: its kind and numbers. `model` has the feed-forward parts.
BodySpec body_of(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
/// Sets the mixture of all layers that have one, from the file's `mixture`.
void set_mixture(Parameters& parameters, DecoderSpec& model);
/// Sets the form of the gates of a layer's dense MLP or mixture, from `mlp`, and of routed experts
/// from `mixture`, which may be null.
void set_gates(Parameters& mlp, Parameters* mixture, BodySpec& feed_forward);
/// Norms and ends of the model, from `model`.
void set_model(Parameters& parameters, DecoderSpec& model);

}  // namespace ingot::inference
