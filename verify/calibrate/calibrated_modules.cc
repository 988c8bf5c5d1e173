#include "verify/calibrate/calibrated_modules.h"

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/dialect.h"
#include "formats/family/family.h"

namespace ingot::verify {
namespace {

using formats::LogicalTensor;

bool is_measured(formats::Role role) {
  using enum formats::Role;
  switch (role) {
    case kQProj:
    case kKProj:
    case kVProj:
    case kQaProj:
    case kQbProj:
    case kKvaProj:
    case kKvbProj:
    case kOProj:
    case kIndexerQ:
    case kIndexerK:
    case kDenseGate:
    case kDenseUp:
    case kDenseDown:
    case kExpertGate:
    case kExpertUp:
    case kExpertDown:
    case kExpertsGateUp:
    case kExpertsDown:
    case kSharedGate:
    case kSharedUp:
    case kSharedDown:
    case kMtpProj:
    case kMtpHead:
    case kHead:
      return true;
    default:
      return false;
  }
}

// The module of one matrix in a stack: `...mlp.experts.17.down_proj` of `...mlp.experts.down_proj`.
std::string expert_module(std::string_view stack, std::uint32_t expert) {
  const std::size_t dot = stack.rfind('.');
  INGOT_CHECK(dot != std::string_view::npos);
  return fmt::format("{}.{}{}", stack.substr(0, dot), expert, stack.substr(dot));
}

// Only the first of several MTP layers is run.
bool is_run(const LogicalTensor& tensor, const inference::ModelSpec& spec) {
  return !tensor.layer || *tensor.layer <= spec.layers;
}

}  // namespace

std::vector<CalibratedModule> calibrated_modules(const formats::Checkpoint& source,
                                                 const inference::ModelSpec& spec) {
  std::vector<CalibratedModule> modules;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.rule == nullptr || !is_measured(tensor.rule->role) || !is_run(tensor, spec))
      continue;
    CalibratedModule module{.name = std::string(formats::module_name(tensor.name)),
                            .weight = tensor.name,
                            .width = static_cast<std::size_t>(tensor.shape.back()),
                            .role = tensor.rule->role,
                            .layer = tensor.layer,
                            .expert = tensor.expert};
    if (tensor.shape.size() < 3) {
      modules.push_back(std::move(module));
      continue;
    }
    const std::string stack = module.name;
    for (std::uint32_t expert = 0; expert < tensor.shape.front(); ++expert) {
      module.name = expert_module(stack, expert);
      module.matrix = expert;
      module.expert = expert;
      modules.push_back(module);
    }
  }
  return modules;
}

}  // namespace ingot::verify
