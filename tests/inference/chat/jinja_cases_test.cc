#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/template.h"

// jinja_cases.json holds every construct of the subset, one group per case, and the texts that
// Jinja2 itself rendered. The file says with which version and settings.

namespace ingot::inference::jinja {
namespace {

using formats::Json;

constexpr std::uint64_t kMaxBytes = 1U << 22U;

Json read_cases() {
  return formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/inference/chat/jinja_cases.json", kMaxBytes);
}

TEST(JinjaCases, RenderAsJinja2) {
  const Json file = read_cases();
  ASSERT_GE(file.at("cases").size(), 200U);
  for (const Json& entry : file.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    try {
      const Template parsed = Template::parse(entry.at("template").get<std::string>(), "case");
      EXPECT_EQ(parsed.render(file.at("variables"), "2025-03-07T09:05:02"),
                entry.at("text").get<std::string>());
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(JinjaCases, UseEveryFilterTestAndMethod) {
  std::string all;
  const Json file = read_cases();
  for (const Json& entry : file.at("cases")) all += entry.at("template").get<std::string>() + "\n";
  const auto expect_used = [&](std::span<const Builtin> table, std::string_view before,
                               std::string_view behind) {
    for (const Builtin& row : table) {
      const std::string use = std::string(before).append(row.name).append(behind);
      EXPECT_NE(all.find(use), std::string::npos) << use;
    }
  };
  expect_used(text_filters(), "| ", "");
  expect_used(sequence_filters(), "| ", "");
  expect_used(text_methods(), ".", "(");
  expect_used(list_methods(), ".", "(");
  expect_used(mapping_methods(), ".", "(");
  expect_used(tests(), "", "");
}

TEST(JinjaCases, RenderTheSameTextEveryTime) {
  const Template parsed = Template::parse(
      "{% set l = [] %}{% for x in xs %}{% set _ = l.append(x) %}{% endfor %}{{ l }}", "case");
  const Json variables = {{"xs", {1, 2}}};
  EXPECT_EQ(parsed.render(variables), "[1, 2]");
  EXPECT_EQ(parsed.render(variables), "[1, 2]");
}

}  // namespace
}  // namespace ingot::inference::jinja
