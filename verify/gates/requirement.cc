#include <fmt/format.h>

#include "formats/base/error.h"
#include "verify/gates/demand.h"
#include "verify/gates/gate.h"

namespace ingot::verify {

void add_requirement(std::string_view text, Thresholds& thresholds) {
  constexpr std::string_view kOrigin = "--require";
  const auto refuse = [&](std::string_view what) -> Error {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("--require '{}': {} (as in \"layers.cosine>=0.999\" or "
                             "\"weights.cosine[nvfp4]>=0.996\")",
                             text, what));
  };
  const std::size_t bound = text.find_first_of("<>=");
  if (bound == std::string_view::npos || !text.substr(bound + 1).starts_with('=') ||
      text[bound] == '=') {
    throw refuse("neither >= nor <= in it");
  }
  std::string_view metric = text.substr(0, bound);
  while (metric.ends_with(' ')) metric.remove_suffix(1);
  std::string_view group;
  if (metric.ends_with(']')) {
    const std::size_t open = metric.find('[');
    if (open == std::string_view::npos) throw refuse("']' without '['");
    group = metric.substr(open + 1, metric.size() - open - 2);
    if (group.empty()) throw refuse("an empty group");
    metric = metric.substr(0, open);
  }
  try {
    thresholds.gates.push_back(make_demand(metric, group, text.substr(bound), kOrigin));
  } catch (const Error& error) {
    throw refuse(error.message());
  }
}

}  // namespace ingot::verify
