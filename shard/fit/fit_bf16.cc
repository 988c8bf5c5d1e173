#include <optional>
#include <set>
#include <utility>

#include "shard/fit/fit_modes.h"

namespace ingot::shard {

using formats::Fuse;
using formats::Role;

namespace {

/// Modules of a layer that loaders build from several weights, which must be quantized alike.
enum class Fused : std::uint8_t { kExperts, kSharedGateUp, kDenseGateUp, kQkv, kQkvA };
using FusedModule = std::pair<std::uint32_t, Fused>;  // of a layer

std::optional<FusedModule> fused_module(const formats::LogicalTensor& tensor) {
  if (tensor.rule == nullptr || !tensor.layer) return std::nullopt;
  const auto of_layer = [&](Fused fused) { return FusedModule{*tensor.layer, fused}; };
  switch (tensor.rule->role) {
    case Role::kExpertGate:
    case Role::kExpertUp:
    case Role::kExpertDown:
    case Role::kExpertsGateUp:
    case Role::kExpertsDown:
      return of_layer(Fused::kExperts);
    case Role::kSharedGate:
    case Role::kSharedUp:
      return of_layer(Fused::kSharedGateUp);
    case Role::kDenseGate:
    case Role::kDenseUp:
      return of_layer(Fused::kDenseGateUp);
    default:
      break;
  }
  if (tensor.rule->fuse == Fuse::kQkv) return of_layer(Fused::kQkv);
  if (tensor.rule->fuse == Fuse::kQaKva) return of_layer(Fused::kQkvA);
  return std::nullopt;
}

}  // namespace

void fit_by_casting(std::span<const TensorToFit> tensors, Fits& fits, FitRefusals& refusals) {
  const auto is_quantized = [](const TensorToFit& tensor) {
    return formats::scheme_facts(tensor.scheme).quantized;
  };
  std::set<FusedModule> cast;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const CutNeed need = need_of(tensors[i]);
    if (need.fits()) continue;
    if (!need.divides() || !is_quantized(tensors[i])) {
      refusals.add(tensors[i]);
      continue;
    }
    fits.tensors[i].to_bf16 = true;
    if (const auto module = fused_module(*tensors[i].tensor)) cast.insert(*module);
  }
  if (cast.empty()) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_quantized(tensors[i])) continue;
    const auto module = fused_module(*tensors[i].tensor);
    if (module && cast.contains(*module)) fits.tensors[i].to_bf16 = true;
  }
}

}  // namespace ingot::shard
