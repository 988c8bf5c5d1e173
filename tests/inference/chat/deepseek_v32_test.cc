#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "tests/inference/chat/messages.h"
#include "tests/support/expect_error.h"

// The expected texts were written by hand from the description of DeepSeek's encoder.

namespace ingot::inference {
namespace {

using formats::Json;
using namespace ingot::testing;

using Messages = std::vector<Json>;

Json answer(const char* reasoning, const char* content, const std::vector<Json>& calls = {}) {
  Json made = message("assistant", content);
  if (reasoning != nullptr) made["reasoning_content"] = reasoning;
  if (!calls.empty()) made["tool_calls"] = calls;
  return made;
}

std::string render(const Messages& messages, const ChatOptions& options = {},
                   const Json& tools = nullptr) {
  return open_chat_format({}, "deepseek_v32", "deepseek-v3.2")
      ->render(Json(messages), tools, options);
}

const ChatOptions& thinking() {
  static const ChatOptions options = {.thinking = true};
  return options;
}

TEST(DeepseekV32, DropsEarlierReasoning) {
  const Messages messages = {message("user", "a"), answer("r", "b"), message("user", "c")};
  EXPECT_EQ(render(messages, thinking()),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜>"
            "<｜User｜>c<｜Assistant｜><think>");
  EXPECT_EQ(render(messages),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜>"
            "<｜User｜>c<｜Assistant｜></think>");
}

TEST(DeepseekV32, WritesCallsAndResults) {
  const Messages messages = {message("user", "q"),
                             answer("r", "", {call("get_weather", R"({"city":"Paris","days":2})")}),
                             message("tool", "sunny")};
  EXPECT_EQ(render(messages, thinking()),
            R"(<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>r</think>

<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls><｜end▁of▁sentence｜>

<function_results>
<result>sunny</result>
</function_results>

<think>)");
}

TEST(DeepseekV32, WritesSeveralCallsInKeyOrder) {
  const Messages messages = {
      message("user", "q"),
      answer(nullptr, "Both.",
             {call("f", R"({"z":"a\nb","a":[1,2.0,{"k":"é/"}],"n":null,"b":true,"o":{}})"),
              call("g", Json::object())}),
      message("tool", "1"), message("tool", "2"), answer(nullptr, "done")};
  EXPECT_EQ(render(messages), R"(<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>Both.

<｜DSML｜function_calls>
<｜DSML｜invoke name="f">
<｜DSML｜parameter name="z" string="true">a
b</｜DSML｜parameter>
<｜DSML｜parameter name="a" string="false">[1, 2.0, {"k": "é/"}]</｜DSML｜parameter>
<｜DSML｜parameter name="n" string="false">null</｜DSML｜parameter>
<｜DSML｜parameter name="b" string="false">true</｜DSML｜parameter>
<｜DSML｜parameter name="o" string="false">{}</｜DSML｜parameter>
</｜DSML｜invoke>
<｜DSML｜invoke name="g">

</｜DSML｜invoke>
</｜DSML｜function_calls><｜end▁of▁sentence｜>

<function_results>
<result>1</result>
<result>2</result>
</function_results>

</think>done<｜end▁of▁sentence｜>)");
}

TEST(DeepseekV32, LeavesResultsOpenUntilTheLast) {
  const Messages messages = {message("user", "q"),
                             answer("r", "", {call("f", "{}"), call("g", "{}")}),
                             message("tool", "1")};
  const std::string text = render(messages, thinking());
  EXPECT_TRUE(text.ends_with("\n\n<function_results>\n<result>1</result>")) << text;
}

TEST(DeepseekV32, KeepsReasoningBehindTheLastUser) {
  const Messages messages = {message("user", "a"), answer("old", "b"),
                             message("user", "q"), answer("r1", "", {call("f", "{}")}),
                             message("tool", "t"), answer("r2", "end")};
  EXPECT_EQ(
      render(messages, thinking()),
      R"(<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>r1</think>

<｜DSML｜function_calls>
<｜DSML｜invoke name="f">

</｜DSML｜invoke>
</｜DSML｜function_calls><｜end▁of▁sentence｜>

<function_results>
<result>t</result>
</function_results>

<think>r2</think>end<｜end▁of▁sentence｜>)");
}

TEST(DeepseekV32, ClosesThoughtsBehindEarlierResults) {
  const Messages messages = {message("user", "a"), answer("r", "", {call("f", "{}")}),
                             message("tool", "t"), answer(nullptr, "b"), message("user", "c")};
  const std::string text = render(messages, thinking());
  EXPECT_NE(text.find("</function_results>\n\n</think>b<｜end▁of▁sentence｜>"), std::string::npos);
  EXPECT_TRUE(text.ends_with("<｜User｜>c<｜Assistant｜><think>"));
}

Json declared_tools() {
  return {
      {{"type", "function"},
       {"function", {{"name", "f"}, {"description", "Größe"}, {"parameters", {{"a", {1, 2}}}}}}},
      {{"type", "function"}, {"function", {{"name", "g"}}}}};
}

std::string without_blank_lines(std::string text) {
  for (std::size_t at = text.find("\n\n"); at != std::string::npos; at = text.find("\n\n", at))
    text.erase(at, 1);
  return text;
}

// SGLang's copy of the encoder has lost the blank lines of the text about tools.
TEST(DeepseekV32, DeclaresToolsAndFormatsAsTheReleasedEncoder) {
  const Json cases = formats::read_json_file(
      std::string(INGOT_SOURCE_DIR) + "/tests/inference/chat/deepseek_v32_cases.json", 1U << 20U);
  ASSERT_EQ(cases.size(), 8U);
  for (const Json& row : cases) {
    EXPECT_EQ(without_blank_lines(
                  render(row.at("messages").get<Messages>(), {.thinking = row.at("thinking")})),
              without_blank_lines(row.at("text").get<std::string>()))
        << row.at("messages");
  }
}

TEST(DeepseekV32, KeepsTheBlankLinesAboutTools) {
  const std::string text = render({message("user", "q")}, {}, declared_tools());
  for (const char* begin : {"## Tools", "You have access", "String and scalar",
                            "If the thinking_mode", "<｜DSML｜function_calls>\n...",
                            "<function_results>", "<think>...thinking", "Here are the functions"})
    EXPECT_NE(text.find(std::string("\n\n") + begin), std::string::npos) << begin;
  EXPECT_EQ(text.size() - without_blank_lines(text).size(), 8U);
}

TEST(DeepseekV32, DeclaresToolsInTheSystemMessage) {
  Json system = message("system", "Be brief.");
  system["tools"] = declared_tools();
  EXPECT_EQ(render({message("system", "Be brief."), message("user", "q")}, {}, declared_tools()),
            render({system, message("user", "q")}));
  EXPECT_EQ(render({message("user", "q")}, {}, Json::array()),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>");
  expect_error(ErrorCode::kInvalidArgument, {"messages[0]", "of its own"}, [&] {
    render({system, message("user", "q")}, {}, declared_tools());
  });
}

TEST(DeepseekV32, RefusesADeveloperWithoutContent) {
  expect_error(ErrorCode::kInvalidArgument, {"messages[0].content"}, [] {
    render({Json{{"role", "developer"}}});
  });
}

TEST(DeepseekV32, RemovesEarlierDevelopersWhileThinking) {
  const Messages messages = {message("developer", "d"), answer("r", "b"), message("user", "c")};
  const std::string head = "<｜begin▁of▁sentence｜>";
  const std::string kept = "<｜User｜>\n\n# The user's message is: d<｜Assistant｜></think>";
  const std::string rest = "b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜>";
  EXPECT_EQ(render(messages, thinking()), head + rest + "<think>");
  EXPECT_EQ(render(messages), head + kept + rest + "</think>");
  EXPECT_EQ(render(messages, {.thinking = true, .extra = shared({{"drop_thinking", false}})}),
            head + kept + rest + "<think>");
}

TEST(DeepseekV32, TakesItsTwoFlags) {
  EXPECT_EQ(render({message("user", "q")}, {.extra = shared({{"add_default_bos_token", false}})}),
            "<｜User｜>q<｜Assistant｜></think>");
  expect_error(ErrorCode::kInvalidArgument, {"'drop_thinking' is no boolean"}, [] {
    render({message("user", "q")}, {.extra = shared({{"drop_thinking", 1}})});
  });
}

TEST(DeepseekV32, NamesTheMessageThatDoesNotFit) {
  const Json user = message("user", "q");
  const auto expect_refused = [](const Messages& messages,
                                 std::initializer_list<std::string> parts) {
    SCOPED_TRACE(Json(messages).dump());
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { render(messages, thinking()); });
  };
  expect_refused({user, answer(nullptr, "b")}, {"messages[1]", "reasoning_content"});
  expect_refused({user, answer("", "b")}, {"messages[1]", "reasoning_content"});
  expect_refused({user, message("tool", "t")}, {"messages[1]", "result 1 of 0"});
  expect_refused({message("tool", "t")}, {"messages[0]", "of 0 tool calls"});
  expect_refused({user, answer("r", "b"), message("tool", "t")}, {"messages[2]", "1 of 0"});
  expect_refused(
      {user, answer("r", "", {call("f", "{}")}), message("tool", "t"), message("tool", "u")},
      {"messages[3]", "result 2 of 1"});
  expect_refused({user, answer("r", "", {call("f", "{}"), call("f", "[1]")})},
                 {"messages[1].tool_calls[1]", "no JSON object"});
  expect_refused({user, answer("r", "", {call("f", "{")})},
                 {"messages[1].tool_calls[0]", "not valid JSON"});
  Json system = message("system", "S");
  system["tools"] = Json::array({{{"name", "f"}}});
  expect_refused({system, user}, {"messages[0].tools[0].function"});
}

}  // namespace
}  // namespace ingot::inference
