#pragma once

#include <string_view>

// Special tokens of the DeepSeek chat formats, as their tokenizers spell them: the bar is U+FF5C,
// the gap between words U+2581.

namespace ingot::inference::deepseek {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kEndThink = "</think>";

inline constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kToolSep = "<｜tool▁sep｜>";
inline constexpr std::string_view kOutputsBegin = "<｜tool▁outputs▁begin｜>";
inline constexpr std::string_view kOutputsEnd = "<｜tool▁outputs▁end｜>";
inline constexpr std::string_view kOutputBegin = "<｜tool▁output▁begin｜>";
inline constexpr std::string_view kOutputEnd = "<｜tool▁output▁end｜>";

}  // namespace ingot::inference::deepseek
