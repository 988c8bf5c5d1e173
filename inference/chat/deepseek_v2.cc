#include <cstddef>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/deepseek_tokens.h"
#include "inference/chat/messages.h"

namespace ingot::inference {

std::string render_deepseek_v2(const ChatRequest& request) {
  constexpr std::string_view kName = "deepseek-v2";
  refuse_extra(kName, request.options.extra.get());
  if (request.has_tools()) refuse_in_format(kName, "tools");
  if (request.thinks()) refuse_in_format(kName, "thinking mode");
  std::string text(deepseek::kBos);
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const formats::Json& message = request.messages[i];
    const auto& role = message.at("role").get_ref<const std::string&>();
    if (!tool_calls(message).empty()) refuse_in_format(kName, "tool calls");
    const std::string content = message_text(message, i);
    if (role == "system") {
      text += content + "\n\n";
    } else if (role == "user") {
      text += "User: " + content + "\n\n";
    } else if (role == "assistant") {
      text += "Assistant: " + content;
      text += deepseek::kEos;
    } else {
      refuse_in_format(kName, fmt::format("role '{}'", role));
    }
  }
  // Without the space behind the colon, which the model writes itself.
  if (request.options.add_generation_prompt) text += "Assistant:";
  return text;
}

}  // namespace ingot::inference
