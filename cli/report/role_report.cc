#include "cli/report/role_report.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "convert/recipe/selector.h"
#include "formats/family/roles.h"
#include "formats/family/usual_rows.h"
#include "formats/json/json.h"
#include "library/as_stored.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using formats::Role;

namespace {

constexpr auto kRoles = static_cast<std::uint8_t>(Role::kOther);

// `role:` and each group, then each role.
std::vector<std::string> role_selectors() {
  std::vector<std::string> selectors;
  for (const formats::RoleGroup& group : formats::role_groups())
    selectors.push_back(fmt::format("role:{}", group.name));
  for (std::uint8_t i = 0; i <= kRoles; ++i)
    selectors.push_back(fmt::format("role:{}", formats::role_name(static_cast<Role>(i))));
  return selectors;
}

// Runs of layers that hold the same kinds of tensors: dense ones, those with experts, MTP layers.
std::vector<std::string> layer_selectors(const Checkpoint& checkpoint) {
  std::map<std::uint32_t, std::set<const formats::TensorRule*>> kinds;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.layer) kinds[*tensor.layer].insert(tensor.rule);
  }
  std::vector<std::string> selectors;
  const std::uint64_t n_layers = checkpoint.config().num_hidden_layers;
  for (auto first = kinds.begin(); first != kinds.end();) {
    auto last = first;
    auto next = std::next(first);
    while (next != kinds.end() && next->first == last->first + 1 && next->second == first->second &&
           (next->first < n_layers) == (first->first < n_layers))
      last = next++;
    selectors.push_back(first->first >= n_layers ? std::string("layers:mtp")
                        : first == last          ? fmt::format("layers:{}", first->first)
                                        : fmt::format("layers:{}-{}", first->first, last->first));
    first = next;
  }
  return selectors;
}

}  // namespace

Json role_rows() {
  Json rows = Json::array();
  for (const formats::RoleGroup& group : formats::role_groups()) {
    Json roles = Json::array();
    for (std::uint8_t i = 0; i <= kRoles; ++i) {
      if (group.roles.has(static_cast<Role>(i)))
        roles.push_back(formats::role_name(static_cast<Role>(i)));
    }
    rows.push_back({{"selector", fmt::format("role:{}", group.name)},
                    {"meaning", group.summary},
                    {"roles", std::move(roles)}});
  }
  for (std::uint8_t i = 0; i <= kRoles; ++i) {
    const std::string_view name = formats::role_name(static_cast<Role>(i));
    const std::string usual = formats::usual_text(static_cast<Role>(i));
    rows.push_back(
        {{"selector", fmt::format("role:{}", name)},
         {"meaning",
          usual.empty() ? "one role" : fmt::format("one role; in family files usually {}", usual)},
         {"roles", {name}}});
  }
  rows.push_back({{"selector", "layers:0-2,last"},
                  {"meaning", "layers; last is the last before the MTP layers, mtp is these"},
                  {"roles", Json::array()}});
  rows.push_back({{"selector", "A & B"},
                  {"meaning", "tensors that both match; globs and re:EXPR too"},
                  {"roles", Json::array()}});
  return rows;
}

Json role_rows_of(const Checkpoint& checkpoint) {
  std::vector<std::string> selectors = role_selectors();
  const std::vector<std::string> of_layers = layer_selectors(checkpoint);
  selectors.insert(selectors.end(), of_layers.begin(), of_layers.end());
  const library::AsStored as_stored(checkpoint);
  Json rows = Json::array();
  for (const std::string& text : selectors) {
    convert::Selector selector(text);
    selector.set_layers(checkpoint.config().num_hidden_layers);
    std::uint64_t n_tensors = 0, n_bytes = 0;
    std::set<std::string_view> schemes;
    const LogicalTensor* example = nullptr;
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (!selector.matches(tensor)) continue;
      if (example == nullptr) example = &tensor;
      ++n_tensors;
      n_bytes += as_stored.n_bytes(tensor);
      schemes.insert(formats::scheme_facts(tensor.encoding.scheme).name);
    }
    if (example == nullptr) continue;
    rows.push_back({{"selector", text},
                    {"tensors", n_tensors},
                    {"bytes", n_bytes},
                    {"schemes", schemes},
                    {"example", example->name}});
  }
  return rows;
}

}  // namespace ingot::cli
