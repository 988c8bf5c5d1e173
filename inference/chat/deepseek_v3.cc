#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/deepseek_system_text.h"
#include "inference/chat/deepseek_tokens.h"
#include "inference/chat/messages.h"

namespace ingot::inference {
namespace {

using formats::Json;

struct Variant {
  std::string_view name;
  bool keeps_thoughts;  // of earlier answers
  std::string_view generation_prompt;
};

std::string calls_text(const std::vector<ToolCall>& calls) {
  std::string text(deepseek::kCallsBegin);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) text += '\n';
    text +=
        fmt::format("{}function{}{}\n```json\n{}\n```{}", deepseek::kCallBegin, deepseek::kToolSep,
                    calls[i].name, calls[i].arguments_text(), deepseek::kCallEnd);
  }
  text += deepseek::kCallsEnd;
  return text;
}

class Rendering {
 public:
  Rendering(const ChatRequest& request, const Variant& variant)
      : request_(request), variant_(variant) {}

  std::string run() {
    refuse_extra(variant_.name, request_.options.extra.get());
    if (request_.has_tools()) {
      refuse_in_format(variant_.name,
                       "block that declares tools (describe them in the system message)");
    }
    text_ = deepseek::kBos;
    text_ += deepseek_system_text(request_.messages);
    for (std::size_t i = 0; i < request_.messages.size(); ++i) add(request_.messages[i], i);
    const bool ends_with_outputs = in_outputs_;
    close_outputs();
    if (request_.options.add_generation_prompt && !ends_with_outputs) {
      text_ += variant_.generation_prompt;
    }
    return std::move(text_);
  }

 private:
  void add(const Json& message, std::size_t index) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    if (role == "system") return;
    std::string content = message_text(message, index);
    if (role == "tool") {
      text_ += in_outputs_ ? "\n" : deepseek::kOutputsBegin;
      in_outputs_ = true;
      text_ += fmt::format("{}{}{}", deepseek::kOutputBegin, content, deepseek::kOutputEnd);
      return;
    }
    const bool answers_outputs = in_outputs_;
    close_outputs();
    if (role == "user") {
      text_ += deepseek::kUser;
      text_ += content;
    } else if (role == "assistant") {
      const auto end_of_thoughts = content.rfind(deepseek::kEndThink);
      if (!variant_.keeps_thoughts && end_of_thoughts != std::string::npos) {
        content.erase(0, end_of_thoughts + deepseek::kEndThink.size());
      }
      const std::vector<ToolCall> calls = tool_calls(message);
      if (!calls.empty() || !answers_outputs) text_ += deepseek::kAssistant;
      text_ += content;
      if (!calls.empty()) text_ += calls_text(calls);
      text_ += deepseek::kEos;
    } else {
      refuse_in_format(variant_.name, fmt::format("role '{}'", role));
    }
  }

  void close_outputs() {
    if (in_outputs_) text_ += deepseek::kOutputsEnd;
    in_outputs_ = false;
  }

  const ChatRequest& request_;
  const Variant& variant_;
  std::string text_;
  bool in_outputs_ = false;
};

}  // namespace

std::string render_deepseek_v3(const ChatRequest& request) {
  static constexpr Variant kV3 = {
      .name = "deepseek-v3", .keeps_thoughts = true, .generation_prompt = deepseek::kAssistant};
  if (request.thinks()) refuse_in_format(kV3.name, "thinking mode");
  return Rendering(request, kV3).run();
}

std::string render_deepseek_r1(const ChatRequest& request) {
  static constexpr Variant kR1 = {.name = "deepseek-r1",
                                  .keeps_thoughts = false,
                                  .generation_prompt = "<｜Assistant｜><think>\n"};
  return Rendering(request, kR1).run();
}

}  // namespace ingot::inference
