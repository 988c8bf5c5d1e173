#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/chat/chat_format.h"
#include "tests/inference/chat/messages.h"
#include "tests/support/expect_error.h"

// The expected texts were written by hand from the published descriptions of the formats.

namespace ingot::inference {
namespace {

using formats::Json;
using namespace ingot::testing;

using Messages = std::vector<Json>;

std::string render(const char* format, const Messages& messages, const ChatOptions& options = {},
                   const Json& tools = nullptr) {
  return open_chat_format({}, "", format)->render(Json(messages), tools, options);
}

Json with_calls(const char* content, const std::vector<Json>& calls) {
  Json made = message("assistant", content);
  made["tool_calls"] = calls;
  return made;
}

Messages history() {
  return {message("system", "You are a helpful assistant"), message("user", "Who are you?"),
          message("assistant", "I am DeepSeek"), message("user", "1+1=?")};
}

TEST(DeepseekV2, SpeaksInWords) {
  EXPECT_EQ(render("deepseek-v2", history()),
            "<｜begin▁of▁sentence｜>You are a helpful assistant\n\nUser: Who are you?\n\n"
            "Assistant: I am DeepSeek<｜end▁of▁sentence｜>User: 1+1=?\n\nAssistant:");
  EXPECT_EQ(render("deepseek-v2", {message("user", "q")}, {.add_generation_prompt = false}),
            "<｜begin▁of▁sentence｜>User: q\n\n");
}

TEST(DeepseekV2, HasNeitherToolsNorThinking) {
  const Json tools = {{{"name", "f"}}};
  expect_error(ErrorCode::kUnsupported, {"tools"},
               [&] { render("deepseek-v2", history(), {}, tools); });
  expect_error(ErrorCode::kUnsupported, {"thinking"},
               [&] { render("deepseek-v2", history(), {.thinking = true}); });
  expect_error(ErrorCode::kUnsupported, {"role 'tool'"},
               [&] { render("deepseek-v2", {message("tool", "x")}); });
  expect_error(ErrorCode::kUnsupported, {"tool calls"},
               [&] { render("deepseek-v2", {with_calls("", {call("f", "{}")})}); });
}

TEST(DeepseekV3, JoinsItsElementsWithoutSpace) {
  EXPECT_EQ(
      render("deepseek-v3", history()),
      "<｜begin▁of▁sentence｜>You are a helpful assistant<｜User｜>Who are you?<｜Assistant｜>"
      "I am DeepSeek<｜end▁of▁sentence｜><｜User｜>1+1=?<｜Assistant｜>");
  EXPECT_EQ(render("deepseek-v3", {message("user", "q")}, {.add_generation_prompt = false}),
            "<｜begin▁of▁sentence｜><｜User｜>q");
}

TEST(DeepseekV3, PutsEverySystemMessageFirst) {
  EXPECT_EQ(render("deepseek-v3", {message("user", "q"), message("system", "A"),
                                   message("assistant", "r"), message("system", "B")}),
            "<｜begin▁of▁sentence｜>A\n\nB<｜User｜>q<｜Assistant｜>r<｜end▁of▁sentence｜><"
            "｜Assistant｜>");
}

TEST(DeepseekV3, WritesCallsAndTheirOutputs) {
  const Messages messages = {message("user", "q"),
                             with_calls("Let me see.", {call("f", R"({"a":1})"), call("g", "{}")}),
                             message("tool", "one"), message("tool", "two")};
  const std::string calls =
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜>Let me see.<｜tool▁calls▁begin｜>"
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\":1}\n```<｜tool▁call▁end｜>\n"
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
      "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>one<｜tool▁output▁end｜>\n"
      "<｜tool▁output▁begin｜>two<｜tool▁output▁end｜><｜tool▁outputs▁end｜>";
  // No generation prompt behind outputs: the answer goes on right there.
  EXPECT_EQ(render("deepseek-v3", messages), calls);
  Messages answered = messages;
  answered.push_back(message("assistant", "done"));
  answered.push_back(message("user", "thanks"));
  EXPECT_EQ(render("deepseek-v3", answered),
            calls + "done<｜end▁of▁sentence｜><｜User｜>thanks<｜Assistant｜>");
}

TEST(DeepseekV3, OpensATurnForACallBehindOutputs) {
  const Messages messages = {message("user", "q"), with_calls("", {call("f", Json::object())}),
                             message("tool", "one"),
                             with_calls("", {call("g", {{"x", {1, 2.0}}, {"é", nullptr}})})};
  EXPECT_EQ(
      render("deepseek-v3", messages, {.add_generation_prompt = false}),
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><｜tool▁calls▁begin｜>"
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
      "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>one<｜tool▁output▁end｜><"
      "｜tool▁outputs▁end｜>"
      "<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n"
      "{\"x\": [1, 2.0], \"é\": null}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
      "<｜end▁of▁sentence｜>");
}

TEST(DeepseekV3, SaysWhatItDoesNotHave) {
  for (const char* format : {"deepseek-v3", "deepseek-r1"}) {
    expect_error(ErrorCode::kUnsupported, {"declares tools", "system message"}, [&] {
      render(format, history(), {}, {{{"name", "f"}}});
    });
    expect_error(ErrorCode::kUnsupported, {"role 'developer'"},
                 [&] { render(format, {message("developer", "x")}); });
  }
  expect_error(ErrorCode::kUnsupported, {"thinking"},
               [&] { render("deepseek-v3", history(), {.thinking = true}); });
}

TEST(DeepseekR1, ThinksAndForgetsEarlierThoughts) {
  const Messages messages = {message("user", "a"),
                             message("assistant", "<think>x</think>y</think>\n\nb"),
                             message("user", "c")};
  EXPECT_EQ(render("deepseek-r1", messages),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜>\n\nb<｜end▁of▁sentence｜><｜User｜>c"
            "<｜Assistant｜><think>\n");
  EXPECT_EQ(render("deepseek-v3", messages),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜><think>x</think>y</think>\n\nb"
            "<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜>");
}

TEST(DeepseekV31, MarksThinkingInThePromptOnly) {
  EXPECT_EQ(
      render("deepseek-v3.1", history(), {.thinking = true}),
      "<｜begin▁of▁sentence｜>You are a helpful assistant<｜User｜>Who are you?<｜Assistant｜>"
      "</think>I am DeepSeek<｜end▁of▁sentence｜><｜User｜>1+1=?<｜Assistant｜><think>");
  EXPECT_EQ(render("deepseek-v3.1", {message("user", "q")}),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>");
  EXPECT_EQ(render("deepseek-v3.1", {message("user", "q")}, {.add_generation_prompt = false}),
            "<｜begin▁of▁sentence｜><｜User｜>q");
}

TEST(DeepseekV31, NeverWritesAnEmptyThought) {
  for (const bool thinking : {false, true}) {
    const std::string text = render("deepseek-v3.1", history(), {.thinking = thinking});
    EXPECT_EQ(text.find("<think></think>"), std::string::npos);
  }
}

TEST(DeepseekV31, DropsStoredThoughtsUpToTheFirstEnd) {
  EXPECT_EQ(
      render("deepseek-v3.1",
             {message("user", "a"), message("assistant", "<think>x</think>y</think>z"),
              message("user", "c")}),
      "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>y</think>z<｜end▁of▁sentence｜>"
      "<｜User｜>c<｜Assistant｜></think>");
}

TEST(DeepseekV31, OpensAPrefixWithAThought) {
  Json prefix = message("assistant", "so far");
  prefix["prefix"] = true;
  const Messages messages = {message("user", "a"), prefix};
  EXPECT_EQ(render("deepseek-v3.1", messages, {.thinking = true}),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜><think>so far<｜end▁of▁sentence｜>");
  EXPECT_EQ(render("deepseek-v3.1", messages),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>so far<｜end▁of▁sentence｜>");
  // Only a final one.
  EXPECT_EQ(render("deepseek-v3.1", {message("user", "a"), prefix, message("user", "b")},
                   {.thinking = true}),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>so "
            "far<｜end▁of▁sentence｜><｜User｜>b"
            "<｜Assistant｜><think>");
}

TEST(DeepseekV31, ChainsCallsAndOutputs) {
  const Messages messages = {message("user", "q"),
                             with_calls("Well.", {call("f", R"({"a":1})"), call("g", "{}")}),
                             message("tool", "one"), message("tool", "two")};
  const std::string calls =
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>Well.<｜tool▁calls▁begin｜>"
      "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>"
      "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><"
      "｜end▁of▁sentence｜>"
      "<｜tool▁output▁begin｜>one<｜tool▁output▁end｜><｜tool▁output▁begin｜>two<"
      "｜tool▁output▁end｜>";
  EXPECT_EQ(render("deepseek-v3.1", messages), calls);
  Messages answered = messages;
  answered.push_back(message("assistant", "done"));
  answered.push_back(message("user", "thanks"));
  EXPECT_EQ(render("deepseek-v3.1", answered),
            calls + "done<｜end▁of▁sentence｜><｜User｜>thanks<｜Assistant｜></think>");
}

TEST(DeepseekV31, DeclaresToolsBehindTheSystemText) {
  const Json tools = {
      {{"type", "function"},
       {"function",
        {{"name", "get_weather"},
         {"description", "Weather of a city"},
         {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}}},
      {{"name", "now"}, {"description", "Time"}, {"parameters", Json::object()}}};
  EXPECT_EQ(render("deepseek-v3.1", {message("system", "S"), message("user", "q")}, {}, tools),
            R"(<｜begin▁of▁sentence｜>S

## Tools
You have access to the following tools:

### get_weather
Description: Weather of a city

Parameters: {"type": "object", "properties": {"city": {"type": "string"}}}

### now
Description: Time

Parameters: {}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces<｜User｜>q<｜Assistant｜></think>)");
}

}  // namespace
}  // namespace ingot::inference
