#pragma once

#include <cstdint>

#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"

// The kinds of mixers that keep a state (kinds.h).

namespace ingot::inference {

BodySpec delta_net(const Decoder& model, Parameters& parameters, std::uint32_t layer);
BodySpec state_space(const Decoder& model, Parameters& parameters, std::uint32_t layer);
BodySpec selective_scan(const Decoder& model, Parameters& parameters, std::uint32_t layer);
BodySpec lightning_attention(const Decoder& model, Parameters& parameters, std::uint32_t layer);
BodySpec gated_convolution(const Decoder& model, Parameters& parameters, std::uint32_t layer);

}  // namespace ingot::inference
