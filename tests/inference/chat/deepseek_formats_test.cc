#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/chat_format.h"
#include "tests/inference/chat/messages.h"
#include "tests/support/test.h"

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

// The expected texts were written by hand from the description of DeepSeek's encoder.

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

// The cases are by vLLM's copy of DeepSeek's encoder; see tests/golden/PROVENANCE.md.

using ingot::testing::expect_error;

std::string render(const Json& messages, bool thinking = false, const Json& extra = nullptr,
                   const Json& tools = nullptr) {
  ChatOptions options = {.thinking = thinking};
  if (!extra.is_null()) options.extra = std::make_shared<const Json>(extra);
  return open_chat_format({}, "deepseek_v4", "")->render(messages, tools, options);
}

TEST(DeepseekV4Format, SpellsWhatTheReleasedEncoderSpells) {
  const Json cases = formats::read_json_file(
      std::string(INGOT_SOURCE_DIR) + "/tests/inference/chat/deepseek_v4_cases.json", 1U << 20U);
  ASSERT_EQ(cases.size(), 24U);
  for (const Json& row : cases) {
    EXPECT_EQ(render(row.at("messages"), row.at("thinking").get<bool>(), row.at("extra"),
                     row.at("tools")),
              row.at("text").get<std::string>())
        << row.at("messages");
  }
}

TEST(DeepseekV4Format, RefusesWhatItCannotSay) {
  using enum ErrorCode;
  const Json hi = {{"role", "user"}, {"content", "hi"}};
  expect_error(kUnsupported, {"deepseek-v4 has no 'task'", "messages[0]"}, [] {
    render(Json::array({{{"role", "user"}, {"content", "hi"}, {"task", "title"}}}));
  });
  expect_error(kInvalidArgument, {"'reasoning_effort' is none of low, high and max"}, [&] {
    render(Json::array({hi}), true, {{"reasoning_effort", "huge"}});
  });
  expect_error(kInvalidArgument, {"has no variable 'effort'"}, [&] {
    render(Json::array({hi}), true, {{"effort", "max"}});
  });
  expect_error(kInvalidArgument, {"messages[0].content of a developer is empty"}, [] {
    render(Json::array({{{"role", "developer"}, {"content", ""}}}));
  });
  expect_error(kInvalidArgument, {"messages[1].tool_calls[0]", "no JSON object"}, [&] {
    render(Json::array(
        {hi,
         {{"role", "assistant"},
          {"tool_calls", Json::array({{{"type", "function"},
                                       {"function", {{"name", "f"}, {"arguments", "3"}}}}})}}}));
  });
}

}  // namespace
}  // namespace ingot::inference
