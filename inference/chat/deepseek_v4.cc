#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/dsml.h"
#include "inference/chat/messages.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::string_view kV4Name = "deepseek-v4";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";

constexpr std::string_view kV4ToolsHead =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kV4ToolsFoot =
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

struct Effort {
  std::string_view word, text;
};
constexpr Effort kEfforts[] = {
    {"low", ""},
    {"high",
     "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
     "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
     "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
     "edge cases, and adversarial scenarios.\n"
     "Explicitly write out your entire deliberation process, documenting every intermediate step, "
     "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
     "unchecked.\n\n"},
    {"max",
     "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
     "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
     "exhaustively decompose the problem into its most fundamental components, trace every causal "
     "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
     "Do not stop reasoning until you have independently verified the solution from multiple "
     "angles and are certain that no assumption remains unchecked and no error remains "
     "undiscovered.\n\n"},
};

std::string_view effort_text(const Json* extra) {
  const Json* word =
      extra != nullptr && extra->is_object() ? find_value(*extra, "reasoning_effort") : nullptr;
  if (word == nullptr) return {};
  for (const Effort& row : kEfforts) {
    if (word->is_string() && word->get_ref<const std::string&>() == row.word) return row.text;
  }
  throw Error(ErrorCode::kInvalidArgument, "'reasoning_effort' is none of low, high and max");
}

/// A message, or the joint text of a run of users' and tools' messages.
struct Turn {
  Numbered first;
  std::string role;
  struct Part {
    std::string text;
    bool is_result = false;
    std::string call;  ///< id of the call whose result this is
  };
  std::vector<Part> parts;  ///< contents of a user's turn, results of tools included
};

// Parts of a content are separated by an empty line here.
std::string content_of(const Numbered& at) {
  std::string text = message_text(at.message, at.index);
  const Json* content = find_value(at.message, "content");
  if (content == nullptr || !content->is_array()) return text;
  text.clear();
  for (std::size_t i = 0; i < content->size(); ++i) {
    if (i > 0) text += "\n\n";
    text += (*content)[i].at("text").get_ref<const std::string&>();
  }
  return text;
}

class V4Encoder {
 public:
  V4Encoder(const ChatRequest& request, bool drops_thinking) : thinks_(request.thinks()) {
    std::vector<Numbered> messages = numbered(request.messages);
    if (request.has_tools()) {
      auto system = std::ranges::find(messages, "system", &Numbered::role);
      if (system == messages.end()) {
        system = messages.insert(messages.begin(),
                                 {.message = Json::object({{"role", "system"}}), .index = 0});
      }
      declare_tools(request.tools, *system);
    }
    // A model that may call tools remembers its thoughts.
    drops_ = drops_thinking && std::ranges::none_of(messages, [](const Numbered& at) {
               const Json* tools = find_value(at.message, "tools");
               return tools != nullptr && !tools->empty();
             });
    for (Numbered& at : messages) add(std::move(at));
    sort_results();
    find_last_user();
    if (!thinks_ || !drops_) return;
    std::size_t i = 0;
    std::erase_if(turns_, [&](const Turn& turn) {
      const bool is_past = last_user_ && i++ < *last_user_;
      return is_past && turn.role == "developer";
    });
    find_last_user();
  }

