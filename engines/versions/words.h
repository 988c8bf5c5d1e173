#pragma once

#include <array>
#include <string_view>

#include "engines/row/engine.h"

// The words of rows, for the files of this folder only.

namespace ingot::engines {

using enum formats::Activations;
using enum formats::SchemeId;
using enum EngineEffect;
using enum EngineScope;
using enum Evidence;

inline constexpr std::string_view kAnyDialect = "";
inline constexpr std::string_view kCt = "compressed-tensors";
inline constexpr std::string_view kModelopt = "modelopt";
inline constexpr std::string_view kModelslim = "modelslim";
inline constexpr std::string_view kDeepseek = "deepseek";
inline constexpr std::string_view kMxfp4Stacks = "mxfp4";

}  // namespace ingot::engines
