#include <map>
#include <string>

#include <fmt/format.h>

#include "check/rules/loader_rule_values.h"

// Weights that a loader makes one module of must agree.

namespace ingot::formats::rule_bodies {
namespace {

/// The name of the module above the one that holds the weight.
std::string parent_of(const LogicalTensor& tensor) {
  const std::size_t last = tensor.name.rfind('.');
  const std::size_t module = last == std::string::npos ? last : tensor.name.rfind('.', last - 1);
  return module == std::string::npos ? std::string() : tensor.name.substr(0, module);
}

std::string_view fused_name(Fuse fuse) {
  switch (fuse) {
    case Fuse::kQaKva:
      return "/qkv_a";
    case Fuse::kGateUp:
      return "/gate_up";
    case Fuse::kQkv:
      return "/qkv";
    default:
      return {};
  }
}

}  // namespace

std::string fused_module(const LogicalTensor& tensor) {
  std::string parent = parent_of(tensor);
  switch (tensor.rule->role) {
    case Role::kAttentionBias:
      return {};  // added, never multiplied: it stays plain
    case Role::kExpertGate:
    case Role::kExpertUp:
      return parent.substr(0, parent.rfind('.')) + "/w13";
    case Role::kExpertDown:
      return parent.substr(0, parent.rfind('.')) + "/w2";
    default:
      break;
  }
  const std::string_view name = fused_name(tensor.rule->fuse);
  return name.empty() ? std::string() : parent.append(name);
}

void fused_scheme(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  std::map<std::string, const LogicalTensor*> first_of;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr) continue;
    const std::string module = fused_module(tensor);
    if (module.empty()) continue;
    const LogicalTensor* first = first_of.try_emplace(module, &tensor).first->second;
    if (first->encoding.scheme == tensor.encoding.scheme) continue;
    report(violation(ErrorCode::kMismatch,
                     checkpoint.files()[codes_of(checkpoint, tensor).file].name, tensor.name,
                     fmt::format("is {}, but is fused with '{}', which is {}",
                                 scheme_facts(tensor.encoding.scheme).name, first->name,
                                 scheme_facts(first->encoding.scheme).name)));
  }
}

void fused_global(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  struct Member {
    const LogicalTensor* tensor;
    float global;
  };
  std::map<std::string, Member> first_of;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || tensor.encoding.scheme != SchemeId::kNvfp4) continue;
    const std::string_view name = fused_name(tensor.rule->fuse);
    const StoredTensor* stored = part_of(checkpoint, tensor, Part::kGlobal);
    if (name.empty() || stored == nullptr) continue;
    const std::optional<float> global = first_scale(checkpoint, *stored);
    if (!global || is_bad_scale(*global)) continue;  // nvfp4.global-values has said so
    // Of experts each has its own: the module above is the expert.
    const auto [first, is_new] =
        first_of.try_emplace(parent_of(tensor).append(name), Member{&tensor, *global});
    if (is_new || first->second.global == *global) continue;
    report(at(checkpoint, *stored, ErrorCode::kMismatch,
              fmt::format("is {}, that of '{}', with which it is fused, is {}: loaders keep one of "
                          "them for both (quantize them together)",
                          *global, first->second.tensor->name, first->second.global)));
  }
}

void indexer_k_scheme(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || tensor.rule->role != Role::kIndexerK) continue;
    const SchemeId scheme = tensor.encoding.scheme;
    if (scheme == SchemeId::kFp8Block || scheme == SchemeId::kBf16) continue;
    found.add(tensor.rule,
              at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMismatch,
                 fmt::format("is {}; joined with weights_proj it must be fp8-block or bf16",
                             scheme_facts(scheme).name)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
