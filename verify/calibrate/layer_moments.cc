#include "verify/calibrate/layer_moments.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/modules/joined_module.h"
#include "inference/base/matrix.h"

namespace ingot::verify {

using formats::MatrixView;
using formats::Role;

namespace {

constexpr std::size_t kBlock = formats::kMomentBlock;
constexpr std::size_t kRowsAtOnce = 64;  // rows of a matrix that are written together

std::string_view parent_of(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : module.substr(0, dot);
}

bool is_gate_or_up(Role role) {
  using enum Role;
  constexpr std::array kRoles = {kDenseGate, kDenseUp,    kSharedGate,
                                 kSharedUp,  kExpertGate, kExpertUp};
  return std::ranges::find(kRoles, role) != kRoles.end();
}

bool is_input_of_mixture(const CalibratedModule& module) {
  return module.expert && is_gate_or_up(module.role);
}

// True if a weight projects what a layer of linear attention is given; its others have inputs of
// their own.
bool is_of_layer_input(const formats::TensorRule* rule) {
  using enum formats::FineRole;
  constexpr std::array kRows = {kLinearQ,    kLinearK,         kLinearV,     kLinearQkv,
                                kLinearZ,    kLinearQkvz,      kLinearGate,  kLinearGateA,
                                kLinearBeta, kLinearBetaDecay, kLinearDecay, kLinearDecayA};
  return rule != nullptr && rule->fine && std::ranges::find(kRows, *rule->fine) != kRows.end();
}

// A name for the input of a module; the module's own where it is given to no other.
std::string input_of(const CalibratedModule& module, bool joins_experts) {
  if (joins_experts && is_input_of_mixture(module))
    return fmt::format("{}/", parent_of(parent_of(module.name)));
  if (is_gate_or_up(module.role)) return fmt::format("{}/", parent_of(module.name));
  if (module.matrix > 0 || module.expert) return module.name;
  if (is_of_layer_input(module.rule)) return fmt::format("{}/", parent_of(module.name));
  const std::string joined =
      formats::joined_module(module.weight, module.rule, formats::ExpertJoin::kExpert);
  return joined.empty() ? module.name : joined + "/";
}

std::vector<MomentInput> inputs_of(std::span<const CalibratedModule> modules, bool joins_experts) {
  std::vector<MomentInput> inputs;
  std::map<std::pair<std::string, std::size_t>, std::size_t> by_name;
  for (const CalibratedModule& module : modules) {
    const bool is_mixture = joins_experts && is_input_of_mixture(module);
    const auto [found, is_new] =
        by_name.try_emplace({input_of(module, joins_experts), module.width}, inputs.size());
    if (is_new) {
      inputs.push_back(
          {.owner = is_mixture ? std::string(parent_of(parent_of(module.name))) : module.name,
           .modules = {},
           .width = module.width,
           .is_mixture = is_mixture});
    }
    inputs[found->second].modules.push_back(&module);
  }
  return inputs;
}

Error not_finite(const std::string& module, double mean) {
  return Error(ErrorCode::kNonFinite, "its input has a second moment of {}, beyond FP32", mean)
      .in_tensor(module);
}

float rounded(const std::string& module, double mean) {
  const auto value = static_cast<float>(mean);
  if (!std::isfinite(value)) throw not_finite(module, mean);
  return value;
}

// The sums of experts with the same role, together.
const MomentSums* of_all(const std::map<Role, MomentSums>& pooled, const MomentInput& input) {
  if (!input.first().expert) return nullptr;
  const auto found = pooled.find(input.first().role);
  return found == pooled.end() ? nullptr : &found->second;
}

// Shares of the sums of an expert, and of those of all experts, in its moments.
struct Shares {
  double own = 0, all = 0;
};

Shares shares_of(const MomentSums& own, const MomentSums* all, std::uint64_t prior) {
  const auto n = static_cast<double>(own.tokens());
  if (all == nullptr) return {.own = 1 / n, .all = 0};
  const auto n_all = static_cast<double>(all->tokens());
  if (n == 0) return {.own = 0, .all = 1 / n_all};
  const double own_trace = own.trace(), all_trace = all->trace() / n_all;
  const double factor = own_trace > 0 && all_trace > 0 ? own_trace / n / all_trace : 1.0;
  const auto n0 = static_cast<double>(prior);
  return {.own = 1 / (n + n0), .all = n0 / (n + n0) * factor / n_all};
}

}  // namespace

std::vector<MomentInput> block_inputs(std::span<const CalibratedModule> modules) {
  std::vector<MomentInput> inputs = inputs_of(modules, false);
  std::erase_if(inputs, [](const MomentInput& input) { return input.width % kBlock != 0; });
  return inputs;
}

std::vector<MomentInput> whole_inputs(std::span<const CalibratedModule> modules, bool has_mixture) {
  std::vector<MomentInput> inputs = inputs_of(modules, true);
  if (!has_mixture) std::erase_if(inputs, [](const auto& input) { return input.is_mixture; });
  return inputs;
}

formats::SharedInputs shared_inputs(std::span<const MomentInput> inputs) {
  formats::SharedInputs shared;
  for (const MomentInput& input : inputs) {
    std::vector<std::string> names = {input.owner};
    for (const CalibratedModule* module : input.modules) {
      if (module->name != input.owner) names.push_back(module->name);
    }
    if (names.size() > 1) shared.push_back(std::move(names));
  }
  return shared;
}

LayerMoments::LayerMoments(std::span<const MomentInput> blocks, std::span<const MomentInput> wholes,
                           const ModelPart& part, KeyedRows* spill, std::uint64_t prior,
                           std::size_t threads)
    : prior_(prior), threads_(threads), spill_(spill) {
  for (const MomentInput& input : blocks) {
    if (input.first().part != part) continue;
    blocks_.push_back({&input, MomentSums(input.width, MomentExtent::kBlocks)});
  }
  for (const MomentInput& input : wholes) {
    if (input.first().part != part) continue;
    if (!input.is_down()) {
      wholes_.push_back({&input, MomentSums(input.width, MomentExtent::kWhole)});
      continue;
    }
    watched_downs_.emplace(Key(input.first().weight, input.first().matrix), downs_.size());
    downs_.push_back(&input);
  }
  down_tokens_.resize(downs_.size());
  for (std::vector<Sums>* all : {&blocks_, &wholes_}) {
    for (Sums& own : *all) {
      if (own.input->is_mixture) {
        mixture_ = &own.sums;
      } else {
        watched_[Key(own.input->first().weight, own.input->first().matrix)].push_back(&own.sums);
      }
    }
  }
}

void LayerMoments::see(std::string_view weight, std::size_t matrix, MatrixView<const float> x) {
  if (const auto found = watched_.find(Key(weight, matrix)); found != watched_.end()) {
    for (MomentSums* sums : found->second) sums->add(x, threads_);
  }
  const auto down = watched_downs_.find(Key(weight, matrix));
  if (down == watched_downs_.end()) return;
  INGOT_CHECK(spill_ != nullptr);
  spill_->append(down->second, x);
  down_tokens_[down->second] += x.rows;
}

void LayerMoments::see_mixture(MatrixView<const float> x) {
  if (mixture_ != nullptr) mixture_->add(x, threads_);
}

const MomentSums& LayerMoments::seen(const std::vector<Sums>& all, const Sums& own) const {
  const MomentSums* best = &own.sums;
  for (const Sums& other : all) {
    const bool is_twin = std::ranges::any_of(other.input->modules, [&](const auto* module) {
      return is_twin_of_indexer(own.input->first(), *module);
    });
    if (is_twin && other.sums.tokens() > best->tokens()) best = &other.sums;
  }
  return *best;
}

void LayerMoments::write_blocks(PlannedFile& file) const {
  std::map<Role, MomentSums> pooled;
  for (const Sums& own : blocks_) {
    if (!own.input->first().expert) continue;
    const auto [all, is_new] = pooled.try_emplace(own.input->first().role, own.sums);
    if (!is_new) all->second.include(own.sums);
  }
  for (const Sums& own : blocks_) {
    const MomentSums& sums = seen(blocks_, own);
    const std::string& module = own.input->owner;
    const MomentSums* all = of_all(pooled, *own.input);
    if (sums.tokens() == 0 && (all == nullptr || all->tokens() == 0)) {
      throw Error(ErrorCode::kUnsupported, "saw no input, although its layer ran")
          .in_tensor(module);
    }
    const Shares shares = shares_of(sums, all, prior_);
    std::vector<float> values;
    values.reserve(sums.width() * kBlock);
    for (std::size_t first = 0; first < sums.width(); first += kBlock) {
      for (std::size_t i = first; i < first + kBlock; ++i) {
        for (std::size_t j = first; j < first + kBlock; ++j) {
          const double of_all = all == nullptr ? 0 : shares.all * all->at(i, j);
          values.push_back(rounded(module, shares.own * sums.at(i, j) + of_all));
        }
      }
    }
    file.put(fmt::format("{}{}", module, formats::kInputBlockMoments),
             std::as_bytes(std::span(values)));
  }
}

bool LayerMoments::is_seen(std::size_t down) const {
  return down_tokens_[down] > 0;
}

std::vector<formats::TensorSpec> LayerMoments::whole_tensors() const {
  std::vector<formats::TensorSpec> tensors;
  const auto add = [&](const MomentInput& input) {
    tensors.push_back({.name = fmt::format("{}{}", input.owner, formats::kInputMoments),
                       .dtype = formats::DType::kF32,
                       .shape = {input.width, input.width}});
  };
  for (const Sums& own : wholes_) {
    if (seen(wholes_, own).tokens() > 0) add(*own.input);
  }
  for (std::size_t i = 0; i < downs_.size(); ++i) {
    if (is_seen(i)) add(*downs_[i]);
  }
  return tensors;
}

void LayerMoments::write_whole(const MomentInput& input, const MomentSums& sums,
                               PlannedFile& file) const {
  const std::size_t width = input.width;
  const double share = 1 / static_cast<double>(sums.tokens());
  const std::string name = fmt::format("{}{}", input.owner, formats::kInputMoments);
  for (std::size_t first = 0; first < width; first += kRowsAtOnce) {
    inference::Matrix rows(std::min(kRowsAtOnce, width - first), width);
    parallel_for(rows.rows(), threads_, [&](std::size_t r) {
      for (std::size_t c = 0; c < width; ++c)
        rows.row(r)[c] = rounded(input.owner, share * sums.at(first + r, c));
    });
    file.put(name, std::as_bytes(rows.values()), first * width * sizeof(float));
  }
}

// Each expert's own pass over what its down projection was given.
void LayerMoments::write_wholes(PlannedFile& file) const {
  for (const Sums& own : wholes_) {
    const MomentSums& sums = seen(wholes_, own);
    if (sums.tokens() > 0) write_whole(*own.input, sums, file);
  }
  if (downs_.empty()) return;
  MomentSums sums(downs_.front()->width, MomentExtent::kWhole);
  for (std::size_t i = 0; i < downs_.size(); ++i) {
    if (!is_seen(i)) continue;
    if (downs_[i]->width != sums.width()) sums = MomentSums(downs_[i]->width, MomentExtent::kWhole);
    sums.clear();
    spill_->read(i, [&](MatrixView<const float> rows) { sums.add(rows, threads_); });
    write_whole(*downs_[i], sums, file);
  }
}

std::uint64_t LayerMoments::memory(std::span<const MomentInput> blocks,
                                   std::span<const MomentInput> wholes, const ModelPart& part) {
  std::uint64_t n_bytes = 0, scratch = 0, widest_down = 0, widest_block = 0;
  for (const MomentInput& input : blocks) {
    if (input.first().part != part) continue;
    const std::uint64_t own = MomentSums::memory(input.width, MomentExtent::kBlocks);
    n_bytes += own;
    widest_block = std::max(widest_block, own);
    scratch = std::max(scratch, MomentSums::scratch(input.width));
  }
  for (const MomentInput& input : wholes) {
    if (input.first().part != part) continue;
    scratch = std::max(scratch, MomentSums::scratch(input.width) +
                                    (kKeyedRowsAtOnce + kRowsAtOnce) * input.width * sizeof(float));
    const std::uint64_t own = MomentSums::memory(input.width, MomentExtent::kWhole);
    if (input.is_down()) {
      widest_down = std::max(widest_down, own);
    } else {
      n_bytes += own;
    }
  }
  // Sums over all experts of two roles, and the values of a module.
  return n_bytes + scratch + widest_down + 3 * widest_block;
}

}  // namespace ingot::verify
