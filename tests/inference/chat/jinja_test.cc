
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/template.h"
#include "inference/chat/python_text.h"
#include "inference/tokenizer/characters.h"
#include "tests/support/listed.h"
#include "tests/support/test.h"

// jinja_cases.json holds every construct of the subset, one group per case, and the texts that
// Jinja2 itself rendered. The file says with which version and settings.

namespace ingot::inference::jinja {

using formats::Json;

namespace {

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

// chat_template_cases.json: whole chat templates and conversations, and the texts that Jinja2
// itself rendered; the file says with which version and settings.

std::string joined(const Json& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\n";
    text += lines[i].get<std::string>();
  }
  return text;
}

TEST(ChatTemplateCases, RenderAsJinja2) {
  const Json file = formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/inference/chat/chat_template_cases.json",
      kMaxBytes);
  ASSERT_GE(file.at("cases").size(), 100U);
  std::size_t n_refused = 0;
  for (const Json& entry : file.at("cases")) {
    const auto name = entry.at("template").get<std::string>();
    const auto conversation = entry.at("conversation").get<std::string>();
    const auto i_options = entry.at("options").get<std::size_t>();
    SCOPED_TRACE(name + ", " + conversation + ", options " + std::to_string(i_options));
    Json variables = file.at("conversations").at(conversation);
    variables["documents"] = nullptr;
    variables["bos_token"] = "<s>";
    variables["eos_token"] = "</s>";
    for (const auto& [key, value] : file.at("options")[i_options].items()) variables[key] = value;
    const Template parsed = Template::parse(joined(file.at("templates").at(name)), name);
    try {
      const std::string text = parsed.render(variables, "2025-03-07T09:05:02");
      if (entry.at("text").is_null()) {
        ADD_FAILURE() << "Jinja2 refuses what gave " << text;
      } else {
        EXPECT_EQ(text, entry.at("text").get<std::string>());
      }
    } catch (const Error& error) {
      EXPECT_TRUE(entry.at("text").is_null()) << error.what();
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      ++n_refused;
    }
  }
  EXPECT_GT(n_refused, 0U);
}

}  // namespace

using ingot::testing::expect_error;
using ingot::testing::listed;

