#include "inference/chat/jinja/template.h"

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/interpreter.h"
#include "inference/chat/jinja/json_values.h"
#include "inference/chat/jinja/parser.h"
#include "inference/chat/jinja/scope.h"

namespace ingot::inference::jinja {
namespace {

// The longest published chat templates have a tenth of this.
constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20U;

}  // namespace

struct Template::Parsed {
  std::string where;
  Block block;
};

Template Template::parse(std::string_view text, std::string_view where) {
  if (text.size() > kMaxTemplateBytes) {
    throw Error(ErrorCode::kLimit, fmt::format("a template of {} bytes, at most {} are accepted",
                                               text.size(), kMaxTemplateBytes))
        .in_file(where);
  }
  if (!formats::is_utf8(text)) {
    throw Error(ErrorCode::kCorrupt, "the template is not valid UTF-8").in_file(where);
  }
  try {
    return Template(std::make_shared<const Parsed>(
        Parsed{.where = std::string(where), .block = parse_template(text)}));
  } catch (Error& error) {
    throw error.in_file(where);
  }
}

std::string Template::render(const formats::Json& variables, std::string_view now,
                             const RenderLimits& limits) const {
  INGOT_CHECK(variables.is_object());
  try {
    RenderState state(limits, now);
    Scope globals(nullptr);
    for (const auto& [name, value] : variables.get_ref<const formats::Json::object_t&>()) {
      globals.set(name, value_from_json(state, value));
    }
    return Interpreter(state).render(parsed_->block, globals);
  } catch (Error& error) {
    throw error.in_file(parsed_->where);
  }
}

}  // namespace ingot::inference::jinja
