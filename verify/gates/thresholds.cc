#include <array>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/words.h"
#include "formats/text/spelling.h"
#include "formats/yaml/yaml.h"
#include "verify/gates/gate.h"
#include "verify/structure/compared_checkpoint.h"

namespace ingot::verify {

using formats::Yaml;
using formats::YamlLimits;

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

const Metric& known_metric(std::string_view name) {
  if (const Metric* metric = find_metric(name)) return *metric;
  refuse_word("metric", name, metrics(), &Metric::name);
}

// A finite number and nothing else.
double parse_number(std::string_view text, std::string_view what) {
  text = trimmed(text);
  const auto value = number_from<double>(text);
  if (value && std::isfinite(*value)) return *value;
  throw Error(ErrorCode::kInvalidArgument, "{}: '{}' is not a number", what, text);
}

// A gate from its words: `limit` is a number, on the metric's good side, or has ">=" or "<="
// before it, which must be that side. Errors name the key, not the origin.
Gate make_demand(std::string_view metric, std::string_view group, std::string_view limit,
                 std::string_view origin) {
  const Metric& row = known_metric(metric);
  const std::string key =
      group.empty() ? std::string(metric) : fmt::format("{}[{}]", metric, group);
  if (!group.empty() && !is_group(metric, group)) {
    throw Error(ErrorCode::kInvalidArgument,
                "{}: '{}' is not a group of {} (schemes for weights, kinds of checkpoints "
                "elsewhere, see docs/verify.md)",
                key, group, metric);
  }
  const std::string_view good = row.bound == Bound::kAtLeast ? ">=" : "<=";
  limit = trimmed(limit);
  if (limit.starts_with(">=") || limit.starts_with("<=")) {
    if (!limit.starts_with(good)) {
      throw Error(ErrorCode::kInvalidArgument, "{}: '{}' bounds the good side (write {})", key,
                  limit, good);
    }
    limit.remove_prefix(2);
  }
  return {.metric = std::string(metric),
          .group = std::string(group),
          .bound = row.bound,
          .limit = parse_number(limit, key),
          .origin = std::string(origin)};
}

constexpr std::string_view kGreedyGap = "greedy.gap";

const std::string& limit_text(const Yaml& value, std::string_view key) {
  if (!value.is_text()) value.refuse("{} is not a limit", key);
  return value.text(key);
}

void read_metric(const std::string& metric, const Yaml& value, std::string_view origin,
                 Thresholds& thresholds) {
  if (metric == kGreedyGap) {
    const std::string& text = limit_text(value, metric);
    const double gap = value.at_line([&] { return parse_number(text, metric); });
    if (gap < 0) value.refuse("{} is negative", metric);
    thresholds.greedy_gap = gap;
    return;
  }
  const auto add = [&](std::string_view group, const Yaml& limit, std::string_view key) {
    const std::string& text = limit_text(limit, key);
    limit.at_line([&] { thresholds.gates.push_back(make_demand(metric, group, text, origin)); });
  };
  if (!value.is_map()) return add({}, value, metric);
  const std::span groups = value.members(metric);
  if (groups.empty()) value.refuse("{} has no groups", metric);
  for (const auto& [group, line, limit] : groups) {
    if (group.empty()) limit.refuse("{} has a group without a name", metric);
    add(group, limit, fmt::format("{}[{}]", metric, group));
  }
}

struct DefaultLimit {
  std::string_view metric, group;
  double limit;
};

constexpr std::array kDefaults{
    // Faults: none is ever part of a data-free conversion. Half a step and a ten-thousandth is
    // where rounding ends, and a scale off by one percent is beyond it for the first of a hundred
    // values.
    DefaultLimit{"structure.errors", "", 0},
    DefaultLimit{"weights.misrounded", "", 0},
    DefaultLimit{"weights.coarse", "", 0},
    DefaultLimit{"weights.changed", "", 0},
    DefaultLimit{"weights.narrowed", "", 0},
    DefaultLimit{"weights.nonfinite", "", 0},
    DefaultLimit{"weights.scale_error", "", 0.05},
    // Nearest codes of E2M1 are up to a fifth of a value away, and those of a source on one grid
    // may all be on one side; scales that are powers of two are off by half at the least.
    DefaultLimit{"weights.scale_error", "mxfp4", 0.2},
    // Nearest codes of E4M3 are at most 1/17 = 0.0588 away.
    DefaultLimit{"weights.scale_error", "fp8", 0.0589},
    DefaultLimit{"weights.scale_error", "mxfp8", 0.0589},
    DefaultLimit{"weights.lone_factor", "", 1e-5},
    DefaultLimit{"layers.nonfinite", "", 0},
    // Scales of a calibration on other text cut off 0.02% of a layer's rope keys on tiny-v32; half
    // of these scales 16%.
    DefaultLimit{"cache.clipped", "", 0.01},
    // Cosines that rounding to the grid cannot go below on weights that are spread like a trained
    // model's; bench/README.md has the measurements. Tensors that keep their scheme have 1 exactly.
    DefaultLimit{"weights.cosine", "bf16", 0.99999},
    DefaultLimit{"weights.cosine", "f16", 0.99999},
    DefaultLimit{"weights.cosine", "f32", 0.99999},
    DefaultLimit{"weights.cosine", "int8", 0.9995},
    // E4M3 has three bits of fraction, so that the nearest code is at most 1/17 of a value away
    // from
    // it: the cosine is at least sqrt(1 - 1/17^2) = 0.99827, and few values are below the codes of
    // which that holds. N(0,1) has 0.99965, but a source whose values are on one grid themselves
    // meets E4M3's in one ratio, and has any cosine from here to 1.
    DefaultLimit{"weights.cosine", "fp8", 0.998},
    DefaultLimit{"weights.cosine", "mxfp8", 0.998},
    DefaultLimit{"layers.cosine", "plain", 0.9995},
    DefaultLimit{"layers.cosine", "int8", 0.999},
    DefaultLimit{"layers.cosine", "fp8", 0.999},
    DefaultLimit{"layers.cosine", "nvfp4-experts", 0.997},
    DefaultLimit{"layers.cosine", "4-bit", 0.994},
    // A scale that must do for every token leaves most of them few codes.
    DefaultLimit{"layers.cosine", "int8-static", 0.996},
    // No residual stream passes through an MTP layer: one expert that is chosen differently costs a
    // token as much as ten do elsewhere.
    DefaultLimit{"mtp.cosine", "plain", 0.9995},
    DefaultLimit{"mtp.cosine", "int8", 0.998},
    DefaultLimit{"mtp.cosine", "fp8", 0.998},
    DefaultLimit{"mtp.cosine", "nvfp4-experts", 0.985},
    DefaultLimit{"mtp.cosine", "4-bit", 0.985},
    DefaultLimit{"mtp.cosine", "int8-static", 0.99},
    DefaultLimit{"draft.acceptance", "plain", 2},
    DefaultLimit{"draft.acceptance", "int8", 2},
    DefaultLimit{"draft.acceptance", "fp8", 2},
    DefaultLimit{"draft.acceptance", "nvfp4-experts", 5},
    DefaultLimit{"draft.acceptance", "4-bit", 5},
};

// Answers of four-bit models are only reported.
constexpr std::array<std::string_view, 3> kGreedyKinds = {"plain", "int8", "fp8"};

}  // namespace

