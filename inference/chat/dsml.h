#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"
#include "inference/chat/messages.h"

// The common parts of the encoders of DeepSeek-V3.2 and V4. Protocol constants: the models were
// trained on these bytes.

namespace ingot::inference {

inline constexpr std::string_view kBosText = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosText = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kEndThink = "</think>";

/// A message, and its place in the request, for errors.
struct Numbered {
  formats::Json message;
  std::size_t index = 0;

  [[nodiscard]] const std::string& role() const;
};
std::vector<Numbered> numbered(const formats::Json& messages);
/// Throws kInvalidArgument: `messages[INDEX]` and then the fault.
[[noreturn]] void refuse(const Numbered& at, std::string_view message);

/// Makes the request's tools those of a system message; throws kInvalidArgument where it has its
/// own.
void declare_tools(const formats::Json& tools, Numbered& system);
/// Returns two line ends and the tools of a message, each a line of JSON between head and foot; and
/// likewise the schema of `response_format`. Empty where it has neither. Throws kInvalidArgument
/// for a tool without "function".
std::string declarations(const Numbered& at, std::string_view head, std::string_view foot);

/// Returns two line ends and the block `<｜DSML｜NAME>` of an answer's calls. Throws
/// kInvalidArgument for arguments that are no JSON object.
std::string calls_text(const Numbered& at, const std::vector<ToolCall>& calls,
                       std::string_view block);

/// The variables of both encoders.
struct EncoderFlags {
  bool drop_thinking = true, add_bos = true;
};
/// Reads `drop_thinking` and `add_default_bos_token`; leaves the variables called `others` to the
/// caller. Throws kInvalidArgument for a value that is no boolean, and for other variables.
EncoderFlags read_flags(std::string_view format, const formats::Json* extra,
                        std::string_view others = {});

}  // namespace ingot::inference
