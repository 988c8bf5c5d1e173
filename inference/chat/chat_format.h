#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "formats/json/json_fwd.h"

namespace ingot::inference {

struct ChatOptions {
  /// Ends the text where the assistant's words begin. Formats whose generation prompt is part of
  /// the last message (deepseek-v3.2) write it always.
  bool add_generation_prompt = true;
  /// Nullopt: the format's own default; for a template the variables `thinking` and
  /// `enable_thinking` are then not set, else both are. The built-in formats take nullopt for
  /// false.
  std::optional<bool> thinking;
  /// The answer of strftime_now in a template: `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`, or empty.
  /// Without it a template that asks is kInvalidArgument: no clock is read here.
  std::string date;
  /// Further variables of a template, an object or null; deepseek-v3.2 takes `drop_thinking` and
  /// `add_default_bos_token`.
  std::shared_ptr<const formats::Json> extra;
};

/// The input of a format; check_messages and check_tools have accepted it.
struct ChatRequest {
  const formats::Json& messages;
  const formats::Json& tools;
  const ChatOptions& options;

  [[nodiscard]] bool has_tools() const;
  [[nodiscard]] bool thinks() const { return options.thinking.value_or(false); }
};

/// Turns messages into the text of a prompt. The text has its BOS where the format has one, so a
/// tokenizer must not add another.
class ChatFormat {
 public:
  using Render = std::function<std::string(const ChatRequest& request)>;
  ChatFormat(std::string_view name, Render render) : name_(name), render_(std::move(render)) {}

  /// "template", or the name of a built-in format.
  [[nodiscard]] std::string_view name() const { return name_; }
  /// `messages` is an array as parse_messages gives it, `tools` null or an array. Throws
  /// kInvalidArgument for messages that the format cannot hold, naming the message, and
  /// kUnsupported for roles, tools and modes that it does not have; a template throws as
  /// jinja::Template::render does.
  [[nodiscard]] std::string render(const formats::Json& messages, const formats::Json& tools,
                                   const ChatOptions& options) const;

 private:
  std::string_view name_;
  Render render_;
};

/// Opens the format that a model's files ask for: chat_template.jinja, else chat_template of
/// tokenizer_config.json (a string, or a list of {name, template}: "tool_use" when tools are given,
/// else "default"), else the built-in format of its family. `format_override` is one of
/// chat_formats(), or empty for that of the files. Throws kInvalidArgument for another name,
/// kNotFound when there is no format, and as the template's parser does.
std::unique_ptr<ChatFormat> open_chat_format(const std::filesystem::path& directory,
                                             std::string_view family,
                                             std::string_view format_override);

/// "template" and the built-in ones.
std::span<const std::string_view> chat_formats();

}  // namespace ingot::inference
