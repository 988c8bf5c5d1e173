#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/deepseek_system_text.h"
#include "inference/chat/deepseek_tokens.h"
#include "inference/chat/messages.h"
#include "inference/chat/python_json.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::string_view kName = "deepseek-v3.1";

constexpr std::string_view kToolsHead = "## Tools\nYou have access to the following tools:\n";
constexpr std::string_view kToolsFoot =
    "\n"
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
    "<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n"
    "\n"
    "Where:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
    "Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces";

std::string tools_block(const Json& tools) {
  std::string text(kToolsHead);
  for (const Json& tool : tools) {
    const auto inner = tool.find("function");
    const Json& function = inner == tool.end() || inner->is_null() ? tool : *inner;
    const auto description = function.find("description");
    const bool has_description = description != function.end() && description->is_string();
    const auto parameters = function.find("parameters");
    text +=
        fmt::format("\n### {}\nDescription: {}\n\nParameters: {}\n",
                    function.at("name").get_ref<const std::string&>(),
                    has_description ? description->get_ref<const std::string&>() : std::string(),
                    python_json(parameters == function.end() ? Json::object() : *parameters));
  }
  text += kToolsFoot;
  return text;
}

std::string calls_text(const std::vector<ToolCall>& calls) {
  std::string text(deepseek::kCallsBegin);
  for (const ToolCall& call : calls) {
    text += fmt::format("{}{}{}{}{}", deepseek::kCallBegin, call.name, deepseek::kToolSep,
                        call.arguments_text(), deepseek::kCallEnd);
  }
  text += deepseek::kCallsEnd;
  return text;
}

// What the assistant says goes on where the last marker left off: behind a user's message it opens
// a turn, behind tool outputs it continues one.
enum class Last : std::uint8_t { kUser, kTool, kOther };

class Rendering {
 public:
  explicit Rendering(const ChatRequest& request) : request_(request) {}

  std::string run() {
    refuse_extra(kName, request_.options.extra.get());
    text_ = deepseek::kBos;
    text_ += deepseek_system_text(request_.messages);
    if (request_.has_tools()) text_ += "\n\n" + tools_block(request_.tools);
    for (std::size_t i = 0; i < request_.messages.size(); ++i) add(request_.messages[i], i);
    if (request_.options.add_generation_prompt && last_ == Last::kUser) {
      text_ += deepseek::kAssistant;
      text_ += request_.thinks() ? deepseek::kThink : deepseek::kEndThink;
    }
    return std::move(text_);
  }

 private:
  void add(const Json& message, std::size_t index) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    if (role == "system") return;
    const std::string content = message_text(message, index);
    if (role == "user") {
      text_ += deepseek::kUser;
      text_ += content;
      last_ = Last::kUser;
    } else if (role == "tool") {
      text_ += fmt::format("{}{}{}", deepseek::kOutputBegin, content, deepseek::kOutputEnd);
      last_ = Last::kTool;
    } else if (role == "assistant") {
      add_answer(message, index, content);
      last_ = Last::kOther;
    } else {
      refuse_in_format(kName, fmt::format("role '{}'", role));
    }
  }

  void add_answer(const Json& message, std::size_t index, std::string content) {
    const std::vector<ToolCall> calls = tool_calls(message);
    if (last_ == Last::kUser) {
      const bool is_begun = calls.empty() && request_.thinks() &&
                            index + 1 == request_.messages.size() &&
                            message_flag(message, "prefix");
      text_ += deepseek::kAssistant;
      text_ += is_begun ? deepseek::kThink : deepseek::kEndThink;
    }
    const auto end_of_thoughts = content.find(deepseek::kEndThink);
    if (calls.empty() && last_ != Last::kTool && end_of_thoughts != std::string::npos) {
      content.erase(0, end_of_thoughts + deepseek::kEndThink.size());
    }
    text_ += content;
    if (!calls.empty()) text_ += calls_text(calls);
    text_ += deepseek::kEos;
  }

  const ChatRequest& request_;
  std::string text_;
  Last last_ = Last::kOther;
};

}  // namespace

std::string render_deepseek_v31(const ChatRequest& request) {
  return Rendering(request).run();
}

}  // namespace ingot::inference
