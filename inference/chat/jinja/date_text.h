#pragma once

#include <string>
#include <string_view>

#include "inference/chat/jinja/render_state.h"

namespace ingot::inference::jinja {

/// `format` as strftime fills it in, in the C locale: %Y %y %m %d %e %j %B %b %h %A %a %u %w %H %I
/// %M %S %p %F %D %T %R %n %t %%, and %-d and its like without leading zeros. The time is
/// state.now(): a fault when it is empty or no date; other conversions are kUnsupported.
std::string date_text(RenderState& state, std::string_view format);

}  // namespace ingot::inference::jinja
