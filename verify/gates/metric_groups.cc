#include "verify/gates/metric_groups.h"

#include <algorithm>
#include <array>

#include "formats/storage/encoding.h"

namespace ingot::verify {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"plain", "int8",          "int8-static",
                                                    "fp8",   "nvfp4-experts", "fp4"};

}  // namespace

int group_fit(std::string_view gate, std::string_view value) {
  if (gate.empty()) return 1;
  if (gate == value) return 3;
  const bool begins = value.starts_with(gate) && value.substr(gate.size()).starts_with('-');
  return begins ? 2 : 0;
}

bool is_group(std::string_view metric, std::string_view group) {
  const auto fits = [&](std::string_view value) { return group_fit(group, value) > 1; };
  if (metric.starts_with("structure.") || metric == "weights.unmatched") return false;
  if (!metric.starts_with("weights.")) return std::any_of(kKinds.begin(), kKinds.end(), fits);
  const auto schemes = formats::schemes();
  return std::any_of(schemes.begin(), schemes.end(),
                     [&](const formats::SchemeFacts& facts) { return fits(facts.name); });
}

}  // namespace ingot::verify