double four_bit_floor(std::string_view scheme, std::string_view search) {
  // Errors that are carried on are larger than those of rounding, as they are there to cancel each
  // other: an independent GPTQ has 0.975 to 0.982 in NVFP4 and 0.955 to 0.972 in MXFP4 on made-up
  // inputs (tests/golden/gptq). With importance columns that matter less are given up on purpose.
  const bool is_carried = search == kCarryingSearch, is_weighted = search == kWeightedSearch;
  if (scheme == "nvfp4") {
    if (is_carried) return 0.95;
    if (search == "mse") return 0.9965;
    if (search == "4over6") return 0.9955;
    return is_weighted ? 0.992 : 0.995;
  }
  if (scheme == "mxfp4") return is_carried ? 0.93 : 0.991;
  if (!scheme.starts_with("int4")) return 0;
  if (is_carried) return 0.93;
  return is_weighted ? 0.97 : 0.985;  // for rows that share a scale
}

void add_requirement(std::string_view text, Thresholds& thresholds) {
  constexpr std::string_view kOrigin = "--require";
  const auto refuse = [&](std::string_view what) -> Error {
    return Error(
        ErrorCode::kInvalidArgument,
        "--require '{}': {} (as in \"layers.cosine>=0.999\" or \"weights.cosine[nvfp4]>=0.996\")",
        text, what);
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

void read_thresholds(const std::filesystem::path& path, Thresholds& thresholds) {
  const std::string origin = path.filename().string();
  const YamlLimits limits;
  const Yaml root = formats::parse_yaml(read_text_file(path, limits.bytes), path.string(), limits);
  try {
    if (root.is_null()) throw Error(ErrorCode::kInvalidArgument, "holds no thresholds");
    if (!root.is_map()) root.refuse("is not a map from metrics to limits");
    for (const auto& [metric, line, value] : root.members("the file"))
      read_metric(metric, value, origin, thresholds);
  } catch (Error& error) {
    throw error.in_file(path.string());
  }
}

Thresholds default_thresholds(std::string_view search) {
  Thresholds thresholds;
  const auto add = [&](const DefaultLimit& row) {
    thresholds.gates.push_back({.metric = std::string(row.metric),
                                .group = std::string(row.group),
                                .bound = find_metric(row.metric)->bound,
                                .limit = row.limit,
                                .origin = "default"});
  };
  for (const DefaultLimit& row : kDefaults) add(row);
  for (const std::string_view scheme : {"mxfp4", "nvfp4", "int4"})
    add({"weights.cosine", scheme, four_bit_floor(scheme, search)});
  for (const std::string_view kind : kGreedyKinds) {
    add({"greedy.different", kind, 0});
    add({"greedy.inconclusive", kind, 0.5});
  }
  return thresholds;
}

void drop_defaults_of_models(Thresholds& thresholds) {
  std::erase_if(thresholds.gates, [](const Gate& gate) {
    return gate.origin == "default" && !gate.metric.starts_with("structure.") &&
           !gate.metric.starts_with("weights.") && gate.metric != "layers.nonfinite";
  });
}

Thresholds make_thresholds(std::string_view search, const std::filesystem::path& file,
                           std::span<const std::string> requirements) {
  Thresholds thresholds = default_thresholds(search);
  if (!file.empty()) read_thresholds(file, thresholds);
  for (const std::string& text : requirements) add_requirement(text, thresholds);
  return thresholds;
}

}  // namespace ingot::verify
