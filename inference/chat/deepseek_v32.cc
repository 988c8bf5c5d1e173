#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/dsml.h"
#include "inference/chat/messages.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::string_view kV32Name = "deepseek-v3.2";

// Protocol constants: the model was trained on these bytes, blank lines included.
constexpr std::string_view kV32ToolsHead =
    R"(## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
)";
constexpr std::string_view kV32ToolsFoot = "</functions>\n";

// The text after a system's content and before a developer's.
std::string v32_declarations(const Numbered& at) {
  return declarations(at, kV32ToolsHead, kV32ToolsFoot);
}

class V32Encoder {
 public:
  V32Encoder(const ChatRequest& request, const EncoderFlags& flags)
      : thinks_(request.thinks()), messages_(numbered(request.messages)) {
    if (request.has_tools()) add_tools(request.tools);
    find_last_user();
    if (thinks_ && flags.drop_thinking) drop_developers();
  }

  [[nodiscard]] std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < messages_.size(); ++i) text += message_at(i);
    return text;
  }

 private:
  void add_tools(const Json& tools) {
    if (messages_.front().role() != "system") {
      messages_.insert(messages_.begin(),
                       {.message = Json::object({{"role", "system"}}), .index = 0});
    }
    declare_tools(tools, messages_.front());
  }

  void find_last_user() {
    last_user_.reset();
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].role() == "user" || messages_[i].role() == "developer") last_user_ = i;
    }
  }

  // The reasoning of answers, which the flag also drops, is never written anyway.
  void drop_developers() {
    std::vector<Numbered> kept;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const bool goes = messages_[i].role() == "developer" && last_user_ && i < *last_user_;
      if (!goes) kept.push_back(std::move(messages_[i]));
    }
    messages_ = std::move(kept);
    find_last_user();
  }

  [[nodiscard]] std::string message_at(std::size_t i) const {
    const Numbered& at = messages_[i];
    const std::string& role = at.role();
    const std::string content = message_text(at.message, at.index);
    if (role == "system") return content + v32_declarations(at);
    if (role == "user") return user_turn(i, content);
    if (role == "developer") {
      if (content.empty()) refuse(at, ".content of a developer is empty");
      return user_turn(i, v32_declarations(at) + "\n\n# The user's message is: " + content);
    }
    if (role == "assistant") return answer(i, content);
    if (role == "tool") return result(i, content);
    refuse_in_format(kV32Name, fmt::format("role '{}' (messages[{}])", role, at.index));
  }

  [[nodiscard]] std::string user_turn(std::size_t i, const std::string& content) const {
    return fmt::format("{}{}{}{}", kUser, content, kAssistant,
                       thinks_ && i == last_user_ ? kThink : kEndThink);
  }

  [[nodiscard]] std::string answer(std::size_t i, const std::string& content) const {
    const Numbered& at = messages_[i];
    const std::vector<ToolCall> calls = tool_calls(at.message);
    std::string text;
    if (thinks_ && (!last_user_ || i > *last_user_)) {
      const Json* reasoning = find_value(at.message, "reasoning_content");
      const bool has_reasoning =
          reasoning != nullptr && !reasoning->get_ref<const std::string&>().empty();
      if (!has_reasoning && calls.empty()) {
        refuse(at,
               " has neither reasoning_content nor tool_calls, which thinking mode needs "
               "behind the last user's message");
      }
      if (has_reasoning) text += reasoning->get_ref<const std::string&>();
      text += kEndThink;
    }
    text += content;
    if (!calls.empty()) text += calls_text(at, calls, "function_calls");
    text += kEosText;
    return text;
  }

  [[nodiscard]] std::string result(std::size_t i, const std::string& content) const {
    std::size_t caller = i;
    while (caller > 0 && messages_[caller].role() == "tool") --caller;
    const std::size_t n_calls =
        messages_[caller].role() == "assistant" ? tool_calls(messages_[caller].message).size() : 0;
    const std::size_t order = i - caller;
    if (order > n_calls || n_calls == 0) {
      refuse(messages_[i], fmt::format(" is result {} of {} tool calls", order, n_calls));
    }
    std::string text = order == 1 ? "\n\n<function_results>" : "";
    text += "\n<result>" + content + "</result>";
    if (order < n_calls) return text;
    text += "\n</function_results>\n\n";
    text += thinks_ && (!last_user_ || i >= *last_user_) ? kThink : kEndThink;
    return text;
  }

  bool thinks_;
  std::vector<Numbered> messages_;
  std::optional<std::size_t> last_user_;
};

}  // namespace

std::string render_deepseek_v32(const ChatRequest& request) {
  const EncoderFlags flags = read_flags(kV32Name, request.options.extra.get());
  std::string text(flags.add_bos ? kBosText : std::string_view());
  text += V32Encoder(request, flags).text();
  return text;
}

}  // namespace ingot::inference
