#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "formats/json/json_fwd.h"
#include "report/document.h"
#include "shard/cut/expert_balance.h"
#include "verify/calibrate/expert_loads.h"

namespace ingot::cli {

/// The experts of one layer on the ranks.
struct BalancedLayer {
  std::uint32_t layer = 0;
  std::vector<std::uint32_t> slots;  ///< logical expert by physical slot
  std::vector<double> before;        ///< tokens of each rank with experts in contiguous blocks
  std::vector<double> after;         ///< tokens of each rank with these slots
};

/// The result of `ingot balance`.
struct Balance {
  std::string directory, map;
  shard::BalanceShape shape;
  std::uint32_t n_experts = 0;
  std::uint64_t n_choices = 0;  ///< choices that were counted: a token has several in each layer
  std::vector<BalancedLayer> layers;
  std::vector<std::uint32_t> uncounted;  ///< layers without counts: as if all experts were alike
};

/// Balances each of the layers, which have so many experts. Throws as shard::require_even does.
Balance balanced(const verify::ExpertLoads& loads, const std::set<std::uint32_t>& layers,
                 std::uint32_t n_experts, const shard::BalanceShape& shape);

/// Returns the map as `--expert-map` reads it.
std::string map_text(const Balance& balance);
/// Returns the map as SGLang's --init-expert-location reads it: a row of physical slots for each of
/// the `n_layers` main layers. A layer without experts has them in turn, and MTP layers have no
/// row, since a draft model is an instance of its own (eplb/expert_location.py of SGLang 0.5.23).
std::string sglang_map_text(const Balance& balance, std::uint32_t n_layers);
formats::JsonValue balance_json(const Balance& balance);
/// For a terminal, a page and Markdown; a page also has the tokens by layer and rank.
Document balance_document(const Balance& balance);

}  // namespace ingot::cli
