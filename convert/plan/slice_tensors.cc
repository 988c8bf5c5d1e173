
#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/base/error.h"
#include "formats/config/routing.h"
#include "formats/json/json.h"

namespace ingot::convert {

using formats::LogicalTensor;
using formats::SchemeId;

namespace {

shard::ExpertMap expert_map(const Plan& plan) {
  const SlicingOptions& options = plan.options.slicing;
  const formats::ModelConfig& config = plan.source.config();
  const auto n_experts = static_cast<std::uint32_t>(config.n_routed_experts);
  if (formats::has_uneven_experts(config) && options.topology.ep > 1)
    throw Error(ErrorCode::kUnsupported,
                "its layers have different numbers of experts, which --ep cannot share out (--tp)")
        .in_file(plan.source.directory().string());
  if (options.expert_map.empty())
    return shard::ExpertMap::contiguous(n_experts, options.topology.ep);
  return shard::ExpertMap::parse(options.expert_map, options.expert_map_where,
                                 {.n_experts = n_experts,
                                  .has_shared = config.n_shared_experts > 0,
                                  .ep = options.topology.ep,
                                  .layers = shard::layers_with_experts(plan.source),
                                  .allow_redundant = options.redundant_experts,
                                  .allow_uneven = options.uneven_experts});
}

// Bytes that each tensor takes in the output, near enough to balance stages by.
std::vector<std::uint64_t> output_bytes(const Plan& plan) {
  std::vector<std::uint64_t> n_bytes(plan.source.tensors().size(), 0);
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const formats::SchemeFacts& facts = formats::scheme_facts(planned.to);
    n_bytes[planned.tensor] = facts.code_bits == 0
                                  ? plan.source.stored()[tensor.encoding.stored.weight()].n_bytes
                                  : *formats::element_count(tensor.shape) * facts.code_bits / 8;
  }
  return n_bytes;
}

// True if the output has scales with more dimensions than their weight.
bool has_spread_scales(const Plan& plan, const PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  if (planned.storage != nullptr) {
    const formats::PartRow* row = formats::find_part_row(*planned.storage, formats::Part::kScale);
    return row != nullptr && row->shape == formats::PartShape::kSpread;
  }
  const std::uint32_t scale = tensor.encoding.stored[formats::Part::kScale];
  return planned.action == Action::kCopy && scale != formats::StoredParts::kAbsent &&
         plan.source.stored()[scale].shape.size() > tensor.shape.size();
}

void become_bf16(const LogicalTensor& tensor, PlannedTensor& planned, ErrorList& refusals) {
  const bool is_turned = tensor.stack != formats::StackOrder::kNone &&
                         formats::stack_order(*tensor.rule, false) != tensor.stack;
  if (is_turned) {
    refusals.add(ErrorCode::kUnsupported, tensor.name,
                 "cannot be cut between blocks, and as BF16 the family's stacks are transposed "
                 "(choose bf16 for them with --rule, or --experts separate)");
  }
  become_plain(tensor, planned, SchemeId::kBf16);
}

// Tensors that became BF16 leave their fused sets; sets without tensors vanish.
void renew_fused_sets(Plan& plan) {
  for (auto& set : plan.fused_sets) {
    std::erase_if(set, [&](std::uint32_t index) {
      return plan.tensors[index].fused_set == PlannedTensor::kNone;
    });
  }
  std::erase_if(plan.fused_sets, [](const auto& set) { return set.empty(); });
  for (std::uint32_t set = 0; set < plan.fused_sets.size(); ++set) {
    for (const std::uint32_t index : plan.fused_sets[set]) plan.tensors[index].fused_set = set;
  }
}

}  // namespace

void become_plain(const LogicalTensor& tensor, PlannedTensor& planned, SchemeId scheme) {
  planned.to = scheme;
  const bool is_same = tensor.encoding.scheme == scheme && !planned.is_changed;
  planned.action = is_same ? Action::kCopy : Action::kCast;
  planned.storage = nullptr;
  planned.block = {0, 0};
  planned.fused_set = PlannedTensor::kNone;
  planned.scales = PlannedTensor::kNone;
  planned.adds_zero_points = false;
  planned.may_keep_codes = false;
}

