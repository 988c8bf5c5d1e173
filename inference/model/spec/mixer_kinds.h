#pragma once

#include <array>

#include "inference/model/spec/mixer_kind.h"

namespace ingot::inference {

extern const MixerKind kGroupedAttention, kLatentAttention, kCompressedAttention, kDeltaNet,
    kStateSpace, kSelectiveScan, kLightningAttention, kGatedConvolution, kConvolvedAttention,
    kClippedAttention;

/// All kinds of mixers.
inline constexpr std::array kMixerKinds = {
    &kGroupedAttention,   &kLatentAttention, &kCompressedAttention, &kDeltaNet,
    &kStateSpace,         &kSelectiveScan,   &kLightningAttention,  &kGatedConvolution,
    &kConvolvedAttention, &kClippedAttention};

}  // namespace ingot::inference