namespace {

const Json& variables() {
  static const Json made = {{"n", 7},          {"s", "text"},    {"xs", {1, 2}},
                            {"d", {{"a", 1}}}, {"nil", nullptr}, {"big", 18446744073709551615U}};
  return made;
}

void expect_refused(ErrorCode code, const std::string& text,
                    std::initializer_list<std::string> fragments) {
  SCOPED_TRACE(text);
  expect_error(code, fragments, [&] {
    Json without_big = variables();
    without_big.erase("big");
    static_cast<void>(Template::parse(text, "chat_template.jinja").render(without_big));
  });
}

TEST(JinjaErrors, NameTheFileAndTheLine) {
  expect_refused(ErrorCode::kCorrupt, "a\nb\n{% if %}", {"chat_template.jinja: line 3:"});
  expect_refused(ErrorCode::kInvalidArgument, "a\n\n{{\nxs + n }}",
                 {"chat_template.jinja: line 4: list + integer"});
  expect_refused(ErrorCode::kUnsupported, "{# \n\n #}{% include 'x' %}", {"line 3:"});
  expect_refused(ErrorCode::kCorrupt, "a\r\nb\rc\n{{", {"line 4:"});
}

TEST(JinjaErrors, CallBrokenSyntaxCorrupt) {
  std::vector<std::string> broken =
      listed(R"({{ ;; {{ n ;; {% if n %} ;; {% if n %}{% endfor %} ;; {% endif %} ;; {% else %} ;;
      {{ n n }} ;; {{ 'abc }} ;; {# no end ;; {{ n. }} ;; {{ [1, }} ;; {{ (1 }} ;; {{ 1 + }} ;;
      {{ | upper }} ;; {{ n is }} ;; {% for x %}{% endfor %} ;; {% for in xs %} ;; {% set %} ;;
      {% set 1 = 2 %} ;; {% set none = 2 %} ;; {% break %} ;; {% continue %} ;;
      {% macro f( %}{% endmacro %} ;; {% macro f(a=1, b) %}{% endmacro %} ;; {{ f(a=1, 2) }} ;;
      {{ n ! }} ;; {{ n } } ;; {{ ) }} ;; {{ [) }} ;; {{ 012 }} ;; {{ 1a }} ;; {{ '\x4' }} ;;
      {{ 1_000 }} ;; {% for loop in xs %}{% endfor %} ;; {% %} ;; {{ }} ;; {{ {1} }} ;;
      {% if n %}{% else %}{% else %}{% endif %} ;; {{ é }} ;; {{ n if }} ;;
      {% if a if b %}{% endif %} ;; {% set x = 1 %}}{% endset %} ;; {{ @ }} ;;
      {{ n is string is none }})",
             ";;");
  broken.emplace_back("\xFF");
  for (const std::string& text : broken)
    expect_refused(ErrorCode::kCorrupt, text, {"chat_template.jinja"});
}

TEST(JinjaErrors, NameTheConstructThatIsNotThere) {
  const auto expect_missing = [](const std::string& text, const std::string& name) {
    expect_refused(ErrorCode::kUnsupported, text, {"line 1", name});
  };
  for (const std::string word : {"include", "import", "extends", "block", "call", "filter", "with",
                                 "autoescape", "from", "do", "trans", "raw"}) {
    expect_missing("{% " + word + " x %}", "'" + word + "'");
  }
  expect_missing("{{ n | abs }}", "filter 'abs'");
  expect_missing("{{ xs | map('abs') | list }}", "filter 'abs'");
  expect_missing("{{ n is divisibleby(2) }}", "test 'divisibleby'");
  expect_missing("{{ xs | select('callable') | list }}", "test 'callable'");
  expect_missing("{{ s.zfill(9) }}", "'zfill' of a string");
  expect_missing("{{ s.find }}", "'find' of a string");
  expect_missing("{{ xs.sort() }}", "'sort' of a list");
  expect_missing("{{ d.pop('a') }}", "'pop' of a mapping");
  expect_missing("{{ s.__class__ }}", "'__class__'");
  expect_missing("{{ s['__class__'] }}", "'__class__'");
  expect_missing("{{ 2 ** 3 }}", "'**'");
  expect_missing("{{ '%s' % n }}", "'%' of a string");
  expect_missing("{{ f(*xs) }}", "'*'");
  expect_missing("{{ f(**d) }}", "'*'");
  expect_missing("{% for x in xs recursive %}{% endfor %}", "recursive");
  expect_missing("{% for x in xs %}{% macro f() %}{% endmacro %}{% endfor %}", "macro inside");
  expect_missing("{% macro f() %}{{ varargs }}{% endmacro %}{{ f() }}", "'varargs'");
  expect_missing("{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "'caller'");
  expect_missing("{% for x in xs %}{{ loop.cycle(1, 2) }}{% endfor %}", "'loop.cycle'");
  expect_missing("{{ lipsum() }}", "'lipsum'");
  expect_missing("{{ range(2) }}", "range");
  expect_missing("{{ d.items() }}", "view");
  expect_missing("{{ xs | map('string') }}", "iterator");
  expect_missing("{{ namespace }}", "function");
  expect_missing("{{ 'Ä' | lower }}", "outside ASCII");
  expect_missing("{{ 'straße'.upper() }}", "outside ASCII");
  expect_missing("{{ '{}'.format(n) }}", "'format' of a string");
  expect_missing("{{ joiner() }}", "'joiner'");
  expect_missing("{{ cycler(1, 2) }}", "'cycler'");
  expect_missing("{{ '12' | int(0, 16) }}", "base");
  expect_missing("{{ xs[1, 2] }}", "index");
  expect_missing("{{ d.keys() - xs }}", "'-' of a view");
  expect_missing("{{ range(3).index(1) }}", "'index' of a range");
  expect_missing("{{ {1: 2, 'a': 3} | tojson(sort_keys=true) }}", "order of keys");
  expect_missing("{{ '\\ud83d' }}", "no character");
  expect_missing("{{ '\\N{DASH}' }}", "\\N");
  expect_missing("{{ '\\U0001F600' }}", "\\U");
  expect_missing("{{ '\\101' }}", "\\1");
}

TEST(JinjaErrors, RefuseWhatPythonRefuses) {
  const auto expect_fault = [](const std::string& text, const std::string& fragment) {
    expect_refused(ErrorCode::kInvalidArgument, text, {"line 1", fragment});
  };
  expect_fault("{{ missing.x }}", "'missing' is undefined");
  expect_fault("{{ missing['x'] }}", "'missing' is undefined");
  expect_fault("{{ d.q.r }}", "'q' is undefined");
  expect_fault("{{ missing() }}", "'missing' is undefined");
  expect_fault("{{ d.nothing() }}", "'nothing' is undefined");
  expect_fault("{{ missing + 'x' }}", "'missing' is undefined");
  expect_fault("{{ 'x' + missing }}", "'missing' is undefined");
  expect_fault("{{ missing | tojson }}", "undefined");
  expect_fault("{{ missing | int }}", "undefined");
  expect_fault("{{ missing[1:] }}", "'missing' is undefined");
  expect_fault("{{ 'a' + 1 }}", "string + integer");
  expect_fault("{{ s + nil }}", "string + none");
  expect_fault("{{ 1 - 'a' }}", "integer - string");
  expect_fault("{{ [] < 1 }}", "list < integer");
  expect_fault("{{ nil < 1 }}", "none < integer");
  expect_fault("{{ 1 in 5 }}", "integer in integer");
  expect_fault("{{ 1 in 'abc' }}", "integer in string");
  expect_fault("{{ nil in 'abc' }}", "none in string");
  expect_fault("{{ [] in d }}", "cannot be a key");
  expect_fault("{{ {[]: 1} }}", "cannot be a key");
  expect_fault("{{ d.get([]) }}", "cannot be a key");
  expect_fault("{{ [d, n] | sort(attribute='a') }}", "undefined");
  expect_fault("{{ 1 / 0 }}", "zero");
  expect_fault("{{ 1 // 0 }}", "zero");
  expect_fault("{{ 1 % 0.0 }}", "zero");
  expect_fault("{{ -s }}", "minus string");
  expect_fault("{{ +s }}", "integer + string");
  expect_fault("{{ n() }}", "integer cannot be called");
  expect_fault("{% for x in n %}{% endfor %}", "integer cannot be iterated");
  expect_fault("{% for x in nil %}{% endfor %}", "none cannot be iterated");
  expect_fault("{% for a, b in xs %}{% endfor %}", "integer cannot be iterated");
  expect_fault("{% set a, b = [1] %}", "1 values for 2 variables");
  expect_fault("{% set d.a = 1 %}", "'d' is no namespace");
  expect_fault("{% set q.a = 1 %}", "'q' is no namespace");
  expect_fault("{{ n | length }}", "no length");
  expect_fault("{{ xs | map('string') | length }}", "no length");
  expect_fault("{{ xs | map('string') | last }}", "iterator");
  expect_fault("{{ n | items }}", "mapping");
  expect_fault("{{ [1, 'a'] | sort }}", "<");
  expect_fault("{{ n | join }}", "integer cannot be iterated");
  expect_fault("{{ s | replace('a') }}", "lacks its argument 'new'");
  expect_fault("{{ s | upper(1) }}", "at most 0");
  expect_fault("{{ s | trim(q=1) }}", "no argument 'q'");
  expect_fault("{{ s | replace('a', old='b', new='c') }}", "given twice");
  expect_fault("{{ s.split('') }}", "empty");
  expect_fault("{{ s.split(1) }}", "must be a string");
  expect_fault("{{ s.startswith(1) }}", "must be a string");
  expect_fault("{{ ','.join(xs) }}", "must be a string");
  expect_fault("{{ xs.index(9) }}", "not in the list");
  expect_fault("{{ [].pop() }}", "'pop'");
  expect_fault("{{ xs[::0] }}", "step of a slice is zero");
  expect_fault("{{ n[1:] }}", "no slices");
  expect_fault("{{ range(1, 2, 0) }}", "zero");
  expect_fault("{{ s is odd }}", "neither odd nor even");
  expect_fault("{{ s is equalto }}", "lacks its argument");
  expect_fault("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "at most 1");
  expect_fault("{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "no argument 'b'");
  expect_fault("{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "given twice");
  expect_fault("{{ raise_exception('roles must alternate') }}", "roles must alternate");
  expect_fault("{{ strftime_now('%Y') }}", "needs the date");
  expect_fault("{{ namespace(a=1) | tojson }}", "namespace");
  expect_fault("{{ d.items() | tojson }}", "view");
}

TEST(JinjaErrors, RefuseDatesThatAreNone) {
  const Template parsed = Template::parse("{{ strftime_now('%d') }}", "t");
  for (const char* now : {"2025-02-30", "2025-3-7", "2025-03-07T24:00:00", "2025-03-07 10:00:00",
                          "yesterday", "2025-03-07T10:00"}) {
    SCOPED_TRACE(now);
    expect_error(ErrorCode::kInvalidArgument, {"the date"},
                 [&] { static_cast<void>(parsed.render(Json::object(), now)); });
  }
  expect_error(ErrorCode::kUnsupported, {"'%Z'"}, [] {
    static_cast<void>(
        Template::parse("{{ strftime_now('%Z') }}", "t").render(Json::object(), "2025-03-07"));
  });
}

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

// Every expected text was printed by CPython 3.11: repr() of the float, json.dumps of the value.

namespace ingot::inference {

using formats::Json;
using ::testing::ElementsAre;

namespace {

TEST(PythonJson, WritesFloatsAsRepr) {
  EXPECT_EQ(python_float(0.1), "0.1");
  EXPECT_EQ(python_float(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(python_float(1e22), "1e+22");
  EXPECT_EQ(python_float(1e16), "1e+16");
  EXPECT_EQ(python_float(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(python_float(1e15), "1000000000000000.0");
  EXPECT_EQ(python_float(123456789.125), "123456789.125");
  EXPECT_EQ(python_float(1e-4), "0.0001");
  EXPECT_EQ(python_float(0.00012345), "0.00012345");
  EXPECT_EQ(python_float(1e-5), "1e-05");
  EXPECT_EQ(python_float(5e-324), "5e-324");
  EXPECT_EQ(python_float(1.7976931348623157e308), "1.7976931348623157e+308");
  EXPECT_EQ(python_float(-0.0), "-0.0");
  EXPECT_EQ(python_float(0.0), "0.0");
  EXPECT_EQ(python_float(100.0), "100.0");
  EXPECT_EQ(python_float(-2.5), "-2.5");
  EXPECT_EQ(python_float(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(python_float(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(python_float(std::numeric_limits<double>::quiet_NaN()), "nan");
}

Json sample() {
  return formats::parse_json(
      R"({"b": [1, -2, 18446744073709551615, 1.0, 1e300, true, false, null], "a": {},)"
      R"( "é/\"\\": "\b\f\n\r\t\u0000\u001f\u007f世😀", "l": []})",
      "sample");
}

TEST(PythonJson, KeepsKeyOrderAndText) {
  EXPECT_EQ(python_json(sample()),
            "{\"b\": [1, -2, 18446744073709551615, 1.0, 1e+300, true, false, null], \"a\": {}, "
            "\"é/\\\"\\\\\": \"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f世😀\", \"l\": []}");
}

TEST(PythonJson, EscapesWhatIsNotAsciiWhenAsked) {
  EXPECT_EQ(python_json(sample(), {.ensure_ascii = true}),
            "{\"b\": [1, -2, 18446744073709551615, 1.0, 1e+300, true, false, null], \"a\": {}, "
            "\"\\u00e9/\\\"\\\\\": \"\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\\u4e16\\ud83d\\ude00\", "
            "\"l\": []}");
}

TEST(PythonJson, IndentsWithoutBlanksAtLineEnds) {
  EXPECT_EQ(python_json(sample(), {.indent = "  "}), R"({
  "b": [
    1,
    -2,
    18446744073709551615,
    1.0,
    1e+300,
    true,
    false,
    null
  ],
  "a": {},
  "é/\"\\": "\b\f\n\r\t\u0000\u001f)"
                                                     "\x7f"
                                                     R"(世😀",
  "l": []
})");
}

TEST(PythonJson, SortsKeysAndTakesSeparators) {
  EXPECT_EQ(python_json(sample(), {.sort_keys = true, .item_separator = ",", .key_separator = ":"}),
            "{\"a\":{},\"b\":[1,-2,18446744073709551615,1.0,1e+300,true,false,null],\"l\":[],"
            "\"é/\\\"\\\\\":\"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f世😀\"}");
}

TEST(PythonJson, WritesWhatPythonWritesForInfinity) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(python_json(Json::array({infinity, -infinity})), "[Infinity, -Infinity]");
  EXPECT_EQ(python_json(Json(std::numeric_limits<double>::quiet_NaN())), "NaN");
}

TEST(PythonJson, StopsAtItsLimit) {
  const Json many(1000, 1);
  ingot::testing::expect_error(ErrorCode::kLimit, {"100 bytes"},
                               [&] { static_cast<void>(python_json(many, {.max_bytes = 100})); });
}

TEST(PythonText, SurvivesWritingAndReading) {
  for (char32_t c = 0; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : c + 1) {
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(code_point_at(text, 0).value, c);
    ASSERT_EQ(code_point_at(text, 0).n_bytes, text.size());
    ASSERT_EQ(code_point_count(text), 1U);
    if (c % 977 == 0) {
      ASSERT_TRUE(is_utf8(text)) << static_cast<std::uint32_t>(c);
    }
  }
}

TEST(PythonText, CountsCharactersNotBytes) {
  EXPECT_EQ(code_point_count("añ世😀"), 4U);
  EXPECT_THAT(characters("añ世"), ElementsAre("a", "ñ", "世"));
}

// The list is that of CPython 3.11: [c for c in range(0x110000) if chr(c).isspace()].
TEST(PythonText, KnowsPythonsWhiteSpace) {
  std::vector<std::uint32_t> found;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_space(c)) found.push_back(static_cast<std::uint32_t>(c));
  }
  EXPECT_THAT(found, ElementsAre(9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 133, 160, 5760, 8192, 8193,
                                 8194, 8195, 8196, 8197, 8198, 8199, 8200, 8201, 8202, 8232, 8233,
                                 8239, 8287, 12288));
}

// The expected lists are those of CPython 3.11's str.splitlines.
TEST(PythonText, SplitsLinesWherePythonDoes) {
  EXPECT_THAT(split_lines("a\nb\r\nc\rd\n"), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(split_lines("\n\na"), ElementsAre("", "", "a"));
  EXPECT_THAT(split_lines(""), ElementsAre());
  EXPECT_THAT(split_lines("a\vb\fc\x1c"
                          "d\x1e"
                          "e\xC2\x85"
                          "f\xE2\x80\xA8g\xE2\x80\xA9h\x1f"
                          "i"),
              ElementsAre("a", "b", "c", "d", "e", "f", "g", "h\x1fi"));
}

TEST(PythonText, ChangesCaseOfAsciiOnly) {
  EXPECT_EQ(with_case("aBc-dEf gh", Case::kUpper), "ABC-DEF GH");
  EXPECT_EQ(with_case("aBc-dEf gh", Case::kCapitalized), "Abc-def gh");
  EXPECT_EQ(with_case("it's x1y", Case::kTitle), "It'S X1Y");
  EXPECT_EQ(with_case("it's x1y (z)", Case::kWords), "It's X1y (Z)");
  EXPECT_FALSE(has_foreign_case("abc 世界 123 ١"));
  // A letter, a Roman numeral, a circled letter, a combining mark and a letter of Georgian.
  for (const char* text : {"ß", "Ⅷ", "ⓐ", "\u0345", "ა"})
    EXPECT_TRUE(has_foreign_case(text)) << text;
}

}  // namespace

}  // namespace ingot::inference
