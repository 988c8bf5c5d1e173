#include "inference/base/profile.h"

#include <array>

#include "formats/container/bfloat16.h"

namespace ingot::inference {
namespace {

struct Row {
  Profile profile;
  std::string_view name;
};
constexpr std::array kRows = {Row{Profile::kNative, "native"}, Row{Profile::kBf16, "bf16"},
                              Row{Profile::kF32, "f32"}};
constexpr std::array kProfiles = {kRows[0].profile, kRows[1].profile, kRows[2].profile};

}  // namespace

std::span<const Profile> profiles() {
  return kProfiles;
}

std::string_view profile_name(Profile profile) {
  return kRows.at(static_cast<std::size_t>(profile)).name;
}

std::optional<Profile> find_profile(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.profile;
  }
  return std::nullopt;
}

void round_between(Profile profile, std::span<float> values) {
  if (profile == Profile::kF32) return;
  for (float& value : values) value = formats::float_from_bf16(formats::bf16_from_float(value));
}

}  // namespace ingot::inference
