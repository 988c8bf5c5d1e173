// The memory that a template may use, measured at the allocator: this program counts every byte.

#include <atomic>
#include <new>

#include <malloc.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/jinja/template.h"
#include "tests/support/test.h"

namespace {

std::atomic<std::int64_t> held = 0, most_held = 0;

void* counted(std::size_t n) {
  void* const memory = std::malloc(n);
  if (memory == nullptr) throw std::bad_alloc();
  const auto size = static_cast<std::int64_t>(::malloc_usable_size(memory));
  const std::int64_t now = held.fetch_add(size) + size;
  if (now > most_held) most_held = now;
  return memory;
}

void uncounted(void* memory) {
  if (memory != nullptr) held -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t n) {
  return counted(n);
}
// As the buffer of a stable sort is made: freed by the operators below too.
void* operator new(std::size_t n, const std::nothrow_t& /*quiet*/) noexcept {
  try {
    return counted(n);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::size_t /*n*/) noexcept {
  uncounted(memory);
}

namespace ingot::inference::jinja {
namespace {

using formats::Json;

constexpr RenderLimits kLimits = {.max_steps = 2'000'000,
                                  .max_made_bytes = std::uint64_t{8} << 20U,
                                  .max_output_bytes = std::size_t{8} << 20U};

std::string times(int n, const std::string& text) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

// The most that a render held, in parts of its limit.
double part_of_limit(const std::string& text) {
  const Template parsed = Template::parse(text, "t");
  const std::int64_t before = held;
  most_held = before;
  try {
    static_cast<void>(parsed.render({{"t", "x"}}, {}, kLimits));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLimit) << error.what();
  }
  return static_cast<double>(most_held - before) / static_cast<double>(kLimits.max_made_bytes);
}

void expect_held(const std::string& text) {
  EXPECT_LE(part_of_limit(text), 2) << text.substr(0, 200);
}

TEST(JinjaMemory, HoldsForManySmallValues) {
  const std::string name(1000, 'n');
  expect_held("{% set l = ('x' * 1000000) | list %}{{ l | length }}");
  expect_held("{{ (',' * 4000000).split(',') | length }}");
  expect_held("{{ (' x' * 2000000).split() | length }}");
  expect_held("{% set l = [] %}{% for a in range(99999) %}{% set _ = l.append(" + name +
              ") %}{% endfor %}");
  expect_held("{% set l = [] %}{% for a in range(99999) %}{% set _ = l.append(t." + name +
              ") %}{% endfor %}");
  expect_held(
      "{% set l = [] %}{% for a in range(99999) %}{% set _ = l.append({'k': a}) %}"
      "{% endfor %}");
  expect_held(
      "{% set d = {} %}{% for a in range(99999) %}{% set _ = d.update({a: [a]}) %}"
      "{% endfor %}");
  expect_held("{{ (range(99999) | map('string') | list) | length }}");
}

TEST(JinjaMemory, HoldsForLoopsAndScopes) {
  expect_held(
      "{% set l = range(50000) | list %}{% for a in range(999) %}{% for b in l %}"
      "{% break %}{% endfor %}{% endfor %}");
  std::string sets;
  for (int i = 0; i < 5000; ++i) sets += "{% set v" + std::to_string(i) + " = 1 %}";
  expect_held("{% macro f() %}" + sets + "{{ f() }}{% endmacro %}{{ f() }}");
  std::string names;
  for (int i = 0; i < 20000; ++i) names += (i == 0 ? "a" : ",a") + std::to_string(i);
  expect_held("{% macro f(" + names + ") %}{{ f() }}{% endmacro %}{{ f() }}");
  expect_held("{% macro f() %}{{ [" + times(50000, "1,") + " f()] }}{% endmacro %}{{ f() }}");
}

TEST(JinjaMemory, HoldsForLongTexts) {
  expect_held("{{ ('x' * 4000000)[::-1] }}");
  expect_held("{{ ('x' * 4000000)[-1] }}");
  expect_held("{{ ['\\x01' * 4000000] }}");
  expect_held("{{ ('x' * 4000000) + ('y' * 4000000) }}");
  expect_held("{% set s = 'x' * 3000000 %}{{ s ~ s ~ s ~ s }}");
  expect_held("{{ ('\n' * 3000000) | indent(9, true, true) }}");
  expect_held("{{ ('x' * 3000000).replace('x', 'yy') }}");
  expect_held("{{ 'a'.strip('x' * 4000000) }}");
  expect_held("{% macro f() %}{{ 'x' * 1000000 }}{{ f() }}{% endmacro %}{{ f() }}");
  expect_held("{% set s %}" + times(100, "{{ 'x' * 200000 }}") + "{% endset %}{{ s }}");
  expect_held("{{ [1] | sort(attribute='a.' * 1000000) }}");
}

TEST(JinjaMemory, HoldsForJson) {
  expect_held("{{ ('\\x01' * 4000000) | tojson }}");
  expect_held("{{ [[[[[[1, 2, 3]]]]]] | tojson(indent='x' * 2000000) }}");
  expect_held("{{ [1, 2, 3, 4, 5, 6, 7, 8, 9] | tojson(separators=('x' * 2000000, ':')) }}");
  expect_held("{{ range(99999) | list | tojson }}");
}

}  // namespace
}  // namespace ingot::inference::jinja