  [[nodiscard]] std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      text += words(i);
      const bool ends = i + 1 == turns_.size();
      const std::string_view next = ends ? std::string_view() : turns_[i + 1].role;
      if (ends || next == "assistant" || next == "latest_reminder") text += opening(i, ends, next);
    }
    return text;
  }

 private:
  void add(Numbered at) {
    for (const char* key : {"task", "wo_eos"}) {
      if (find_value(at.message, key) != nullptr)
        refuse_in_format(kV4Name, fmt::format("'{}' (messages[{}])", key, at.index));
    }
    const std::string role = at.role();
    if (role != "user" && role != "tool") {
      turns_.push_back({.first = std::move(at), .role = role, .parts = {}});
      return;
    }
    Turn::Part part{.text = content_of(at), .is_result = role == "tool"};
    if (part.is_result) {
      if (const Json* id = find_value(at.message, "tool_call_id"); id != nullptr)
        part.call = id->get<std::string>();
    }
    if (turns_.empty() || turns_.back().role != "user")
      turns_.push_back({.first = std::move(at), .role = "user", .parts = {}});
    turns_.back().parts.push_back(std::move(part));
  }

  // Sorts results by the order of the calls; messages with results keep their places.
  void sort_results() {
    std::map<std::string, std::size_t> order;
    for (Turn& turn : turns_) {
      const Json* calls = find_value(turn.first.message, "tool_calls");
      if (turn.role == "assistant" && calls != nullptr && !calls->empty()) {
        order.clear();
        for (std::size_t i = 0; i < calls->size(); ++i) {
          const Json* id = find_value((*calls)[i], "id");
          if (id != nullptr && id->is_string() && !id->get_ref<const std::string&>().empty())
            order[id->get<std::string>()] = i;
        }
      }
      if (turn.role != "user" || order.empty()) continue;
      std::vector<Turn::Part> results;
      std::ranges::copy_if(turn.parts, std::back_inserter(results), &Turn::Part::is_result);
      std::ranges::stable_sort(results, {}, [&](const Turn::Part& part) {
        const auto found = order.find(part.call);
        return found == order.end() ? 0 : found->second;
      });
      auto next = results.begin();
      for (Turn::Part& part : turn.parts) {
        if (part.is_result) part = *next++;
      }
    }
  }

  void find_last_user() {
    last_user_.reset();
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role == "user" || turns_[i].role == "developer") last_user_ = i;
    }
  }

  [[nodiscard]] std::string words(std::size_t i) const {
    const Turn& turn = turns_[i];
    const Numbered& at = turn.first;
    if (turn.role == "user") {
      std::string text(kUser);
      for (std::size_t p = 0; p < turn.parts.size(); ++p) {
        const Turn::Part& part = turn.parts[p];
        if (p > 0) text += "\n\n";
        text += part.is_result ? "<tool_result>" + part.text + "</tool_result>" : part.text;
      }
      return text;
    }
    const std::string content = content_of(at);
    if (turn.role == "system") return content + declarations(at, kV4ToolsHead, kV4ToolsFoot);
    if (turn.role == "developer") {
      if (content.empty()) refuse(at, ".content of a developer is empty");
      return std::string(kUser) + content + declarations(at, kV4ToolsHead, kV4ToolsFoot);
    }
    if (turn.role == "latest_reminder") return std::string(kReminder) + content;
    if (turn.role == "assistant") return answer(i, content);
    refuse_in_format(kV4Name, fmt::format("role '{}' (messages[{}])", turn.role, at.index));
  }

  [[nodiscard]] std::string answer(std::size_t i, const std::string& content) const {
    const Numbered& at = turns_[i].first;
    std::string text;
    if (thinks_ && (!drops_ || !last_user_ || i > *last_user_)) {
      if (const Json* reasoning = find_value(at.message, "reasoning_content"))
        text += reasoning->get_ref<const std::string&>();
      text += kEndThink;
    }
    text += content;
    const std::vector<ToolCall> calls = tool_calls(at.message);
    if (!calls.empty()) text += calls_text(at, calls, "tool_calls");
    text += kEosText;
    return text;
  }

  // The beginning of the answer after a turn.
  [[nodiscard]] std::string opening(std::size_t i, bool ends, std::string_view next) const {
    const std::string& role = turns_[i].role;
    const bool opens = role == "user" || role == "developer" ||
                       (role == "system" && (ends || next == "assistant"));
    if (!opens) return {};
    const bool thinks = thinks_ && (!drops_ || !last_user_ || i >= *last_user_);
    return fmt::format("{}{}", kAssistant, thinks ? kThink : kEndThink);
  }

  bool thinks_, drops_ = true;
  std::vector<Turn> turns_;
  std::optional<std::size_t> last_user_;
};

}  // namespace

std::string render_deepseek_v4(const ChatRequest& request) {
  const Json* extra = request.options.extra.get();
  const EncoderFlags flags = read_flags(kV4Name, extra, "reasoning_effort");
  const std::string_view effort = effort_text(extra);
  std::string text(flags.add_bos ? kBosText : std::string_view());
  if (request.thinks()) text += effort;
  return text + V4Encoder(request, flags.drop_thinking).text();
}

}  // namespace ingot::inference
