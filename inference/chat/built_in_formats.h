#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/json/json_fwd.h"
#include "inference/chat/chat_format.h"

namespace ingot::inference {

/// What a built-in format is given; check_messages and check_tools have accepted it.
struct ChatRequest {
  const formats::Json& messages;
  const formats::Json& tools;
  const ChatOptions& options;

  [[nodiscard]] bool has_tools() const;
  [[nodiscard]] bool thinks() const { return options.thinking.value_or(false); }
};

/// One chat format that needs no template.
struct BuiltInFormat {
  std::string_view name;
  /// The families whose models come without a template and mean this format; empty: none.
  std::string_view family;
  std::string (*render)(const ChatRequest& request);
};

std::span<const BuiltInFormat> built_in_formats();

/// kUnsupported: the format `name` has no such thing.
[[noreturn]] void refuse_in_format(std::string_view name, const std::string& what);
/// kInvalidArgument unless the further variables are null, or an object without any.
void refuse_extra(std::string_view name, const formats::Json* extra);

/// DeepSeek-V2: `User: ` and `Assistant: ` in words.
std::string render_deepseek_v2(const ChatRequest& request);
/// DeepSeek-V3 and V3-0324, which have tool calls but no block that declares tools.
std::string render_deepseek_v3(const ChatRequest& request);
/// DeepSeek-R1: as V3, and it always thinks.
std::string render_deepseek_r1(const ChatRequest& request);
/// DeepSeek-V3.1: thinking is a matter of the prompt, tools are declared in the system text.
std::string render_deepseek_v31(const ChatRequest& request);

}  // namespace ingot::inference
