#include "inference/chat/deepseek_system_text.h"

#include <cstddef>

#include "formats/json/json.h"
#include "inference/chat/messages.h"

namespace ingot::inference {

std::string deepseek_system_text(const formats::Json& messages) {
  std::string text;
  bool first = true;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].at("role") != "system") continue;
    if (!first) text += "\n\n";
    first = false;
    text += message_text(messages[i], i);
  }
  return text;
}

}  // namespace ingot::inference
