#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"

namespace ingot::inference {

/// Positions 0 to n - 1.
std::vector<std::uint32_t> first_positions(std::size_t n);

/// One stream of the tokens at `positions`, [positions, width]; unless the profile is kF32 what
/// codes stand for is rounded to BF16.
Matrix cached(Profile profile, const KvCache& cache, SequenceId sequence, std::size_t layer,
              std::size_t stream, std::span<const std::uint32_t> positions);

}  // namespace ingot::inference
