#include "cli/report/lossless_report.h"

#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/plan/exactness.h"
#include "formats/json/json.h"

namespace ingot::cli {

using formats::Json;

namespace {

// The names, or some and how many more.
std::string roles_text(const Json& roles) {
  constexpr std::size_t kMostNamed = 5;
  const auto names = roles.get<std::vector<std::string>>();
  if (names.size() <= kMostNamed) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMostNamed, ", "),
                     names.size() - kMostNamed);
}

}  // namespace

Json exactness_json(const convert::Plan& plan) {
  Json rows = Json::array();
  for (const auto& [key, roles] : convert::roles_by_exactness(plan)) {
    const auto& [is_exact, from, to] = key;
    rows.push_back({{"held", is_exact ? "exact by rule" : "not known"},
                    {"from", formats::scheme_facts(from).name},
                    {"to", formats::scheme_facts(to).name},
                    {"roles", roles}});
  }
  return rows;
}

verify::Table exactness_table(const convert::Plan& plan) {
  verify::Table held{.columns = {"every value is held", "from", "to", "roles"}};
  for (const Json& row : exactness_json(plan)) {
    held.rows.push_back({row["held"].get<std::string>(), row["from"].get<std::string>(),
                         row["to"].get<std::string>(), roles_text(row["roles"])});
  }
  return held;
}

}  // namespace ingot::cli
