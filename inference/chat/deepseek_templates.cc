#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/jinja/template.h"
#include "inference/chat/messages.h"
#include "inference/chat/python_text.h"

// The formats of DeepSeek's models before V3.2, as templates over messages of which only these are
// left: role, content as text, calls with a name and arguments as text, prefix. Tools have a name,
// a description and their parameters as JSON text. V3, R1 and V3.1 put all system messages first,
// whatever their place. Special tokens are spelled as in the tokenizers: the bar is U+FF5C, the gap
// between words U+2581.

namespace ingot::inference {
namespace {

using formats::Json;

// The generation prompt lacks the space behind the colon, which the model writes itself.
constexpr std::string_view kInWords = R"({{ '<｜begin▁of▁sentence｜>' }}
{%- for message in messages %}
  {%- if message.role == 'assistant' %}
    {{- 'Assistant: ' ~ message.content ~ '<｜end▁of▁sentence｜>' }}
  {%- else %}
    {{- 'User: ' if message.role == 'user' }}
    {{- message.content ~ '\n\n' }}
  {%- endif %}
{%- endfor %}
{{- 'Assistant:' if add_generation_prompt }})";

// An answer to the outputs of tools goes on behind them, unless it is a call.
constexpr std::string_view kInTokens = R"({{ '<｜begin▁of▁sentence｜>' ~ system }}
{%- set state = namespace(in_outputs=false) %}
{%- for message in messages if message.role != 'system' %}
  {%- if message.role == 'tool' %}
    {{- '\n' if state.in_outputs else '<｜tool▁outputs▁begin｜>' }}
    {{- '<｜tool▁output▁begin｜>' ~ message.content ~ '<｜tool▁output▁end｜>' }}
    {%- set state.in_outputs = true %}
  {%- else %}
    {{- '<｜tool▁outputs▁end｜>' if state.in_outputs }}
    {%- if message.role == 'user' %}
      {{- '<｜User｜>' ~ message.content }}
    {%- else %}
      {{- '<｜Assistant｜>' if message.calls or not state.in_outputs }}
      {{- message.content.split('</think>')[-1] if forgets_thoughts else message.content }}
      {%- for call in message.calls %}
        {{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}
        {{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' ~ call.name }}
        {{- '\n```json\n' ~ call.arguments ~ '\n```<｜tool▁call▁end｜>' }}
        {{- '<｜tool▁calls▁end｜>' if loop.last }}
      {%- endfor %}
      {{- '<｜end▁of▁sentence｜>' }}
    {%- endif %}
    {%- set state.in_outputs = false %}
  {%- endif %}
{%- endfor %}
{{- '<｜tool▁outputs▁end｜>' if state.in_outputs else prompt if add_generation_prompt }})";

// An answer continues after the last marker: after a user's message it opens a turn, after the
// outputs of tools it continues one.
constexpr std::string_view kWithThoughts = R"({{ '<｜begin▁of▁sentence｜>' ~ system }}
{%- if tools %}
  {{- '\n\n## Tools\nYou have access to the following tools:\n' }}
  {%- for tool in tools %}
    {{- '\n### ' ~ tool.name ~ '\nDescription: ' ~ tool.description }}
    {{- '\n\nParameters: ' ~ tool.parameters ~ '\n' }}
  {%- endfor %}
  {{- '\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n' }}
  {{- '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments' }}
  {{- '<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n\nWhere:\n' }}
  {{- '- `tool_call_name` must be an exact match to one of the available tools\n' }}
  {{- "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters " }}
  {{- 'Schema\n- For multiple tool calls, chain them directly without separators or spaces' }}
{%- endif %}
{%- set state = namespace(last='') %}
{%- for message in messages if message.role != 'system' %}
  {%- if message.role == 'user' %}
    {{- '<｜User｜>' ~ message.content }}
  {%- elif message.role == 'tool' %}
    {{- '<｜tool▁output▁begin｜>' ~ message.content ~ '<｜tool▁output▁end｜>' }}
  {%- else %}
    {%- if state.last == 'user' %}
      {%- set is_begun = thinks and message.prefix and not message.calls %}
      {{- '<｜Assistant｜>' ~ ('<think>' if is_begun else '</think>') }}
    {%- endif %}
    {%- set keeps_thoughts = message.calls or state.last == 'tool' %}
    {{- message.content if keeps_thoughts else message.content.split('</think>', 1)[-1] }}
    {%- for call in message.calls %}
      {{- '<｜tool▁calls▁begin｜>' if loop.first }}
      {{- '<｜tool▁call▁begin｜>' ~ call.name ~ '<｜tool▁sep｜>' ~ call.arguments }}
      {{- '<｜tool▁call▁end｜>' ~ ('<｜tool▁calls▁end｜>' if loop.last else '') }}
    {%- endfor %}
    {{- '<｜end▁of▁sentence｜>' }}
  {%- endif %}
  {%- set state.last = message.role %}
{%- endfor %}
{%- if add_generation_prompt and state.last == 'user' %}
  {{- '<｜Assistant｜>' ~ ('<think>' if thinks else '</think>') }}
{%- endif %})";

struct TemplateRow {
  std::string_view name, text;
  bool has_calls = true;          // and the outputs of tools
  std::string_view no_tools;      // the text that refuses tools; empty: it declares them
  bool takes_thinking = true;     // thinking is a choice of the request
  bool forgets_thoughts = false;  // thoughts of earlier answers
  std::string_view prompt;        // generation prompt, where the template asks for it
};

constexpr std::string_view kNoDeclarations =
    "block that declares tools (describe them in the system message)";
constexpr TemplateRow kV2 = {.name = "deepseek-v2",
                             .text = kInWords,
                             .has_calls = false,
                             .no_tools = "tools",
                             .takes_thinking = false};
// Also V3-0324. Tool calls, but no block that declares tools.
constexpr TemplateRow kV3 = {.name = "deepseek-v3",
                             .text = kInTokens,
                             .no_tools = kNoDeclarations,
                             .takes_thinking = false,
                             .prompt = "<｜Assistant｜>"};
// DeepSeek-R1 has the template of V3, and always thinks.
constexpr TemplateRow kR1 = {.name = "deepseek-r1",
                             .text = kInTokens,
                             .no_tools = kNoDeclarations,
                             .forgets_thoughts = true,
                             .prompt = "<｜Assistant｜><think>\n"};
// The prompt decides about thinking; tools are declared in the system text.
constexpr TemplateRow kV31 = {.name = "deepseek-v3.1", .text = kWithThoughts};

Json plain_messages(const TemplateRow& row, const Json& messages, std::string& system) {
  Json plain = Json::array();
  bool has_system = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const auto& role = message.at("role").get_ref<const std::string&>();
    Json calls = Json::array();
    for (const ToolCall& call : tool_calls(message)) {
      calls.push_back({{"name", call.name}, {"arguments", call.arguments_text()}});
    }
    if (!row.has_calls && !calls.empty()) refuse_in_format(row.name, "tool calls");
    const bool is_known = role == "system" || role == "user" || role == "assistant" ||
                          (row.has_calls && role == "tool");
    if (!is_known) refuse_in_format(row.name, fmt::format("role '{}'", role));
    const std::string content = message_text(message, i);
    if (role == "system") system += (std::exchange(has_system, true) ? "\n\n" : "") + content;
    // A prefix is the beginning of the answer, so it is the last message.
    plain.push_back({{"role", role},
                     {"content", content},
                     {"calls", std::move(calls)},
                     {"prefix", i + 1 == messages.size() && message_flag(message, "prefix")}});
  }
  return plain;
}

Json plain_tools(const Json& tools) {
  Json plain = Json::array();
  for (const Json& tool : tools) {
    const Json* inner = find_value(tool, "function");
    const Json& function = inner == nullptr ? tool : *inner;
    const Json* description = find_value(function, "description");
    const bool has_description = description != nullptr && description->is_string();
    const auto parameters = function.find("parameters");
    const Json none = Json::object();
    plain.push_back(
        {{"name", function.at("name")},
         {"description", has_description ? *description : Json("")},
         {"parameters", python_json(parameters == function.end() ? none : *parameters)}});
  }
  return plain;
}

template <const TemplateRow& kRow>
std::string render(const ChatRequest& request) {
  refuse_extra(kRow.name, request.options.extra.get());
  if (request.has_tools() && !kRow.no_tools.empty()) {
    refuse_in_format(kRow.name, std::string(kRow.no_tools));
  }
  if (request.thinks() && !kRow.takes_thinking) refuse_in_format(kRow.name, "thinking mode");
  std::string system;
  Json messages = plain_messages(kRow, request.messages, system);
  const Json variables = {{"messages", std::move(messages)},
                          {"system", system},
                          {"tools", plain_tools(request.tools)},
                          {"thinks", request.thinks()},
                          {"forgets_thoughts", kRow.forgets_thoughts},
                          {"prompt", std::string(kRow.prompt)},
                          {"add_generation_prompt", request.options.add_generation_prompt}};
  return jinja::Template::parse(kRow.text, kRow.name).render(variables);
}

template <const TemplateRow& kRow>
constexpr BuiltInFormat kFormat = {kRow.name, "", render<kRow>};

constexpr std::array kFormats = {
    kFormat<kV2>,
    kFormat<kV3>,
    kFormat<kR1>,
    kFormat<kV31>,
    // Published without a template.
    BuiltInFormat{"deepseek-v3.2", "deepseek_v32", render_deepseek_v32},
    BuiltInFormat{"deepseek-v4", "deepseek_v4", render_deepseek_v4},
};

}  // namespace

std::span<const BuiltInFormat> built_in_formats() {
  return kFormats;
}

}  // namespace ingot::inference
