#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>

#include "formats/config/config_meaning.h"

namespace ingot::formats {

/// Keys of config.json that hold the parameters of rope.
inline constexpr std::array<std::string_view, 2> kRopeObjects = {"rope_parameters", "rope_scaling"};

/// Receives a config's facts about rope.
struct RopeSink {
  std::function<void(const std::string& meaning, SaidValue said)> say;
  std::function<void(std::string sentence)> contradict;
};

/// Sends every parameter of rope in a config, or in its text_config, as `rope.KEY`, and those that
/// only one of two objects has. `prefix` is put before each path.
void read_rope(const Json& config, const std::string& prefix, const RopeSink& sink);

/// Removes keys that begin with `begin` and equal what their absence means, and the parameters of a
/// scaling that is not there.
void forget_idle_rope(ConfigMeaning::Values& known, const std::string& begin);

}  // namespace ingot::formats
