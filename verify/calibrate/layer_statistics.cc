#include "verify/calibrate/layer_statistics.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::verify {
namespace {

using formats::Role;

InputSummary summary_of(const CalibratedModule& module, const InputStatistics& statistics) {
  try {
    return statistics.summary();
  } catch (Error& error) {
    throw error.in_tensor(module.name);
  }
}

Error saw_nothing(const CalibratedModule& module) {
  if (!module.expert) {
    return Error(ErrorCode::kUnsupported, "saw no input, although its layer ran")
        .in_tensor(module.name);
  }
  return Error(ErrorCode::kUnsupported,
               fmt::format("no token reaches an expert of layer {} (give more text)",
                           module.layer.value_or(0)))
      .in_tensor(module.name);
}

}  // namespace

void LayerStatistics::begin(std::span<const CalibratedModule* const> modules,
                            std::size_t n_experts) {
  modules_.assign(modules.begin(), modules.end());
  statistics_.clear();
  for (const CalibratedModule* module : modules_)
    statistics_.emplace(Key(module->weight, module->matrix), module->width);
  expert_tokens_.assign(n_experts, 0);
}

void LayerStatistics::see(std::string_view weight, std::size_t matrix,
                          formats::MatrixView<const float> x) {
  const auto found = statistics_.find(Key(weight, matrix));
  if (found != statistics_.end()) found->second.add(x, threads_);
}

inference::Taps LayerStatistics::taps() {
  return {.hidden = {},
          .router =
              [this](std::size_t, std::span<const std::uint32_t> experts, std::span<const float>) {
                for (const std::uint32_t expert : experts) ++expert_tokens_.at(expert);
              },
          .indexer = {}};
}

const InputStatistics* LayerStatistics::seen(const CalibratedModule& module) const {
  const InputStatistics& own = statistics_.at(Key(module.weight, module.matrix));
  if (own.tokens() > 0) return &own;
  if (module.role != Role::kIndexerQ) return nullptr;
  const auto twin =
      std::find_if(modules_.begin(), modules_.end(),
                   [](const CalibratedModule* other) { return other->role == Role::kQbProj; });
  if (twin == modules_.end()) return nullptr;
  const InputStatistics& same = statistics_.at(Key((*twin)->weight, (*twin)->matrix));
  return same.tokens() > 0 ? &same : nullptr;
}

std::vector<InputSummary> LayerStatistics::summaries() const {
  std::vector<InputSummary> summaries(modules_.size());
  std::map<Role, InputSummary> peers;  // the maximum over experts that were reached
  std::vector<std::size_t> unvisited;
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    const CalibratedModule& module = *modules_[i];
    const InputStatistics* statistics = seen(module);
    if (statistics == nullptr) {
      unvisited.push_back(i);
      continue;
    }
    summaries[i] = summary_of(module, *statistics);
    if (!module.expert) continue;
    const auto [peer, is_first] = peers.try_emplace(module.role, summaries[i]);
    if (!is_first) peer->second.include(summaries[i]);
  }
  for (const std::size_t i : unvisited) {
    const auto peer = peers.find(modules_[i]->role);
    if (!modules_[i]->expert || peer == peers.end()) throw saw_nothing(*modules_[i]);
    summaries[i] = peer->second;
  }
  return summaries;
}

std::uint64_t LayerStatistics::memory(std::span<const CalibratedModule* const> modules) {
  std::uint64_t n_bytes = 0;
  for (const CalibratedModule* module : modules)
    n_bytes += module->width * (sizeof(double) + sizeof(float)) + sizeof(InputStatistics);
  return n_bytes;
}

}  // namespace ingot::verify
