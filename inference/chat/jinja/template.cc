#include "inference/chat/jinja/template.h"

#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/interpreter.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/syntax.h"

namespace ingot::inference::jinja {

struct Template::Parsed {
  std::string where;
  Syntax syntax;
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
        Parsed{.where = std::string(where), .syntax = parse_syntax(text)}));
  } catch (Error& error) {
    throw error.in_file(where);
  }
}

std::string Template::render(const formats::Json& variables, std::string_view now,
                             const RenderLimits& limits) const {
  INGOT_CHECK(variables.is_object());
  try {
    RenderState state(limits, now);
    return run_template(state, parsed_->syntax.block, variables);
  } catch (Error& error) {
    throw error.in_file(parsed_->where);
  }
}

}  // namespace ingot::inference::jinja
