#include "verify/calibrate/input_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/dialect/dialect.h"
#include "formats/experts/expert_views.h"
#include "formats/family/family.h"
#include "inference/weights/weight_store.h"

namespace ingot::verify {

using formats::LogicalTensor;
using formats::Role;

namespace {

// Columns of a row that are in cache while their sums are.
constexpr std::size_t kColumnsAtOnce = 512;

struct Extremes {
  float min = 0, max = 0;
};

Extremes add_columns(formats::MatrixView<const float> x, std::size_t first, std::size_t n,
                     double* sums) {
  Extremes extremes;
  for (std::size_t r = 0; r < x.rows; ++r) {
    const float* row = x.row(r) + first;
    for (std::size_t c = 0; c < n; ++c) {
      sums[c] += double{row[c]} * double{row[c]};
      extremes.min = std::min(extremes.min, row[c]);
      extremes.max = std::max(extremes.max, row[c]);
    }
  }
  return extremes;
}

// Roles of linears, however an engine builds them.
constexpr formats::RoleSet kLinears = formats::kMlpRoles | formats::kAttentionRoles |
                                      formats::kIndexerRoles |
                                      formats::RoleSet{Role::kMtpProj, Role::kMtpHead, Role::kHead};
// Roles of weights that are looked up, or that logits of experts are made with.
constexpr formats::RoleSet kNoLinears = {Role::kEmbedding,    Role::kMtpEmbedding,
                                         Role::kLookupTable,  Role::kRouter,
                                         Role::kSharedRouter, Role::kIndexerWeights};

// True if a weight outside of the layers is applied before the first of them.
bool is_at_embedding(const formats::TensorRule& rule) {
  return rule.fine == formats::FineRole::kLayerInputsProj ||
         rule.fine == formats::FineRole::kStreamsSpread;
}

ModelPart part_of(const LogicalTensor& tensor) {
  if (tensor.layer) return layer_part(*tensor.layer);
  return is_at_embedding(*tensor.rule) ? kEmbeddingPart : kHeadPart;
}

// True if an engine builds a quantized linear of such a row.
bool is_built_quantized(const formats::TensorRule& rule) {
  return rule.silence == formats::Silence::kListed ||
         std::ranges::any_of(formats::dialects(), [&](const formats::Dialect* dialect) {
           return formats::can_be_quantized(*dialect, rule);
         });
}

// Adds the modules of an expert in a stack, as they are called where each expert has tensors of its
// own: two where it holds gate and up. `module` is that of the stack.
void add_expert(const formats::Checkpoint& source, const LogicalTensor& stack,
                const CalibratedModule& module, std::uint32_t expert,
                std::vector<CalibratedModule>& modules) {
  constexpr std::array kGateAndUp = {Role::kExpertGate, Role::kExpertUp};
  const std::vector<std::string> names = formats::single_modules(source, stack, expert);
  for (std::size_t i = 0; i < names.size(); ++i) {
    CalibratedModule& single = modules.emplace_back(module);
    single.name = names[i];
    single.role = names.size() == 2 ? kGateAndUp.at(i) : Role::kExpertDown;
    single.matrix = expert;
    single.expert = expert;
  }
}

// Only the first of several MTP layers is run.
bool is_run(const LogicalTensor& tensor, const inference::ModelSpec& spec) {
  return !tensor.layer || *tensor.layer < std::min(spec.layers.size(), spec.n_main + 1);
}

// Throws where a layer computes with the routed experts of another: a layer has statistics only of
// its own experts.
void refuse_borrowed_experts(std::span<const CalibratedModule> modules,
                             const inference::ModelSpec& spec) {
  std::set<std::uint32_t> own;
  for (const CalibratedModule& module : modules) {
    if (module.expert) own.insert(module.part.layer);
  }
  if (own.empty()) return;
  for (std::uint32_t layer = 0; layer < std::min(spec.layers.size(), spec.n_main); ++layer) {
    if (!spec.is_moe(layer) || own.contains(layer)) continue;
    throw Error(ErrorCode::kUnsupported,
                "layer {} computes with routed experts of another layer, whose inputs are not "
                "measured (models of this family are quantized without statistics)",
                layer);
  }
}

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
  return Error(ErrorCode::kUnsupported, "no token reaches an expert of layer {} (give more text)",
               module.part.layer)
      .in_tensor(module.name);
}

}  // namespace

std::optional<Unmeasured> why_unmeasured(const LogicalTensor& tensor,
                                         const inference::ModelSpec& spec) {
  const formats::TensorRule* rule = tensor.rule;
  if (rule == nullptr || tensor.shape.size() < 2) return Unmeasured::kNoLinear;
  if (kNoLinears.has(rule->role)) return Unmeasured::kNoLinear;
  if (!kLinears.has(rule->role)) {
    if (!is_built_quantized(*rule)) return Unmeasured::kNoLinear;
    const bool is_read = rule->role != Role::kOther || rule->fine;
    if (!is_read || rule->role == Role::kOtherModality) return Unmeasured::kNotComputed;
  }
  if (!is_run(tensor, spec)) return Unmeasured::kIdleLayer;
  return std::nullopt;
}

