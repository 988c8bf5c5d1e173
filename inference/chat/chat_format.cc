#include "inference/chat/chat_format.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/deepseek_v32.h"
#include "inference/chat/messages.h"
#include "inference/chat/template_format.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::string_view kTemplate = "template";

constexpr std::array kFormats = {
    BuiltInFormat{"deepseek-v2", "", render_deepseek_v2},
    BuiltInFormat{"deepseek-v3", "", render_deepseek_v3},
    BuiltInFormat{"deepseek-r1", "", render_deepseek_r1},
    BuiltInFormat{"deepseek-v3.1", "", render_deepseek_v31},
    // Published without a template.
    BuiltInFormat{"deepseek-v3.2", "deepseek_v32", render_deepseek_v32},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kFormats.size() + 1> names{kTemplate};
  for (std::size_t i = 0; i < kFormats.size(); ++i) names[i + 1] = kFormats[i].name;
  return names;
}();

class BuiltInChatFormat final : public ChatFormat {
 public:
  explicit BuiltInChatFormat(const BuiltInFormat& row) : row_(row) {}
  [[nodiscard]] std::string_view name() const override { return row_.name; }
  [[nodiscard]] std::string render(const Json& messages, const Json& tools,
                                   const ChatOptions& options) const override {
    check_messages(messages, "");
    check_tools(tools, "");
    return row_.render({.messages = messages, .tools = tools, .options = options});
  }

 private:
  const BuiltInFormat& row_;
};

}  // namespace

bool ChatRequest::has_tools() const {
  return tools.is_array() && !tools.empty();
}

std::span<const BuiltInFormat> built_in_formats() {
  return kFormats;
}

std::span<const std::string_view> chat_formats() {
  return kNames;
}

void refuse_in_format(std::string_view name, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("the chat format {} has no {}", name, what));
}

void refuse_extra(std::string_view name, const Json* extra) {
  if (extra == nullptr) return;
  if (!extra->is_object()) {
    throw Error(ErrorCode::kInvalidArgument, "the variables of a chat format must be an object");
  }
  if (!extra->empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the chat format {} has no variable '{}'",
                                                         name, extra->items().begin().key()));
  }
}

std::unique_ptr<ChatFormat> open_chat_format(const std::filesystem::path& directory,
                                             std::string_view family,
                                             std::string_view format_override) {
  const auto built_in = [](const auto& matches) -> std::unique_ptr<ChatFormat> {
    const auto* const found = std::find_if(kFormats.begin(), kFormats.end(), matches);
    return found == kFormats.end() ? nullptr : std::make_unique<BuiltInChatFormat>(*found);
  };
  if (!format_override.empty() && format_override != kTemplate) {
    if (auto format = built_in([&](const auto& row) { return row.name == format_override; })) {
      return format;
    }
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is no chat format (known: {})",
                                                         format_override, fmt::join(kNames, ", ")));
  }
  if (auto format = open_template_format(directory)) return format;
  if (format_override.empty() && !family.empty()) {
    if (auto format = built_in([&](const auto& row) { return row.family == family; })) {
      return format;
    }
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("the model has no chat template (choose a format with --chat-format: {}; "
                          "or give the text of the prompt with --raw)",
                          fmt::join(chat_formats().subspan(1), ", ")))
      .in_file(directory.string());
}

}  // namespace ingot::inference
