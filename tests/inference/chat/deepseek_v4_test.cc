#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/chat/chat_format.h"
#include "tests/support/expect_error.h"

// The cases are by vLLM's copy of DeepSeek's encoder; see tests/golden/PROVENANCE.md.

namespace ingot::inference {
namespace {

using formats::Json;
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
