#pragma once

#include <span>

#include "shard/fit/fit_refusals.h"

// The ways of fit_blocks, one per TpFit that changes something. Each fills in Fits::tensors, which
// has an entry per tensor already, and adds what it cannot help to the refusals.

namespace ingot::shard {

void fit_by_retiling(std::span<const TensorToFit> tensors, Fits& fits, FitRefusals& refusals);

void fit_by_padding(std::span<const TensorToFit> tensors, const formats::ModelConfig& config,
                    Fits& fits, FitRefusals& refusals);

void fit_by_casting(std::span<const TensorToFit> tensors, Fits& fits, FitRefusals& refusals);

}  // namespace ingot::shard
