#include "inference/chat/chat_format.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/jinja/template.h"
#include "inference/chat/messages.h"

namespace ingot::inference {

using formats::Json;
using jinja::Template;

namespace {

constexpr std::uint64_t kMaxTemplateFileBytes = std::uint64_t{1} << 20U;
// tokenizer_config.json may list every added token.
constexpr std::uint64_t kMaxTokenizerConfigBytes = std::uint64_t{64} << 20U;

constexpr std::string_view kTemplate = "template";

struct Templates {
  std::optional<Template> plain, with_tools;
};

void add_extra(const Json* extra, Json& variables) {
  if (extra == nullptr) return;
  if (!extra->is_object()) {
    throw Error(ErrorCode::kInvalidArgument, "the variables of a template must be an object");
  }
  for (const auto& [name, value] : extra->items()) {
    for (const char* own : {"messages", "tools", "add_generation_prompt"}) {
      if (name != own) continue;
      throw Error(ErrorCode::kInvalidArgument, "'{}' is no free variable of a template", name);
    }
    variables[name] = value;
  }
}

// `variables` are the special tokens.
std::string render_template(const Templates& templates, Json variables,
                            const ChatRequest& request) {
  variables["messages"] = request.messages;
  variables["tools"] = request.has_tools() ? request.tools : Json(nullptr);
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = request.options.add_generation_prompt;
  if (request.options.thinking) {
    variables["thinking"] = *request.options.thinking;
    variables["enable_thinking"] = *request.options.thinking;
  }
  add_extra(request.options.extra.get(), variables);
  const Template& chosen =
      request.has_tools() && templates.with_tools ? *templates.with_tools : *templates.plain;
  return chosen.render(variables, request.options.date);
}

// A token is its text, or an object with the text as "content".
const Json* token_text(const Json& token) {
  if (token.is_string()) return &token;
  if (!token.is_object()) return nullptr;
  const auto content = token.find("content");
  return content != token.end() && content->is_string() ? &*content : nullptr;
}

Json special_tokens(const Json& config) {
  static constexpr std::array kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
  Json tokens = Json::object();
  for (const char* name : kNames) {
    const auto found = config.find(name);
    const Json* text = found == config.end() ? nullptr : token_text(*found);
    if (text != nullptr) tokens[name] = *text;
  }
  const auto more = config.find("additional_special_tokens");
  if (more == config.end() || !more->is_array()) return tokens;
  Json list = Json::array();
  for (const Json& token : *more) {
    if (const Json* text = token_text(token)) list.push_back(*text);
  }
  tokens["additional_special_tokens"] = std::move(list);
  return tokens;
}

const std::string& text_of(const Json& object, const char* key, const std::string& where) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string()) {
    throw Error(ErrorCode::kCorrupt, "an entry of 'chat_template' has no string '{}'", key)
        .in_file(where);
  }
  return found->get_ref<const std::string&>();
}

Templates parse_templates(const Json& value, const std::string& where) {
  Templates templates;
  if (value.is_string()) {
    templates.plain = Template::parse(value.get_ref<const std::string&>(), where);
    return templates;
  }
  if (!value.is_array()) {
    throw Error(ErrorCode::kCorrupt, "'chat_template' is neither a string nor a list of templates")
        .in_file(where);
  }
  for (const Json& entry : value) {
    const std::string& name = text_of(entry, "name", where);
    const std::string& text = text_of(entry, "template", where);
    if (name == "default") templates.plain = Template::parse(text, where);
    if (name == "tool_use") templates.with_tools = Template::parse(text, where);
  }
  if (!templates.plain) {
    throw Error(ErrorCode::kNotFound, "'chat_template' has no template 'default'").in_file(where);
  }
  return templates;
}

/// The chat template among a model's files, null when they have none. Templates get the variables
/// of transformers: messages, tools, documents, add_generation_prompt, the special tokens of
/// tokenizer_config.json that are set, and the options.
std::unique_ptr<ChatFormat> open_template_format(const std::filesystem::path& directory) {
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  const std::filesystem::path template_path = directory / "chat_template.jinja";
  Json config = Json::object();
  if (std::filesystem::exists(config_path)) {
    config = formats::read_json_file(config_path, kMaxTokenizerConfigBytes);
    if (!config.is_object()) {
      throw Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(config_path.string());
    }
  }
  Templates templates;
  const auto in_config = config.find("chat_template");
  if (std::filesystem::exists(template_path)) {
    templates.plain = Template::parse(read_text_file(template_path, kMaxTemplateFileBytes),
                                      template_path.string());
  } else if (in_config != config.end() && !in_config->is_null()) {
    templates = parse_templates(*in_config, config_path.string());
  } else {
    return nullptr;
  }
  return std::make_unique<ChatFormat>(
      kTemplate,
      [templates = std::move(templates), tokens = special_tokens(config)](
          const ChatRequest& request) { return render_template(templates, tokens, request); });
}

}  // namespace

std::string ChatFormat::render(const Json& messages, const Json& tools,
                               const ChatOptions& options) const {
  check_messages(messages, "");
  check_tools(tools, "");
  return render_({.messages = messages, .tools = tools, .options = options});
}

bool ChatRequest::has_tools() const {
  return tools.is_array() && !tools.empty();
}

std::span<const std::string_view> chat_formats() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all{kTemplate};
    for (const BuiltInFormat& row : built_in_formats()) all.push_back(row.name);
    return all;
  }();
  return names;
}

void refuse_in_format(std::string_view name, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "the chat format {} has no {}", name, what);
}

void refuse_extra(std::string_view name, const Json* extra) {
  if (extra == nullptr) return;
  if (!extra->is_object()) {
    throw Error(ErrorCode::kInvalidArgument, "the variables of a chat format must be an object");
  }
  if (!extra->empty()) {
    throw Error(ErrorCode::kInvalidArgument, "the chat format {} has no variable '{}'", name,
                extra->items().begin().key());
  }
}

std::unique_ptr<ChatFormat> open_chat_format(const std::filesystem::path& directory,
                                             std::string_view family,
                                             std::string_view format_override) {
  const auto built_in = [](const auto& matches) -> std::unique_ptr<ChatFormat> {
    const auto found = std::ranges::find_if(built_in_formats(), matches);
    if (found == built_in_formats().end()) return nullptr;
    return std::make_unique<ChatFormat>(found->name, found->render);
  };
  if (!format_override.empty() && format_override != kTemplate) {
    if (auto format = built_in([&](const auto& row) { return row.name == format_override; })) {
      return format;
    }
    throw Error(ErrorCode::kInvalidArgument, "'{}' is no chat format (known: {}){}",
                format_override, fmt::join(chat_formats(), ", "),
                did_you_mean(format_override, chat_formats()));
  }
  if (auto format = open_template_format(directory)) return format;
  if (format_override.empty() && !family.empty()) {
    if (auto format = built_in([&](const auto& row) { return row.family == family; })) {
      return format;
    }
  }
  throw Error(ErrorCode::kNotFound,
              "the model has no chat template (choose a format with --chat-format: {}; or give the "
              "text of the prompt with --raw)",
              fmt::join(chat_formats().subspan(1), ", "))
      .in_file(directory.string());
}

}  // namespace ingot::inference
