#pragma once

#include <cstdint>

#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"

// The kinds of mixers that keep a state (kinds.h).

namespace ingot::inference {

BodySpec delta_net(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
BodySpec state_space(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
BodySpec selective_scan(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
BodySpec lightning_attention(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
BodySpec gated_convolution(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);

}  // namespace ingot::inference
