#include "cli/report/balance_report.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/rules/loader_rules.h"
#include "convert/output/version.h"
#include "report/rows.h"
#include "report/svg.h"

namespace ingot::cli {

using formats::Json;
using shard::imbalance;

namespace {

// Rows of the map of ranks that a page can show.
constexpr std::size_t kMostRows = 64;

/// Tokens of a rank over the mean of its layer, in steps of the page's colours.
struct LoadStep {
  double below;
  std::string_view style, swatch, word;
};
constexpr std::array kSteps = {
    LoadStep{0.5, "h7", "k7", "less than half the mean"},
    LoadStep{0.9, "h5", "k5", "to 0.9"},
    LoadStep{1.1, "h4", "k4", "to 1.1"},
    LoadStep{1.5, "h2", "k2", "to 1.5"},
    LoadStep{1e300, "h0", "k0", "above"},
};

std::string times_text(double times) {
  return fmt::format("{:.2f}", times);
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The tokens of each rank by layer, before or after, in steps of the mean.
std::string load_map(const Balance& balance, std::vector<double> BalancedLayer::*side,
                     std::string_view label) {
  std::vector<HeatCell> cells;
  for (std::size_t rank = 0; rank < std::min<std::size_t>(balance.shape.ep, kMostRows); ++rank) {
    for (const BalancedLayer& layer : balance.layers) {
      const std::vector<double>& loads = layer.*side;
      const double mean = mean_of(loads);
      const double times = mean > 0 ? loads[rank] / mean : 1;
      const auto step = std::ranges::find_if(
          kSteps, [&](const LoadStep& candidate) { return times < candidate.below; });
      cells.push_back({.layer = layer.layer,
                       .role = fmt::format("rank {}", rank),
                       .style = std::string(step->style),
                       .title = fmt::format("layer {}, rank {}: {:.0f} tokens, {} of the mean",
                                            layer.layer, rank, loads[rank], times_text(times))});
    }
  }
  return heat_map_html(cells, label);
}

std::string legend() {
  std::string text;
  for (const LoadStep& step : kSteps) text += swatch_html(step.swatch, step.word);
  return "<p class=legend>" + text + "</p>\n";
}

/// The largest over the mean, in the worst layer.
double worst_imbalance(const Balance& balance, std::vector<double> BalancedLayer::*side) {
  double worst = balance.layers.empty() ? 1 : 0;
  for (const BalancedLayer& layer : balance.layers) worst = std::max(worst, imbalance(layer.*side));
  return worst;
}

Json layer_row(const BalancedLayer& layer) {
  return {{"layer", layer.layer},
          {"before", {{"ranks", layer.before}, {"largest_over_mean", imbalance(layer.before)}}},
          {"after", {{"ranks", layer.after}, {"largest_over_mean", imbalance(layer.after)}}},
          {"slots", layer.slots}};
}

std::vector<std::string> warnings_of(const Balance& balance) {
  if (balance.uncounted.empty()) return {};
  return {
      fmt::format("no tokens were counted in layer{} {}, so its experts are placed as if all had "
                  "as many",
                  balance.uncounted.size() == 1 ? "" : "s", fmt::join(balance.uncounted, ", "))};
}

// Experts that several of the slots have.
std::string n_replicated(const Json& slots) {
  std::map<std::uint32_t, std::size_t> places;
  for (const auto expert : slots.get<std::vector<std::uint32_t>>()) ++places[expert];
  return fmt::format("{}",
                     std::ranges::count_if(places, [](const auto& at) { return at.second > 1; }));
}

}  // namespace

Balance balanced(const verify::ExpertLoads& loads, const std::set<std::uint32_t>& layers,
                 std::uint32_t n_experts, const shard::BalanceShape& shape) {
  Balance balance{.directory = {},
                  .map = {},
                  .shape = shape,
                  .n_experts = n_experts,
                  .layers = {},
                  .uncounted = {}};
  for (const std::uint32_t number : layers) {
    const auto counted = loads.find(number);
    const bool is_counted = counted != loads.end();
    if (!is_counted) balance.uncounted.push_back(number);
    const auto tokens =
        is_counted ? counted->second : std::vector<std::uint64_t>(n_experts, std::uint64_t{0});
    balance.n_choices += std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
    BalancedLayer& layer = balance.layers.emplace_back();
    layer.layer = number;
    layer.slots = shard::balanced_slots(
        is_counted ? tokens : std::vector<std::uint64_t>(n_experts, std::uint64_t{1}), shape);
    layer.after = shard::rank_loads(tokens, layer.slots, shape.ep);
    // Ranks that do not divide the experts could not hold contiguous blocks: nearly even ones.
    layer.before.assign(shape.ep, 0);
    for (std::size_t e = 0; e < tokens.size(); ++e)
      layer.before[e * shape.ep / tokens.size()] += static_cast<double>(tokens[e]);
  }
  return balance;
}

std::string map_text(const Balance& balance) {
  std::string text = "{\"layers\": {";
  for (const BalancedLayer& layer : balance.layers) {
    text += fmt::format("{}\n\"{}\": {}", text.ends_with('{') ? "" : ",", layer.layer,
                        Json(layer.slots).dump());
  }
  return text + "\n}}\n";
}

std::string sglang_map_text(const Balance& balance, std::uint32_t n_layers) {
  std::vector<std::uint32_t> in_turn(balance.shape.slots);
  for (std::uint32_t slot = 0; slot < balance.shape.slots; ++slot)
    in_turn[slot] = slot % balance.n_experts;
  std::string text = "{\"physical_to_logical_map\": [";
  for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
    const auto found = std::ranges::find(balance.layers, layer, &BalancedLayer::layer);
    text += fmt::format("{}\n{}", layer == 0 ? "" : ",",
                        Json(found == balance.layers.end() ? in_turn : found->slots).dump());
  }
  return text + "\n]}\n";
}

formats::JsonValue balance_json(const Balance& balance) {
  return Json{{"warnings", check::remarks_json(warnings_of(balance))},
              {"map", balance.map},
              {"experts", balance.n_experts},
              {"slots", balance.shape.slots},
              {"ep", balance.shape.ep},
              {"nodes", balance.shape.nodes},
              {"groups_stay_in_nodes", shard::keeps_groups(balance.shape)},
              {"choices", balance.n_choices},
              {"uncounted", balance.uncounted},
              {"layers", formats::json_list(balance.layers, layer_row)}};
}

Document balance_document(const Balance& balance) {
  const shard::BalanceShape& shape = balance.shape;
  Document document{
      .title = "Balance of experts",
      .finding = fmt::format("the fullest rank has {} times the mean, in the worst of {} layers; "
                             "in contiguous blocks {}",
                             times_text(worst_imbalance(balance, &BalancedLayer::after)),
                             balance.layers.size(),
                             times_text(worst_imbalance(balance, &BalancedLayer::before))),
      .subject =
          fmt::format("{}: {} experts in {} slots of {} ranks{}", balance.directory,
                      balance.n_experts, shape.slots, shape.ep,
                      shape.nodes == 1 ? std::string() : fmt::format(" on {} nodes", shape.nodes)),
      .made_by = fmt::format("ingot {}", convert::kVersion)};
  if (shape.nodes > 1 && !shard::keeps_groups(shape)) {
    document.remarks.push_back(
        {.style = Style::kMild,
         .kind = "note",
         .text = fmt::format("{} groups of experts cannot stay within {} nodes, so nodes count for "
                             "nothing",
                             shape.groups, shape.nodes)});
  }
  for (const std::string& text : warnings_of(balance))
    document.remarks.push_back({.style = Style::kMild, .kind = "warning", .text = text});
  std::vector<BalancedLayer> layers = balance.layers;
  std::ranges::stable_sort(layers, std::greater<>(),
                           [](const BalancedLayer& layer) { return imbalance(layer.after); });
  const auto times = [](const Json& imbalance) { return times_text(imbalance) + " x"; };
  Table table = table_of(formats::json_list(layers, layer_row),
                         {{"layer", "layer", [](const Json& layer) { return layer.dump(); }},
                          {number("tokens a rank"), "after.ranks",
                           [](const Json& ranks) { return fmt::format("{:.0f}", mean_of(ranks)); }},
                          {number("most in blocks"), "before.largest_over_mean", times},
                          {number("most here"), "after.largest_over_mean", times},
                          {number("experts in several slots"), "slots", n_replicated}});
  document.sections = {{"layers", "Layers", {std::move(table)}}};
  document.sections.push_back(
      {"before",
       "Tokens by layer and rank, in contiguous blocks",
       {Drawing{load_map(balance, &BalancedLayer::before, "tokens in contiguous blocks") +
                legend()}}});
  document.sections.push_back(
      {"after",
       "Tokens by layer and rank, with this map",
       {Drawing{load_map(balance, &BalancedLayer::after, "tokens with this map") + legend()}}});
  return document;
}

}  // namespace ingot::cli