void slice_tensors(Plan& plan) {
  const formats::Checkpoint& source = plan.source;
  const PlanOptions& options = plan.options;
  if (!options.layout->is_sliced) return;
  if (source.family().rules.empty() && !options.slicing.topology.is_single()) {
    throw Error(ErrorCode::kUnsupported,
                "family {} has no tensor names, so the cuts are not known (give the model's family "
                "with --family)",
                source.family().name);
  }
  plan.slicing = shard::Slicing{.topology = options.slicing.topology,
                                .experts = expert_map(plan),
                                .shared = options.slicing.shared,
                                .fit = options.slicing.fit,
                                .stages = {},
                                .layout = options.layout};
  const auto n_layers = static_cast<std::uint32_t>(source.config().num_hidden_layers);
  const std::uint32_t pp = options.slicing.topology.pp;
  const LayoutFunctions& layout = functions_of(*plan.options.layout);
  plan.slicing->stages =
      !options.slicing.stages.empty() ? shard::parse_stages(options.slicing.stages, n_layers, pp)
      : layout.stages != nullptr      ? shard::Stages{.first = layout.stages(n_layers, pp)}
                                      : shard::balanced_stages(source, output_bytes(plan), pp);
  if (layout.make_plain != nullptr) layout.make_plain(plan);
  if (layout.require_holdable != nullptr) layout.require_holdable(plan);

  std::vector<shard::TensorToAlign> to_fit;
  std::vector<std::uint32_t> items;
  std::vector<std::string> unknown;
  ErrorList faults;
  if (plan.slicing->topology.tp > 1) shard::require_one_way(source, faults);
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    PlannedTensor& planned = plan.tensors[i];
    if (planned.action == Action::kDrop) continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (tensor.is_unknown && !any_matches(plan.recipe.allow.unknown_tensor, tensor.name) &&
        !plan.slicing->topology.is_single())
      unknown.push_back(tensor.name);
    planned.cut = shard::cut_of(tensor, source.config(), *plan.slicing, faults);
    if (layout.padded_rows != nullptr)
      planned.alignment.padded[0] = layout.padded_rows(plan, planned);
    if (planned.alignment != shard::Alignment{}) continue;
    to_fit.push_back(
        {.tensor = &tensor,
         .scheme = planned.to,
         .group = scale_block_of(tensor, planned),
         .has_zero_points = has_optional_part(planned, tensor, formats::Part::kZeroPoint),
         .has_group_order = has_optional_part(planned, tensor, formats::Part::kGroupOrder),
         .cut = planned.cut});
    items.push_back(i);
  }
  if (!unknown.empty()) {
    faults.add(Error(ErrorCode::kUnsupported,
                     "{} that no row of family {} has: whether ranks share or divide it is not "
                     "known (--allow unknown-tensor=PATTERN gives each rank a copy; a row in a "
                     "--family-file says how it is cut)",
                     unknown.size() == 1 ? std::string("is a tensor")
                                         : fmt::format("is one of {} tensors", unknown.size()),
                     source.family().name)
                   .in_tensor(unknown.front()));
  }
  faults.throw_if_any();

  plan.alignments = shard::align_blocks(to_fit, source.config(), *plan.slicing);
  if (layout.require_fits != nullptr) layout.require_fits(plan);
  ErrorList refusals;
  for (std::size_t i = 0; i < items.size(); ++i) {
    PlannedTensor& planned = plan.tensors[items[i]];
    planned.alignment = plan.alignments.tensors[i];
    if (planned.alignment.to_bf16) {
      become_bf16(plan.tensor_of(planned), planned, refusals);
      planned.alignment.to_bf16 = false;
      ++plan.counts.fitted_to_bf16;
    }
    if (planned.alignment != shard::Alignment{} && has_spread_scales(plan, planned)) {
      refusals.add(ErrorCode::kUnsupported, plan.tensor_of(planned).name,
                   "has scales of blocks as ModelOpt spreads them, which are cut only between "
                   "blocks (--dialect deepseek, or another number of ranks)");
    }
  }
  refusals.throw_if_any();
  plan.alignments.tensors.clear();
  renew_fused_sets(plan);
}

formats::Json slicing_json(const PlanOptions& options) {
  if (!options.layout->is_sliced) return nullptr;
  const SlicingOptions& slicing = options.slicing;
  formats::Json json = {{"layout", std::string(options.layout->name)},
                        {"tp", slicing.topology.tp},
                        {"ep", slicing.topology.ep},
                        {"etp", slicing.topology.etp},
                        {"pp", slicing.topology.pp},
                        {"shared_experts", std::string(shard::shared_experts_name(slicing.shared))},
                        {"tp_fit", std::string(shard::tp_fit_name(slicing.fit))},
                        {"links", options.links}};
  if (!slicing.expert_map.empty()) {
    json["expert_map"] = formats::parse_json(slicing.expert_map, slicing.expert_map_where);
    json["redundant_experts"] = slicing.redundant_experts;
    json["uneven_experts"] = slicing.uneven_experts;
  }
  if (!slicing.stages.empty()) json["stages"] = slicing.stages;
  return json;
}

}  // namespace ingot::convert
