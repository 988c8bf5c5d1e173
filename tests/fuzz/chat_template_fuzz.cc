#include <stdexcept>
#include <string>
#include <string_view>

#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "inference/chat/jinja/template.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {
namespace {

using formats::Json;
using inference::jinja::RenderLimits;
using inference::jinja::Template;

// A run must end long before the fuzzer's time limit, sanitizers included.
constexpr RenderLimits kLimits = {.max_steps = 200'000,
                                  .max_made_bytes = std::uint64_t{1} << 24U,
                                  .max_output_bytes = std::size_t{1} << 18U};

const Json& variables() {
  static const Json made = formats::parse_json(
      R"({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Grüße 世界"}]},
            {"role": "assistant", "content": "<think>r</think>\n b ", "tool_calls": [
              {"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]},
            {"role": "tool", "content": ""}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": true}}}],
          "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "n": -7})",
      "variables");
  return made;
}

}  // namespace

bool accepts(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  try {
    const Template parsed = Template::parse(text, "input");
    const std::string rendered = parsed.render(variables(), "2025-03-07", kLimits);
    if (rendered.size() > kLimits.max_output_bytes) throw std::logic_error("output beyond limit");
    if (!is_utf8(rendered)) throw std::logic_error("output is not UTF-8");
    if (parsed.render(variables(), "2025-03-07", kLimits) != rendered)
      throw std::logic_error("a second render differs");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
  return true;
}

}  // namespace ingot::fuzz
