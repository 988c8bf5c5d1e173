#include "inference/base/profile.h"

#include <algorithm>
#include <array>

#include "formats/container/bfloat16.h"

namespace ingot::inference {
namespace {

// Names in the order of Profile.
constexpr std::array<std::string_view, 3> kProfileNames = {"native", "bf16", "f32"};
constexpr std::array kProfiles = {Profile::kNative, Profile::kBf16, Profile::kF32};

}  // namespace

std::span<const Profile> profiles() {
  return kProfiles;
}

std::string_view profile_name(Profile profile) {
  return kProfileNames.at(static_cast<std::size_t>(profile));
}

std::optional<Profile> find_profile(std::string_view name) {
  const auto* const found = std::ranges::find(kProfileNames, name);
  if (found == kProfileNames.end()) return std::nullopt;
  return static_cast<Profile>(found - kProfileNames.begin());
}

void round_between(Profile profile, std::span<float> values) {
  if (profile == Profile::kF32) return;
  for (float& value : values) value = formats::float_from_bf16(formats::bf16_from_float(value));
}

}  // namespace ingot::inference
