#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ingot::inference {

/// The arithmetic of a forward pass.
enum class Profile : std::uint8_t {
  /// Per tensor the arithmetic of its scheme and declared activations on the target hardware;
  /// between operations as kBf16.
  kNative,
  /// Rounds to BF16 between operations as transformers does in BF16 eager mode.
  kBf16,
  /// Weights dequantized exactly, everything in FP32: the golden reference.
  kF32,
};

std::span<const Profile> profiles();
std::string_view profile_name(Profile profile);
std::optional<Profile> find_profile(std::string_view name);

/// Rounds every value to BF16 (nearest, ties to even) unless the profile is kF32.
void round_between(Profile profile, std::span<float> values);

}  // namespace ingot::inference
