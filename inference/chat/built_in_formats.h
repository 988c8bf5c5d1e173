#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/json/json_fwd.h"
#include "inference/chat/chat_format.h"

namespace ingot::inference {

/// One chat format that needs no template.
struct BuiltInFormat {
  std::string_view name;
  /// The families whose models come without a template and mean this format; empty: none.
  std::string_view family;
  std::string (*render)(const ChatRequest& request);
};

std::span<const BuiltInFormat> built_in_formats();

/// Throws kUnsupported: the format `name` has no such thing.
[[noreturn]] void refuse_in_format(std::string_view name, const std::string& what);
/// Throws kInvalidArgument unless the further variables are null, or an object without any.
void refuse_extra(std::string_view name, const formats::Json* extra);

/// The encoder that DeepSeek-V3.2 comes with in place of a template. Tools are part of the system
/// or developer message that declares them ("tools", "response_format"); those of the request go to
/// the system message in front, or to an empty one put there. Thinking mode: options.thinking.
/// Extra options: `drop_thinking` (true), which in thinking mode removes developer messages before
/// the last one of a user or developer, and `add_default_bos_token` (true). The generation prompt
/// is part of the last message, so add_generation_prompt changes nothing. Throws kInvalidArgument,
/// naming the message, for: an answer after the last user's message that thinking mode needs
/// reasoning or a call for; a tool's result without its call; a developer's message without
/// content; arguments that are no JSON object; tools without "function".
std::string render_deepseek_v32(const ChatRequest& request);

/// The encoder of DeepSeek-V4 (its encoding_dsv4.py, as of July 2026). Results of tools are parts
/// of the user's turn, in the order of their calls. Thinking mode, tools and options as above,
/// where tools go to the first system message; while tools are declared nothing is dropped. One
/// more option, `reasoning_effort` (low, the default, high, max), puts its words in front in
/// thinking mode. Throws kUnsupported for messages with `task` or `wo_eos`.
std::string render_deepseek_v4(const ChatRequest& request);

}  // namespace ingot::inference
