#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/messages.h"
#include "inference/chat/python_text.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::string_view kName = "deepseek-v3.2";

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

// Protocol constants: the model was trained on these bytes, blank lines included.
constexpr std::string_view kToolsHead =
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
constexpr std::string_view kToolsFoot = "</functions>\n";
constexpr std::string_view kFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

struct Numbered {
  Json message;
  std::size_t index;  // in the request, for errors
};

[[noreturn]] void refuse(const Numbered& at, std::string_view message) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("messages[{}]{}", at.index, message));
}

const std::string& role_of(const Numbered& at) {
  return at.message.at("role").get_ref<const std::string&>();
}

std::string tools_text(const Numbered& at, const Json& tools) {
  std::string text(kToolsHead);
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json* function = find_value(tools[i], "function");
    if (function == nullptr) refuse(at, fmt::format(".tools[{}].function is missing", i));
    text += python_json(*function) + "\n";
  }
  text += kToolsFoot;
  return text;
}

// What stands behind a system's content and before a developer's.
std::string declarations(const Numbered& at) {
  std::string text;
  const Json* tools = find_value(at.message, "tools");
  if (tools != nullptr && !tools->empty()) text += "\n\n" + tools_text(at, *tools);
  if (const Json* format = find_value(at.message, "response_format")) {
    text += "\n\n";
    text += kFormatHead;
    text += python_json(*format);
  }
  return text;
}

Json parsed_arguments(const Numbered& at, std::size_t i, const ToolCall& call) {
  Json arguments = *call.arguments;
  if (arguments.is_string()) {
    try {
      arguments = formats::parse_json(call.arguments->get_ref<const std::string&>(), "");
    } catch (const Error& error) {
      refuse(at, fmt::format(".tool_calls[{}]: the arguments: {}", i, error.message()));
    }
  }
  if (!arguments.is_object()) {
    refuse(at, fmt::format(".tool_calls[{}]: the arguments are no JSON object", i));
  }
  return arguments;
}

std::string call_text(const std::string& name, const Json& arguments) {
  std::string parameters;
  for (const auto& [key, value] : arguments.items()) {
    if (!parameters.empty()) parameters += '\n';
    parameters += fmt::format("<｜DSML｜parameter name=\"{}\" string=\"{}\">{}</｜DSML｜parameter>",
                              key, value.is_string(),
                              value.is_string() ? value.get<std::string>() : python_json(value));
  }
  return fmt::format("<｜DSML｜invoke name=\"{}\">\n{}\n</｜DSML｜invoke>", name, parameters);
}

std::string calls_text(const Numbered& at, const std::vector<ToolCall>& calls) {
  std::string text = "\n\n<｜DSML｜function_calls>\n";
  for (std::size_t i = 0; i < calls.size(); ++i) {
    text += call_text(calls[i].name, parsed_arguments(at, i, calls[i])) + "\n";
  }
  return text + "</｜DSML｜function_calls>";
}

struct Flags {
  bool drop_thinking = true, add_bos = true;
};

Flags read_flags(const Json* extra) {
  Flags flags;
  if (extra == nullptr) return flags;
  Json rest = *extra;
  const auto take = [&](const char* key, bool& flag) {
    if (!rest.is_object() || !rest.contains(key)) return;
    if (!rest.at(key).is_boolean()) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is no boolean", key));
    }
    flag = rest.at(key).get<bool>();
    rest.erase(key);
  };
  take("drop_thinking", flags.drop_thinking);
  take("add_default_bos_token", flags.add_bos);
  refuse_extra(kName, &rest);
  return flags;
}

class Encoder {
 public:
  Encoder(const ChatRequest& request, const Flags& flags) : thinks_(request.thinks()) {
    for (std::size_t i = 0; i < request.messages.size(); ++i) {
      messages_.push_back({.message = request.messages[i], .index = i});
    }
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
    if (role_of(messages_.front()) != "system") {
      messages_.insert(messages_.begin(),
                       {.message = Json::object({{"role", "system"}}), .index = 0});
    }
    Json& system = messages_.front().message;
    if (find_value(system, "tools") != nullptr) {
      refuse(messages_.front(), " has tools of its own besides those of the request");
    }
    system["tools"] = tools;
  }

  void find_last_user() {
    last_user_.reset();
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (role_of(messages_[i]) == "user" || role_of(messages_[i]) == "developer") last_user_ = i;
    }
  }

  // What the flag drops of answers, their reasoning, is not written anyway.
  void drop_developers() {
    std::vector<Numbered> kept;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const bool goes = role_of(messages_[i]) == "developer" && last_user_ && i < *last_user_;
      if (!goes) kept.push_back(std::move(messages_[i]));
    }
    messages_ = std::move(kept);
    find_last_user();
  }

  [[nodiscard]] std::string message_at(std::size_t i) const {
    const Numbered& at = messages_[i];
    const std::string& role = role_of(at);
    const std::string content = message_text(at.message, at.index);
    if (role == "system") return content + declarations(at);
    if (role == "user") return user_turn(i, content);
    if (role == "developer") {
      if (content.empty()) refuse(at, ".content of a developer is empty");
      return user_turn(i, declarations(at) + "\n\n# The user's message is: " + content);
    }
    if (role == "assistant") return answer(i, content);
    if (role == "tool") return result(i, content);
    refuse_in_format(kName, fmt::format("role '{}' (messages[{}])", role, at.index));
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
    if (!calls.empty()) text += calls_text(at, calls);
    text += kEos;
    return text;
  }

  [[nodiscard]] std::string result(std::size_t i, const std::string& content) const {
    std::size_t caller = i;
    while (caller > 0 && role_of(messages_[caller]) == "tool") --caller;
    const std::size_t n_calls = role_of(messages_[caller]) == "assistant"
                                    ? tool_calls(messages_[caller].message).size()
                                    : 0;
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
  const Flags flags = read_flags(request.options.extra.get());
  std::string text(flags.add_bos ? kBos : std::string_view());
  text += Encoder(request, flags).text();
  return text;
}

}  // namespace ingot::inference
