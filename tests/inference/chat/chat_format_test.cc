#include "inference/chat/chat_format.h"

#include "formats/json/json.h"
#include "inference/chat/built_in_formats.h"
#include "inference/chat/messages.h"
#include "tests/inference/chat/messages.h"
#include "tests/support/test.h"

namespace ingot::inference {
namespace {

using namespace ingot::testing;
using formats::Json;
using enum ErrorCode;

const std::filesystem::path& root() {
  static const std::filesystem::path path = INGOT_SOURCE_DIR;
  return path;
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

const Json& question() {
  static const Json messages = {{{"role", "user"}, {"content", "Hi"}}};
  return messages;
}
const Json& one_tool() {
  static const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  return tools;
}

using ChatFormat = InTempDir;

// tests/golden/PROVENANCE.md says where these texts come from.
TEST_F(ChatFormat, RendersTheBundledModelsTemplate) {
  const auto format = open_chat_format(root() / "examples/tiny-v32", "deepseek_v32", "");
  EXPECT_EQ(format->name(), "template");
  const Json golden =
      formats::read_json_file(root() / "tests/golden/tiny-v32/chat.json", 1U << 20U);
  ASSERT_EQ(golden.size(), 2U);
  for (const Json& entry : golden) {
    EXPECT_EQ(format->render(entry.at("messages"), nullptr, {}),
              entry.at("text").get<std::string>());
  }
}

TEST_F(ChatFormat, PrefersTheTemplateFile) {
  write(dir_ / "tokenizer_config.json",
        R"({"chat_template": "config", "bos_token": {"content": "<b>"}, "eos_token": "<e>",
            "unk_token": null, "additional_special_tokens": ["x", {"content": "y"}]})");
  EXPECT_EQ(open_chat_format(dir_.path(), "", "")->render(question(), nullptr, {}), "config");
  write(dir_ / "chat_template.jinja",
        "{{ bos_token }}{{ eos_token }}[{{ unk_token }}]{{ additional_special_tokens | join }}\n");
  EXPECT_EQ(open_chat_format(dir_.path(), "", "")->render(question(), nullptr, {}), "<b><e>[]xy");
  std::filesystem::remove(dir_ / "tokenizer_config.json");
  EXPECT_EQ(open_chat_format(dir_.path(), "", "")->render(question(), nullptr, {}), "[]");
}

TEST_F(ChatFormat, ChoosesTheTemplateForTools) {
  const auto render = [&](const std::string& list, const Json& tools) {
    write(dir_ / "tokenizer_config.json", R"({"chat_template": )" + list + "}");
    return open_chat_format(dir_.path(), "", "")->render(question(), tools, {});
  };
  const std::string plain = R"({"name": "default", "template": "plain{{ tools is none }}"})";
  const std::string tools = R"({"name": "tool_use", "template": "tools{{ tools | length }}"})";
  const std::string rag = R"({"name": "rag", "template": "{% unknown %}"})";
  EXPECT_EQ(render("[" + plain + "," + tools + "," + rag + "]", nullptr), "plainTrue");
  EXPECT_EQ(render("[" + plain + "," + tools + "]", one_tool()), "tools1");
  EXPECT_EQ(render("[" + plain + "," + tools + "]", Json::array()), "plainTrue");
  EXPECT_EQ(render("[" + plain + "]", one_tool()), "plainFalse");
  expect_error(kNotFound, {"tokenizer_config.json", "'default'"},
               [&] { render("[" + tools + "]", nullptr); });
  expect_error(kCorrupt, {"'chat_template'"}, [&] { render("5", nullptr); });
  expect_error(kCorrupt, {"'template'"}, [&] { render(R"([{"name": "default"}])", nullptr); });
  expect_error(kCorrupt, {"tokenizer_config.json: line 1"}, [&] { render(R"("{{")", nullptr); });
}

TEST_F(ChatFormat, GivesATemplateItsVariables) {
  write(dir_ / "chat_template.jinja",
        "{{ messages[0].content }}|{{ documents is none }}|{{ add_generation_prompt }}|"
        "{{ thinking }}|{{ enable_thinking }}|{{ effort }}|"
        "{{ strftime_now('%d.%m.') if effort }}");
  const auto format = open_chat_format(dir_.path(), "", "");
  EXPECT_EQ(format->render(question(), nullptr, {}), "Hi|True|True||||");
  EXPECT_EQ(format->render(question(), nullptr, {.add_generation_prompt = false, .thinking = true}),
            "Hi|True|False|True|True||");
  EXPECT_EQ(format->render(question(), nullptr,
                           {.thinking = false,
                            .date = "2025-03-07",
                            .extra = shared({{"effort", "max"}, {"thinking", "deep"}})}),
            "Hi|True|True|deep|False|max|07.03.");
  expect_error(kInvalidArgument, {"'messages'"}, [&] {
    (void)format->render(question(), nullptr, {.extra = shared({{"messages", 1}})});
  });
  expect_error(kInvalidArgument, {"must be an object"},
               [&] { (void)format->render(question(), nullptr, {.extra = shared(5)}); });
  expect_error(kInvalidArgument, {"'2025-02-30'"}, [&] {
    (void)format->render(question(), nullptr,
                         {.date = "2025-02-30", .extra = shared({{"effort", 1}})});
  });
  expect_error(kInvalidArgument, {"messages[0].role"}, [&] {
    (void)format->render({{{"content", "x"}}}, nullptr, {});
  });
}

TEST_F(ChatFormat, FallsBackToTheEncoderOfTheFamily) {
  EXPECT_EQ(open_chat_format(dir_.path(), "deepseek_v32", "")->name(), "deepseek-v3.2");
  write(dir_ / "tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(open_chat_format(dir_.path(), "deepseek_v32", "")->name(), "deepseek-v3.2");
  for (const char* family : {"deepseek_v3", "qwen3_moe", ""}) {
    expect_error(kNotFound,
                 {"--chat-format: deepseek-v2, deepseek-v3,", "--raw", dir_.path().string()},
                 [&] { open_chat_format(dir_.path(), family, ""); });
  }
}

TEST_F(ChatFormat, CanBeNamed) {
  const auto tiny = root() / "examples/tiny-v32";
  for (const std::string_view name : chat_formats()) {
    EXPECT_EQ(open_chat_format(tiny, "deepseek_v32", name)->name(), name);
  }
  EXPECT_THAT(chat_formats(),
              ::testing::ElementsAre("template", "deepseek-v2", "deepseek-v3", "deepseek-r1",
                                     "deepseek-v3.1", "deepseek-v3.2", "deepseek-v4"));
  expect_error(kInvalidArgument, {"'chatml'", "deepseek-v3.1"},
               [&] { open_chat_format(tiny, "deepseek_v32", "chatml"); });
  expect_error(kNotFound, {"no chat template"},
               [&] { open_chat_format(dir_.path(), "deepseek_v32", "template"); });
}

TEST_F(ChatFormat, WritesBosOnce) {
  const std::string bos = "<｜begin▁of▁sentence｜>";
  const Json messages = {{{"role", "system"}, {"content", "S"}},
                         {{"role", "user"}, {"content", "a"}},
                         {{"role", "assistant"}, {"content", "b"}},
                         {{"role", "user"}, {"content", "c"}}};
  for (const std::string_view name : chat_formats()) {
    const std::string text =
        open_chat_format(root() / "examples/tiny-v32", "", name)->render(messages, nullptr, {});
    EXPECT_EQ(text.find(bos), 0U) << name;
    EXPECT_EQ(text.rfind(bos), 0U) << name;
  }
}

TEST_F(ChatFormat, BuiltInFormatsCheckTheirInput) {
  for (const BuiltInFormat& row : built_in_formats()) {
    SCOPED_TRACE(row.name);
    const auto format = open_chat_format({}, "", row.name);
    expect_error(kInvalidArgument, {"'messages' is empty"},
                 [&] { (void)format->render(Json::array(), nullptr, {}); });
    expect_error(kInvalidArgument, {"messages[0].role"}, [&] {
      (void)format->render({{{"content", "x"}}}, nullptr, {});
    });
    expect_error(kInvalidArgument, {"tools is no list"},
                 [&] { (void)format->render(question(), Json::object(), {}); });
    expect_error(kInvalidArgument, {"'effort'"}, [&] {
      (void)format->render(question(), nullptr, {.extra = shared({{"effort", 1}})});
    });
    expect_error(kInvalidArgument, {"must be an object"},
                 [&] { (void)format->render(question(), nullptr, {.extra = shared(1)}); });
    if (row.name == "deepseek-v4") continue;  // has all roles
    expect_error(kUnsupported, {"latest_reminder", std::string(row.name)}, [&] {
      (void)format->render({{{"role", "latest_reminder"}, {"content", "x"}}}, nullptr, {});
    });
  }
}

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
  expect_error(kInvalidArgument, {"m.json", fragment}, [&] { parse_messages(json, "m.json"); });
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
  expect_error(kCorrupt, {"m.json", "not valid JSON"}, [] { parse_messages("[{]", "m.json"); });
  expect_error(kCorrupt, {"twice"},
               [] { parse_messages(R"([{"role": "user", "role": "tool"}])", "m.json"); });
}

TEST(Messages, SayWhichPartsCannotBeRead) {
  const Json message = {{"role", "user"}, {"content", {{{"type", "image_url"}}}}};
  expect_error(kUnsupported, {"messages[4]", "'image_url'"},
               [&] { static_cast<void>(message_text(message, 4)); });
}

}  // namespace
}  // namespace ingot::inference
