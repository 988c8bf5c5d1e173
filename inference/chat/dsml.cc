#include "inference/chat/dsml.h"

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/python_text.h"

namespace ingot::inference {

using formats::Json;

namespace {

constexpr std::string_view kFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

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

}  // namespace

const std::string& Numbered::role() const {
  return message.at("role").get_ref<const std::string&>();
}

std::vector<Numbered> numbered(const Json& messages) {
  std::vector<Numbered> all;
  for (std::size_t i = 0; i < messages.size(); ++i)
    all.push_back({.message = messages[i], .index = i});
  return all;
}

void refuse(const Numbered& at, std::string_view message) {
  throw Error(ErrorCode::kInvalidArgument, "messages[{}]{}", at.index, message);
}

void declare_tools(const Json& tools, Numbered& system) {
  if (find_value(system.message, "tools") != nullptr)
    refuse(system, " has tools of its own besides those of the request");
  system.message["tools"] = tools;
}

std::string declarations(const Numbered& at, std::string_view head, std::string_view foot) {
  std::string text;
  const Json* tools = find_value(at.message, "tools");
  if (tools != nullptr && !tools->empty()) {
    text += "\n\n";
    text += head;
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const Json* function = find_value((*tools)[i], "function");
      if (function == nullptr) refuse(at, fmt::format(".tools[{}].function is missing", i));
      text += python_json(*function) + "\n";
    }
    text += foot;
  }
  if (const Json* format = find_value(at.message, "response_format")) {
    text += "\n\n";
    text += kFormatHead;
    text += python_json(*format);
  }
  return text;
}

std::string calls_text(const Numbered& at, const std::vector<ToolCall>& calls,
                       std::string_view block) {
  std::string text = fmt::format("\n\n<｜DSML｜{}>\n", block);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    text += call_text(calls[i].name, parsed_arguments(at, i, calls[i])) + "\n";
  }
  return text + fmt::format("</｜DSML｜{}>", block);
}

EncoderFlags read_flags(std::string_view format, const Json* extra, std::string_view others) {
  EncoderFlags flags;
  if (extra == nullptr) return flags;
  Json rest = *extra;
  const auto take = [&](const char* key, bool& flag) {
    if (!rest.is_object() || !rest.contains(key)) return;
    if (!rest.at(key).is_boolean())
      throw Error(ErrorCode::kInvalidArgument, "'{}' is no boolean", key);
    flag = rest.at(key).get<bool>();
    rest.erase(key);
  };
  take("drop_thinking", flags.drop_thinking);
  take("add_default_bos_token", flags.add_bos);
  if (rest.is_object() && !others.empty()) rest.erase(std::string(others));
  refuse_extra(format, &rest);
  return flags;
}

}  // namespace ingot::inference