bool is_twin_of_indexer(const CalibratedModule& queries, const CalibratedModule& twin) {
  return queries.role == Role::kIndexerQ && twin.role == Role::kQbProj &&
         queries.width == twin.width;
}

void InputSummary::include(const InputSummary& other) {
  INGOT_CHECK(mean_square.size() == other.mean_square.size());
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  for (std::size_t c = 0; c < mean_square.size(); ++c)
    mean_square[c] = std::max(mean_square[c], other.mean_square[c]);
}

void InputStatistics::add(formats::MatrixView<const float> x, std::size_t threads) {
  INGOT_CHECK(x.cols == square_sums_.size());
  std::vector<Extremes> extremes((x.cols + kColumnsAtOnce - 1) / kColumnsAtOnce);
  parallel_for(extremes.size(), threads, [&](std::size_t i) {
    const std::size_t first = i * kColumnsAtOnce;
    extremes[i] = add_columns(x, first, std::min(kColumnsAtOnce, x.cols - first),
                              square_sums_.data() + first);
  });
  for (const Extremes& part : extremes) {
    min_ = std::min(min_, part.min);
    max_ = std::max(max_, part.max);
  }
  tokens_ += x.rows;
}

InputSummary InputStatistics::summary() const {
  INGOT_CHECK(tokens_ > 0);
  InputSummary summary{.min = min_, .max = max_, .mean_square = {}};
  summary.mean_square.reserve(square_sums_.size());
  for (std::size_t c = 0; c < square_sums_.size(); ++c) {
    const double mean = square_sums_[c] / static_cast<double>(tokens_);
    const auto rounded = static_cast<float>(mean);
    if (!std::isfinite(rounded)) {
      throw Error(ErrorCode::kNonFinite,
                  "its input has a mean square of {} in column {}, beyond FP32", mean, c);
    }
    summary.mean_square.push_back(rounded);
  }
  return summary;
}

std::vector<CalibratedModule> calibrated_modules(const formats::Checkpoint& source,
                                                 const inference::ModelSpec& spec) {
  // The source as the forward pass reads it.
  const std::optional<formats::Checkpoint> view = inference::with_readable_experts(source);
  const formats::Checkpoint& read = view ? *view : source;
  std::vector<CalibratedModule> modules;
  for (const LogicalTensor& tensor : read.tensors()) {
    if (why_unmeasured(tensor, spec)) continue;
    CalibratedModule module{.name = std::string(formats::module_name(tensor.name)),
                            .weight = tensor.name,
                            .width = static_cast<std::size_t>(tensor.shape.back()),
                            .role = tensor.rule->role,
                            .rule = tensor.rule,
                            .part = part_of(tensor),
                            .expert = tensor.expert};
    if (tensor.shape.size() < 3) {
      modules.push_back(std::move(module));
      continue;
    }
    const bool is_routed = formats::is_expert_stack(module.role);
    const std::string stack = module.name;
    for (std::uint32_t i = 0; i < tensor.shape.front(); ++i) {
      if (is_routed) {
        add_expert(read, tensor, module, i, modules);
        continue;
      }
      module.name = fmt::format("{}.{}", stack, i);
      module.matrix = i;
      modules.push_back(module);
    }
  }
  refuse_borrowed_experts(modules, spec);
  return modules;
}

void LayerStatistics::begin(std::span<const CalibratedModule* const> modules,
                            std::size_t n_experts) {
  modules_.assign(modules.begin(), modules.end());
  statistics_.clear();
  for (const CalibratedModule* module : modules_)
    statistics_.emplace(Key(module->weight, module->matrix), module->width);
  expert_tokens_.assign(n_experts, 0);
  weighted_norms_.assign(n_experts, 0);
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
                // Experts with higher ids have no tensors.
                for (const std::uint32_t expert : experts)
                  if (expert < expert_tokens_.size()) ++expert_tokens_[expert];
              },
          .indexer = {},
          .expert =
              [this](std::size_t, std::uint32_t expert, std::span<const float> weights,
                     const inference::Matrix& outputs) {
                for (std::size_t i = 0; i < weights.size(); ++i) {
                  double squares = 0;
                  for (const float value : outputs.row(i)) squares += double{value} * double{value};
                  weighted_norms_[expert] += double{weights[i]} * std::sqrt(squares);
                }
              }};
}

std::vector<float> LayerStatistics::expert_saliency() const {
  std::vector<float> saliency;
  for (std::size_t expert = 0; expert < expert_tokens_.size(); ++expert) {
    const auto n = static_cast<double>(expert_tokens_[expert]);
    saliency.push_back(n > 0 ? static_cast<float>(weighted_norms_[expert] / n) : 0.0F);
  }
  return saliency;
}

const InputStatistics* LayerStatistics::seen(const CalibratedModule& module) const {
  const InputStatistics* best = &statistics_.at(Key(module.weight, module.matrix));
  for (const CalibratedModule* twin : modules_) {
    if (!is_twin_of_indexer(module, *twin)) continue;
    const InputStatistics& same = statistics_.at(Key(twin->weight, twin->matrix));
    if (same.tokens() > best->tokens()) best = &same;
  }
  return best->tokens() > 0 ? best : nullptr;
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
