#pragma once

#include "formats/family/family.h"

namespace ingot::formats {

/// Whether a role is that of a norm's weight or bias, of whatever kind.
constexpr bool is_norm(Role role) {
  switch (role) {
    case Role::kFinalNorm:
    case Role::kInputNorm:
    case Role::kPostAttentionNorm:
    case Role::kQNorm:
    case Role::kKNorm:
    case Role::kQaNorm:
    case Role::kKvaNorm:
    case Role::kIndexerKNorm:
    case Role::kMtpEmbeddingNorm:
    case Role::kMtpHiddenNorm:
    case Role::kMtpHeadNorm:
      return true;
    default:
      return false;
  }
}

}  // namespace ingot::formats
