#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot::inference {

/// Messages as OpenAI's chat API spells them: role, content (a string, null, or a list of parts of
/// type "text"), and where they apply reasoning_content, tool_calls, tool_call_id, name, prefix,
/// tools, response_format.
struct Conversation {
  std::shared_ptr<const formats::Json> messages;  ///< an array
  std::shared_ptr<const formats::Json> tools;     ///< null or an array; there when messages are
};

/// Parses a JSON array of messages, or an object {"messages": [...], "tools": [...]}. `where` names
/// the file in errors. Throws kCorrupt for a text that is no JSON, and as check_messages does.
Conversation parse_messages(std::string_view json, std::string_view where);

/// Throws kInvalidArgument, naming message and key, unless there is at least one message, each with
/// a known role (system, developer, user, assistant, tool, latest_reminder) and every key above of
/// its type. A user's and a tool's message must have content.
void check_messages(const formats::Json& messages, std::string_view where);

/// Throws kInvalidArgument unless null or an array of objects with a name, in themselves or in
/// "function".
void check_tools(const formats::Json& tools, std::string_view where);

/// The text of a message that check_messages accepts: its content, the texts of its parts in order,
/// or empty. Throws kUnsupported for parts of another type; `index` names the message in the error.
std::string message_text(const formats::Json& message, std::size_t index);

/// The value of a key that is there and not null; else null.
const formats::Json* find_value(const formats::Json& object, const char* key);

/// True if `key` is there and its value is true.
bool message_flag(const formats::Json& message, const char* key);

struct ToolCall {
  std::string name;
  const formats::Json* arguments;  ///< value in the message: a string that holds JSON, or an object

  /// Returns the arguments as text: a string as it is, an object as Python's json.dumps writes it.
  [[nodiscard]] std::string arguments_text() const;
};

/// The calls of a message that check_messages accepts; it must outlive them.
std::vector<ToolCall> tool_calls(const formats::Json& message);

}  // namespace ingot::inference
