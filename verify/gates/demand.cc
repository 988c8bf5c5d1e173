#include "verify/gates/demand.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "verify/gates/metric_groups.h"

namespace ingot::verify {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

const Metric& known_metric(std::string_view name) {
  if (const Metric* metric = find_metric(name)) return *metric;
  std::string known;
  for (const Metric& metric : metrics()) {
    if (!known.empty()) known += ", ";
    known += metric.name;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not something that can be gated (choose from {})", name, known));
}

}  // namespace

double parse_number(std::string_view text, std::string_view what) {
  text = trimmed(text);
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: '{}' is not a number", what, text));
  }
  return value;
}

Gate make_demand(std::string_view metric, std::string_view group, std::string_view limit,
                 std::string_view origin) {
  const Metric& row = known_metric(metric);
  const std::string key =
      group.empty() ? std::string(metric) : fmt::format("{}[{}]", metric, group);
  if (!group.empty() && !is_group(metric, group)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is not a group of {} (schemes for weights, kinds of "
                            "checkpoints elsewhere, see docs/verify.md)",
                            key, group, metric));
  }
  const std::string_view good = row.bound == Bound::kAtLeast ? ">=" : "<=";
  limit = trimmed(limit);
  if (limit.starts_with(">=") || limit.starts_with("<=")) {
    if (!limit.starts_with(good)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' bounds the good side (write {})", key, limit, good));
    }
    limit.remove_prefix(2);
  }
  return {.metric = std::string(metric),
          .group = std::string(group),
          .bound = row.bound,
          .limit = parse_number(limit, key),
          .origin = std::string(origin)};
}

}  // namespace ingot::verify
