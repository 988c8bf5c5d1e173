#include <string>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/chat/jinja/template.h"
#include "tests/support/expect_error.h"

namespace ingot::inference::jinja {
namespace {

using formats::Json;
using ingot::testing::expect_error;

// Small enough that each test ends in milliseconds.
constexpr RenderLimits kSmall = {.max_steps = 200'000,
                                 .max_made_bytes = std::uint64_t{1} << 22U,
                                 .max_output_bytes = std::size_t{1} << 16U};

void expect_limit(const std::string& text, const RenderLimits& limits = kSmall) {
  SCOPED_TRACE(text.substr(0, 200));
  expect_error(ErrorCode::kLimit, {"line "}, [&] {
    static_cast<void>(Template::parse(text, "t").render(Json::object(), {}, limits));
  });
}

std::string repeated(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

TEST(JinjaLimits, EndLongLoops) {
  expect_limit(
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
      "{% endfor %}{% endfor %}{% endfor %}");
  expect_limit("{{ range(1000000) }}");
  expect_limit("{% set l = [1] %}{% for a in range(99999) %}{% set _ = l.extend(l) %}{% endfor %}");
  expect_limit("{% for a in 'x' * 300000 %}{% endfor %}");
}

TEST(JinjaLimits, EndLongTexts) {
  expect_limit("{{ 'x' * 100000 }}");
  expect_limit("{{ 'x' * 9000000000000000000 }}");
  expect_limit("{{ [1] * 9000000000000000000 }}");
  expect_limit("{{ ('x' * 9000000000) * 9000000000 }}");
  expect_limit(
      "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}");
  expect_limit("{{ ('x' * 60000) | replace('', 'y' * 60000) }}");
  expect_limit("{{ ('x' * 60000).replace('x', 'y' * 60000) }}");
  expect_limit("{{ (['y' * 60000] * 60000) | join('x') }}");
  expect_limit("{{ ('\n' * 60000) | indent(900, true, true) }}");
  expect_limit("{{ [[[[[[1]]]]]] | tojson(indent=2000) }}");
  expect_limit("{% for a in range(9999) %}0123456789{% endfor %}");
}

TEST(JinjaLimits, EndTextsThatSharedValuesMultiply) {
  const std::string doubled =
      "{% set ns = namespace(l=['x']) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}";
  expect_limit(doubled + "{{ ns.l }}");
  expect_limit(doubled + "{{ ns.l | tojson }}");
  expect_limit(
      "{% set a = namespace(l=['x']) %}{% set b = namespace(l=['x']) %}"
      "{% for i in range(60) %}{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}"
      "{% endfor %}{{ a.l == b.l }}");
}

TEST(JinjaLimits, EndListsThatHoldThemselves) {
  const std::string cycle = "{% set l = [] %}{% set _ = l.append(l) %}";
  expect_limit(cycle + "{{ l }}");
  expect_limit(cycle + "{{ l | tojson }}");
  expect_limit(cycle + "{% set k = [] %}{% set _ = k.append(k) %}{{ l == k }}");
  expect_limit(cycle + "{% set k = [] %}{% set _ = k.append(k) %}{{ l < k }}");
  expect_limit("{% set d = {} %}{% set _ = d.update(d=d) %}{{ d }}");
}

TEST(JinjaLimits, EndRecursion) {
  expect_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  expect_limit("{% macro f(a=g()) %}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ g() }}");
}

TEST(JinjaLimits, EndDeepSyntax) {
  expect_limit("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}");
  expect_limit("{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}");
  expect_limit("{{ " + repeated("{1:", 5000) + "1" + repeated("}", 5000) + " }}");
  expect_limit("{{ " + repeated("not ", 5000) + "1 }}");
  expect_limit("{{ " + repeated("- ", 5000) + "1 }}");
  expect_limit("{{ 1" + repeated(" + 1", 5000) + " }}");
  expect_limit("{{ 1" + repeated(" if 1 else 1", 5000) + " }}");
  expect_limit("{{ 1" + repeated(" if 1", 5000) + " }}");
  expect_limit("{{ 1" + repeated(" and 1", 5000) + " }}");
  expect_limit("{{ x" + repeated(" | string", 5000) + " }}");
  expect_limit("{{ x" + repeated(".y", 5000) + " }}");
  expect_limit("{{ x" + repeated("()", 5000) + " }}");
  expect_limit("{{ x" + repeated("[0]", 5000) + " }}");
  expect_limit("{{ x" + repeated(" is none", 1) + repeated(" | string is none", 5000) + " }}");
  expect_limit(repeated("{% if 1 %}", 5000) + repeated("{% endif %}", 5000));
  expect_limit(repeated("{% for x in y %}", 5000) + repeated("{% endfor %}", 5000));
  expect_limit("{% set " + repeated("(", 5000) + "x" + repeated(")", 5000) + " = 1 %}");
}

TEST(JinjaLimits, AllowWhatIsLongButFlat) {
  std::string text = "{% if x == 0 %}{% ";
  for (int i = 1; i < 500; ++i) text += "elif x == " + std::to_string(i) + " %}a{% ";
  text += "endif %}{{ " + repeated("'a' ~ ", 300) + "'b' }}{{ [" + repeated("1, ", 500) +
          "] | length }}";
  EXPECT_EQ(Template::parse(text, "t").render({{"x", 499}}, {}, kSmall),
            "a" + repeated("a", 300) + "b500");
}

TEST(JinjaLimits, ReachTheirFullSizeByDefault) {
  // A long conversation, gathered message by message.
  const std::string content(1000, 'x');
  Json messages = Json::array();
  for (int i = 0; i < 300; ++i) messages.push_back({{"role", "user"}, {"content", content}});
  const std::string text =
      "{% set ns = namespace(s='') %}{% for m in messages %}"
      "{% set ns.s = ns.s + '<' + m.role + '>' + (m['content'] | trim) %}{% endfor %}{{ ns.s }}";
  EXPECT_EQ(Template::parse(text, "t").render({{"messages", messages}}).size(), 1006U * 300U);
}

TEST(JinjaLimits, BoundTheTemplateAndItsIntegers) {
  expect_error(ErrorCode::kLimit, {"bytes"},
               [] { static_cast<void>(Template::parse(std::string(2U << 20U, ' '), "t")); });
  expect_limit("{{ 9223372036854775808 }}");
  expect_limit("{{ 9223372036854775807 + 1 }}");
  expect_limit("{{ -9223372036854775807 - 2 }}");
  expect_limit("{{ 9223372036854775807 * 2 }}");
  expect_limit("{{ -(-9223372036854775807 - 1) }}");
  expect_limit("{{ (-9223372036854775807 - 1) // -1 }}");
  expect_limit("{{ '9223372036854775808' | int }}");
  expect_limit("{{ 1e30 | int }}");
  expect_limit("{{ 1e400 }}");
  expect_error(ErrorCode::kLimit, {"18446744073709551615"}, [] {
    static_cast<void>(Template::parse("{{ n }}", "t").render({{"n", 18446744073709551615U}}));
  });
}

}  // namespace
}  // namespace ingot::inference::jinja
