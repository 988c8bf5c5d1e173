#include "inference/chat/messages.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/python_text.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "latest_reminder"};
constexpr std::size_t kMaxShownBytes = 60;

[[noreturn]] void refuse_message(std::string_view where, std::string message) {
  throw Error(ErrorCode::kInvalidArgument, std::move(message)).in_file(where);
}

/// One object of the input and how errors call it.
class Checked {
 public:
  Checked(const Json& object, std::string path, std::string_view where)
      : object_(object), path_(std::move(path)), where_(where) {
    if (!object.is_object()) refuse_message(where, fmt::format("{} is no object", path_));
  }

  [[nodiscard]] const Json* find(const char* key) const { return find_value(object_, key); }
  [[nodiscard]] std::string path_of(const char* key) const { return path_ + "." + key; }

  void require_string(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) refuse_message(where_, fmt::format("{} is missing", path_of(key)));
    if (!value->is_string()) refuse_message(where_, fmt::format("{} is no string", path_of(key)));
  }
  void allow_string(const char* key) const {
    if (find(key) != nullptr) require_string(key);
  }

 private:
  const Json& object_;
  std::string path_;
  std::string_view where_;
};

void check_content(const Checked& message, const Json& content, std::string_view where) {
  if (content.is_string()) return;
  const std::string path = message.path_of("content");
  if (!content.is_array()) refuse_message(where, path + " is neither a string nor a list of parts");
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Checked part(content[i], fmt::format("{}[{}]", path, i), where);
    part.require_string("type");
    if (formats::text_at(content[i], "type") == "text") part.require_string("text");
  }
}

void check_tool_calls(const Checked& message, const Json& calls, std::string_view where) {
  const std::string path = message.path_of("tool_calls");
  if (!calls.is_array()) refuse_message(where, path + " is no list");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string call_path = fmt::format("{}[{}]", path, i);
    const Checked call(calls[i], call_path, where);
    const Json* inner = call.find("function");
    const Checked function(inner == nullptr ? calls[i] : *inner,
                           inner == nullptr ? call_path : call_path + ".function", where);
    function.require_string("name");
    const Json* arguments = function.find("arguments");
    if (arguments == nullptr || !(arguments->is_string() || arguments->is_object())) {
      refuse_message(where, function.path_of("arguments") + " is neither a string nor an object");
    }
  }
}

void check_message(const Json& value, std::size_t index, std::string_view where) {
  const Checked message(value, fmt::format("messages[{}]", index), where);
  message.require_string("role");
  const auto& role = message.find("role")->get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    refuse_message(where, fmt::format("{} is '{}', not one of {}", message.path_of("role"),
                                      std::string_view(role).substr(0, kMaxShownBytes),
                                      fmt::join(kRoles, ", ")));
  }
  const Json* content = message.find("content");
  if (content != nullptr) check_content(message, *content, where);
  if (content == nullptr && (role == "user" || role == "tool")) {
    refuse_message(where, message.path_of("content") + " is missing");
  }
  for (const char* key : {"reasoning_content", "name", "tool_call_id"}) message.allow_string(key);
  if (const Json* calls = message.find("tool_calls")) check_tool_calls(message, *calls, where);
  if (const Json* prefix = message.find("prefix"); prefix != nullptr && !prefix->is_boolean()) {
    refuse_message(where, message.path_of("prefix") + " is no boolean");
  }
  if (const Json* tools = message.find("tools")) {
    try {
      check_tools(*tools, where);
    } catch (const Error& error) {
      refuse_message(where, fmt::format("messages[{}].{}", index, error.message()));
    }
  }
}

}  // namespace

const Json* find_value(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Conversation parse_messages(std::string_view json, std::string_view where) {
  Json document = formats::parse_json(json, where);
  Json messages;
  Json tools;
  if (document.is_array()) {
    messages = std::move(document);
  } else if (document.is_object()) {
    for (auto& [key, value] : document.items()) {
      if (key == "messages") {
        messages = std::move(value);
      } else if (key == "tools") {
        tools = std::move(value);
      } else {
        refuse_message(where, fmt::format("the key '{}' is not known (messages and tools are)",
                                          std::string_view(key).substr(0, kMaxShownBytes)));
      }
    }
  } else {
    refuse_message(where, "is neither a list of messages nor an object with 'messages'");
  }
  check_messages(messages, where);
  check_tools(tools, where);
  return {.messages = std::make_shared<const Json>(std::move(messages)),
          .tools = std::make_shared<const Json>(std::move(tools))};
}

void check_messages(const Json& messages, std::string_view where) {
  if (!messages.is_array()) refuse_message(where, "'messages' is no list");
  if (messages.empty()) refuse_message(where, "'messages' is empty");
  for (std::size_t i = 0; i < messages.size(); ++i) check_message(messages[i], i, where);
}

void check_tools(const Json& tools, std::string_view where) {
  if (tools.is_null()) return;
  if (!tools.is_array()) refuse_message(where, "tools is no list");
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    const Checked tool(tools[i], path, where);
    const Json* inner = tool.find("function");
    if (inner == nullptr) {
      tool.require_string("name");
    } else {
      Checked(*inner, path + ".function", where).require_string("name");
    }
  }
}

std::string message_text(const Json& message, std::size_t index) {
  const Json* content = find_value(message, "content");
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  for (const Json& part : *content) {
    if (formats::text_at(part, "type") != "text") {
      throw Error(ErrorCode::kUnsupported,
                  "messages[{}].content has a part of type '{}' (only text can be read)", index,
                  std::string_view(part.at("type").get_ref<const std::string&>())
                      .substr(0, kMaxShownBytes));
    }
    text += part.at("text").get_ref<const std::string&>();
  }
  return text;
}

bool message_flag(const Json& message, const char* key) {
  const Json* value = find_value(message, key);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

std::string ToolCall::arguments_text() const {
  return arguments->is_string() ? arguments->get<std::string>() : python_json(*arguments);
}

std::vector<ToolCall> tool_calls(const Json& message) {
  std::vector<ToolCall> calls;
  const Json* list = find_value(message, "tool_calls");
  if (list == nullptr) return calls;
  for (const Json& call : *list) {
    const Json* inner = find_value(call, "function");
    const Json& function = inner == nullptr ? call : *inner;
    calls.push_back(
        {.name = function.at("name").get<std::string>(), .arguments = &function.at("arguments")});
  }
  return calls;
}

}  // namespace ingot::inference
