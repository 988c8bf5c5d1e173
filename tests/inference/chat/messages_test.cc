#include "inference/chat/messages.h"

#include <string>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using formats::Json;
using ingot::testing::expect_error;

TEST(Messages, ComeAsAListOrWithTools) {
  const std::string list =
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])";
  const Conversation alone = parse_messages(list, "m.json");
  EXPECT_EQ(alone.messages->size(), 2U);
  EXPECT_TRUE(alone.tools->is_null());
  const Conversation both = parse_messages(
      R"({"tools": [{"type": "function", "function": {"name": "f"}}, {"name": "g"}], "messages": )" +
          list + "}",
      "m.json");
  EXPECT_EQ(*both.messages, *alone.messages);
  EXPECT_EQ(both.tools->size(), 2U);
}

TEST(Messages, AcceptEveryRoleAndKeyTheyKnow) {
  const Conversation all = parse_messages(
      R"([{"role": "system", "content": null, "tools": [{"name": "f"}], "response_format": {}},
          {"role": "developer", "content": "d"},
          {"role": "latest_reminder", "content": "d"},
          {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": null, "reasoning_content": "r", "prefix": true,
           "tool_calls": [{"id": "1", "type": "function",
                           "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                          {"name": "g", "arguments": {"b": [2.0]}}]},
          {"role": "tool", "content": "t", "tool_call_id": "1", "name": "f"}])",
      "m.json");
  EXPECT_EQ(message_text((*all.messages)[0], 0), "");
  EXPECT_EQ(message_text((*all.messages)[3], 3), "ab");
  EXPECT_TRUE(message_flag((*all.messages)[4], "prefix"));
  EXPECT_FALSE(message_flag((*all.messages)[5], "prefix"));
  const auto calls = tool_calls((*all.messages)[4]);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].name, "f");
  EXPECT_EQ(calls[0].arguments_text(), "{\"a\": 1}");
  EXPECT_EQ(calls[1].name, "g");
  EXPECT_EQ(calls[1].arguments_text(), "{\"b\": [2.0]}");
  EXPECT_TRUE(tool_calls((*all.messages)[5]).empty());
}

void expect_refused(const std::string& json, const std::string& fragment) {
  SCOPED_TRACE(json);
  expect_error(ErrorCode::kInvalidArgument, {"m.json", fragment},
               [&] { parse_messages(json, "m.json"); });
}

TEST(Messages, NameTheMessageAndKeyThatAreWrong) {
  const std::string first = R"([{"role": "user", "content": "q"}, )";
  expect_refused(first + R"("text"])", "messages[1] is no object");
  expect_refused(first + R"({"content": "x"}])", "messages[1].role is missing");
  expect_refused(first + R"({"role": 5}])", "messages[1].role is no string");
  expect_refused(first + R"({"role": "asistant", "content": "x"}])",
                 "messages[1].role is 'asistant', not one of system");
  expect_refused(first + R"({"role": "user"}])", "messages[1].content is missing");
  expect_refused(first + R"({"role": "tool", "content": null}])", "messages[1].content is missing");
  expect_refused(first + R"({"role": "user", "content": 5}])", "messages[1].content is neither");
  expect_refused(first + R"({"role": "user", "content": [5]}])",
                 "messages[1].content[0] is no object");
  expect_refused(first + R"({"role": "user", "content": [{"text": "x"}]}])",
                 "messages[1].content[0].type is missing");
  expect_refused(first + R"({"role": "user", "content": [{"type": "text"}]}])",
                 "messages[1].content[0].text is missing");
  expect_refused(first + R"({"role": "assistant", "reasoning_content": 5}])",
                 "messages[1].reasoning_content is no string");
  expect_refused(first + R"({"role": "assistant", "tool_calls": {}}])",
                 "messages[1].tool_calls is no list");
  expect_refused(first + R"({"role": "assistant", "tool_calls": [5]}])",
                 "messages[1].tool_calls[0] is no object");
  expect_refused(first + R"({"role": "assistant", "tool_calls": [{"arguments": "{}"}]}])",
                 "messages[1].tool_calls[0].name is missing");
  expect_refused(first + R"({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])",
                 "messages[1].tool_calls[0].function.arguments is neither");
  expect_refused(first + R"({"role": "assistant", "prefix": 1}])",
                 "messages[1].prefix is no boole");
  expect_refused(first + R"({"role": "system", "tools": [{}]}])",
                 "messages[1].tools[0].name is missing");
}

TEST(Messages, NameWhatIsWrongAroundThem) {
  expect_refused("5", "neither a list of messages");
  expect_refused("[]", "'messages' is empty");
  expect_refused("{}", "'messages' is no list");
  expect_refused(R"({"messages": {}})", "'messages' is no list");
  expect_refused(R"({"messages": [], "temperature": 1})", "'temperature' is not known");
  const std::string messages = R"("messages": [{"role": "user", "content": "q"}])";
  expect_refused("{" + messages + R"(, "tools": {}})", "tools is no list");
  expect_refused("{" + messages + R"(, "tools": [5]})", "tools[0] is no object");
  expect_refused("{" + messages + R"(, "tools": [{"function": {}}]})",
                 "tools[0].function.name is missing");
  expect_error(ErrorCode::kCorrupt, {"m.json", "not valid JSON"},
               [] { parse_messages("[{]", "m.json"); });
  expect_error(ErrorCode::kCorrupt, {"twice"},
               [] { parse_messages(R"([{"role": "user", "role": "tool"}])", "m.json"); });
}

TEST(Messages, SayWhichPartsCannotBeRead) {
  const Json message = {{"role", "user"}, {"content", {{{"type", "image_url"}}}}};
  expect_error(ErrorCode::kUnsupported, {"messages[4]", "'image_url'"},
               [&] { static_cast<void>(message_text(message, 4)); });
}

}  // namespace
}  // namespace ingot::inference
